"""Attribution: where the difference to bare metal comes from, in seconds, part by part, as a waterfall.

A part's difference is taken inside blocks; its interval is Student's t on the untrimmed mean, because only means add
up: the parts and what stays unexplained sum to the difference of the whole (opening and elapsed time).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.contrast_kinds import Sides, beside_and_alone
from analysis.compare.pairing import BLOCK, baseline, grouped, order, pair, papers_order, plain, with_variants
from analysis.compare.results import Arm, Comparison
from analysis.compare.validity import usable
from analysis.compare.verdicts import sides_of, withheld
from analysis.explain.explanation import (
    COMPUTE,
    OPENING,
    UNEXPLAINED,
    Explained,
    Explanation,
    NumberDifference,
    TimeDifference,
    Victim,
)
from analysis.explain.prediction import preempted_jobs, with_predictions
from analysis.load.metrics import with_trait
from analysis.load.records import Records, read_record
from analysis.statistics.ratios import locate, step_times
from analysis.warnings.conditions import with_changes
from analysis.warnings.types import AnalysisWarning
from suite.targets import BASES, base_of

_COUNTERS = {
    "voluntary_switches": "voluntary switches",
    "involuntary_switches": "involuntary switches",
    "migrations": "migrations",
}
"""The columns of what a worker counts in the measured steps, with the names that are shown."""
_OF_VICTIMS = {"elapsed_s": "elapsed s", **_COUNTERS}
_BEFORE = {"launch": "launch_s", "imports": "imports_s", "build": "build_s", "warm-up": "warmup_s"}
_STEPS = {"data": "data_s", "copy": "copy_s", "compute": "compute_s", "communicate": "communicate_s"}
_AFTER = {
    "between epochs": "between_epochs_s",
    "generating": "generating_s",
    "teardown": "teardown_s",
    "exit": "exit_s",
}


@dataclass(frozen=True)
class Parts:
    """The seconds of the parts of one trial."""

    seconds: Mapping[str, float]
    """Those that were measured, in the order of the trial. If it took turns, the phases of its steps alone."""
    phases: Mapping[str, Mapping[str, float]]
    """The phases of the opening, by what was opened, and of computing, as the workload names them."""
    total_s: float
    """The whole trial, opening included; of one that took turns those of its bursts."""
    steps_s: Sequence[float]

    @classmethod
    def mean(cls, trials: Sequence["Parts"]) -> "Parts":
        """Return the mean of two trials of a block, part by part; a part that one of them lacks is in neither."""
        phases = {}
        for name in trials[0].phases:
            of_trials = [trial.phases[name] for trial in trials]
            phases[name] = _means(of_trials)
        seconds = [trial.seconds for trial in trials]
        steps_s = chain.from_iterable(trial.steps_s for trial in trials)
        return cls(
            seconds=_means(seconds),
            phases=phases,
            total_s=fmean(trial.total_s for trial in trials),
            steps_s=list(steps_s),
        )

    @classmethod
    def of(cls, record: Any) -> "Parts":  # noqa: ANN401 (decoded by the table of columns)
        steps = record.steps
        computing = {}
        if steps:
            computing = {name: math.fsum(column) for name, column in steps.phases.items()}
        if record.elapsed_s is not None:
            total_s = (record.open_s or 0.0) + record.elapsed_s
        else:
            total_s = (record.timeline and record.timeline.measured_s) or 0.0
        return cls(
            seconds=_seconds(record),
            phases={OPENING: record.opening or {}, COMPUTE: computing},
            total_s=total_s,
            steps_s=(steps and steps.elapsed_s) or (),
        )


def _means(trials: Sequence[Mapping[str, float]]) -> dict[str, float]:
    means = {}
    for name in trials[0]:
        if all(name in seconds for seconds in trials):
            means[name] = fmean(seconds[name] for seconds in trials)
    return means


def _seconds(record: Any) -> dict[str, float]:  # noqa: ANN401
    spans = record.timeline if record.elapsed_s is not None else None
    parts = {OPENING: record.open_s}
    for name, field in _BEFORE.items():
        parts[name] = getattr(spans, field, None)
    for name, field in _STEPS.items():
        column = getattr(record.steps, field, None)
        if column is not None:
            parts[name] = math.fsum(column)
    for name, field in _AFTER.items():
        parts[name] = getattr(spans, field, None)
    return {name: seconds for name, seconds in parts.items() if seconds is not None}


def explain(records: Records, comparison: Comparison, *, force: bool = False) -> Explained:
    """Explain every job, model and target that shares a block with a comparable bare-metal trial.

    ``comparison`` is that of the same records: where its trials decide nothing, each explanation holds why. ``force``
    as in ``compare``.
    """
    every = with_changes(with_variants(records.trials))
    trials = plain(every)
    ok = trials[trials["ok"] & ~with_trait(trials, "probes")]
    over_base = Sides(plain(ok), baseline(ok))
    formed, _ = usable(_differences(over_base, _COUNTERS), force=force)
    of_base = formed["target"].isin(BASES)
    read = _PartsOfTrials(ok)
    circumstances = {group.key: group.circumstances for group in comparison.groups}
    explanations = []
    for (job, model, target), blocks in grouped(formed[~of_base]):
        sides = read.sides(blocks, target)
        base, own = sides
        if not own:
            continue
        marks = filter(None, blocks["marks"])
        notes = dict.fromkeys((*read.notes(blocks, target), *marks))
        totals_s = [trial.total_s for trial in chain(*sides)]
        disturbances = sides_of(circumstances[job, model], target)
        explanation = Explanation(
            job,
            model,
            target,
            len(own),
            _difference("whole", sides, totals_s),
            tuple(_parts(sides)),
            step_times([trial.steps_s for trial in base if trial.steps_s]),
            step_times([trial.steps_s for trial in own if trial.steps_s]),
            tuple(notes),
            counts=tuple(_numbers(blocks, _COUNTERS)),
            withheld=withheld(job.profile, len(own), disturbances),
        )
        explanations.append(explanation)
    explanations.sort(key=lambda explanation: papers_order(explanation.job, explanation.model, explanation.target))
    predicted = with_predictions(explanations, comparison, trials, records, force=force)
    finished = every[every["ok"]]
    return Explained(
        explanations=tuple(predicted),
        preempted=tuple(preempted_jobs(finished, circumstances)),
        victims=tuple(_victims(finished, force=force)),
        warnings=tuple(read.warnings),
        contrasts=comparison.contrasts,
    )


SidesOfParts = tuple[Sequence[Parts], Sequence[Parts]]
"""The trials of bare metal and of the target, block by block."""


def _victims(ok: pd.DataFrame, *, force: bool) -> Iterator[Victim]:
    """Yield what changed in each victim next to each aggressor, the targets of each such pair together."""
    victims = []
    for sides in beside_and_alone(ok):
        differences = _differences(sides, _OF_VICTIMS)
        pairs, _ = usable(differences, force=force, switched=sides.may_differ)
        for (job, model, target), blocks in grouped(pairs):
            arm = Arm(job, model, target, sides.ablation, sides.aggressor)
            numbers = tuple(_numbers(blocks, _OF_VICTIMS))
            victim = Victim(*arm[:5], len(blocks), numbers)
            victims.append((arm, victim))
    victims.sort(key=lambda victim: _targets_last(victim[0]))
    return (victim for _, victim in victims)


def _targets_last(arm: Arm) -> tuple[object, ...]:
    job, model, target, *beside = order(arm)
    return (job, model, *beside, target)


def _differences(sides: Sides, names: Mapping[str, str]) -> pd.DataFrame:
    """Pair two sides of blocks; these columns of the pairs become differences."""
    return pair(sides.own, sides.base, [*names], same=sides.same, by_difference=names)


def _numbers(blocks: pd.DataFrame, names: Mapping[str, str]) -> Iterator[NumberDifference]:
    """Yield the numbers that both sides of some blocks have; ``blocks`` are pairs of differences."""
    for column, name in names.items():
        base_column = f"{column}_base"
        counted = blocks[[column, base_column]].dropna()
        if counted.empty:
            continue
        baseline_mean = float(counted[base_column].mean())
        difference_mean = float(counted[column].mean())
        location = locate(counted[column].to_numpy(), trim=0)
        yield NumberDifference(
            name,
            baseline_mean,
            baseline_mean + difference_mean,
            difference_mean,
            location.interval if location else None,
        )


class _PartsOfTrials:
    """The parts of the trials of a block, read once each."""

    def __init__(self, ok: pd.DataFrame) -> None:
        self.warnings: list[AnalysisWarning] = []
        self._trials: dict[tuple[object, ...], list[tuple[str, str]]] = defaultdict(list)
        columns = [*BLOCK, "target", "path", "substitutes", "changed"]
        for *block, path, substitutes, changes in ok[columns].itertuples(index=False, name=None):
            self._trials[tuple(block)].append((path, f"{substitutes}\n{changes}"))
        self._parts: dict[str, Parts | None] = {}

    def __call__(self, block: "pd.Series[Any]", target: str) -> Parts | None:
        """Return the parts of a target's trial of a block; of bare metal measured twice, the mean of both."""
        trials = [self._read(path) for path, _ in self._trials[(*block[BLOCK], target)]]
        readable = list(filter(None, trials))
        if not readable:
            return None
        return Parts.mean(readable)

    def _read(self, path: str) -> Parts | None:
        if path not in self._parts:
            record = read_record(path)
            if isinstance(record, AnalysisWarning):
                self.warnings.append(record)
                self._parts[path] = None
            else:
                self._parts[path] = Parts.of(record)
        return self._parts[path]

    def sides(self, blocks: pd.DataFrame, target: str) -> SidesOfParts:
        """Return the trials of bare metal and of the target, of the blocks of which both could be read."""
        bases = []
        owns = []
        for _, block in blocks.iterrows():
            base = self(block, base_of(target))
            own = self(block, target)
            if base and own:
                bases.append(base)
                owns.append(own)
        return bases, owns

    def notes(self, blocks: pd.DataFrame, target: str) -> Iterator[str]:
        for _, block in blocks.iterrows():
            for _, notes in self._trials[(*block[BLOCK], target)]:
                yield from filter(None, notes.splitlines())


def _parts(sides: SidesOfParts) -> Iterator[TimeDifference]:
    """Yield the parts that all trials have, in the order of a trial, and what these leave unexplained."""
    trials = [*chain(*sides)]
    # A part that one side of one block lacks cannot be compared: it stays in what is unexplained.
    shared = set(trials[0].seconds).intersection(*(trial.seconds for trial in trials))
    names = [name for name in trials[0].seconds if name in shared]
    for name in names:
        seconds = [trial.seconds[name] for trial in trials]
        part = _difference(name, sides, seconds)
        phases = tuple(_phases(name, sides))
        yield replace(part, phases=phases)
    unexplained_s = []
    for trial in trials:
        parts_s = math.fsum(trial.seconds[name] for name in names)
        unexplained_s.append(trial.total_s - parts_s)
    yield _difference(UNEXPLAINED, sides, unexplained_s)


def _phases(part: str, sides: SidesOfParts) -> Iterator[TimeDifference]:
    """Yield the phases of a part; none where a record does not name them."""
    phases = [trial.phases.get(part, {}) for trial in chain(*sides)]
    if not all(phases):
        return
    for name in dict.fromkeys(chain(*phases)):
        # What a target does not open, such as a guest on bare metal, takes it no time.
        seconds = [of_trial.get(name, 0.0) for of_trial in phases]
        yield _difference(name, sides, seconds)


def _difference(name: str, sides: SidesOfParts, seconds: Sequence[float]) -> TimeDifference:
    """Return the difference of one part, from its seconds in every trial, those of bare metal first."""
    blocks = len(sides[0])
    return difference(name, seconds[:blocks], seconds[blocks:])


def difference(name: str, baseline: Sequence[float], target: Sequence[float]) -> TimeDifference:
    """Return the difference of one part, from its seconds on both sides of each block."""
    base = np.asarray(baseline)
    seconds = np.asarray(target)
    more_s = seconds - base
    location = locate(more_s, trim=0)
    return TimeDifference(
        name,
        float(base.mean()),
        float(seconds.mean()),
        float(more_s.mean()),
        location.interval if location else None,
    )
