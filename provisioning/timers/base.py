"""A schedule: when it fires and what it starts, and the protocol of the timers that hold it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from suite.errors import RequestError
from suite.untrusted.parse import has_control_characters

MARKER = "virtbench-schedule:"
"""Stands on a line of every entry with the name behind it: an entry without it belongs to somebody else."""
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_EVERY = re.compile(r"(?P<hour>\d{1,2}):(?P<minute>\d{2}) (?P<days>daily|[a-z,]+)|(?P<number>\d{1,2})(?P<unit>[mh])")
_FORMS = 'write it as "02:00 daily", "02:00 mon,wed", "hourly", "30m" or "6h"'
_PERIODS = {"m": (60, "minutes of an hour"), "h": (24, "hours of a day")}


@dataclass(frozen=True)
class Schedule:
    """The moments at which a sweep fires, in the host's time zone, as fields of a crontab."""

    text: str
    minute: str
    hour: str
    days: tuple[str, ...] = ()
    """The days of the week; every day if empty."""

    @property
    def cron(self) -> str:
        return f"{self.minute} {self.hour} * * {','.join(str(DAYS.index(day) + 1) for day in self.days) or '*'}"

    @property
    def on_calendar(self) -> str:
        """The same moments as systemd.time(7) writes them."""
        hour, minute = (field.replace("*/", "0/").zfill(1 if "*" in field else 2) for field in (self.hour, self.minute))
        return f"{','.join(day.title() for day in self.days)} *-*-* {hour}:{minute}:00".lstrip()


def parse_schedule(text: str) -> Schedule:
    """Parse the value of ``--every``. Raises RequestError with examples for anything but the supported forms."""
    words = " ".join(text.lower().split())
    match = _EVERY.fullmatch("1h" if words == "hourly" else words)
    if not match:
        raise RequestError(f"--every {text!r} is not understood", remedy=_FORMS)
    if match["unit"]:
        field = _period(text, int(match["number"]), match["unit"])
        if match["unit"] == "m":
            return Schedule(words, field, "*")
        return Schedule(words, "0", field)
    if int(match["hour"]) > 23 or int(match["minute"]) > 59:
        raise RequestError(f"--every {text!r}: there is no {match['hour']}:{match['minute']}", remedy=_FORMS)
    if match["days"] == "daily":
        days = set()
    else:
        days = set(match["days"].split(","))
    unknown = days - set(DAYS)
    if unknown:
        remedy = f"days: {', '.join(DAYS)}; {_FORMS}"
        raise RequestError(f"--every {text!r}: {min(unknown)!r} is not a day", remedy=remedy)
    minute = str(int(match["minute"]))
    hour = str(int(match["hour"]))
    in_week = tuple(sorted(days, key=DAYS.index))
    return Schedule(words, minute, hour, in_week)


def _period(text: str, number: int, unit: str) -> str:
    """Return the field of a period. Raises RequestError for one that does not divide the hour or the day."""
    # Cron starts again in each hour and day.
    whole, name = _PERIODS[unit]
    if number == 0 or whole % number:
        divisors = ", ".join(f"{n}{unit}" for n in range(1, whole) if whole % n == 0)
        raise RequestError(f"--every {text!r} does not divide the {whole} {name}", remedy=f"choose {divisors}")
    if number == 1:
        return "*"
    if number < whole:
        return f"*/{number}"
    return "0"


def check_name(name: str) -> str:
    """Return the name, which becomes part of a file name and of a crontab. Raises RequestError."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} cannot be the name of a schedule",
            remedy="use letters, digits, - and _ (at most 64), with --name",
        )
    return name


@dataclass(frozen=True)
class ScheduledJob:
    """A command to start at set times. Its paths are absolute: a timer has no search path and no directory."""

    name: str
    schedule: Schedule
    plan: Path
    command: tuple[str, ...]
    """The command on this host, up to ``options``; it names the plan file and the directory of the firings."""
    options: tuple[str, ...]
    """The further options of ``bench sweep schedule-run``."""
    directory: str
    environment: Mapping[str, str]
    log: str
    """The file for its output, if the timer does not keep it itself."""

    def __post_init__(self) -> None:
        check_name(self.name)
        variables = self.environment.values()
        for word in (*self.argv, self.directory, self.log, *variables):
            if has_control_characters(word):
                raise RequestError(
                    f"{word!r}: a schedule cannot hold line breaks or other control characters",
                    remedy="name files and directories without them",
                )

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.command, *self.options)


@dataclass(frozen=True)
class ScheduleEntry:
    """An installed schedule of the suite; ``line`` is what the timer holds."""

    name: str
    when: str
    line: str


class Timer(ABC):
    """One kind of timer. Foreign entries are never touched."""

    kind: str

    @abstractmethod
    def missing(self) -> str | None:
        """Return why there is no timer of this kind here; None if there is one."""

    def asleep(self) -> str | None:
        """Return why an entry can be installed but would not fire now; None if it would."""
        return None

    @abstractmethod
    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        """Return the texts to install, by where each would stand. Raises RequestError for a job that it cannot hold."""

    @abstractmethod
    def install(self, name: str, rendered: Mapping[str, str]) -> None:
        """Install a rendered job in place of an older entry of its name."""

    @abstractmethod
    def installed(self) -> list[ScheduleEntry]:
        """Return the entries of the suite."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an installed entry of the suite."""
