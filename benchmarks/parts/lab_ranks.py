"""A distributed job's place in a lab, without the job: for benchmarks that start programs of their own there."""

import os
from collections.abc import Sequence

from provisioning.targets import Choices
from suite.interfaces import Process
from suite.job.distributed import DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.job import Job
from suite.job.profiles import Sizes
from suite.plan import Plan, Trial


def lab_trial(target: str, distributed: DistributedJob, choices: Choices, within_s: int) -> Trial:
    """Plan the trial whose instances the suite itself would open for such a job, with 2 GiB each."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    job = Job(
        scenario="distributed",
        model="resnet50",
        data="synthetic",
        profile="smoke",
        sizes=Sizes(batch=1, image_px=32, warmup_steps=1, steps=1),
        envelope=Envelope(cpus=cpus, memory_bytes=2 * GIB * len(distributed.roles), threads=1),
        distributed=distributed,
        layers=choices.layers(),
    )
    return next(Plan(jobs=(job,), targets=(target,), trial_timeout_s=within_s).trials())


def ended(ranks: Sequence[Process], target: str, within_s: float) -> list[list[str]]:
    """Return the lines of each. Exits if one has failed."""
    said = [list(process.lines(within_s)) for process in ranks]
    for process, lines in zip(ranks, said, strict=True):
        if status := process.wait(within_s):
            raise SystemExit("\n".join([f"a rank on {target} ended with {status}:", *lines, process.output_tail()]))
    return said
