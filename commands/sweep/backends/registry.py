"""Who runs the blocks of a sweep. An engine is a function and a line in ``ENGINES``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commands.sweep.resolve import Planned, enough_of, prepare, runner_of
from suite.errors import RequestError
from suite.suggest import nearest
from suite.sweep.cell_run import Enough
from suite.sweep.directory import SweepDirectory
from suite.sweep.model import Sweep

if TYPE_CHECKING:
    from suite.interfaces import Observer
    from suite.records.record import TrialRecord
    from suite.sweep.cell_run import CellRun


@dataclass(frozen=True)
class SweepRequest:
    """``bench sweep run``, checked on this machine; nothing is started, nothing is written."""

    file: Path
    sweep: Sweep
    directory: SweepDirectory
    planned: Sequence[Planned]
    observer: "Observer"
    dry_run: bool = False


@dataclass(frozen=True)
class SweepEnd:
    """How a run of a sweep ended. ``reason`` says why before its end; None at the end."""

    made: "Sequence[TrialRecord]" = ()
    reason: str | None = None


def local(request: SweepRequest) -> SweepEnd:
    """On this machine, one trial at a time."""
    if request.dry_run:
        return SweepEnd()
    return _run_here(request, range(request.sweep.element_count), enough=enough_of(request.sweep))


def run_element(request: SweepRequest, block: int, *, take_over: bool = False) -> SweepEnd:
    """Run one block on this machine. With ``until``, who hands out the blocks decides which cells need it."""
    from suite.sweep.converged import decided

    narrow = decided(request.directory.path, request.sweep) if request.sweep.until else frozenset[str]()

    def enough(run: "CellRun") -> str | None:
        return "its intervals are narrow enough" if run.directory.name in narrow else None

    return _run_here(request, [block], enough=enough, take_over=take_over)


def _run_here(
    request: SweepRequest, blocks: Sequence[int], *, enough: Enough | None = None, take_over: bool = False
) -> SweepEnd:
    prepare(request.planned, request.observer.note)
    runner = runner_of(
        request.sweep, request.directory, request.planned, request.observer, enough=enough, take_over=take_over
    )
    reason = runner.run(blocks)
    return SweepEnd(runner.made, reason)


def check_local(sweep: Sweep) -> None:
    """It has no keys of its own. Raises RequestError."""
    if key := next(iter(sweep.engine.table), None):
        raise RequestError(f"unknown key engine.{key}", remedy=nearest(key, ["kind"]) + ": the engine is local")


def slurm(request: SweepRequest) -> SweepEnd:
    """On the nodes of a cluster, one element on each at a time."""
    from commands.sweep.backends.slurm import run_slurm, slurm_script

    if request.dry_run:
        click.echo(slurm_script(request), nl=False)
        return SweepEnd()
    return SweepEnd(run_slurm(request), _asked(request))


def ssh(request: SweepRequest) -> SweepEnd:
    """On the machines of an inventory, one element on each at a time."""
    from commands.sweep.backends.ssh import run_ssh, ssh_places

    if request.dry_run:
        names = ", ".join(place.name for place in ssh_places(request))
        request.observer.note(f"elements go to {names} as these become free")
        return SweepEnd()
    return SweepEnd(run_ssh(request), _asked(request))


def check_slurm(sweep: Sweep) -> None:
    """Raises RequestError."""
    from commands.sweep.backends.slurm import slurm_options

    slurm_options(sweep)


def check_ssh(sweep: Sweep) -> None:
    """Raises RequestError."""
    from commands.sweep.backends.ssh import ssh_options

    ssh_options(sweep)


def slurm_queue(sweep: Sweep, directory: Path) -> list[str]:
    from commands.sweep.backends.slurm import queue_lines

    return queue_lines(sweep, directory)


def slurm_stop(sweep: Sweep, directory: Path) -> list[str]:
    from commands.sweep.backends.slurm import end_jobs

    return end_jobs(sweep, directory, waiting_alone=True)


def slurm_cancel(sweep: Sweep, directory: Path) -> list[str]:
    from commands.sweep.backends.slurm import end_jobs

    return end_jobs(sweep, directory)


def _asked(request: SweepRequest) -> str | None:
    return "it was asked to stop" if request.directory.stop_requested() else None


ENGINES: dict[str, Callable[[SweepRequest], SweepEnd]] = {"local": local, "slurm": slurm, "ssh": ssh}
CHECKS: dict[str, Callable[[Sweep], None]] = {"local": check_local, "slurm": check_slurm, "ssh": check_ssh}
"""What refuses an engine's own keys, before anything is begun."""
SAID: dict[str, Callable[[Sweep, Path], list[str]]] = {"slurm": slurm_queue}
"""What an engine adds to ``bench sweep status``, in lines: its queue."""
CANCELLED: dict[str, Callable[[Sweep, Path], list[str]]] = {"slurm": slurm_cancel}
"""What an engine does at ``bench sweep cancel``, told in lines."""
STOPPED: dict[str, Callable[[Sweep, Path], list[str]]] = {"slurm": slurm_stop}
"""What an engine does at ``bench sweep stop``, told in lines."""


def said_of(sweep: Sweep, directory: Path) -> list[str]:
    return SAID[sweep.engine.kind](sweep, directory) if sweep.engine.kind in SAID else []


def stop_of(sweep: Sweep, directory: Path) -> list[str]:
    return STOPPED[sweep.engine.kind](sweep, directory) if sweep.engine.kind in STOPPED else []


def cancel_of(sweep: Sweep, directory: Path) -> list[str]:
    return CANCELLED[sweep.engine.kind](sweep, directory) if sweep.engine.kind in CANCELLED else []


def engine_of(sweep: Sweep) -> Callable[[SweepRequest], SweepEnd]:
    """Raises RequestError for an engine that is not there, and for keys that it does not know."""
    if sweep.engine.kind not in ENGINES:
        raise RequestError(
            f"engine.kind = {sweep.engine.kind!r} is not built yet", remedy=f"choose among {', '.join(ENGINES)}"
        )
    if sweep.engine.kind in CHECKS:
        CHECKS[sweep.engine.kind](sweep)
    return ENGINES[sweep.engine.kind]
