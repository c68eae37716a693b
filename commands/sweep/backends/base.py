"""The protocol of a sweep backend, which runs the blocks of a sweep."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from commands.sweep.resolve import Planned
from suite.errors import RequestError, nearest
from suite.interfaces import Observer
from suite.part import Part
from suite.records.record import TrialRecord
from suite.registries import BACKENDS
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import Sweep

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class SweepRequest:
    """A request to ``bench sweep run``. Nothing has been started, and nothing written."""

    file: Path
    sweep: Sweep
    directory: SweepDirectory
    planned: Sequence[Planned]
    """The cells as checked on this machine; empty where other machines run them, which check for themselves."""
    observer: Observer
    dry_run: bool = False
    take_over: bool = False
    """Whether locks that other machines hold are those of processes that have ended."""


@dataclass(frozen=True)
class SweepEnd:
    made: Sequence[TrialRecord] = ()
    reason: str | None = None
    """The reason why it ended before its last trial; None if it did not."""


class Backend(ABC):
    """Runs the blocks of a sweep somewhere. A block of all cells is the unit: it stays on one machine.

    A backend is made without arguments and holds no state: its only memory is the sweep's directory, and the queue of
    a scheduler. Lists of text are lines for the user.
    """

    options: type[BaseModel] = Part
    """The keys of the table ``[engine]`` besides ``kind``: none, unless the backend has some."""
    runs_here: bool = False
    """Whether this process runs the trials: then all cells are checked on this machine before the first."""

    def check(self, sweep: Sweep) -> None:
        """Check the keys of ``[engine]``; nothing is started. Raises RequestError for one that it does not know."""
        options_of(self.options, sweep)

    def check_node(self) -> None:
        """Check the machine that runs a block, on that machine. Raises RequestError if it cannot measure one."""
        return

    @abstractmethod
    def run(self, request: SweepRequest) -> SweepEnd:
        """Run every block that has trials left; return when all have ended, or it was asked to stop."""

    @abstractmethod
    def dry_run(self, request: SweepRequest) -> None:
        """Show what ``run`` would do, without starting or writing anything. Raises RequestError as ``run`` would."""

    def queue(self, sweep: Sweep, directory: Path) -> list[str]:  # noqa: ARG002 (others look at them)
        """Return what waits to be run, for ``bench sweep status``."""
        return []

    def stop(self, sweep: Sweep, directory: Path) -> list[str]:  # noqa: ARG002 (others look at them)
        """Begin no further block, let running ones end, and return what was done."""
        return []

    def cancel(self, sweep: Sweep, directory: Path) -> list[str]:  # noqa: ARG002 (others look at them)
        """End what runs on other machines now, and return what was done."""
        return []


def job_name(sweep: Sweep, directory: Path) -> str:
    """Return the one name of all jobs of the sweep that writes ``directory``."""
    return f"bench-{sweep.name}-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]}"


def backend_of(sweep: Sweep) -> Backend:
    """Return the backend that the plan names. Raises RequestError if it is unknown, or fails to load."""
    backend: Backend = BACKENDS.get(sweep.engine.kind)()
    return backend


def options_of(model: type[T], sweep: Sweep) -> T:
    """Return the table ``[engine]`` as ``model`` reads it. Raises RequestError that names the key."""
    try:
        return model.model_validate(sweep.engine.table)
    except ValidationError as error:
        # An unknown key first: a misspelt one is often also missing.
        details = error.errors(include_url=False)
        first = min(details, key=lambda item: item["type"] != "extra_forbidden")
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            keys = ["kind", *model.model_fields]
            message = f"unknown key engine.{key} of the engine {sweep.engine.kind}"
            remedy = nearest(key, keys)
        elif first["type"] == "missing":
            message = f"engine.{key} is missing"
            remedy = f"add {key} to [engine]"
        else:
            message = f"engine.{key} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"
            remedy = "docs/guide/clusters.md lists all keys"
        raise RequestError(message, remedy=remedy) from error
