"""The engines ``slurm`` and ``ssh`` of sweeps: elements on other machines. See docs/clusters.md."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from commands.elements import elements_left, estimate_s, files_of, finished, next_round
from suite.errors import BenchError, MeasurementError, RequestError
from suite.nearest import nearest

if TYPE_CHECKING:
    from commands.sweep_engines import SweepRequest
    from provisioning.batch.options import SlurmOptions
    from provisioning.batch.remote import RemotePlace
    from provisioning.batch.slurm import Task
    from suite.inventory import InventoryNode
    from suite.records import TrialRecord
    from suite.sweep.model import Sweep

T = TypeVar("T", bound=BaseModel)
Wrap = Callable[[Sequence[str]], list[str]]
_ELEMENT = ("sweep", "element")
AT_ONCE = 16
"""With srun every element that runs or waits is a process here."""


def run_slurm(request: "SweepRequest") -> "list[TrialRecord]":
    """Every element is a task of an array job; without a common file system, a job of its own by srun."""
    from provisioning.batch import slurm

    options = slurm_options(request)
    slurm.require()
    by = _by_srun if options.scratch else _by_array
    return _run(request, lambda blocks: by(request, options, blocks), options.at_once or AT_ONCE)


def slurm_script(request: "SweepRequest") -> str:
    """What would be handed to sbatch now."""
    return _script(request, slurm_options(request), elements_left(request))


def run_ssh(request: "SweepRequest") -> "list[TrialRecord]":
    """Elements go to the machines of the inventory as these become free."""
    places = ssh_places(request)
    return _run(request, lambda blocks: _pool(request, places, blocks), len(places))


def ssh_places(request: "SweepRequest") -> "list[RemotePlace]":
    """The machines that the plan names. Raises RequestError."""
    from provisioning.batch.options import SshOptions
    from provisioning.batch.reach import ssh_wrap
    from suite.inventory import read_inventory

    options, take = _options(SshOptions, request), _taker(request.directory.path)
    nodes = {node.name: node for node in read_inventory(request.file.absolute().parent / options.inventory).nodes}
    if unknown := [name for name in options.nodes if name not in nodes]:
        raise RequestError(
            f"engine.nodes: {unknown[0]!r} is not in the inventory", remedy=nearest(unknown[0], [*nodes])
        )
    return [
        _place(
            request,
            name,
            ssh_wrap(node.host, port=node.port, config=node.ssh_config),
            _far(node, options.scratch),
            take,
        )
        for name, node in nodes.items()
        if not options.nodes or name in options.nodes
    ]


def slurm_options(request: "SweepRequest") -> "SlurmOptions":
    from provisioning.batch.options import SlurmOptions

    return _options(SlurmOptions, request)


def _options(model: type[T], request: "SweepRequest") -> T:
    """The table ``[engine]`` as its engine understands it. Raises RequestError naming the key."""
    try:
        return model.model_validate(request.sweep.engine.table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            said, remedy = f"unknown key engine.{key}", nearest(key, list(model.model_fields))
        elif first["type"] == "missing":
            said, remedy = f"engine.{key} is missing", f"add {key} to [engine]"
        else:
            said = f"engine.{key} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"
            remedy = "docs/clusters.md has every key"
        raise RequestError(f"{request.file}: {said}", remedy=remedy) from error


def _run(request: "SweepRequest", run: Callable[[list[int]], None], at_once: int) -> "list[TrialRecord]":
    """Round after round; returns the new records. Raises MeasurementError when elements did not come to their end."""
    before = finished(request)
    while blocks := next_round(request, at_once):
        run(blocks)
        if request.directory.stop_requested():
            break
        if lost := sorted({*blocks} & {*elements_left(request)}):
            raise MeasurementError(
                f"of {len(blocks)} elements {len(lost)} did not come to their end: {', '.join(map(str, lost))}",
                remedy=f"see what they say in {request.directory.path / 'logs'}; bench sweep run tries them again",
            )
    return [record for key, record in finished(request).items() if before.get(key) != record]


def _by_array(request: "SweepRequest", options: "SlurmOptions", blocks: list[int]) -> None:
    from provisioning.batch import slurm

    name = slurm.job_name(request.sweep.name, request.directory.path)
    queued = {task.block for task in slurm.queue(name) if not task.ended}
    if new := [block for block in blocks if block not in queued]:
        (request.directory.path / "logs").mkdir(exist_ok=True)
        job = slurm.submit(_script(request, options, new))
        request.observer.note(f"job {job} ({name}): {len(new)} elements in the queue")
    if queued:
        request.observer.note(f"{len(queued)} elements are in the queue already and are followed")
    try:
        _follow(request, options, name)
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


def _follow(request: "SweepRequest", options: "SlurmOptions", name: str) -> None:
    """Until no task of the sweep is in the queue; what changes is said."""
    from provisioning.batch import slurm

    seen: dict[int, str] = {}
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


def _by_srun(request: "SweepRequest", options: "SlurmOptions", blocks: list[int]) -> None:
    from provisioning.batch import slurm
    from provisioning.batch.reach import srun_wrap

    name = slurm.job_name(request.sweep.name, request.directory.path)
    limit = slurm.time_limit(options, estimate_s(request))
    wrap = srun_wrap(slurm.resources(options, name, limit))
    far = [options.bench or str(Path(sys.executable).with_name("bench")), *_ELEMENT, "--scratch", str(options.scratch)]
    take = _taker(request.directory.path)
    count = min(len(blocks), options.at_once or AT_ONCE)
    places = [_place(request, f"srun-{number}", wrap, far, take) for number in range(count)]
    _pool(request, places, blocks)


def _pool(request: "SweepRequest", places: "Sequence[RemotePlace]", blocks: list[int]) -> None:
    from provisioning.batch.pool import Pool

    Pool(places, blocks, request.observer.note, request.directory.stop_requested).run()


def _far(node: "InventoryNode", scratch: str | None) -> list[str]:
    """The command of an element on the machine."""
    own = ["env", f"VIRTBENCH_HOME={node.directory}"] if "directory" in node.model_fields_set else []
    return [*own, node.bench or "bench", *_ELEMENT, *(["--scratch", scratch] if scratch else [])]


def _place(
    request: "SweepRequest", name: str, wrap: Wrap, element: list[str], take: Callable[[str], None]
) -> "RemotePlace":
    from provisioning.batch.remote import RemotePlace
    from provisioning.batch.slurm import job_name
    from suite.parcels import pack

    directory = request.directory.path.absolute()
    return RemotePlace(
        name=name,
        wrap=wrap,
        element=[*element, "--name", job_name(request.sweep.name, directory)],
        take=take,
        given=lambda block: [pack(directory, path) for path in files_of(directory, block)],
        log=directory / "logs" / f"{name}.log",
    )


def _taker(directory: Path) -> Callable[[str], None]:
    """What all machines together write to the output directory, one file after the other."""
    from suite.equality import POOL, Machine, join_pool
    from suite.parcels import opened
    from suite.store import write_atomic

    writing = threading.Lock()  # two machines may send a cell's plan at the same moment

    def take(line: str) -> None:
        name, text = opened(line)
        path = directory / name
        with writing:
            if name == POOL:
                join_pool(directory, Machine.model_validate_json(text))
            elif path.name == "plan.json" and path.exists() and path.read_text(encoding="utf-8") != text:
                raise RequestError(f"this machine makes another plan of {path.parent.name} than the first one did")
            else:
                write_atomic(path, text)

    return take
