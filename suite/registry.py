"""A registry: the only list of the members of one axis (engines, probes, figures, ...), which other packages add to.

Members are named as ``module:attribute`` and imported when they are asked for, so that a list of choices costs nothing.
A package adds one with an entry point of the registry's group, such as::

    [project.entry-points."virtbench.engines"]
    nerdctl = "my_package.nerdctl:NERDCTL"
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, distributions
from typing import Any

from suite.errors import RequestError, nearest

LOADS_WITHIN_S = 10.0
"""How long the module of another package may take to import: commands that do not need it wait for it, too."""


class SlowImportError(BaseException):
    """A module took too long to import. Not an Exception, which the module might catch."""


@contextmanager
def _within(limit_s: float | None) -> Iterator[None]:
    """Raise SlowImportError when the time is over. Signals reach the main thread alone: others have no limit."""
    if limit_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: object) -> None:
        raise SlowImportError(f"it was not imported within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _entry_points() -> tuple[list[EntryPoint], dict[str, str]]:
    """Return the entry points of all installed packages, and why those of a package cannot be read, by its directory.

    Of packages that add members of one name the first on the path comes last, and counts.
    """
    points: list[EntryPoint] = []
    unreadable = {}
    for package in reversed(list(distributions())):
        try:
            points += package.entry_points
        except Exception as error:  # noqa: BLE001 (a line without "=" is a TypeError)
            directory = str(getattr(package, "_path", package))  # its metadata may be as broken
            unreadable[directory] = f"{directory}/entry_points.txt cannot be read: {error}"
    return points, unreadable


def unreadable_packages() -> dict[str, str]:
    """Return, by directory, why the entry points of an installed package cannot be read: it adds no member."""
    _, unreadable = _entry_points()
    return unreadable


@dataclass(frozen=True)
class Registry:
    """The members of one axis by name: the suite's own, in their order, and then those of other packages."""

    group: str
    """The group of entry points that adds to it, such as ``virtbench.engines``."""
    what: str
    """The word for a member in messages, such as ``container engine``."""
    own: Mapping[str, str]
    """``module:attribute`` by name."""
    options: Mapping[str, str] | None = None
    """The options that the suite's own members declare, as ``own``; None where each has them as its ``options``."""
    variants: "tuple[Registry, str] | None" = None
    """Another registry whose added members are members of this one, too, and what makes each from its name."""
    _loaded: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    _adopted: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)
    _refused: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)
    _failed: dict[str, RequestError] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def _places(self) -> dict[str, EntryPoint]:
        members = {name: EntryPoint(name, location, self.group) for name, location in self.own.items()}
        # A member of the suite keeps its name: another package must not change what a number means.
        added = {point.name: point for point in _entry_points()[0] if point.group == self.group}
        others, maker = self.variants or (None, "")
        made = {name: EntryPoint(name, maker, self.group) for name in (others.added() if others else ())}
        return {**made, **added, **members}

    def names(self) -> tuple[str, ...]:
        """Return all names: those of the suite in their order, then those of other packages in alphabetical order."""
        added = set(self._places) - set(self.own)
        return (*self.own, *sorted(added))

    def adopt(self, name: str, location: str, member: Any) -> None:  # noqa: ANN401 (as ``get``)
        """Add a member that the user has named by its file: to this process alone, and to no list of names."""
        self._adopted[name] = location
        self._loaded[name] = member

    def refuse(self, name: str, why: str) -> None:
        self._refused[name] = why

    def __contains__(self, name: object) -> bool:
        return name in self._adopted or name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str) -> Any:  # noqa: ANN401 (the protocol of a member is its room's)
        """Return the member. Raises RequestError for a name that is unknown, or that fails to load."""
        location = self.place(name)
        why = self._refused.get(name)
        if why:
            raise RequestError(
                f"the {self.what} {name!r} cannot be used: {why}",
                remedy=f"mend or uninstall the package that provides {location}",
            )
        failed = self._failed.get(name)
        if failed:
            raise failed
        if name not in self._loaded:
            limit_s = None if name in self.own else LOADS_WITHIN_S
            try:
                # A module may print: standard output is for results.
                with redirect_stdout(sys.stderr), _within(limit_s):
                    self._loaded[name] = self._places[name].load()
            except (Exception, SlowImportError, SystemExit) as error:
                if os.environ.get("VIRTBENCH_DEBUG"):
                    traceback.print_exception(error)
                failed = RequestError(
                    f"the {self.what} {name!r} cannot be loaded: {type(error).__name__}: {error}",
                    remedy=f"mend or uninstall the package that provides {location}; VIRTBENCH_DEBUG=1 shows where",
                )
                if not isinstance(error, (OSError, MemoryError)):  # those may pass
                    self._failed[name] = failed
                raise failed from error
        return self._loaded[name]

    def place(self, name: str) -> str:
        """Return where a member is declared, as ``module:attribute``, without importing it. Raises RequestError."""
        if name in self._adopted:
            return self._adopted[name]
        if name not in self._places:
            raise RequestError(f"no {self.what} {name!r}", remedy=nearest(name, list(self.names())))
        # As it was written: a text that names no module is refused when it is loaded.
        return self._places[name].value.partition("[")[0].strip()

    def options_of(self, name: str) -> Any:  # noqa: ANN401 (as ``get``)
        """Return the model of the options that a member declares, and None if it declares none. Raises RequestError."""
        if self.options is None or name not in self.own:
            return getattr(self.get(name), "options", None)
        location = self.options.get(name)
        if location:
            return EntryPoint(name, location, self.group).load()
        return None

    def added(self) -> tuple[str, ...]:
        return tuple(name for name in self.names() if name not in self.own)

    def failures(self) -> dict[str, str]:
        """Return, by name, why a member that another package has added cannot be used; empty where all can."""
        reasons = {}
        for name in self.added():
            try:
                self.get(name)
            except RequestError as error:
                reasons[name] = error.message
        return reasons
