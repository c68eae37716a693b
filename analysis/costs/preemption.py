"""The expected course of jobs whose machine is taken away at random moments (a Poisson process), and opened again.

A start, the first one too, can be cut short like the work. Both courses of a job, undisturbed and preempted, have the
same checkpoints, so that a job that is never preempted takes its undisturbed time.

- Without notice, the work since the last checkpoint is lost. The interval of checkpoints: Young, Comm. ACM 17 (1974)
  530; of higher order: Daly, Future Gener. Comput. Syst. 22 (2006) 303, which also has the makespan.
- With a notice that is long enough for a checkpoint, the job writes one when it is noticed, and no other; it waits
  until its machine is gone. So a life of the machine gives work only after the start and before the notice.

``benchmarks/preemption.py`` holds both against simulated jobs.
"""

from dataclasses import dataclass

import numpy as np

from analysis.costs.prices import Numbers
from suite.job.preemption import Preemption

_LEAST_INTERVAL_S = 1e-3
"""Checkpoints that take no time would follow each other without work between them."""


@dataclass(frozen=True)
class ExpectedCourse:
    """The expected course of jobs, an entry for each."""

    undisturbed_s: Numbers
    """The time of the same job, with the same checkpoints, on a machine that is never taken away."""
    makespan_s: Numbers
    interval_s: Numbers
    """The work between two checkpoints; NaN where a notice takes their place."""
    openings: Numbers
    lost_s: Numbers
    """The work, and the parts of checkpoints, that is done again."""


def best_interval(checkpoint_s: Numbers, mean_s: float) -> Numbers:
    """Return the work between two checkpoints that makes the makespan shortest: Young's term, and Daly's others."""
    half = checkpoint_s / (2 * mean_s)
    young_s = np.sqrt(2 * checkpoint_s * mean_s)
    return np.where(
        half < 1,
        young_s * (1 + np.sqrt(half) / 3 + half / 9) - checkpoint_s,
        mean_s,
    )


def course_of(
    work_s: Numbers, start_s: Numbers, checkpoint_s: Numbers, by: Preemption, interval_s: Numbers | None = None
) -> ExpectedCourse:
    """Return the course of jobs of so much work, after a start, with a checkpoint after every ``interval_s`` of it.

    By default that is the best interval. The work is divided evenly into the nearest number of intervals; the last one
    ends with a checkpoint, too.
    """
    if interval_s is None:
        interval_s = np.maximum(best_interval(checkpoint_s, by.mean_s), _LEAST_INTERVAL_S)
    with np.errstate(over="ignore", invalid="ignore"):
        intervals = np.maximum(1.0, np.rint(work_s / interval_s))
        spaced = _spaced(work_s, start_s, checkpoint_s, by.mean_s, intervals)
        noticed = _noticed(work_s, start_s, by)
    warned = (by.notice_s > 0) & (checkpoint_s <= by.notice_s)
    by_name = vars(noticed)
    chosen = {name: np.where(warned, by_name[name], values) for name, values in vars(spaced).items()}
    return ExpectedCourse(**chosen)


def _spaced(
    work_s: Numbers, start_s: Numbers, checkpoint_s: Numbers, mean_s: float, intervals: Numbers
) -> ExpectedCourse:
    interval_s = work_s / intervals
    busy_s = work_s + intervals * checkpoint_s
    starting_s = mean_s * np.expm1(start_s / mean_s)
    segment_s = mean_s * np.exp(start_s / mean_s) * np.expm1((interval_s + checkpoint_s) / mean_s)
    makespan_s = starting_s + intervals * segment_s
    openings = 1 + makespan_s / mean_s
    # A start that is cut short lasts less than a whole one.
    in_starts_s = -openings * mean_s * np.expm1(-start_s / mean_s)
    lost_s = np.maximum(0.0, makespan_s - busy_s - in_starts_s)
    return ExpectedCourse(start_s + busy_s, makespan_s, interval_s, openings, lost_s)


def _noticed(work_s: Numbers, start_s: Numbers, by: Preemption) -> ExpectedCourse:
    """Return the course of jobs that work from the end of their start until the notice.

    A life outlasts start and notice with a probability of exp(-(start + notice) / mean), and what is left of it is
    exponential again: the work ends 1 + work / mean lives of this kind, each after those that were too short.
    """
    idle = (start_s + by.notice_s) / by.mean_s
    working_lives = 1 + work_s / by.mean_s
    makespan_s = working_lives * by.mean_s * np.expm1(idle) + work_s - by.notice_s
    openings = working_lives * np.exp(idle)
    no_interval_s = np.full_like(work_s, np.nan)
    nothing_lost_s = np.zeros_like(work_s)
    return ExpectedCourse(
        start_s + work_s,
        makespan_s,
        no_interval_s,
        openings,
        nothing_lost_s,
    )
