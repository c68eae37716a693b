"""A scheduled job, and the protocol of timers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from suite.errors import RequestError
from suite.schedule_specification import ScheduleSpecification

MARKER = "virtbench-schedule:"
"""Stands on a line of every entry, with the name behind it: an entry without it belongs to somebody else."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ScheduledJob:
    """A command to start at set times. Its paths are absolute: a timer has no search path and no directory."""

    name: str
    schedule: ScheduleSpecification
    plan: Path
    command: tuple[str, ...]
    """The command on this host, up to ``options``; it names the plan file and the directory of the firings."""
    options: tuple[str, ...]
    """The options of ``bench sweep schedule-run`` besides."""
    directory: str
    environment: Mapping[str, str]
    log: str
    """The file for its output, where the timer does not keep it itself."""

    def __post_init__(self) -> None:
        check_name(self.name)
        words = (*self.argv, self.directory, self.log, *self.environment.values())
        for word in words:
            if not word.isprintable():
                raise RequestError(
                    f"{word!r}: a schedule cannot hold line breaks or other control characters",
                    remedy="name files and directories without them",
                )

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the whole command on this host."""
        return (*self.command, *self.options)


@dataclass(frozen=True)
class Installed:
    """An installed entry of the suite; ``line`` is what the timer holds."""

    name: str
    when: str
    line: str


class Timer(Protocol):
    """One kind of timer. ``install`` and ``remove`` can be repeated; foreign entries are never touched."""

    kind: str

    def missing(self) -> str | None:
        """Return why the host has no timer of this kind; None if it has."""

    def asleep(self) -> str | None:
        """Return why an entry can be installed but would not fire now; None if it would."""

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        """Return the text that would be installed, by the place where it would stand."""

    def install(self, job: ScheduledJob) -> bool:
        """Install the job; return whether anything had to be changed."""

    def installed(self) -> list[Installed]:
        """Return the entries of the suite."""

    def remove(self, name: str) -> bool:
        """Remove the entry; return whether it was there."""


def check_name(name: str) -> str:
    """Return the name; it becomes a file's and stands in a crontab. Raises RequestError."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} cannot be the name of a schedule",
            remedy="use letters, digits, - and _ (at most 64), with --name",
        )
    return name
