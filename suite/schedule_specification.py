"""When a schedule fires: what people write, as crontab fields and as systemd's OnCalendar. In the host's own time."""

import re
from dataclasses import dataclass

from suite.errors import RequestError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FORMS = 'write it as "02:00 daily", "02:00 mon,wed", "hourly", "30m" or "6h"'
_PERIODS = {"m": (60, "minutes of an hour"), "h": (24, "hours of a day")}


@dataclass(frozen=True)
class Every:
    """``cron`` are its five fields; ``on_calendar`` is systemd's form of the same moments."""

    text: str
    cron: str
    on_calendar: str


def parse_every(text: str) -> Every:
    """Raises RequestError for anything but the few forms, with examples."""
    said = " ".join(text.lower().split())
    if said == "hourly":
        return Every(said, "0 * * * *", "*-*-* *:00:00")
    if found := re.fullmatch(r"(\d{1,2}):(\d{2}) (daily|[a-z,]+)", said):
        return _at(said, int(found[1]), int(found[2]), found[3])
    if found := re.fullmatch(r"(\d{1,2})([mh])", said):
        return _each(said, int(found[1]), found[2])
    raise RequestError(f"--every {text!r} is not understood", remedy=_FORMS)


def _at(text: str, hour: int, minute: int, when: str) -> Every:
    if hour > 23 or minute > 59:
        raise RequestError(f"--every {text!r}: there is no {hour}:{minute:02d}", remedy=_FORMS)
    clock = f"*-*-* {hour:02d}:{minute:02d}:00"
    if when == "daily":
        return Every(text, f"{minute} {hour} * * *", clock)
    days = sorted(set(when.split(",")), key=lambda day: DAYS.index(day) if day in DAYS else -1)
    for day in days:
        if day not in DAYS:
            raise RequestError(f"--every {text!r}: {day!r} is no day", remedy=f"days are {', '.join(DAYS)}; {_FORMS}")
    numbers = ",".join(str(DAYS.index(day) + 1) for day in days)
    return Every(text, f"{minute} {hour} * * {numbers}", f"{','.join(day.title() for day in days)} {clock}")


def _each(text: str, number: int, unit: str) -> Every:
    # Cron counts anew in each hour and day: a period that does not divide it would not be one.
    whole, name = _PERIODS[unit]
    if number == 0 or whole % number:
        known = ", ".join(f"{n}{unit}" for n in range(1, whole) if whole % n == 0)
        raise RequestError(f"--every {text!r} does not divide the {whole} {name}", remedy=f"choose {known}")
    if unit == "m":
        fields, clock = (f"*/{number} * * * *", f"*:0/{number}:00") if number < whole else ("0 * * * *", "*:00:00")
    else:
        fields, clock = (f"0 */{number} * * *", f"0/{number}:00:00") if number < whole else ("0 0 * * *", "00:00:00")
    return Every(text, fields, f"*-*-* {clock}")
