"""Printed numbers: reads those with one meaning. ``12,345`` has two without a decimal mark."""

import re
from collections.abc import Callable
from math import isfinite

_GAPS = "\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}\N{FIGURE SPACE}"
"""Spaces that group digits; a usual one may stand between two numbers."""
_QUOTE = "\N{RIGHT SINGLE QUOTATION MARK}"
_EXPONENT = r"(?:[eE][-+]?\d+)?"
NUMBER = rf"[-+]?(?:\d[\d.,'{_QUOTE}_{_GAPS}]*(?<=[\d.]){_EXPONENT}|\.\d+{_EXPONENT}|nan\b|inf\b)"
"""Whatever is printed as one number, with all its marks."""
_PLAIN = re.compile(rf"[-+]?(?:\d+\.?\d*|\.\d+){_EXPONENT}")
_GROUPED = re.compile(rf"[-+]?\d{{1,3}}(?:([,'{_QUOTE}_{_GAPS}])\d{{3}})(?:\1\d{{3}})*(?:\.\d+)?")
_BY_COMMA = re.compile(rf"[-+]?(?:\d+|\d{{1,3}}(?:([.'{_QUOTE}_{_GAPS}])\d{{3}})(?:\1\d{{3}})*)(?:,\d+)?{_EXPONENT}")
_ONE_COMMA = re.compile(r"[-+]?\d{1,3},\d{3}")
_NOT_DIGITS = re.compile(rf"[,'{_QUOTE}_{_GAPS}]")
_MARKS = re.compile(rf"[.'{_QUOTE}_{_GAPS}]")
SPREADS = ("±", "+/-", "+-")
"""The marks between a number and its spread."""
POINT = "point"
COMMA = "comma"


def amount(text: str, decimal_mark: str | None = None) -> float:
    """Return the number that a text writes. Raises ValueError if it has several meanings, or none."""
    number = _READ_BY[decimal_mark](text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _by_point(text: str) -> float:
    if _PLAIN.fullmatch(text):
        return float(text)
    if _GROUPED.fullmatch(text):
        return float(_NOT_DIGITS.sub("", text))
    raise ValueError(text)


def _by_comma(text: str) -> float:
    if _BY_COMMA.fullmatch(text):
        return float(_MARKS.sub("", text).replace(",", "."))
    raise ValueError(text)


def _without_doubt(text: str) -> float:
    if _ONE_COMMA.fullmatch(text):
        raise ValueError(text)
    return _by_point(text)


_READ_BY: dict[str | None, Callable[[str], float]] = {None: _without_doubt, POINT: _by_point, COMMA: _by_comma}
