"""``bench selftest``: injure targets on purpose, and see whether the suite finds it.

Its runs, one for each scenario in which an injury shows, are planned as ``bench run`` plans them.
"""

import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import click

from analysis.report.terminal import Terminal
from analysis.selftest.judging import certificate_document, judge
from commands.paths import UserPath
from commands.run.options import choice, number
from commands.run.prepare import Ready, host_environment, observing, ready
from provisioning import doctor, ledger, neighbours
from provisioning.doctor import Check
from provisioning.hindrances import hindrances
from provisioning.lab.shaping import choose_limiter
from provisioning.metrics.accounting import open_account
from provisioning.nodes import local_node
from provisioning.paths import home
from suite.errors import RequestError
from suite.interfaces import Note, Observer
from suite.job.ablations import properties_of
from suite.loop import Loop
from suite.plan import Trial
from suite.registries import ENGINES, INJURIES
from suite.request.repetitions import MARGIN
from suite.request.request import RunRequest
from suite.results.layout import results_directory
from suite.results.store import Run, new_run_directory, write_output
from suite.selftest.certificate import FILE, Absent, Certificate, CertifiedMachine
from suite.selftest.injuries import DISTRIBUTED, SYNTHETIC, UNINJURED, get_injury, injuries_of
from suite.sweep.estimate import SOURCES, durations_below
from suite.targets import TARGETS, VMS
from suite.units import count, format_duration
from suite.untrusted.console import PlainConsole
from suite.version import suite_version

LEAST_BLOCKS = 2
KINDS = tuple(name for name in INJURIES if name != UNINJURED)
COMMON: Mapping[str, object] = {"model": ("resnet50",), "profile": "smoke"}
RUNS: Mapping[str, Mapping[str, object]] = {
    SYNTHETIC: {"steps": 30, "warmup_steps": 5},
    DISTRIBUTED: {"steps": 4, "warmup_steps": 1, "workers": 1},
}
"""The options of each run beside the common ones: as short as an effect of 5 % on one CPU allows."""
FEW_BLOCKS = 3
"""The blocks that are enough for a link that is some times slower, of which a trial takes long."""
EMULATED: Mapping[str, Mapping[str, object]] = {
    SYNTHETIC: {"model": ("gan",), "steps": 10, "warmup_steps": 3},
}
"""The options that replace these where the CPU of a VM is emulated: a step takes 20 s there, and one of a GAN 4 s."""


@dataclass(frozen=True)
class Prepared:
    """The plan of a self-test: a run by scenario, and the injuries that cannot be done, with the reasons."""

    runs: Mapping[str, Ready]
    absent: tuple[Absent, ...]


@click.command()
@click.option(
    "--target",
    "targets",
    multiple=True,
    callback=choice([*TARGETS, "all"]),
    help=f"Targets to injure: {', '.join(TARGETS)} or all. Repeatable. Default: bare-metal and container.",
)
@click.option("--engine", help=f"Container engine: {', '.join(ENGINES.own)}. Default: the first that works.")
@click.option(
    "--injury",
    "injuries",
    multiple=True,
    callback=choice([*KINDS, "all"]),
    help=f"Injuries: {', '.join(KINDS)}. Repeatable. Default: all.",
)
@number(
    "--blocks",
    default=10,
    show_default=True,
    help="Blocks per injury. Injuries that slow a job several-fold run at most 3.",
)
@click.option("--cpus", default="1", show_default=True, help="Number of CPUs, or a list such as 3-3. One is best.")
@click.option("--out", type=UserPath(), help="Output directory. An interrupted self-test there continues.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def selftest(
    targets: tuple[str, ...],
    engine: str | None,
    injuries: tuple[str, ...],
    blocks: int,
    cpus: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Certify which known slowdowns the suite detects here.

    Injuries are a CPU quota, late steps, late batches, held memory and slow links; one arm is left unharmed.
    The suite must detect size, phase and verdict of each, and nothing in the unharmed arm. Exit code 1 if it detects
    less than 90 % of those that it can judge.

    \b
    Examples:
      bench selftest
      bench selftest --target container --engine podman --blocks 20
      bench selftest --target bare-metal --injury cpu-quota-10 --injury late-steps
      bench selftest --out results/control         (again after Ctrl-C: continues)
    """
    if blocks < LEAST_BLOCKS:
        raise RequestError(f"--blocks {blocks}: an interval takes two blocks", remedy=f"give {LEAST_BLOCKS} or more")
    targets = _targets(targets)
    options: dict[str, object] = {"target": targets, "cpus": cpus}
    if engine:
        options["engine"] = engine
    directory = out or new_run_directory()
    with observing() as observer:
        planned = prepared(options, blocks, _kinds(injuries), observer.note)
        _forecast(planned, observer.note)
        for scenario, run in planned.runs.items():
            measure(run, Run(directory / scenario), observer)
    certificate = _certificate(planned, directory, targets, blocks)
    text = certificate.model_dump_json(indent=1) + "\n"
    for path in (directory / FILE, home() / FILE):
        write_output(path, text)
    if as_json:
        click.echo(text.rstrip("\n"))
    else:
        _show(certificate, directory)
    if not certificate.passed:
        sys.exit(1)


def _targets(names: tuple[str, ...]) -> tuple[str, ...]:
    if "all" in names:
        return TARGETS
    return tuple(dict.fromkeys(names)) or ("bare-metal", "container")


def _kinds(names: tuple[str, ...]) -> tuple[str, ...]:
    if "all" in names:
        return KINDS
    return tuple(dict.fromkeys(names)) or KINDS


def _show(certificate: Certificate, directory: Path) -> None:
    PlainConsole().print(Terminal(certificate_document(certificate)))
    click.echo(f"certificate: {directory / FILE}", err=True)


def prepared(chosen: Mapping[str, object], blocks: int, names: Sequence[str], note: Note) -> Prepared:
    """Plan the runs of the injuries. Raises RequestError if none of them can be done."""
    note("checking this machine")
    checks = doctor.examine({str(chosen.get("engine"))})
    runs: dict[str, Ready] = {}
    absent: list[Absent] = []
    errors: list[RequestError] = []
    for scenario, options in RUNS.items():
        wanted = injuries_of(scenario, names)
        if not wanted:
            continue
        repeated = blocks if scenario == SYNTHETIC else min(blocks, FEW_BLOCKS)
        request = {
            "scenario": scenario,
            "blocks": repeated,
            "warmup_blocks": 0,
            **COMMON,
            **options,
            **chosen,
        }
        try:
            planned = _run(request, wanted, note, checks)
        except RequestError as error:
            errors.append(error)
            changing = [name for name in wanted if get_injury(name).changes]
            absent += [_absent(name, (), error.with_remedy) for name in changing]
            continue
        absent += planned.absent
        runs |= planned.runs
    if not runs and errors:
        raise errors[0]
    if not runs:
        reasons = "; ".join(f"{injury.injury}: {injury.reason}" for injury in absent)
        raise RequestError(reasons, remedy="choose another --injury or --target")
    return Prepared(runs, tuple(absent))


def emulated(run: Ready) -> bool:
    return run.site.choices.accelerator == "tcg" and bool(VMS.intersection(run.plan.targets))


def _run(request: Mapping[str, object], wanted: Sequence[str], note: Note, checks: Sequence[Check]) -> Prepared:
    """Return the run of one scenario, without the injuries that cannot be done in it."""
    run = ready(RunRequest.of(dict(request)), note, checks)
    if emulated(run):
        fewer = EMULATED.get(str(request["scenario"]), {})
        run = ready(RunRequest.of({**request, **fewer}), lambda _already_noted: None, checks)
    kept = []
    absent = []
    for name in wanted:
        injury = get_injury(name)
        missing = tuple(target for target in run.plan.targets if target not in injury.targets)
        if missing:
            absent.append(_absent(name, missing, "no counter of this machine shows how large it is there"))
        if len(missing) == len(run.plan.targets):
            continue
        reason = _hindrance(name, run) if injury.changes else None
        if reason:
            absent.append(_absent(name, (), reason))
        else:
            kept.append(name)
    if not any(get_injury(name).changes for name in kept):
        return Prepared({}, tuple(absent))
    plan = run.plan.model_copy(update={"ablations": tuple(kept)})
    return Prepared({plan.job.scenario: replace(run, plan=plan)}, tuple(absent))


def _hindrance(name: str, run: Ready) -> str | None:
    """Return why an injury cannot be done here; None if it can."""
    properties = properties_of(name)
    distributed = run.plan.job.distributed
    if properties.link and distributed and distributed.lab:
        try:
            with local_node((), None) as node:
                choose_limiter(node, distributed.lab.model_copy(update=properties.link))
        except RequestError as error:
            return error.message
    return next(hindrances(properties, run.site, run.plan.job.recipe), None)


def _absent(name: str, targets: tuple[str, ...], reason: str) -> Absent:
    return Absent(injury=name, targets=targets, reason=reason)


def _forecast(planned: Prepared, note: Note) -> None:
    """Note what cannot be done, and about how long the rest takes."""
    for injury in planned.absent:
        note(f"{injury.name} is left out: {injury.reason}")
    trials: list[Trial] = []
    for run in planned.runs.values():
        trials += run.plan.trials()
    durations = durations_below(results_directory())
    estimate = durations.guess(*trials)
    counted = count(len(trials), "trial")
    note(f"{counted}, about {format_duration(estimate.seconds)}, {SOURCES[estimate.source]}")


def measure(run: Ready, store: Run, observer: Observer) -> None:
    """Measure all trials of the plan into the store, or continue with them. Raises BenchError."""
    run = run.prepare(observer.note)
    loop = Loop(run.scenario, run.open_target, store, observer, host_environment, open_account)
    noted = ledger.holding("run-directory", str(store.directory.absolute()))
    with neighbours.alone_on(run.plan.job.envelope.cpus, observer.note), store.exclusive(), noted, store.sealed():
        loop.run(run.plan)


def _certificate(planned: Prepared, directory: Path, targets: tuple[str, ...], blocks: int) -> Certificate:
    judged = [judge(directory / scenario) for scenario in planned.runs]
    smallest: dict[str, float] = {}
    for judgement in reversed(judged):
        smallest |= judgement.smallest  # that of the synthetic job counts, which is there first
    first = next(iter(planned.runs.values()))
    choices = first.site.choices
    host = host_environment()
    now = datetime.datetime.now(datetime.UTC)
    findings = [judgement.findings for judgement in judged]
    return Certificate(
        suite_version=suite_version(),
        made_at=now.isoformat(timespec="seconds"),
        directory=str(directory.absolute()),
        machine=CertifiedMachine(
            hostname=host.hostname,
            machine_id=host.machine_id,
            cpu_model=host.cpu_model,
            kernel=host.kernel,
            image=choices.image.digest,
        ),
        targets=targets,
        engine=choices.engine,
        blocks=blocks,
        margin=MARGIN,
        findings=tuple(chain.from_iterable(findings)),
        absent=planned.absent,
        smallest=smallest,
    )
