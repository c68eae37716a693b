"""Attribution: where the difference to bare metal comes from, in seconds, part by part, as a waterfall.

A part's difference is taken inside blocks; its interval is Student's t on the untrimmed mean, because only means add
up: the parts and what stays unexplained sum to the difference of the whole (opening and elapsed time).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.pairing import BLOCK, grouped, papers_order, plain, to_baseline, with_variants
from analysis.compare.results import Comparison
from analysis.compare.standing import sides_of, withheld
from analysis.compare.validity import usable
from analysis.explain.explanation import COMPUTE, OPENING, UNEXPLAINED, Explained, Explanation, TimeDifference
from analysis.explain.prediction import preempted_jobs, with_predictions
from analysis.load.metrics import with_trait
from analysis.load.records import Records, read_record
from analysis.statistics.ratios import locate, step_times
from analysis.warnings.conditions import with_changes
from analysis.warnings.types import AnalysisWarning
from suite.targets import BASES, base_of

_BEFORE = {"launch": "launch_s", "imports": "imports_s", "build": "build_s", "warm-up": "warmup_s"}
_AFTER = {name: f"{name.replace(' ', '_')}_s" for name in ("between epochs", "generating", "teardown", "exit")}


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

        def means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
            return {name: fmean(own[name] for own in parts) for name in parts[0] if all(name in own for own in parts)}

        return cls(
            seconds=means([trial.seconds for trial in trials]),
            phases={name: means([trial.phases[name] for trial in trials]) for name in trials[0].phases},
            total_s=fmean(trial.total_s for trial in trials),
            steps_s=[second for trial in trials for second in trial.steps_s],
        )

    @classmethod
    def of(cls, record: Any) -> "Parts":  # noqa: ANN401 (decoded by the table of columns)
        steps, timeline = record.steps, record.timeline
        whole_s = None if record.elapsed_s is None else (record.open_s or 0.0) + record.elapsed_s
        return cls(
            seconds=_seconds(record),
            phases={
                OPENING: record.opening or {},
                COMPUTE: {name: math.fsum(column) for name, column in steps.phases.items()} if steps else {},
            },
            total_s=((timeline and timeline.measured_s) or 0.0) if whole_s is None else whole_s,
            steps_s=(steps and steps.elapsed_s) or (),
        )


def _seconds(record: Any) -> dict[str, float]:  # noqa: ANN401
    spans = record.timeline if record.elapsed_s is not None else None
    columns = {name: getattr(record.steps, f"{name}_s", None) for name in ("data", "copy", "compute", "communicate")}
    parts = {
        OPENING: record.open_s,
        **{name: getattr(spans, field, None) for name, field in _BEFORE.items()},
        **{name: None if column is None else math.fsum(column) for name, column in columns.items()},
        **{name: getattr(spans, field, None) for name, field in _AFTER.items()},
    }
    return {name: seconds for name, seconds in parts.items() if seconds is not None}


def explain(records: Records, comparison: Comparison, *, force: bool = False) -> Explained:
    """Explain every job, model and target that shares a block with a comparable bare-metal trial.

    ``comparison`` is that of the same records: where its trials decide nothing, each explanation holds why. ``force``
    as in ``compare``.
    """
    every = with_changes(with_variants(records.trials))
    trials = plain(every)
    ok = trials[trials["ok"] & ~with_trait(trials, "probes")]
    formed, _ = usable(to_baseline(ok, []), force=force)
    read, groups = _PartsOfTrials(ok), {group.key: group for group in comparison.groups}
    explanations = []
    for (job, model, target), blocks in grouped(formed[~formed["target"].isin(BASES)]):
        sides = read.sides(blocks, target)
        if len(sides[0]):
            group = groups[job, model]
            reasons = withheld(job.profile, len(sides[0]), sides_of(group.circumstances, target))
            notes = tuple(dict.fromkeys((*read.notes(blocks, target), *filter(None, blocks["marks"]))))
            whole = difference("whole", *([trial.total_s for trial in side] for side in sides))
            base, own = (step_times([trial.steps_s for trial in side if trial.steps_s]) for side in sides)
            key, parts = (job, model, target, len(sides[0])), tuple(_parts(sides))
            explanations.append(Explanation(*key, whole, parts, base, own, notes, withheld=reasons))
    explanations.sort(key=lambda one: papers_order(one.job, one.model, one.target))
    return Explained(
        explanations=tuple(with_predictions(explanations, comparison, trials, records, force=force)),
        preempted=tuple(
            preempted_jobs(every[every["ok"]], {key: group.circumstances for key, group in groups.items()})
        ),
        warnings=tuple(read.warnings),
        contrasts=comparison.contrasts,
    )


Sides = tuple[Sequence[Parts], Sequence[Parts]]
"""The trials of bare metal and of the target, block by block."""


class _PartsOfTrials:
    """The parts of the trials of a block, read once each."""

    def __init__(self, ok: pd.DataFrame) -> None:
        self.warnings: list[AnalysisWarning] = []
        index = zip(*(ok[name] for name in (*BLOCK, "target")), strict=True)
        self._trials: dict[tuple[object, ...], list[tuple[str, str]]] = defaultdict(list)
        for place, path, *notes in zip(index, ok["path"], ok["substitutes"], ok["changed"], strict=True):
            self._trials[place].append((path, "\n".join(notes)))
        self._parts: dict[str, Parts | None] = {}

    def __call__(self, block: "pd.Series[Any]", target: str) -> Parts | None:
        """Return the parts of a target's trial of a block; of bare metal measured twice, the mean of both."""
        read = list(filter(None, (self._read(path) for path, _ in self._trials[(*block[BLOCK], target)])))
        return Parts.mean(read) if read else None

    def _read(self, path: str) -> Parts | None:
        if path not in self._parts:
            record = read_record(path)
            if isinstance(record, AnalysisWarning):
                self.warnings.append(record)
            self._parts[path] = None if isinstance(record, AnalysisWarning) else Parts.of(record)
        return self._parts[path]

    def sides(self, blocks: pd.DataFrame, target: str) -> Sides:
        """Return the trials of bare metal and of the target, of the blocks of which both could be read."""
        both = [(self(block, base_of(target)), self(block, target)) for _, block in blocks.iterrows()]
        read = [(base, own) for base, own in both if base and own]
        return [base for base, _ in read], [own for _, own in read]

    def notes(self, blocks: pd.DataFrame, target: str) -> Iterator[str]:
        for _, block in blocks.iterrows():
            for _, notes in self._trials[(*block[BLOCK], target)]:
                yield from filter(None, notes.splitlines())


def _parts(sides: Sides) -> Iterator[TimeDifference]:
    """Yield the parts that all trials have, in the order of a trial, and what these leave unexplained."""
    trials = [trial for side in sides for trial in side]
    # A part that one side of one block lacks cannot be compared: it stays in what is unexplained.
    names = [name for name in trials[0].seconds if all(name in trial.seconds for trial in trials)]
    for name in names:
        part = difference(name, *([trial.seconds[name] for trial in side] for side in sides))
        yield replace(part, phases=tuple(_phases(name, sides)))
    # What is in none of these parts.
    unexplained_s = (
        [trial.total_s - math.fsum(trial.seconds[name] for name in names) for trial in side] for side in sides
    )
    yield difference(UNEXPLAINED, *unexplained_s)


def _phases(part: str, sides: Sides) -> Iterator[TimeDifference]:
    """Yield the phases of a part; none where a record does not name them."""
    phases = [[trial.phases.get(part, {}) for trial in side] for side in sides]
    names = dict.fromkeys(name for side in phases for of_trial in side for name in of_trial)
    for name in names if all(all(side) for side in phases) else ():
        # What a target does not open, such as a guest on bare metal, takes it no time.
        yield difference(name, *([of_trial.get(name, 0.0) for of_trial in side] for side in phases))


def difference(name: str, baseline: Sequence[float], target: Sequence[float]) -> TimeDifference:
    """Return the difference of one part, from its seconds on both sides of each block."""
    base, own = np.asarray(baseline), np.asarray(target)
    place = locate(own - base, trim=0)
    interval = place.interval if place else None
    return TimeDifference(name, float(base.mean()), float(own.mean()), float((own - base).mean()), interval)
