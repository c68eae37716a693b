"""The sweep backend ``slurm``: blocks as tasks of an array job, or each as a job of srun."""

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, options_of
from commands.sweep.backends.rounds import BLOCK, estimate_s, next_round, run_on, run_rounds, stream
from provisioning.batch import slurm
from provisioning.batch.options import SlurmOptions
from provisioning.batch.remote import srun_wrap
from suite.errors import BenchError
from suite.results.store import write_atomic
from suite.sweep.cells import cells_of
from suite.sweep.model import Sweep
from suite.units import count

BENCH = str(Path(sys.executable).with_name("bench"))
AT_ONCE = 16
"""The most blocks at once with srun, which is a process here for every block that runs or waits."""
CLUSTER, CLUSTER_NAME = "slurm-cluster", re.compile(r"[\w.-]+")
"""The file of a sweep with the name of the cluster that took its jobs."""
MOST_FOLLOWED = 256
"""The most blocks of an array job that are followed at once, each by a thread; the others follow in their turn."""


class Slurm(Backend):
    """Runs blocks on the nodes of a cluster, one on each at a time; without a common file system by srun."""

    options = SlurmOptions

    def run(self, request: SweepRequest) -> SweepEnd:
        options = options_of(SlurmOptions, request.sweep)
        slurm.require()
        by = _by_srun if options.scratch else _by_array
        return run_rounds(request, lambda blocks: by(request, options, blocks), options.at_once or 1)

    def dry_run(self, request: SweepRequest) -> None:
        """Say what would be handed to sbatch now, in a comment of the script."""
        options = options_of(SlurmOptions, request.sweep)
        blocks = next_round(request, options.at_once or 1)
        shebang, _, script = _script(request, options, blocks).partition("\n")
        cells, targets = count(len(cells_of(request.sweep)), "cell"), ", ".join(request.sweep.targets)
        comment = f"# {count(len(blocks), 'block')} of {cells} on {targets} would go to Slurm, each to its own node."
        click.echo(f"{shebang}\n{comment}\n{script}", nl=False)

    def queue(self, sweep: Sweep, directory: Path) -> list[str]:
        try:
            tasks = slurm.queue(slurm.job_name(sweep.name, directory), _where(sweep, directory))
        except BenchError as error:  # the records are here all the same
            return [f"the queue cannot be seen from here: {error.message}"]
        waiting = [task for task in tasks if not task.ended]
        return [f"in the queue: block {task.block} of job {task.job}, {task}" for task in waiting]

    def stop(self, sweep: Sweep, directory: Path) -> list[str]:
        return _remove(sweep, directory, waiting_alone=True)

    def cancel(self, sweep: Sweep, directory: Path) -> list[str]:
        return _remove(sweep, directory, waiting_alone=False)


def _remove(sweep: Sweep, directory: Path, *, waiting_alone: bool) -> list[str]:
    name, where = slurm.job_name(sweep.name, directory), _where(sweep, directory)
    tasks = [task for task in slurm.queue(name, where) if not task.ended and (task.state == "PD" or not waiting_alone)]
    if tasks:
        slurm.cancel(name, where, waiting_alone=waiting_alone)
    return [f"block {task.block} of job {task.job} was removed from the queue ({task})" for task in tasks]


def _where(sweep: Sweep, directory: Path) -> list[str]:
    """Return the option for the cluster that took this sweep's jobs, or else for those that would take them."""
    try:
        kept = CLUSTER_NAME.fullmatch((directory / CLUSTER).read_text(errors="replace").strip())
    except FileNotFoundError:
        kept = None
    return [f"--clusters={kept[0]}"] if kept else slurm.clusters(options_of(SlurmOptions, sweep))


def _by_array(request: SweepRequest, options: SlurmOptions, blocks: list[int]) -> None:
    directory = request.directory.path
    name, where = slurm.job_name(request.sweep.name, directory), _where(request.sweep, directory)
    before = slurm.queue(name, where)
    queued = {task.block for task in before if not task.ended}
    if new := [block for block in blocks if block not in queued]:
        (directory / "logs").mkdir(exist_ok=True)
        job, cluster = slurm.submit(_script(request, options, new))
        if cluster:  # a later command may have another environment
            write_atomic(directory / CLUSTER, f"{cluster}\n", below=directory)
            where = [f"--clusters={cluster}"]
        request.observer.note(f"job {job} ({name}): {count(len(new), 'block')} in the queue")
    if queued:
        request.observer.note(f"{count(len(queued), 'block')} already in the queue, which this process follows")
    ended = [task for task in before if task.ended]
    tasks = slurm.FollowedQueue(partial(slurm.queue, name, where), options.poll_s, request.observer.note, ended)
    openers = {
        f"slurm-{number}": partial(slurm.TaskProcess, tasks) for number in range(min(len(blocks), MOST_FOLLOWED))
    }
    run_on(openers, request, blocks, stay="the jobs stay in the queue")


def _script(request: SweepRequest, options: SlurmOptions, blocks: Sequence[int]) -> str:
    file, directory = request.file.absolute(), request.directory.path.absolute()
    run = [options.bench or BENCH, "sweep", "run", str(file), "--out", str(directory), "--take-over", "--only-block"]
    limit = slurm.time_limit(options, estimate_s(request))
    return slurm.script(options, slurm.job_name(request.sweep.name, directory), directory, run, blocks, limit)


def _by_srun(request: SweepRequest, options: SlurmOptions, blocks: list[int]) -> None:
    name = slurm.job_name(request.sweep.name, request.directory.path)
    limit = slurm.time_limit(options, estimate_s(request))
    wrap = srun_wrap(slurm.resources(options, name, limit))
    command = [options.bench or BENCH, *BLOCK, "--scratch", str(options.scratch)]
    names = [f"srun-{number}" for number in range(min(len(blocks), options.at_once or AT_ONCE))]
    run_on({name: stream(request, name, wrap, command) for name in names}, request, blocks)
