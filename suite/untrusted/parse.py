"""Read JSON that a stranger may have written: a worker, a machine of a pool, or whoever made a file."""

import json
import unicodedata
from typing import Any

from suite.untrusted.terminal import clean

_CONTROL = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Unicode categories of control characters, half pairs, and separators of lines and paragraphs."""
DEEPEST = 32
"""The most objects and lists inside each other. A record has 9."""
LARGEST = 1 << 63
"""Integers are smaller than this, on both sides of zero: what follows computes with them in machine words."""
_MOST_DIGITS = 20
JSON_TEXT = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-f]{4})*"'
"""A pattern for a text in JSON, as ``json.dumps`` writes it."""


def has_control_characters(text: str) -> bool:
    """Return whether a text breaks lines or steers a terminal; wide spaces and joined emoji do neither."""
    return not text.isprintable() and not _CONTROL.isdisjoint(map(unicodedata.category, text))


def parse(text: str | bytes) -> Any:  # noqa: ANN401 (whatever the text holds)
    """Return the value of a JSON text. Raises ValueError for what is not JSON, and for what no record can hold.

    That is a number that is not finite or has too many digits, what is nested too deeply, and text that is not Unicode.
    """
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check(value)
    return value


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the object of a JSON text, ``cleaned``. Raises ValueError as ``parse`` does, and for any other value."""
    value = cleaned(parse(text))
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def cleaned(value: Any) -> Any:  # noqa: ANN401 (as ``parse``)
    """Return a value that ``parse`` has returned with every text fit for a terminal, a page and a figure."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): cleaned(item) for key, item in value.items()}
    return value


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS or abs(number := int(digits)) >= LARGEST:
        raise ValueError(f"{digits[:20]}... is too large a number")
    return number


def _number(text: str) -> float:
    number = float(text)
    if number != number or abs(number) == float("inf"):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _check(value: object) -> None:
    """Raise ValueError for what is nested too deeply, or for half a surrogate pair: no file can hold it as UTF-8."""
    level: list[object] = [value]
    for _ in range(DEEPEST + 1):
        if not level:
            return
        for item in level:
            if isinstance(item, str):
                item.encode()
        inside = [item for item in level if isinstance(item, (dict, list))]
        level = [part for item in inside for part in (item if isinstance(item, list) else (*item, *item.values()))]
    raise ValueError(f"it is nested more than {DEEPEST} deep")
