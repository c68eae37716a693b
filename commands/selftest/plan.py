"""The runs of a self-test: one for each scenario in which an injury shows, planned as ``bench run`` plans it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from commands.run.prepare import Ready, ready
from provisioning import doctor
from provisioning.doctor import Check
from provisioning.hindrances import hindrances
from provisioning.lab.shaping import choose_limiter
from provisioning.nodes import local_node
from suite.errors import RequestError
from suite.interfaces import Note
from suite.job.ablations import properties_of
from suite.request.request import RunRequest
from suite.selftest.certificate import Absent
from suite.selftest.injuries import DISTRIBUTED, REAL, SYNTHETIC, get_injury, injuries_of
from suite.targets import VMS

COMMON: Mapping[str, object] = {"model": ("resnet50",), "profile": "smoke"}
RUNS: Mapping[str, Mapping[str, object]] = {
    SYNTHETIC: {"steps": 30, "warmup_steps": 5},
    REAL: {"steps": 20, "warmup_steps": 2, "data": "generated"},
    DISTRIBUTED: {"steps": 4, "warmup_steps": 1, "workers": 1},
}
"""The options of each run beside the common ones: as short as an effect of 5 % on one CPU allows."""
FEW_BLOCKS = 3
"""The blocks that are enough for a disk or a link that is some times slower, of which a trial takes long."""
EMULATED: Mapping[str, Mapping[str, object]] = {
    SYNTHETIC: {"model": ("gan",), "steps": 10, "warmup_steps": 3},
    REAL: {"steps": 10},
}
"""The options that replace these where the CPU of a VM is emulated: a step takes 20 s there, and one of a GAN 4 s."""


@dataclass(frozen=True)
class Prepared:
    """The plan of a self-test: a run by scenario, and the injuries that cannot be done, with the reasons."""

    runs: Mapping[str, Ready]
    absent: tuple[Absent, ...]


def prepared(chosen: Mapping[str, object], blocks: int, names: Sequence[str], note: Note) -> Prepared:
    """Plan the runs of the injuries. Raises RequestError if none of them can be done."""
    note("checking this machine")
    checks = doctor.examine({str(chosen.get("engine"))})
    runs: dict[str, Ready] = {}
    absent: list[Absent] = []
    errors: list[RequestError] = []
    for scenario, options in RUNS.items():
        if not (wanted := injuries_of(scenario, names)):
            continue
        repeated = blocks if scenario == SYNTHETIC else min(blocks, FEW_BLOCKS)
        request = {"scenario": scenario, "blocks": repeated, "warmup_blocks": 0, **COMMON, **options, **chosen}
        try:
            planned = _run(request, wanted, note, checks)
        except RequestError as error:
            errors.append(error)
            absent += [_absent(name, (), error.with_remedy) for name in wanted if get_injury(name).changes]
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
    """Return whether the CPU of a target is emulated."""
    return run.site.choices.accelerator == "tcg" and bool(VMS.intersection(run.plan.targets))


def _run(request: Mapping[str, object], wanted: Sequence[str], note: Note, checks: Sequence[Check]) -> Prepared:
    """Return the run of one scenario, without the injuries that cannot be done in it."""
    run = ready(RunRequest.of(dict(request)), note, checks)
    if emulated(run):
        fewer = EMULATED.get(str(request["scenario"]), {})
        run = ready(RunRequest.of({**request, **fewer}), lambda _already_noted: None, checks)
    kept, absent = [], []
    for name in wanted:
        injury = get_injury(name)
        missing = tuple(target for target in run.plan.targets if target not in injury.targets)
        if missing:
            absent.append(_absent(name, missing, "no counter of this machine shows how large it is there"))
        if len(missing) == len(run.plan.targets):
            continue
        if injury.changes and (reason := _hindrance(name, run)):
            absent.append(_absent(name, (), reason))
        else:
            kept.append(name)
    if not any(get_injury(name).changes for name in kept):
        return Prepared({}, tuple(absent))
    plan = run.plan.model_copy(update={"ablations": tuple(kept)})
    return Prepared({plan.job.scenario: replace(run, plan=plan)}, tuple(absent))


def _hindrance(name: str, run: Ready) -> str | None:
    """Return why an injury cannot be done here; None if it can."""
    properties, lab = properties_of(name), run.plan.job.distributed and run.plan.job.distributed.lab
    if properties.link and lab:
        try:
            with local_node((), None) as node:
                choose_limiter(node, lab.model_copy(update=properties.link))
        except RequestError as error:
            return error.message
    return next(hindrances(properties, run.site, run.plan.job.recipe), None)


def _absent(name: str, targets: tuple[str, ...], reason: str) -> Absent:
    return Absent(injury=name, targets=targets, reason=reason)
