"""What is to be started, and what every kind of timer can do."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from suite.errors import CommandError, RequestError
from suite.schedule_specification import Every

MARKER = "virtbench-schedule:"
"""With the name after it, on a line of every entry: what does not carry it belongs to somebody else."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Job:
    """One schedule. ``argv`` and ``directory`` are absolute: a timer has no search path and no place of its own."""

    name: str
    every: Every
    argv: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    log: str
    """Where its output goes, where the timer does not keep it itself."""

    def __post_init__(self) -> None:
        check_name(self.name)
        words = (*self.argv, self.directory, self.log, *self.environment.values())
        if any(ord(letter) < 32 for word in words for letter in word):
            raise RequestError("a schedule cannot hold line breaks or other control characters")


@dataclass(frozen=True)
class Installed:
    """An entry of the suite that is there. ``line`` is what the timer holds, for people."""

    name: str
    when: str
    line: str


class Timer(Protocol):
    """One kind of timer. ``install`` and ``remove`` can be repeated; entries of others are never touched."""

    kind: str

    def missing(self) -> str | None:
        """Why the host has none of this kind."""

    def asleep(self) -> str | None:
        """Why an entry would not be fired now, although it can be installed."""

    def render(self, job: Job) -> Mapping[str, str]:
        """What would be installed: text by the place where it would stand."""

    def install(self, job: Job) -> bool:
        """Whether anything had to be changed."""

    def installed(self) -> list[Installed]: ...

    def remove(self, name: str) -> bool:
        """Whether it was there."""


def check_name(name: str) -> str:
    """The name becomes a file's and stands in a crontab."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} is no name of a schedule", remedy="use letters, digits, - and _ (at most 64), with --name"
        )
    return name


def call(argv: Sequence[str], *, allowed: str | None = None) -> str:
    """Its standard output. Raises CommandError when it fails, and RequestError when there is no such program.

    ``allowed``: a failure whose output matches this pattern is none.
    """
    plain = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, env=plain
        )
    except FileNotFoundError as error:
        raise RequestError(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(argv, None, "") from error
    if done.returncode and (allowed is None or not re.search(allowed, done.stdout + done.stderr)):
        raise CommandError(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout
