"""The engine ``slurm`` of sweeps: elements as tasks of an array job, or each as a job of srun."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commands.sweep.backends.remote import ELEMENT, options_of, place_of, run_pool, run_rounds, taker_of
from commands.sweep.blocks import estimate_s, next_round
from suite.errors import BenchError

if TYPE_CHECKING:
    from commands.sweep.backends.registry import SweepRequest
    from provisioning.batch.options import SlurmOptions
    from provisioning.batch.slurm import Task
    from suite.records.record import TrialRecord
    from suite.sweep.model import Sweep

AT_ONCE = 16
"""With srun every element that runs or waits is a process here."""


def run_slurm(request: "SweepRequest") -> "list[TrialRecord]":
    """Every element is a task of an array job; without a common file system, a job of its own by srun."""
    from provisioning.batch import slurm

    options = slurm_options(request.sweep)
    slurm.require()
    by = _by_srun if options.scratch else _by_array
    return run_rounds(request, lambda blocks: by(request, options, blocks), options.at_once or 1)


def slurm_script(request: "SweepRequest") -> str:
    """What would be handed to sbatch now."""
    options = slurm_options(request.sweep)
    return _script(request, options, next_round(request, options.at_once or 1))


def queue_lines(sweep: "Sweep", directory: Path) -> list[str]:
    """What ``bench sweep status`` says of the queue."""
    from provisioning.batch import slurm

    try:
        tasks = slurm.queue(slurm.job_name(sweep.name, directory))
    except BenchError as error:  # the records are here all the same
        return [f"the queue cannot be seen from here: {error.message}"]
    waiting = [task for task in tasks if not task.ended]
    return [f"in the queue: element {task.block} of job {task.job}, {told(task)}" for task in waiting]


def end_jobs(sweep: "Sweep", directory: Path, *, waiting_alone: bool = False) -> list[str]:
    """Take the sweep's tasks out of the queue: all of them, or those that have not begun. Says what it did."""
    from provisioning.batch import slurm

    name = slurm.job_name(sweep.name, directory)
    tasks = [task for task in slurm.queue(name) if not task.ended and (task.state == "PD" or not waiting_alone)]
    if not tasks:
        return []
    slurm.cancel(name, waiting_alone=waiting_alone)
    return [f"element {task.block} of job {task.job} is taken out of the queue ({told(task)})" for task in tasks]


def told(task: "Task") -> str:
    """``running on n1``, ``waiting (Resources)``, ``ended (CD)``."""
    if task.state == "PD":
        return f"waiting ({task.reason})"
    return f"ended ({task.state})" if task.ended else f"{task.state} on {task.node}".replace("R on", "running on")


def slurm_options(sweep: "Sweep") -> "SlurmOptions":
    from provisioning.batch.options import SlurmOptions

    return options_of(SlurmOptions, sweep)


def _by_array(request: "SweepRequest", options: "SlurmOptions", blocks: list[int]) -> None:
    from provisioning.batch import slurm

    name = slurm.job_name(request.sweep.name, request.directory.path)
    before = slurm.queue(name)
    queued = {task.block for task in before if not task.ended}
    if new := [block for block in blocks if block not in queued]:
        (request.directory.path / "logs").mkdir(exist_ok=True)
        job = slurm.submit(_script(request, options, new))
        request.observer.note(f"job {job} ({name}): {len(new)} elements in the queue")
    if queued:
        request.observer.note(f"{len(queued)} elements are in the queue already and are followed")
    try:
        _follow(request, options, name, {task.block: told(task) for task in before if task.ended})
    except KeyboardInterrupt:
        directory = request.directory.path
        request.observer.note("the jobs stay in the queue; bench sweep run follows them again")
        request.observer.note(f"end them with: bench sweep cancel {directory}")
        raise


def _script(request: "SweepRequest", options: "SlurmOptions", blocks: Sequence[int]) -> str:
    from provisioning.batch import slurm

    directory = request.directory.path.absolute()
    bench = options.bench or str(Path(sys.executable).with_name("bench"))
    element = [bench, "sweep", "run", str(request.file.absolute()), "--out", str(directory), "--take-over"]
    limit = slurm.time_limit(options, estimate_s(request))
    name = slurm.job_name(request.sweep.name, directory)
    return slurm.script(options, name, directory, [*element, "--only-block"], blocks, limit)


def _follow(request: "SweepRequest", options: "SlurmOptions", name: str, seen: dict[int, str]) -> None:
    """Until no task of the sweep is in the queue; what changes is said. ``seen``: what needs not be said."""
    from provisioning.batch import slurm

    while True:
        tasks = slurm.queue(name)
        newest = {task.block: task for task in sorted(tasks, key=lambda task: (not task.ended, int(task.job)))}
        for block, task in sorted(newest.items()):
            if seen.get(block) != (now := told(task)):
                request.observer.note(f"element {block}: {now}")
            seen[block] = now
        if all(task.ended for task in tasks):
            return
        time.sleep(options.poll_s)


def _by_srun(request: "SweepRequest", options: "SlurmOptions", blocks: list[int]) -> None:
    from provisioning.batch import slurm
    from provisioning.batch.reach import srun_wrap

    name = slurm.job_name(request.sweep.name, request.directory.path)
    limit = slurm.time_limit(options, estimate_s(request))
    wrap = srun_wrap(slurm.resources(options, name, limit))
    far = [options.bench or str(Path(sys.executable).with_name("bench")), *ELEMENT, "--scratch", str(options.scratch)]
    take = taker_of(request.directory.path)
    count = min(len(blocks), options.at_once or AT_ONCE)
    places = [place_of(request, f"srun-{number}", wrap, far, take) for number in range(count)]
    run_pool(request, places, blocks)
