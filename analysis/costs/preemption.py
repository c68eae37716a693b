"""Predicts a job whose machine is taken away at random moments, from its measured parts. All times are in seconds.

The moments are a Poisson process; what is lost is the work since the last checkpoint, and the machine is opened again.

- The interval of checkpoints: Young, Comm. ACM 17 (1974) 530; of higher order: Daly, Future Gener. Comput. Syst. 22
  (2006) 303, which also has the makespan. A start, the first one too, can be cut short like the work.
"""

from dataclasses import dataclass

import numpy as np

from analysis.costs.prices import Numbers
from suite.job.preemption import Preemption


def best_interval(checkpoint_s: Numbers, mean_s: float) -> Numbers:
    """Return the work between two checkpoints that makes the makespan shortest: Young's term, and Daly's others."""
    half, young_s = checkpoint_s / (2 * mean_s), np.sqrt(2 * checkpoint_s * mean_s)
    return np.where(half < 1, young_s * (1 + np.sqrt(half) / 3 + half / 9) - checkpoint_s, mean_s)


@dataclass(frozen=True)
class Preempted:
    """The expected course of jobs, an entry for each."""

    makespan_s: Numbers
    interval_s: Numbers
    """The work between two checkpoints."""
    openings: Numbers
    lost_s: Numbers
    """The work, and the parts of checkpoints, that is done again."""


def preempted(
    work_s: Numbers, start_s: Numbers, checkpoint_s: Numbers, by: Preemption, interval_s: Numbers | None = None
) -> Preempted:
    """Return the course of jobs of so much work, after a start, with a checkpoint every ``interval_s``.

    By default that is Daly's interval. A notice that is long enough for a checkpoint takes the place of all others.
    """
    mean_s = by.mean_s
    with np.errstate(over="ignore"):
        starting_s = mean_s * np.expm1(start_s / mean_s)
        chosen_s = np.minimum(work_s, best_interval(checkpoint_s, mean_s) if interval_s is None else interval_s)
        segment_s = mean_s * np.exp(start_s / mean_s) * np.expm1((chosen_s + checkpoint_s) / mean_s)
        makespan_s = starting_s + work_s / chosen_s * segment_s
        openings = 1 + makespan_s / mean_s
        # A start that is cut short lasts less than a whole one.
        in_starts_s = -openings * mean_s * np.expm1(-start_s / mean_s)
        lost_s = np.maximum(0.0, makespan_s - work_s * (1 + checkpoint_s / chosen_s) - in_starts_s)
        warned = (by.notice_s > 0) & (by.notice_s >= checkpoint_s)
        noticed_s = starting_s + work_s + work_s / mean_s * (by.notice_s + starting_s)
    return Preempted(
        np.where(warned, noticed_s, makespan_s),
        np.where(warned, np.nan, chosen_s),
        np.where(warned, 1 + work_s / mean_s, openings),
        np.where(warned, 0.0, lost_s),
    )
