"""Specifications of schedules: what people write, and the same for cron and systemd, in the host's time zone."""

import re
from dataclasses import dataclass

from suite.errors import RequestError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FORMS = 'write it as "02:00 daily", "02:00 mon,wed", "hourly", "30m" or "6h"'
_PERIODS = {"m": (60, "minutes of an hour"), "h": (24, "hours of a day")}


@dataclass(frozen=True)
class ScheduleSpecification:
    """The moments at which a schedule fires."""

    text: str
    """The text as it was written, with single spaces and small letters."""
    cron: str
    """The five fields of a crontab."""
    on_calendar: str
    """The same moments as systemd writes them."""


def parse_schedule(text: str) -> ScheduleSpecification:
    """Parse the value of ``--every``. Raises RequestError with examples for anything but the few known forms."""
    said = " ".join(text.lower().split())
    if said == "hourly":
        return ScheduleSpecification(said, "0 * * * *", "*-*-* *:00:00")
    if found := re.fullmatch(r"(\d{1,2}):(\d{2}) (daily|[a-z,]+)", said):
        return _at(said, int(found[1]), int(found[2]), found[3])
    if found := re.fullmatch(r"(\d{1,2})([mh])", said):
        return _each(said, int(found[1]), found[2])
    raise RequestError(f"--every {text!r} is not understood", remedy=_FORMS)


def _at(text: str, hour: int, minute: int, when: str) -> ScheduleSpecification:
    if hour > 23 or minute > 59:
        raise RequestError(f"--every {text!r}: there is no {hour}:{minute:02d}", remedy=_FORMS)
    clock = f"*-*-* {hour:02d}:{minute:02d}:00"
    if when == "daily":
        return ScheduleSpecification(text, f"{minute} {hour} * * *", clock)
    days = sorted(set(when.split(",")), key=lambda day: DAYS.index(day) if day in DAYS else -1)
    for day in days:
        if day not in DAYS:
            raise RequestError(f"--every {text!r}: {day!r} is not a day", remedy=f"days: {', '.join(DAYS)}; {_FORMS}")
    numbers = ",".join(str(DAYS.index(day) + 1) for day in days)
    return ScheduleSpecification(
        text, f"{minute} {hour} * * {numbers}", f"{','.join(day.title() for day in days)} {clock}"
    )


def _each(text: str, number: int, unit: str) -> ScheduleSpecification:
    # Cron counts anew in each hour and day: a period that does not divide it would not be one.
    whole, name = _PERIODS[unit]
    if number == 0 or whole % number:
        known = ", ".join(f"{n}{unit}" for n in range(1, whole) if whole % n == 0)
        raise RequestError(f"--every {text!r} does not divide the {whole} {name}", remedy=f"choose {known}")
    if unit == "m":
        fields, clock = (f"*/{number} * * * *", f"*:0/{number}:00") if number < whole else ("0 * * * *", "*:00:00")
    else:
        fields, clock = (f"0 */{number} * * *", f"0/{number}:00:00") if number < whole else ("0 0 * * *", "00:00:00")
    return ScheduleSpecification(text, fields, f"*-*-* {clock}")
