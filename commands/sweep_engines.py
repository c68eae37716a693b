"""Who runs the blocks of a sweep. An engine is a function and a line in ``ENGINES``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commands.sweeping import Planned, prepare, runner_of
from suite.errors import RequestError
from suite.nearest import nearest
from suite.sweep.directory import SweepDirectory
from suite.sweep.model import Sweep

if TYPE_CHECKING:
    from suite.interfaces import Observer
    from suite.records import TrialRecord


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
    return run_here(request, range(request.sweep.element_count))


def run_here(request: SweepRequest, blocks: Sequence[int], *, take_over: bool = False) -> SweepEnd:
    """Run blocks of the sweep on this machine. What other engines make happen on theirs by ``--only-block``."""
    prepare(request.planned, request.observer.note)
    runner = runner_of(request.sweep, request.directory, request.planned, request.observer, take_over=take_over)
    reason = runner.run(blocks)
    return SweepEnd(runner.made, reason)


def check_local(sweep: Sweep) -> None:
    """It has no keys of its own. Raises RequestError."""
    if key := next(iter(sweep.engine.table), None):
        raise RequestError(f"unknown key engine.{key}", remedy=nearest(key, ["kind"]) + ": the engine is local")


ENGINES: dict[str, Callable[[SweepRequest], SweepEnd]] = {"local": local}
CHECKS: dict[str, Callable[[Sweep], None]] = {"local": check_local}
"""What refuses an engine's own keys, before anything is begun."""
SAID: dict[str, Callable[[Sweep, Path], list[str]]] = {}
"""What an engine adds to ``bench sweep status``, in lines: its queue."""
CANCELLED: dict[str, Callable[[Sweep, Path], list[str]]] = {}
"""What an engine does at ``bench sweep cancel``, told in lines."""


def said_of(sweep: Sweep, directory: Path) -> list[str]:
    return SAID[sweep.engine.kind](sweep, directory) if sweep.engine.kind in SAID else []


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
