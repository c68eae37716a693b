"""The command ``bench``: wires the rooms to each other, and turns errors into messages and exit codes."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from suite import __version__
from suite.errors import BenchError, RequestError
from suite.plan import BASELINE, TARGETS, Plan
from suite.profiles import MODELS, PROFILES, get_profile, make_workload
from suite.store import RESULTS, Run, latest_run, new_run_directory

if TYPE_CHECKING:
    from analysis.load import Records
    from analysis.results import Comparison
    from provisioning.doctor import Check
    from provisioning.targets import Choices
    from suite.progress import Display, Lines
    from suite.records import Environment

INTERRUPTED = 130
F = TypeVar("F", bound=Callable[..., object])

EPILOG = """\b
Exit codes: 0 done; 1 a measurement failed; 2 the request was wrong; 130 interrupted.
"""


class Edge(click.Group):
    """The one place where an error becomes a message: what, where, what to do next.

    With ``VIRTBENCH_DEBUG`` set the traceback is shown.
    """

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 (as click has it)
        try:
            return super().invoke(ctx)
        except BenchError as error:
            if os.environ.get("VIRTBENCH_DEBUG"):
                raise
            _complain(error)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted: everything started is ended; what was measured is kept", err=True)
            ctx.exit(INTERRUPTED)


def _complain(error: BenchError) -> None:
    click.echo(f"bench: {error.message}", err=True)
    if tail := getattr(error, "output_tail", ""):
        click.echo(tail.rstrip()[-3000:], err=True)
    if error.remedy:
        click.echo(f"  what to do: {error.remedy}", err=True)


@click.group(cls=Edge, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bench")
def main() -> None:
    """Measure what virtualisation costs deep-learning training.

    The same training runs on bare metal, in a container, in a virtual machine, and in a container inside a virtual
    machine; the numbers are normalised to bare metal.

    \b
    Examples:
      bench doctor                                   what this machine can carry
      bench image build                              the userland that all targets run
      bench run --target all --profile smoke         measure
      bench compare                                  tables and plots of the latest run
    """
    _end_in_order_on_signals()


def _end_in_order_on_signals() -> None:
    """SIGTERM ends a run as Ctrl-C does; what comes while it cleans up does not stop the cleaning."""

    def interrupt(number: int, _frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, lambda *_: click.echo("cleaning up, one moment", err=True))
        raise KeyboardInterrupt(number)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, interrupt)


# ---------------------------------------------------------------------------------------------------------------- run


def _choice(known: Sequence[str], *, several: bool = False) -> Callable[..., object]:
    """A callback that refuses an unknown name with the nearest known one."""

    def check(_ctx: click.Context, _param: click.Parameter, value: object) -> object:
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            if each is not None and each not in known and not (several and each == "all"):
                raise RequestError(
                    f"{_param.opts[0]} {each!r} is unknown", remedy=_nearest(str(each), [*known, *["all"] * several])
                )
        if several and "all" in values:
            return tuple(known)
        return tuple(dict.fromkeys(values)) if several else value

    return check


def _nearest(word: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"choose among {', '.join(known)}"


def _positive(_ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    least = 0 if param.name in ("warmup_steps", "seed") else 1
    if value is not None and value < least:
        raise RequestError(f"--{str(param.name).replace('_', '-')} {value}", remedy=f"give a number from {least} up")
    return value


def _shares(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    from suite.units import parse_share

    return None if value is None else parse_share(value)


def _duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    from suite.units import parse_duration_s

    return None if value is None else parse_duration_s(value)


def _number(*names: str, help: str) -> Callable[[F], F]:  # noqa: A002 (click's word)
    return click.option(*names, type=int, callback=_positive, help=help)


ENGINE_NAMES = ("docker", "podman", "runc")
SCENARIO_NAMES = ("synthetic",)


@main.command()
@click.option("--scenario", default="synthetic", callback=_choice(SCENARIO_NAMES), show_default=True)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("all",),
    callback=_choice(TARGETS, several=True),
    help="bare-metal, container, vm, container-vm, or all that this machine can carry. Repeatable.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("resnet50",),
    callback=_choice(MODELS, several=True),
    show_default=True,
    help="inception_v3, resnet50, alexnet, or all. Repeatable.",
)
@click.option(
    "--profile",
    default="quick",
    callback=_choice(tuple(PROFILES)),
    show_default=True,
    help="; ".join(f"{name}: {profile.summary}" for name, profile in PROFILES.items()),
)
@click.option(
    "--recipe",
    default="reference",
    callback=_choice(("reference", "tuned")),
    show_default=True,
    help="reference: fp32, eager, torch's defaults. tuned: bf16, channels-last, an allocator that keeps memory.",
)
@click.option("--engine", callback=_choice(ENGINE_NAMES), help="docker, podman or runc. Default: the first that works.")
@click.option(
    "--accel",
    default="auto",
    callback=_choice(("auto", "kvm", "tcg")),
    show_default=True,
    help="Of the VMs. auto: kvm where a guest really boots under it, else tcg (emulation).",
)
@click.option(
    "--isa",
    default="shared",
    callback=_choice(("shared", "native")),
    show_default=True,
    help="Vector instructions. shared: all targets are capped to what all of them have. native: each uses what it has.",
)
@click.option("--cpus", help="How many (2), or which (0-1,4). Default: all that this process may use.")
@click.option("--memory", help="Of every target, such as 4G. Default: the profile's.")
@_number("--threads", help="Of the training. Default: one per CPU.")
@_number("--blocks", "--repeat", "blocks", help="How many times every target is measured, in random order. Default: 1.")
@click.option(
    "--until",
    callback=_shares,
    help="Go on, block by block, until every 95 % interval is within plus or minus this: 2%.",
)
@_number("--min-blocks", help="With --until: at least so many.")
@_number("--max-blocks", help="With --until: at most so many. Default: 100.")
@click.option("--budget", "budget_s", callback=_duration, help="With --until: begin no new block after this time: 30m.")
@click.option("--aa", is_flag=True, help="Measure bare metal twice in every block: shows what is only noise.")
@_number("--seed", help="Of the order and of the data. Default: 0.")
@_number("--batch", help="Images per step and device.")
@_number("--image-px", help="Width and height of the images.")
@_number("--steps", help="Measured steps.")
@_number("--warmup-steps", help="Steps before them.")
@_number("--trial-timeout", help="Seconds after which a job is given up.")
@click.option("--device", default="cpu", callback=_choice(("cpu", "cuda")), show_default=True)
@_number("--devices", help="GPUs of one job (with --device cuda). Default: 1.")
@click.option(
    "--parallel",
    default="none",
    callback=_choice(("none", "parameter-cpu", "ddp")),
    show_default=True,
    help="Several devices: variables on the CPU (the paper's Table 1), or DistributedDataParallel.",
)
@click.option("--gpus", help="GPUs for containers and bare metal, by index: 0,1.")
@click.option("--vfio", help="GPUs for VMs, by PCI address: 0000:01:00.0,0000:02:00.0.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory of the run. An interrupted run there continues."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
def run(**options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Run a scenario on targets and record every trial.

    \b
    Examples:
      bench run --target all --profile smoke
      bench run --scenario synthetic --target container-vm --model resnet50 --profile smoke
      bench run --target bare-metal --target container --model all --repeat 10 --engine podman
      bench run --target all --aa --until 2% --budget 2h
      bench run --target all --out results/night         (again after Ctrl-C: continues)
    """
    from provisioning import ledger
    from provisioning.accounting import open_account
    from provisioning.doctor import examine
    from provisioning.targets import open_target
    from scenarios.registry import get_scenario
    from suite import loop

    with _observer() as observer:
        observer.note("checking this machine")
        checks = examine()
        targets = _carried(options["targets"], checks, observer.note)
        choices = _choices(options, checks, targets, observer.note)
        plan = _plan(options, targets, choices, observer.note)
        store = Run(options["out"] or new_run_directory())
        scenario = get_scenario(options["scenario"])(
            device=options["device"], devices=options["devices"] or 1, parallel=options["parallel"]
        )
        with store.exclusive(), ledger.holding("run-directory", str(store.directory.absolute())):
            records = []
            for step in _steps(plan, options, store, observer.note):
                records += loop.run(
                    step,
                    scenario,
                    lambda trial: open_target(trial, choices),
                    store,
                    observer,
                    _host_environment,
                    open_account,
                )
    failed = [record.trial_id for record in records if record.outcome.status == "failed"]
    if options["as_json"]:
        click.echo(
            json.dumps(
                {
                    "run_id": store.run_id,
                    "directory": str(store.directory),
                    "trials": [record.trial_id for record in records],
                    "failed": failed,
                }
            )
        )
    else:
        click.echo(f"{len(records) - len(failed)} trials measured, {len(failed)} failed: {store.directory}", err=True)
        click.echo(f"see them with: bench compare {store.directory}", err=True)
    if failed:
        sys.exit(1)


def _steps(plan: Plan, options: dict[str, Any], store: Run, note: Callable[[str], None]) -> Iterator[Plan]:
    """The plan as it is, or with ``--until`` block after block of it until the intervals are narrow enough."""
    if options["until"] is None:
        yield plan
        return
    import time

    from analysis.load import load
    from analysis.sequential import LEAST_BLOCKS, should_stop_run

    least, most = options["min_blocks"] or LEAST_BLOCKS, options["max_blocks"] or 100
    if least > most:
        raise RequestError(f"--min-blocks {least} is above --max-blocks {most}", remedy="exchange them")
    deadline = time.monotonic() + options["budget_s"] if options["budget_s"] else None
    for blocks in range(1, most + 1):
        yield plan.model_copy(update={"blocks": blocks})
        if deadline is not None and time.monotonic() > deadline:
            note(f"stopped after {blocks} blocks: the budget of {options['budget_s']:.0f} s is spent")
            return
        decision = should_stop_run(load([store.directory]), options["until"], min_blocks=least, max_blocks=most)
        if decision.stop:
            note(f"stopped after {blocks} blocks: {decision.reason}")
            return


@contextmanager
def _observer() -> "Iterator[Lines | Display]":
    from rich.console import Console

    from suite.progress import Display, Lines

    observer = Display(Console(stderr=True)) if sys.stderr.isatty() else Lines(sys.stderr)
    try:
        yield observer
    finally:
        observer.close()


def _carried(targets: tuple[str, ...], checks: "list[Check]", note: Callable[[str], None]) -> tuple[str, ...]:
    """The targets that this machine carries. One that was named is refused if it is not; of ``all`` it is left out."""
    by_name = {check.name: check for check in checks if check.kind == "target"}
    everything = set(targets) == set(TARGETS)
    carried = []
    for target in targets:
        check = by_name[target]
        if check.usable:
            carried.append(target)
        elif everything and any(by_name[other].usable for other in TARGETS):
            note(f"{target} is left out: {check.reason} (what to do: {check.remedy})")
        else:
            raise RequestError(f"this machine cannot carry {target}: {check.reason}", remedy=check.remedy)
    return tuple(carried)


def _choices(
    options: dict[str, Any], checks: "list[Check]", targets: tuple[str, ...], note: Callable[[str], None]
) -> "Choices":
    from provisioning import accelerator
    from provisioning.doctor import default_engine
    from provisioning.images.image import current
    from provisioning.targets import Choices, prepare

    engine = options["engine"] or default_engine(checks)
    if "container" in targets:
        check = next(check for check in checks if check.kind == "engine" and check.name == engine)
        if not check.usable:
            raise RequestError(f"--engine {engine}: {check.reason}", remedy=check.remedy)
    accel: accelerator.Accelerator = "tcg"
    if {"vm", "container-vm"} & set(targets):
        accel, why = accelerator.choose(options["accel"])
        note(f"VMs run under {accel}: {why}")
    nvml = next(check for check in checks if check.name == "nvml")
    if options["device"] == "cuda" and not nvml.usable and not options["vfio"]:
        raise RequestError(f"--device cuda: {nvml.reason}", remedy="install NVIDIA's driver, or use --device cpu")
    image = current("cuda" if options["device"] == "cuda" else "cpu")
    image.check()
    gpus = _words("--gpus", options["gpus"], r"\d+", "0,1")
    vfio = _words("--vfio", options["vfio"], r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "0000:01:00.0")
    choices = Choices(image, engine, accel, gpus, vfio)
    prepare(choices, targets, note)
    return choices


def _words(option: str, text: str | None, form: str, example: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",")) if text else ()
    for word in words:
        if not re.fullmatch(form, word):
            raise RequestError(f"{option} {text}: {word!r} is none", remedy=f"write it as {example}; see bench doctor")
    return words


def _plan(options: dict[str, Any], targets: tuple[str, ...], choices: "Choices", note: Callable[[str], None]) -> Plan:
    import psutil

    from provisioning import isa
    from suite.envelope import parse_bytes, plan_envelope

    if options["until"] and options["blocks"]:
        raise RequestError("--until and --blocks exclude each other", remedy="use --max-blocks with --until")
    if options["until"] and len(targets) < 2 and not options["aa"]:
        raise RequestError("--until needs ratios", remedy="add a --target, or --aa for bare metal against itself")
    if (options["until"] or options["aa"]) and BASELINE not in targets:
        raise RequestError("--until and --aa need bare metal in the run", remedy=f"add --target {BASELINE}")
    profile = get_profile(options["profile"])
    envelope = plan_envelope(
        options["cpus"],
        parse_bytes(options["memory"]) if options["memory"] else profile.memory_bytes,
        options["threads"],
        host_cpus=os.sched_getaffinity(0),
        host_memory_bytes=psutil.virtual_memory().total,
    )
    changed = {key: options[key] for key in ("batch", "image_px", "steps", "warmup_steps") if options[key] is not None}
    workloads = {model: make_workload(profile, model, changed) for model in options["models"]}
    capability = None
    if options["isa"] == "shared":
        capability = isa.shared(targets, choices.image, choices.accelerator, envelope, note)
    devices = {} if options["device"] == "cpu" else {key: str(options[key] or 1) for key in ("device", "devices")}
    return Plan(
        scenario=options["scenario"],
        targets=targets,
        models=options["models"],
        profile=profile.name,
        recipe=options["recipe"],
        blocks=options["blocks"] or 1,
        seed=options["seed"] or 0,
        workloads=workloads,
        envelope=envelope,
        trial_timeout_s=options["trial_timeout"] or profile.trial_timeout_s,
        cpu_capability=capability,
        aa=options["aa"],
        options={**choices.options(), **devices, "parallel": options["parallel"], "isa": options["isa"]},
    )


def _host_environment() -> "Environment":
    from scenarios.worker.environment import collect
    from suite.records import Environment

    return Environment.model_validate({**collect(), "accelerator": "none"})


# ------------------------------------------------------------------------------------------------------------ compare


@main.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--plots", type=click.Path(path_type=Path), help="Where the figures go. Default: plots/ in the run.")
@click.option("--margin", default="2%", callback=_shares, show_default=True, help="Overheads below it are equivalent.")
@click.option("--force", is_flag=True, help="Form ratios of records that are not comparable; the mark stays on them.")
@click.option("--explain", is_flag=True, help="Where each overhead comes from: phase by phase, with intervals.")
@click.option("--reference", is_flag=True, help="Mark the values of the paper (CLOSER 2018) in the figures.")
@click.option(
    "--fail-above", callback=_shares, help="With two runs: exit code 1 when the second is slower by more: 5%."
)
@click.option("--json", "form", flag_value="json", help="For machines.")
@click.option("--csv", "form", flag_value="csv")
@click.option("--markdown", "form", flag_value="markdown")
def compare(directories: tuple[Path, ...], **options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Tables and plots of runs, normalised to bare metal. Without a directory: of the latest run in results/.

    Several runs are pooled; of two runs it is also told how the second differs from the first.

    \b
    Examples:
      bench compare
      bench compare results/monday results/tuesday --plots figures
      bench compare results/before results/after --fail-above 5%
      bench compare --explain
      bench compare --markdown > table.md
    """
    from analysis.compare import compare as compared
    from analysis.load import load

    if options["fail_above"] is not None and len(directories) != 2:
        raise RequestError("--fail-above compares two runs", remedy="bench compare BEFORE AFTER --fail-above 5%")
    chosen = list(directories) or [latest_run(RESULTS)]
    records = load(chosen)
    comparison = compared(records, margin=options["margin"], force=options["force"])
    exceeded = _change(chosen, options) if len(chosen) == 2 else False
    if options["explain"]:
        _explain(records, options)
    elif not (len(chosen) == 2 and options["fail_above"] and options["form"]):
        _table(comparison, options["form"])
    if options["plots"] or (options["form"] is None and not options["explain"]):
        from analysis.plots import draw
        from analysis.reference import normalised

        reference = normalised() if options["reference"] else None
        for path in draw(comparison, options["plots"] or chosen[0] / "plots", reference):
            click.echo(f"drawn: {path}", err=True)
    if exceeded:
        sys.exit(1)


def _table(comparison: "Comparison", form: str | None) -> None:
    from analysis import tables

    if form is None:
        from rich.console import Console

        Console().print(tables.Terminal(comparison))
        return
    forms = {"json": tables.as_json, "csv": tables.as_csv, "markdown": tables.as_markdown}
    click.echo(forms[form](comparison).rstrip("\n"))
    if form == "csv":
        for line in tables.warning_lines(comparison):
            click.echo(line, err=True)


def _explain(records: "Records", options: dict[str, Any]) -> None:
    from analysis.attribution import explain
    from analysis.waterfall import Waterfall, as_rows

    explained = explain(records, force=options["force"])
    if options["form"] == "json":
        click.echo(json.dumps(as_rows(explained), indent=1))
        return
    from rich.console import Console

    Console().print(Waterfall(explained))


def _change(chosen: list[Path], options: dict[str, Any]) -> bool:
    """How the second run differs from the first; whether it is slower by more than was allowed."""
    from analysis.load import load
    from analysis.regression import Report, as_rows, regress

    found = regress(load(chosen[:1]), load(chosen[1:]), options["fail_above"])
    if options["form"] is None:
        from rich.console import Console

        Console().print(Report(found))
    elif options["fail_above"] and options["form"] == "json":
        click.echo(json.dumps({"exceeded": found.exceeded, "changes": as_rows(found)}, indent=1))
    return found.exceeded


@main.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="The file. Default: report.html in the run.")
@click.option("--margin", default="2%", callback=_shares, show_default=True, help="Overheads below it are equivalent.")
@click.option("--force", is_flag=True, help="Form ratios of records that are not comparable; the mark stays on them.")
def report(directories: tuple[Path, ...], html: Path | None, margin: float, force: bool) -> None:
    """One page with everything: the answer, tables, figures, where it comes from, warnings, provenance. No network.

    \b
    Examples:
      bench report
      bench report results/night --html night.html
    """
    from analysis.load import load
    from analysis.report import write_report

    chosen = list(directories) or [latest_run(RESULTS)]
    click.echo(write_report(load(chosen), html or chosen[0] / "report.html", margin=margin, force=force))


# ------------------------------------------------------------------------------------------- doctor, image, clean, ...


@main.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(as_json: bool) -> None:
    """What this machine can carry: every target, engine, accelerator and tool, with reasons and remedies.

    \b
    Examples:
      bench doctor
      bench doctor --json
    """
    from provisioning.doctor import examine

    checks = examine()
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "checks": [check.model_dump() for check in checks]}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "evidence, or reason and remedy"):
        table.add_column(title, overflow="fold")
    for check in checks:
        mark = Text("yes", "green") if check.usable else Text("no", "red")
        said = check.evidence if check.usable else f"{check.reason}; {check.remedy}"
        table.add_row(mark, f"{check.kind} {check.name}", Text(said))
    Console().print(table)


@main.group()
def image() -> None:
    """The userland that every target runs: built once, packed for all.

    \b
    Examples:
      bench image build
      bench image list
    """


@image.command("build")
@click.option("--cuda", is_flag=True, help="For NVIDIA GPUs: docker/Dockerfile.cuda.")
@click.option("--rebuild", is_flag=True, help="Even when nothing has changed.")
def image_build(cuda: bool, rebuild: bool) -> None:
    """Build the image from docker/Dockerfile, with podman or docker, from a registry or a Debian mirror.

    \b
    Examples:
      bench image build
      bench image build --cuda --rebuild
    """
    from provisioning.images.build import build

    built = build("cuda" if cuda else "cpu", lambda text: click.echo(text, err=True), rebuild=rebuild)
    click.echo(built.digest)


@image.command("verify")
@click.argument("digest", required=False)
def image_verify(digest: str | None) -> None:
    """Hash the image again, every file of it, and say what differs. Default: the newest.

    \b
    Examples:
      bench image verify
      bench image verify 1f0c5a2b77d1
    """
    from provisioning.images.image import broken, find

    found = find(digest)
    differences = found.verify()
    for line in differences[:50]:
        click.echo(line)
    if differences:
        raise broken(found, f"{len(differences)} differences")
    click.echo(f"{found.digest} is whole")


@image.command("list")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def image_list(as_json: bool) -> None:
    """The images that were built, newest first.

    \b
    Examples:
      bench image list
      bench image list --json
    """
    from provisioning.images.image import images

    if as_json:
        click.echo(json.dumps([{**each.model_dump(), "tree": str(each.tree)} for each in images()], indent=1))
        return
    for each in images():
        click.echo(f"{each.digest[:12]}  {each.variant}  {each.created_at}  {each.directory}")


@main.command()
def clean() -> None:
    """Remove what crashed runs left: processes, containers, control groups, directories. Only that.

    What a running bench uses is left alone, and so are images and results.

    \b
    Examples:
      bench clean
    """
    from provisioning import ledger

    removed = ledger.clean()
    for line in removed:
        click.echo(f"removed: {line}")
    busy = ledger.living()
    if busy:
        click.echo(f"{len(busy)} things are in use by a running bench and were left alone", err=True)
    if not removed:
        click.echo("nothing was left behind")


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """The completion script of a shell.

    \b
    Examples:
      bench completion bash > ~/.local/share/bash-completion/completions/bench
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    if complete is None:
        raise RequestError(f"no completion for {shell}", remedy="choose bash, zsh or fish")
    click.echo(complete(main, {}, "bench", "_BENCH_COMPLETE").source())


if __name__ == "__main__":
    main()
