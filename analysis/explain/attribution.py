"""Attribution: where the difference to bare metal comes from, in seconds, part by part, as a waterfall.

A part's difference is taken inside blocks; its interval is Student's t on the untrimmed mean, because only means add
up: the parts and what stays unexplained sum to the difference of the whole (opening and elapsed time).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from analysis.compare.ablations import ablation_effects
from analysis.compare.pairing import ROW, plain, to_baseline, with_variants
from analysis.compare.results import AblationEffect, Job, known_first
from analysis.compare.validity import usable
from analysis.explain.explanation import UNEXPLAINED, Difference, Explained, Explanation
from analysis.explain.prediction import predictions
from analysis.load.metrics import METRICS, PROBE
from analysis.load.records import Records
from analysis.statistics.ratios import MARGIN, locate, step_times
from analysis.warnings.types import AnalysisWarning, SkippedRecord
from suite.records.migrations import current
from suite.records.record import Steps, Timeline
from suite.registries import WORKLOADS
from suite.targets import BASELINE, TARGETS


class Parts(BaseModel):
    """The fields of a record that say how long its parts took."""

    open_s: float
    elapsed_s: float
    timeline: Timeline | None = None
    steps: Steps | None = None

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part, in the order of the trial; what was not measured is absent."""
        timeline, steps = self.timeline or Timeline(), self.steps
        measured = {
            "data": steps.data_s if steps else None,
            "copy": steps.copy_s if steps else None,
            "compute": steps.compute_s if steps else None,
            "communicate": steps.communicate_s if steps else None,
        }
        parts = {
            "opening": self.open_s,
            "launch": timeline.launch_s,
            "imports": timeline.imports_s,
            "build": timeline.build_s,
            "warm-up": timeline.warmup_s,
            **{name: None if column is None else math.fsum(column) for name, column in measured.items()},
            "teardown": timeline.teardown_s,
            "exit": timeline.exit_s,
        }
        return {name: seconds for name, seconds in parts.items() if seconds is not None}

    @property
    def total_s(self) -> float:
        """Return the seconds of the whole trial, opening included."""
        return self.open_s + self.elapsed_s


def explain(records: Records, *, margin: float = MARGIN, force: bool = False) -> Explained:
    """Explain every job, model and target that shares a block with a comparable bare-metal trial.

    Each explanation holds the ablations of the same blocks (judged against ``margin``) and what the probes predict.
    """
    every = with_variants(records.trials)
    trials = plain(every)
    ok = trials[trials["ok"] & (trials["scenario"] != PROBE)]
    formed = usable(to_baseline(ok, []), force=force).pairs
    read = _Reader(ok)
    found = []
    for key, blocks in formed[formed["target"] != BASELINE].groupby(ROW):
        *job, model, target = (str(part) for part in key)
        both = [(read(block, BASELINE), read(block, target)) for _, block in blocks.iterrows()]
        finished = [(base, own) for base, own in both if base and own]
        if finished:
            notes = [*read.substitutes(blocks, target), *(mark for mark in blocks["marks"] if mark)]
            found.append(_explanation(Job(*job), model, target, finished, tuple(dict.fromkeys(notes))))
    found.sort(key=lambda one: (one.job, known_first(WORKLOADS.names(), one.model), known_first(TARGETS, one.target)))
    ablations, _ = ablation_effects(every[every["ok"]], METRICS, margin, force=force)
    complete = [
        replace(one, ablations=_ablations_of(one, ablations), prediction=prediction)
        for one, prediction in zip(found, predictions(found, trials, records, force=force), strict=True)
    ]
    return Explained(tuple(complete), tuple(read.warnings))


def _ablations_of(one: Explanation, ablations: Sequence[AblationEffect]) -> tuple[AblationEffect, ...]:
    """Return the ablations of the target, and those of bare metal."""
    return tuple(
        found
        for found in ablations
        if (found.job, found.model) == (one.job, one.model) and found.target in (one.target, BASELINE)
    )


class _Reader:
    """The parts of the trials of a block, read once each."""

    def __init__(self, ok: pd.DataFrame) -> None:
        self.warnings: list[AnalysisWarning] = []
        index = zip(ok["scenario"], ok["model"], ok["run_id"], ok["block"], ok["target"], strict=True)
        self._trials: dict[tuple[object, ...], tuple[str, str]] = {}
        for place, path, substitutes in zip(index, ok["path"], ok["substitutes"], strict=True):
            self._trials.setdefault(place, (path, substitutes))  # of two bare-metal trials, the first
        self._parts: dict[str, Parts | None] = {}

    def __call__(self, block: "pd.Series[Any]", target: str) -> Parts | None:
        path, _ = self._trials[(*block[["scenario", "model", "run_id", "block"]], target)]
        if path not in self._parts:
            self._parts[path] = self._read(path)
        return self._parts[path]

    def substitutes(self, blocks: pd.DataFrame, target: str) -> Iterator[str]:
        for _, block in blocks.iterrows():
            yield from self._trials[(*block[["scenario", "model", "run_id", "block"]], target)][1].splitlines()

    def _read(self, path: str) -> Parts | None:
        try:
            return Parts.model_validate_json(current(Path(path).read_bytes()))
        except (OSError, ValidationError) as error:
            reason = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error.strerror)
            self.warnings.append(SkippedRecord(Path(path), f"its parts cannot be read ({reason})"))
            return None


def _explanation(
    job: Job, model: str, target: str, blocks: Sequence[tuple[Parts, Parts]], notes: tuple[str, ...]
) -> Explanation:
    seconds = [(base.seconds(), own.seconds()) for base, own in blocks]
    # A part that one side of one block lacks cannot be compared: it stays in what is unexplained.
    names = [name for name in seconds[0][0] if all(name in base and name in own for base, own in seconds)]
    whole = difference("whole", [base.total_s for base, _ in blocks], [own.total_s for _, own in blocks])
    parts = [difference(name, [base[name] for base, _ in seconds], [own[name] for _, own in seconds]) for name in names]
    rest = [
        [
            trial[side].total_s - math.fsum(found[side][name] for name in names)
            for trial, found in zip(blocks, seconds, strict=True)
        ]
        for side in (0, 1)
    ]
    parts.append(difference(UNEXPLAINED, rest[0], rest[1]))
    steps = [[trial[side].steps for trial in blocks] for side in (0, 1)]
    base_steps, own_steps = (step_times([found.elapsed_s for found in side if found]) for side in steps)
    return Explanation(job, model, target, len(blocks), whole, tuple(parts), base_steps, own_steps, notes)


def difference(name: str, baseline: Sequence[float], target: Sequence[float]) -> Difference:
    """Return the difference of one part, from its seconds on both sides of each block."""
    base, own = np.asarray(baseline), np.asarray(target)
    place = locate(own - base, trim=0)
    interval = place.interval if place else None
    return Difference(name, float(base.mean()), float(own.mean()), float((own - base).mean()), interval)
