"""Forecast a run: its trials, time and disk space. Nothing is started."""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from commands.output import Output
from commands.run.prepare import PATIENCE, Ready, this_host
from commands.run.steps import begun_blocks, known_detection, spent_s
from provisioning.paths import home
from provisioning.volumes import disk_of, packed_bytes
from suite.errors import BenchError
from suite.interfaces import Note
from suite.job.ablations import arms, label_of
from suite.job.datasets import Dataset
from suite.job.envelope import GIB, format_cpu_list
from suite.job.profiles import PROFILES
from suite.plan import WARM_UP, Plan
from suite.request.repetitions import MARGIN, MOST_BLOCKS, RepetitionOptions
from suite.request.request import RunRequest, deciding_budget
from suite.request.traits import traits_of
from suite.results.layout import results_directory
from suite.results.runs import find_runs
from suite.results.store import MODELS, Run
from suite.sweep.estimate import SOURCES, Durations, Guess, durations_below, is_emulated
from suite.targets import BASELINE, COMMANDS, VERSUS, VMS
from suite.units import count, format_duration, parse_duration_s, parse_share

RECORD_BYTES = 16_000
STEP_BYTES = 90
"""The size of a record, and what each measured step adds to it."""
_LOOKED_AT = 5
"""The newest runs in which the sizes of models are looked up."""
ANSWER_S = 4.0
"""What starting the command and answering at the end take, beside checking the machine."""


@dataclass(frozen=True)
class Space:
    """Disk space that is needed: what for, where, and how much is free there."""

    what: str
    path: str
    size_bytes: int
    free_bytes: int


class Forecast(Output):
    """The time and space that a run should take. ``most_blocks`` and ``most_s`` are where it ends at the latest."""

    directory: str
    blocks: int
    most_blocks: int
    trials: int
    trials_left: int
    seconds: float
    most_s: float
    targets: dict[str, Guess]
    """The seconds of the longest trial, by target."""
    disk: tuple[Space, ...]
    plan: Plan


def with_budget(made: Ready, request: RunRequest, store: Run, note: Note) -> Ready:
    """Return a run that the suite decides by default with its budget, and announce how it ends; others as they are.

    The budget is the least that is expected to hold a verdict.
    """
    repetitions = made.repetitions
    stored = made.plan.request
    if stored is None or request.repetitions.open_ended or not repetitions.decides:
        return made
    # As below.
    from analysis.statistics.sequential import LEAST_BLOCKS

    budget = request.repetitions.budget
    if budget is None:
        durations = earlier_durations(store)
        block = made.plan.trials_of(1)
        guess = durations.guess(*block)
        unknown = _length_unknown(made.plan, guess)
        budget = deciding_budget(guess.seconds, length_unknown=unknown)
    budgeted = stored.changed(budget=budget)
    limit = format_duration(parse_duration_s(budget))
    turns = "in turns, " if budgeted.measurement.turns else ""
    margin = 100 * parse_share(str(repetitions.margin))
    note(f"{turns}until decided at {margin:.3g} %, at most {limit}; --blocks {LEAST_BLOCKS} for a fixed number")
    plan = made.plan.model_copy(update={"request": budgeted})
    return replace(made, plan=plan)


def _length_unknown(plan: Plan, guess: Guess) -> bool:
    """Return whether nothing says how long the trials take: neither earlier ones nor sizes."""
    return guess.source == "rough" and plan.job.sizes is None


def with_trial_limit(made: Ready, store: Run) -> Ready:
    """Return a run whose blocks are given up within its budget, unless the user chose the limit of its trials.

    A trial that is expected to take longer is given the time.

    A run that continues has the limit of its beginning, whatever has been measured or extended since.
    """
    plan = made.plan
    budget_s = made.repetitions.budget_s
    if plan.request and plan.request.measurement.trial_timeout:
        return made
    stored = store.plan()
    if stored and stored.request and not stored.request.measurement.trial_timeout:
        limit_s = stored.trial_timeout_s
    elif stored or budget_s is None:
        return made
    else:
        durations = earlier_durations(store)
        guesses = [durations.guess(trial) for trial in plan.trials_of(1)]
        longest = max(guesses)
        if _length_unknown(plan, longest):  # it may well take longer than the budget, whose first block is finished
            return made
        share_s = budget_s / len(guesses)
        patience_s = PATIENCE * longest.seconds
        longest_s = math.ceil(max(share_s, patience_s))
        limit_s = min(plan.trial_timeout_s, longest_s)
    limited = plan.model_copy(update={"trial_timeout_s": limit_s})
    return replace(made, plan=limited)


def forecast(made: Ready, asked: RepetitionOptions, store: Run, examined_s: float) -> Forecast:
    """Return what the run in ``store`` is expected to take.

    ``examined_s`` are the seconds that checking this machine has taken; the run takes them again.
    """
    durations = earlier_durations(store)
    finished = set(store.finished())
    plan = made.plan
    begun = begun_blocks(store)

    def left_of(blocks: int) -> list[float]:
        """Return the seconds of each trial that so many blocks still need, with the warm-up."""
        whole = plan.model_copy(update={"blocks": max(1, blocks)})
        seconds = []
        for trial in whole.trials():
            due = trial.warm_up or trial.block < blocks
            if due and trial.trial_id not in finished:
                seconds.append(durations.guess(trial).seconds)
        return seconds

    least = plan.blocks
    most = plan.blocks
    if asked.open_ended:
        fewest, fixed = _fewest(plan, asked, store)
        allowed = asked.max_blocks or MOST_BLOCKS
        least = max(begun, min(fewest, allowed))
        most = least if fixed else max(least, allowed)
    block = [durations.guess(trial).seconds for trial in plan.trials_of(1)]
    block_s = sum(block)
    if asked.budget_s is not None:  # a block that is begun is finished
        budget_s = asked.budget_s - spent_s(store) - sum(left_of(begun))
        in_budget = begun + max(0, math.ceil(budget_s / block_s))
        least = min(least, in_budget)
        most = min(most, in_budget)
    left = left_of(least)
    seconds = examined_s + ANSWER_S + sum(left)
    warm_up = list(plan.trials_of(WARM_UP))
    more_blocks = most - least
    most_trials = len(left) + len(block) * more_blocks
    return Forecast(
        directory=str(store.directory),
        blocks=least,
        most_blocks=most,
        trials=len(warm_up) + least * len(block),
        trials_left=len(left),
        seconds=seconds,
        most_s=seconds + block_s * more_blocks,
        targets=_targets(plan, durations),
        disk=tuple(_disk(made, store, most_trials)),
        plan=plan,
    )


def earlier_durations(store: Run) -> Durations:
    """Return what earlier trials of this machine tell, in results/ and beside the run."""
    return durations_below(results_directory(), store.directory.parent, here=this_host())


def _fewest(plan: Plan, asked: RepetitionOptions, store: Run) -> tuple[int, bool]:
    """Return the fewest blocks of an open-ended run, and whether they are all, as they are planned already."""
    # Here, since pandas takes as long to import as everything else together.
    from analysis.compare.convergence import GROWTH, PILOT_BLOCKS
    from analysis.statistics.sequential import EXTRA_BLOCKS, LEAST_BLOCKS

    if asked.difference is None:
        extra = 0 if asked.decides else EXTRA_BLOCKS
        return (LEAST_BLOCKS + extra, False)
    detection = known_detection(plan, asked, asked.difference, store)
    if detection:
        return (detection.blocks, True)
    return (GROWTH * PILOT_BLOCKS, False)


def _targets(plan: Plan, durations: Durations) -> dict[str, Guess]:
    longest: dict[str, Guess] = {}
    for trial in plan.trials_of(plan.blocks):
        guess = durations.guess(trial)
        longest[trial.target] = max(longest.get(trial.target, guess), guess)
    return {target: longest[target] for target in plan.targets}


def _disk(made: Ready, store: Run, trials: int) -> Iterator[Space]:
    plan = made.plan
    steps = [job.sizes.steps for job in plan.jobs if job.sizes]
    record_bytes = RECORD_BYTES + max(steps, default=0) * STEP_BYTES
    yield _space("records", store.directory, trials * record_bytes)
    if plan.scratch_bytes:
        yield _space("what a trial writes", home(), max(plan.scratch_bytes.values()))
    yield from _kept_models(plan, store, trials)
    if plan.job.dataset:
        yield from _data(made, plan.job.dataset)


def _data(made: Ready, dataset: Dataset) -> Iterator[Space]:
    if made.plan.job.command:
        yield _space("the copy of the directory, while it runs", home(), packed_bytes(dataset))
    in_vm = not dataset.device and made.site.local and VMS.intersection(made.plan.targets)
    if in_vm and not disk_of(dataset).exists():
        yield _space("the data set as a disk for VMs, kept", home(), packed_bytes(dataset))


def _kept_models(plan: Plan, store: Run, trials: int) -> Iterator[Space]:
    """Yield the space of the models that trials keep, as far as earlier ones have kept models of the same name."""
    keeping = [job for job in plan.jobs if job.keep_model]
    if not keeping:
        return
    places = (results_directory(), store.directory.parent)
    directories = [place for place in places if place.is_dir()]
    sizes = _model_sizes(directories)
    trials_of_job = math.ceil(trials / len(plan.jobs))
    size_bytes = 0
    for job in keeping:
        models = job.epochs if job.keep_model == "each" else 1
        size_bytes += trials_of_job * models * sizes.get(job.model, 0)
    if size_bytes:
        yield _space("kept models, at most", store.directory, size_bytes)


def _model_sizes(directories: Sequence[Path]) -> dict[str, int]:
    """Return the sizes of kept models by their names, from the newest runs that have kept any."""
    sizes: dict[str, int] = {}
    candidates = (run / MODELS for run in find_runs(directories))
    keeping = [models for models in candidates if models.is_dir()]
    keeping.sort(key=lambda models: models.stat().st_mtime_ns)
    for models in keeping[-_LOOKED_AT:]:
        with suppress(BenchError):  # of a later suite
            for record in Run(models.parent).records():
                for model in record.kept:
                    sizes[record.job.model] = model.size_bytes
    return sizes


def _space(what: str, path: Path, size_bytes: int) -> Space:
    absolute = path.absolute()
    above = (absolute, *absolute.parents)
    place = next(directory for directory in above if directory.exists())
    free_bytes = shutil.disk_usage(place).free
    return Space(what, str(path), size_bytes, free_bytes)


def _data_line(plan: Plan) -> Iterator[str]:
    dataset = plan.job.dataset
    if dataset is None or plan.job.command:
        return
    repeated = [job.model for job in plan.jobs if job.repeats_images]
    again = f" (fewer than the steps of {', '.join(repeated)} take)" if repeated else ""
    yield f"data: {plan.job.data}, {dataset.label}{again}"


def as_lines(expected: Forecast, asked: RepetitionOptions) -> Iterator[str]:
    """Yield the plan and its forecast, in lines of at most 80 columns for usual names."""
    plan = expected.plan
    job = plan.job
    engine = f" ({job.layers.engine})" if "container" in plan.targets else ""
    yield f"plan: {job.scenario}, {', '.join(plan.models)}, {job.profile} profile, {job.recipe} recipe"
    yield from _data_line(plan)
    yield f"targets: {', '.join(plan.targets)}{engine}"
    if plan.defaults:
        yield f"defaults: {plan.defaults}"
    for target in plan.targets:
        switched = [label_of(name) for name in arms(target, plan.ablations)]
        if switched:
            yield f"  {target} also: {', '.join(switched)}"
    cpus = format_cpu_list(job.envelope.cpus)
    memory = job.envelope.memory_bytes / GIB
    yield f"each has: CPUs {cpus}, {memory:.3g} GiB, {job.envelope.threads} threads"
    yield f"decides: {_decides(expected, asked)}"
    yield f"ends: {_end(expected, asked)}"
    yield _trials(expected)
    if expected.most_s > expected.seconds:
        longest = f" to {format_duration(expected.most_s)}"
    else:
        longest = ""
    yield f"time: about {format_duration(expected.seconds)}{longest}"
    which = "its longest trial" if len(plan.jobs) > 1 else "a trial"
    for target, guess in expected.targets.items():
        yield f"  {target}: {format_duration(guess.seconds)} for {which}, {SOURCES[guess.source]}"
    for space in expected.disk:
        yield f"disk: {_size(space.size_bytes)} for {space.what} in {space.path} ({_size(space.free_bytes)} free)"


def _decides(expected: Forecast, asked: RepetitionOptions) -> str:
    """Return what the run can decide, or why it can decide nothing."""
    # As above.
    from analysis.statistics.sequential import LEAST_BLOCKS

    plan = expected.plan
    if not PROFILES[plan.job.profile].decides:
        return f"nothing: the {plan.job.profile} profile only shows that everything works"
    if expected.most_blocks < LEAST_BLOCKS:
        held = count(expected.most_blocks, "block")
        holds = f"it has {held}"
        if asked.budget:
            holds = f"the budget holds about {held}"
        return f"nothing: {holds}, and a verdict takes {LEAST_BLOCKS}"
    base, others = _compared(plan)
    if not others:
        return f"nothing: it takes {BASELINE} and another target, both measured here"
    margin = 100 * (plan.margin or MARGIN)
    names = f"{others[0]} is"
    if len(others) > 1:
        names = f"{' and '.join(others)} are each"
    return f"whether {names} within {margin:.3g} % of {base}, slower, or faster"


def _compared(plan: Plan) -> tuple[str, list[str]]:
    """Return the base of the comparisons of a plan, and the measured sides that are held against it."""
    if VERSUS in plan.ablations:
        return COMMANDS[0], [COMMANDS[1]]
    emulated = {trial.target for trial in plan.trials_of(0) if is_emulated(trial)}
    measured = [target for target in plan.targets if target not in emulated]
    if not traits_of(plan.job.scenario).normalised:
        return "itself alone", measured
    others = [target for target in measured if target != BASELINE]
    if others and BASELINE in measured:
        return BASELINE, others
    return "the target as it is", [label_of(name) for name in plan.ablations]


def _trials(expected: Forecast) -> str:
    at_least = " at least" if expected.most_blocks > expected.blocks else ""
    line = f"trials:{at_least} {expected.trials}"
    blocks = expected.plan.warmup_blocks
    if blocks:
        counted = "block" if blocks == 1 else f"{blocks} blocks"
        line += f", the first {counted} to warm up"
    if expected.trials_left < expected.trials:
        line += f", {expected.trials_left} still to be run"
    return line


def _end(expected: Forecast, asked: RepetitionOptions) -> str:
    if not asked.open_ended:
        return f"after {count(expected.blocks, 'block')}"
    if asked.decides:
        what = f"when every comparison is decided at a margin of {asked.margin or f'the usual {MARGIN:.0%}'}"
    elif asked.until:
        what = f"when every interval is within {asked.until}"
    else:
        what = f"after the blocks that detect {asked.detect}, planned from the first ones"
    budget = f", or {asked.budget} are spent" if asked.budget else ""
    return f"{what}, {asked.max_blocks or MOST_BLOCKS} blocks are measured{budget}"


def _size(size_bytes: int) -> str:
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.3g} GB"
    return f"{max(size_bytes / 1e6, 0.1):.2g} MB"
