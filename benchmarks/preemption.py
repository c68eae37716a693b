"""Simulate jobs whose machine is taken away at random moments, beside the course that their parts predict.

    python benchmarks/preemption.py [--jobs 20000] [--seed 1]

A job is a start, then work with a checkpoint after every interval. A machine lives for a time that is exponential, from
its opening. A job with a notice works until it comes, then writes its one checkpoint and waits for the end.
"""

import argparse
from typing import NamedTuple

import numpy as np

from analysis.costs.job import course_of
from suite.job.preemption import Preemption


class Case(NamedTuple):
    """A job and its preemption, in seconds."""

    mean_s: float
    start_s: float
    checkpoint_s: float
    work_s: float
    interval_s: float
    notice_s: float = 0.0


CASES = (
    Case(60, 8, 3, 300, 30),
    Case(60, 30, 3, 300, 100),
    Case(600, 40, 5, 1800, 1800),
    Case(1e9, 40, 5, 1800, 180),
    Case(60, 6, 3, 180, 18, notice_s=30),
    Case(100, 40, 5, 300, 30, notice_s=20),
    Case(600, 40, 5, 1800, 180, notice_s=120),
    Case(60, 8, 3, 300, 30, notice_s=2),
)


def simulated(case: Case, rng: "np.random.Generator") -> tuple[float, float, float]:
    """Return the makespan, the openings and the lost time of one job."""
    notice_s = case.notice_s if case.notice_s >= case.checkpoint_s else 0.0
    clock_s, left_s, openings, lost_s = 0.0, case.work_s, 0, 0.0
    while True:
        openings += 1
        life_s = rng.exponential(case.mean_s)
        usable_s = max(0.0, life_s - notice_s - case.start_s)
        if notice_s:
            needed_s = left_s
            saved_s = usable_s
        else:
            segment_s = case.interval_s + case.checkpoint_s
            needed_s = left_s / case.interval_s * segment_s
            saved_s = usable_s // segment_s * case.interval_s
        if usable_s >= needed_s:
            return clock_s + case.start_s + needed_s, openings, lost_s
        clock_s += life_s
        left_s -= saved_s
        lost_s += 0.0 if notice_s else usable_s % segment_s


def held_against(case: Case, jobs: int, rng: "np.random.Generator") -> dict[str, tuple[float, float, float]]:
    """Return the predicted number, the simulated mean and its standard error, by the name of the number."""
    drawn = np.array([simulated(case, rng) for _ in range(jobs)])
    work_s, start_s, checkpoint_s, interval_s = np.array(
        [[case.work_s], [case.start_s], [case.checkpoint_s], [case.interval_s]]
    )
    by = Preemption(mean_s=case.mean_s, notice_s=case.notice_s)
    course = course_of(work_s, start_s, checkpoint_s, by, interval_s)
    predicted = {"makespan": course.makespan_s, "openings": course.openings, "lost": course.lost_s}
    errors = drawn.std(axis=0, ddof=1) / np.sqrt(jobs)
    rows = zip(predicted.items(), drawn.mean(axis=0), errors, strict=True)
    return {name: (float(values[0]), float(mean), float(error)) for (name, values), mean, error in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| mean, notice, start, checkpoint, work, interval (s) | makespan | openings | lost |")
    rng = np.random.default_rng(options.seed)
    for case in CASES:
        found = held_against(case, options.jobs, rng)
        texts = [f"{predicted:.2f}; {mean:.2f} ± {1.96 * error:.2f}" for predicted, mean, error in found.values()]
        job = (case.mean_s, case.notice_s, case.start_s, case.checkpoint_s, case.work_s, case.interval_s)
        print(f"| {', '.join(f'{part:g}' for part in job)} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
