"""Preempted jobs beside their prediction: what was measured of them, and what ``analysis.costs`` expects.

Every trial gives a prediction of its own, from the opening, start, steps and checkpoints of its undisturbed training.
Means and intervals are those of Student's t over the blocks.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.pairing import ROW, filled, grouped
from analysis.costs.preemption import preempted
from analysis.explain.explanation import ExpectedNumber, PreemptedJob
from analysis.load.records import read_record
from analysis.statistics.ratios import locate
from analysis.warnings.types import AnalysisWarning
from suite.job.ablations import named_arm
from suite.records.reader import job_of
from suite.records.record import LOST_STEPS, MAKESPAN, OPENINGS

_UNITS = {MAKESPAN: "s", OPENINGS: "", LOST_STEPS: "steps"}


def preempted_jobs(ok: pd.DataFrame) -> Iterator[PreemptedJob]:
    """Yield the preempted jobs of every target and ablation; ``ok`` are trials that are ok."""
    for (job, model, target, ablation), trials in grouped(filled(ok), [*ROW, "ablation"]):
        course = trials.get(f"training/{model}/{MAKESPAN}")
        records = map(read_record, trials["path"][course.notna()]) if course is not None else ()
        whole = [record for record in records if not isinstance(record, AnalysisWarning) and _is_whole(record)]
        if whole:
            blocks = np.array([[*zip(_measured(record), _predicted(record), strict=True)] for record in whole])
            expected = tuple(_expected(name, *blocks[:, at].T) for at, name in enumerate(_UNITS))
            first: Any = job_of(whole[0].job)
            arm = named_arm(target, ablation)
            yield PreemptedJob(job, model, arm, first.preemption.mean_s, len(whole), expected)


def _is_whole(record: Any) -> bool:  # noqa: ANN401 (decoded by the table of columns, as below)
    job, spans = job_of(record.job), record.timeline
    return bool(job.preemption and job.sizes and job.sizes.epochs and spans and spans.measured_s)


def _measured(record: Any) -> Iterator[float]:  # noqa: ANN401
    for name in _UNITS:  # nothing is recorded of what is zero
        yield record.metrics[name].value if name in record.metrics else 0.0


def _predicted(record: Any) -> tuple[float, ...]:  # noqa: ANN401
    spans: Any = record.timeline
    job: Any = job_of(record.job)
    begun = (record.open_s, spans.launch_s, spans.imports_s, spans.build_s, spans.warmup_s)
    start_s, checkpoints_s = math.fsum(filter(None, begun)), spans.between_epochs_s or 0.0
    work_s, epochs = np.asarray(spans.measured_s), job.sizes.epochs
    checkpoint_s = np.asarray(checkpoints_s / epochs)
    course = preempted(work_s, np.asarray(start_s), checkpoint_s, job.preemption, work_s / epochs)
    lost_steps = course.lost_s * job.sizes.steps / (spans.measured_s + checkpoints_s)
    return float(course.makespan_s), float(course.openings), float(lost_steps)


def _expected(name: str, measured: np.ndarray, predicted: np.ndarray) -> ExpectedNumber:
    means = float(measured.mean()), float(predicted.mean())
    own, other, apart = map(_interval, (measured, predicted, measured - predicted))
    return ExpectedNumber(
        name, _UNITS[name], *means, own, other, apart, differs=bool(apart and apart[0] * apart[1] > 0)
    )


def _interval(values: np.ndarray) -> tuple[float, float] | None:
    place = locate(values, trim=0)
    return place.interval if place else None
