"""Attribution: where the difference to bare metal comes from, in seconds, part by part, as a waterfall.

A part's difference is taken inside blocks; its interval is Student's t on the untrimmed mean, because only means add
up: the parts and what stays unexplained sum to the difference of the whole (opening and elapsed time).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.effects import ablation_effects
from analysis.compare.pairing import ROW, papers_order, plain, to_baseline, with_variants
from analysis.compare.results import ComparedJob
from analysis.compare.validity import usable
from analysis.explain.explanation import COMPUTE, OPENING, UNEXPLAINED, Explained, Explanation, TimeDifference
from analysis.explain.prediction import predictions
from analysis.load.metrics import METRICS, with_trait
from analysis.load.records import Records, read_record
from analysis.statistics.ratios import MARGIN, locate, step_times
from analysis.warnings.conditions import with_changes
from analysis.warnings.types import AnalysisWarning
from suite.targets import BASELINE

_PLACE = ["scenario", "model", "design", "run_id", "block"]


_BEFORE = {"launch": "launch_s", "imports": "imports_s", "build": "build_s", "warm-up": "warmup_s"}
_AFTER = {"between epochs": "between_epochs_s", "teardown": "teardown_s", "exit": "exit_s"}


@dataclass(frozen=True)
class Parts:
    """The seconds of the parts of one trial."""

    seconds: Mapping[str, float]
    """Those that were measured, in the order of the trial. If it took turns, the phases of its steps alone."""
    opening: Mapping[str, float]
    computing: Mapping[str, float]
    """Each phase of computing that the workload names."""
    total_s: float
    """The whole trial, opening included; of one that took turns those of its bursts."""
    steps_s: Sequence[float]

    @classmethod
    def of(cls, record: Any) -> "Parts":  # noqa: ANN401 (decoded by the table of columns)
        """Return the parts of a decoded record."""
        steps, timeline = record.steps, record.timeline
        if record.elapsed_s is None:
            total_s = (timeline.measured_s if timeline else None) or 0.0
        else:
            total_s = (record.open_s or 0.0) + record.elapsed_s
        return cls(
            seconds=_seconds(record),
            opening=record.opening,
            computing={name: math.fsum(column) for name, column in steps.phases.items()} if steps else {},
            total_s=total_s,
            steps_s=steps.elapsed_s if steps else (),
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


def explain(records: Records, *, margin: float = MARGIN, force: bool = False) -> Explained:
    """Explain every job, model and target that shares a block with a comparable bare-metal trial.

    Each explanation holds the ablations of the same blocks (judged against ``margin``) and what the probes predict.
    """
    every = with_changes(with_variants(records.trials))
    trials = plain(every)
    ok = trials[trials["ok"] & ~with_trait(trials, "probes")]
    formed = usable(to_baseline(ok, []), force=force).pairs
    read = _PartsOfTrials(ok)
    found = []
    for key, blocks in formed[formed["target"] != BASELINE].groupby(ROW):
        *job, model, target = (str(part) for part in key)
        both = [(read(block, BASELINE), read(block, target)) for _, block in blocks.iterrows()]
        finished = [(base, own) for base, own in both if base and own]
        if finished:
            notes = [*read.notes(blocks, target), *(mark for mark in blocks["marks"] if mark)]
            found.append(_explanation(ComparedJob(*job), model, target, finished, tuple(dict.fromkeys(notes))))
    found.sort(key=lambda one: papers_order(one.job, one.model, one.target))
    ablations, _ = ablation_effects(every[every["ok"]], METRICS, margin, force=force)
    complete = [
        replace(
            one,
            ablations=tuple(
                found
                for found in ablations
                if (found.job, found.model) == (one.job, one.model) and found.target in (one.target, BASELINE)
            ),
            prediction=prediction,
        )
        for one, prediction in zip(found, predictions(found, trials, records, force=force), strict=True)
    ]
    return Explained(tuple(complete), tuple(read.warnings))


class _PartsOfTrials:
    """The parts of the trials of a block, read once each."""

    def __init__(self, ok: pd.DataFrame) -> None:
        self.warnings: list[AnalysisWarning] = []
        index = zip(*(ok[name] for name in (*_PLACE, "target")), strict=True)
        self._trials: dict[tuple[object, ...], tuple[str, str]] = {}
        for place, path, *notes in zip(index, ok["path"], ok["substitutes"], ok["changed"], strict=True):
            self._trials.setdefault(place, (path, "\n".join(notes)))  # of two bare-metal trials, the first
        self._parts: dict[str, Parts | None] = {}

    def __call__(self, block: "pd.Series[Any]", target: str) -> Parts | None:
        path, _ = self._trials[(*block[_PLACE], target)]
        if path not in self._parts:
            record = read_record(path)
            if isinstance(record, AnalysisWarning):
                self.warnings.append(record)
            self._parts[path] = None if isinstance(record, AnalysisWarning) else Parts.of(record)
        return self._parts[path]

    def notes(self, blocks: pd.DataFrame, target: str) -> Iterator[str]:
        for _, block in blocks.iterrows():
            yield from filter(None, self._trials[(*block[_PLACE], target)][1].splitlines())


def _explanation(
    job: ComparedJob, model: str, target: str, blocks: Sequence[tuple[Parts, Parts]], notes: tuple[str, ...]
) -> Explanation:
    sides = list(zip(*blocks, strict=True))
    seconds = [[trial.seconds for trial in side] for side in sides]
    # A part that one side of one block lacks cannot be compared: it stays in what is unexplained.
    names = [name for name in seconds[0][0] if all(name in found for side in seconds for found in side)]
    columns = {name: [[found[name] for found in side] for side in seconds] for name in names}
    totals = [[trial.total_s for trial in side] for side in sides]
    columns[UNEXPLAINED] = [
        [total - math.fsum(found[name] for name in names) for total, found in zip(*both, strict=True)]
        for both in zip(totals, seconds, strict=True)
    ]
    parts = tuple(difference(name, *column) for name, column in columns.items())
    inner = {
        OPENING: [[trial.opening for trial in side] for side in sides],
        COMPUTE: [[trial.computing for trial in side] for side in sides],
    }
    parts = tuple(replace(part, phases=_phases(inner[part.name])) if part.name in inner else part for part in parts)
    base, own = (step_times([trial.steps_s for trial in side if trial.steps_s]) for side in sides)
    return Explanation(job, model, target, len(blocks), difference("whole", *totals), parts, base, own, notes)


def _phases(sides: Sequence[Sequence[Mapping[str, float]]]) -> tuple[TimeDifference, ...]:
    """Return the phases of a part, of each trial by name; none where a record does not name them."""
    if not all(phases for side in sides for phases in side):
        return ()
    names = dict.fromkeys(name for side in sides for phases in side for name in phases)
    # What a target does not open, such as a guest on bare metal, takes it no time.
    return tuple(difference(name, *([one.get(name, 0.0) for one in side] for side in sides)) for name in names)


def difference(name: str, baseline: Sequence[float], target: Sequence[float]) -> TimeDifference:
    """Return the difference of one part, from its seconds on both sides of each block."""
    base, own = np.asarray(baseline), np.asarray(target)
    place = locate(own - base, trim=0)
    interval = place.interval if place else None
    return TimeDifference(name, float(base.mean()), float(own.mean()), float((own - base).mean()), interval)
