"""Shares, spans of time, numbers and counts as people write them."""

import re

from suite.errors import RequestError

_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_share(text: str) -> float:
    """Return the share that ``"2%"`` or ``"0.02"`` says. Raises RequestError unless it lies between 0 and 1."""
    body = text.strip()
    try:
        value = float(body.removesuffix("%")) / (100 if body.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise RequestError(f"{text!r} is not a share", remedy="write it as 2% or 0.02")
    return value


def format_share(share: float) -> str:
    """Return a share as ``parse_share`` takes it: ``2%``."""
    return f"{share * 100:.12g}%"


def parse_inches(text: str) -> float:
    """Return the inches of ``"3.3in"``, ``"8.4cm"`` or ``"84mm"``. Raises RequestError for other text."""
    length = re.fullmatch(r"(\d+(?:\.\d+)?)(in|cm|mm)", text.strip().lower())
    if not length:
        raise RequestError(f"{text!r} is not a width", remedy="write it as 3.3in or 84mm")
    value, unit = length.groups()
    return float(value) * _INCHES[unit]


def parse_duration_s(text: str) -> float:
    """Return the seconds of ``"90s"``, ``"30m"`` or ``"1h30m"``. Raises RequestError for other text."""
    body = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", body):
        raise RequestError(f"{text!r} has no unit", remedy=f"write it as {body}s, {body}m (minutes) or {body}h")
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", body):
        raise RequestError(f"{text!r} is not a span of time", remedy="write it as 90s, 30m or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", body))
    if seconds <= 0:
        raise RequestError(f"{text!r} is no time at all", remedy="write it as 90s, 30m or 1h30m")
    return float(seconds)


def number(value: float) -> str:
    """Return three significant digits, without an exponent where that is readable: ``0.0123``, ``4.56``, ``12345``."""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.2e}"
    magnitude = int(f"{value:.2e}".split("e")[1])
    return f"{value:.{max(2 - magnitude, 0)}f}"


def count(number: int, noun: str) -> str:
    """Return ``1 block``, ``2 blocks``: the plural of the noun has an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_UNITS_OF_TIME = ((1, 150, "s", 0), (60, 5400, "min", 0), (3600, 172_800, "h", 1), (86_400, 63_115_200, "days", 0))
"""Each unit in seconds, below how many seconds it is used, its name, and its decimals."""


def format_duration(seconds: float) -> str:
    """Return a time as people write it: ``"45 s"``, ``"12 min"``, ``"3.4 h"``, ``"5 days"``, ``"18 years"``."""
    for unit_s, below_s, unit, digits in _UNITS_OF_TIME:
        if seconds < below_s:
            return f"{seconds / unit_s:.{digits}f} {unit}"
    return f"{seconds / 31_557_600:.0f} years"
