"""Rates that a pattern or a key of JSON names: the number there with its unit, which may stand before or behind it."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from worker.printed.lines import UNREAD, unit_at, unit_before
from worker.printed.units import NUMBER, SCALES, SPREADS, Unit, amount, counted, seconds_of

SEARCHED = 4096
SHARED = 256
"""The characters that a pattern searches at once, and those that two such pieces of a long line share."""
THROUGHPUT = "throughput"
SECONDS = "seconds"
STEP = "step"
"""The groups of a pattern; the first and the last are also keys of JSON."""
_NEAR = 48
_LETTERS = "A-Za-z\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}%"
_NUMBER = re.compile(rf"{NUMBER}(?!\d|[.,'_:]\d)")
_HEAD = re.compile(r"(?:[\d.,'_]*\d[eE][-+]?)?[\d.,'_]*\Z")
_GROUPED = re.compile(r"\d{1,3}[,'_]\d{3}(?!\d)")
_GAP_BEFORE = re.compile(r"(?:^|[^\w.,:/])\d{1,3}(?: \d{3})* \Z")
_SCALE = re.compile(r"\s?([kKMG])(?![A-Za-z\d])")
_WORD_AFTER = re.compile(
    rf"(?P<space>\s{{0,16}})(?P<word>[{_LETTERS}]+)(?P<digit>\d)?(?P<label>\s*[:=]|\s+[-+]?\.?\d)?"
)
_OPENING = re.compile(r"""["']?\s{0,16}[(\[]?""")
_LAST_GROUP = re.compile(r"\d{3}(?:[.,]\d+)?")
_WITH_GAPS = re.compile(r"\d{1,3}(?: \d{3})+(?:[.,]\d+)?")
_BRACKET_BEFORE = re.compile(r"""[(\[]\s*([^()\[\]]{1,24}?)\s*[)\]]["']?\s*[:=]?\s*["']?\Z""")
_LABEL_BEFORE = re.compile(rf"""(?:^|[\s_/.-])(?P<word>[{_LETTERS}]+)["']?\s*[:=]\s*["']?\Z""")
_SHORT = re.compile(
    r"(?<![\w.,'])(?P<number>\d+(?:\.\d*)?|\.\d+)(?:(?P<scale>[kKMG])(?!\d|i?[Bb])"
    rf"|(?P<space>\s?)(?P<time>[{_LETTERS}]+)\s?/\s?(?P<counted>[A-Za-z]+))"
)
"""Progress bars shorten rates to 1.2kimg/s and, below one per second, to 1.60s/it."""
_MINUTES_S = 60.0
_QUALIFIERS = frozenset(
    [
        "avg",
        "average",
        "mean",
        "median",
        "max",
        "min",
        "cur",
        "current",
        "last",
        "train",
        "val",
        "total",
        "global",
        "local",
        "smoothed",
    ]
)


class Found(NamedTuple):
    """The content of one match, or of one value of JSON. The rate is None before the first step, and if unread."""

    per_s: float | None = None
    thing: str = ""
    fault: str = ""
    """Why it is not read."""
    step: int | None = None
    path: str = ""


class UnreadableError(ValueError):
    """A text without a number, or with that of something else."""


class UnknownUnitError(UnreadableError):
    """The word at a number does not name a known unit."""


def of_pattern(pattern: str, line: str, decimal_mark: str | None) -> Iterator[Found]:
    """Yield the content of each match, in the line or, if more match, with its short rates written out."""
    compiled = re.compile(pattern)
    text = line
    matches = _matches(compiled, line)
    if SECONDS not in compiled.groupindex:
        plain = _SHORT.sub(_written_out, line)
        in_plain = _matches(compiled, plain)
        if len(in_plain) > len(matches):
            text = plain
            matches = in_plain
    for match in matches:
        step = _step(text, match, decimal_mark)
        groups = match.groupdict()
        name = THROUGHPUT if groups.get(THROUGHPUT) else SECONDS
        if not groups.get(name) or match[name].startswith("?"):
            yield Found(step=step)
            continue
        try:
            unit, number = _at(text, match, name, decimal_mark)
            yield Found(_per_s(unit, number, is_time=name == SECONDS), unit.thing, step=step)
        except (ValueError, ZeroDivisionError) as error:
            yield Found(fault=_fault(error), step=step)


def of_objects(keys: tuple[str, ...], line: str, decimal_mark: str | None) -> Iterator[list[Found]]:
    """Yield the values in each JSON object of a line, also behind a progress bar, at any depth.

    A line that holds none, but a number after the key of one, is yielded as a rate that cannot be read.
    """
    end = 0
    is_whole = False
    decoder = json.JSONDecoder()
    while (begin := line.find("{", end)) >= 0:
        try:
            fields, end = decoder.raw_decode(line, begin)
            values = list(_values(fields, keys))
            steps = _values(fields, (STEP,))
            step = next(steps, ("", None))[1]
        except (ValueError, RecursionError):
            end = begin + 1
            continue
        is_whole = True
        readings = [Found(step=step if isinstance(step, int) else None)]
        for path, value in values:
            readings.append(_of_value(path, value, decimal_mark))
        yield readings
    # Not the key alone: a warning shows the line of the program that prints it.
    if not is_whole and keys[-1] in line and re.search(rf"""["']{re.escape(keys[-1])}["']\s*:\s*["']?[-+.\d]""", line):
        yield [Found(fault=UNREAD)]


def _values(
    fields: Mapping[str, object], keys: tuple[str, ...], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, object]]:
    """Yield path and value wherever a path ends with these keys."""
    for key, value in fields.items():
        path = (*above, key)
        if path[-len(keys) :] == keys:
            yield ".".join(path), value
        elif isinstance(value, dict):
            yield from _values(value, keys, path)


def _of_value(path: str, value: object, decimal_mark: str | None) -> Found:
    if value is None or str(value).startswith("?"):
        return Found(path=path)
    text = str(value).strip()
    number = _NUMBER.match(text)
    try:
        if number is None:
            raise UnreadableError(text)
        mark = decimal_mark if isinstance(value, str) else None
        after, scale = _unit_after(text, number.end(), "", is_time=False)
        unit = after or Unit("")
        per_s = _per_s(unit, amount(number[0], mark) * scale, is_time=False)
        return Found(per_s, unit.thing, path=path)
    except (ValueError, ZeroDivisionError) as error:
        return Found(fault=_fault(error), path=path)


def _fault(error: Exception) -> str:
    if isinstance(error, UnknownUnitError):
        return f"the unit {error} is not known"
    return UNREAD


def _per_s(unit: Unit, number: float, *, is_time: bool) -> float | None:
    """Return the rate; None for that of nothing, before the first step."""
    if is_time and not unit.is_time:
        raise UnreadableError(unit.thing)
    per_s = unit.per_second(number)
    if per_s < 0:
        raise UnreadableError(number)
    return per_s or None


def _matches(compiled: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Return the matches, of a long text in pieces: a pattern with ``.*`` takes time by the square of the length."""
    matches = []
    end = 0
    rates = compiled.groupindex.keys() & {THROUGHPUT, SECONDS}
    for begin in range(0, max(1, len(text) - SHARED), SEARCHED - SHARED):
        for match in compiled.finditer(text, begin, begin + SEARCHED):
            spans = map(match.span, rates)
            span = max(spans, default=(-1, -1))
            if not 0 <= span[0] < end:  # not the number that both pieces share, whole or cut
                matches.append(match)
            end = max(end, span[1])
    return matches


def _written_out(short: re.Match[str]) -> str:
    number = float(short["number"])
    if short["scale"]:
        return f"{number * SCALES[short['scale']]:.15f}".rstrip("0").rstrip(".")
    seconds = seconds_of(short["time"])
    if not seconds or not number or seconds_of(short["counted"]):
        return short[0]
    return f"{1 / (number * seconds):.15f}{short['space']}{short['counted']}/s"


def _step(text: str, match: re.Match[str], decimal_mark: str | None) -> int | None:
    if STEP not in match.re.groupindex or not match[STEP]:
        return None
    with suppress(ValueError):
        return int(amount(_whole(text, match, STEP)[0], decimal_mark))
    return None


def _at(text: str, match: re.Match[str], name: str, decimal_mark: str | None) -> tuple[Unit, float]:
    """Return the unit and the number of a group. Raises UnreadableError, or ValueError."""
    number, begin, end = _whole(text, match, name)
    is_time = name == SECONDS
    before = text[max(0, begin - _NEAR) : begin]
    if begin == match.start() and _belongs_to_another(before, number):
        raise UnreadableError(number)
    vouched = f"{match.re.pattern} "
    after, scale = _unit_after(text, end, vouched, is_time=is_time)
    label = _unit_in_label(before, vouched, is_time=is_time)
    if after and label and (after.scale, after.is_time) != (label.scale, label.is_time):
        raise UnreadableError(number)
    if is_time and scale != 1.0:
        raise UnreadableError(number)
    unit = after or label or Unit("", is_time=is_time)
    if label and not unit.thing:
        unit = label
    return unit, amount(number, decimal_mark) * scale


def _whole(text: str, match: re.Match[str], name: str) -> tuple[str, int, int]:
    """Return the whole number around a group, and its position.

    A separator that the pattern itself matches, such as the commas of a table, ends the number. Raises UnreadableError.
    """
    begin, end = match.span(name)
    if _WITH_GAPS.fullmatch(match[name]):  # the pattern takes it for one number
        return match[name].replace(" ", "\N{NO-BREAK SPACE}"), begin, end
    if begin == match.start() and (head := _HEAD.search(text, max(0, begin - _NEAR), begin)):
        begin = head.start()
    is_cell = end < match.end() and text[end] in ",'_:" and not _GROUPED.match(text, begin)
    if is_cell:
        return text[begin:end], begin, end
    number = _NUMBER.match(text, begin)
    if number is None:
        raise UnreadableError(match[name])
    return number[0], begin, number.end()


def _belongs_to_another(before: str, number: str) -> bool:
    """Return whether the number is a spread, or perhaps the last digits of one with a space in it."""
    if before.rstrip().endswith(SPREADS):
        return True
    if not (before.endswith(" ") and before[-2:-1].isdigit()):
        return False
    return _LAST_GROUP.fullmatch(number) is not None and _GAP_BEFORE.search(before) is not None


def _unit_after(text: str, end: int, vouched: str, *, is_time: bool) -> tuple[Unit | None, float]:
    """Return the unit after a number, if there is any, and the factor of ``k`` before it. Raises UnreadableError."""
    scale = 1.0
    prefix = _SCALE.match(text, end)
    if prefix:
        scale = SCALES[prefix[1]]
        end = prefix.end()
    opened = _OPENING.match(text, end)
    if opened and (unit := unit_at(text, opened.end())):
        return unit, scale
    word = _WORD_AFTER.match(text, end)
    if word is None:
        return None, scale
    return _unit_of_word(word, vouched, is_time=is_time), scale


def _unit_of_word(after: re.Match[str], vouched: str, *, is_time: bool) -> Unit | None:
    """Return the unit of one word after a number; None for the label of what comes next. Raises UnknownUnitError."""
    word = after["word"]
    seconds = seconds_of(word)
    if _is_label(after, is_unit_of_time=seconds is not None):
        return None
    if is_time:
        return _time_of_word(after, seconds, vouched)
    thing, factor, is_known = counted(word)
    if seconds is None and (is_known or word in vouched):
        return Unit(thing, factor)
    raise UnknownUnitError(word)


def _time_of_word(after: re.Match[str], seconds: float | None, vouched: str) -> Unit | None:
    if seconds and not after["digit"]:  # a digit follows in 1m20s
        return Unit("", seconds, is_time=True)
    if seconds is None and after["space"] and after["word"] in vouched:
        return None
    raise UnknownUnitError(after["word"])


def _is_label(after: re.Match[str], *, is_unit_of_time: bool) -> bool:
    """Return whether the word labels what comes next: a sign or number follows, as after no unit at the number."""
    sign = (after["label"] or "").strip()
    if not sign or not after["space"]:
        return False
    return sign.startswith((":", "=")) or not is_unit_of_time


def _unit_in_label(before: str, vouched: str, *, is_time: bool) -> Unit | None:
    """Return the unit before a number: ``(ms):``, ``tokens/s =``, ``step_time_ms:``. Raises UnreadableError."""
    label_text = before.rstrip(" :=\"'[(")
    if label_text.endswith((")", "]")) and (bracket := _BRACKET_BEFORE.search(before)):
        return _unit_in_brackets(bracket[1], vouched, is_time=is_time)
    if not label_text[-1:].isalpha():
        return None
    unit = unit_before(label_text)
    if unit:
        return unit
    label = _LABEL_BEFORE.search(before)
    seconds = None
    if label and is_time:
        seconds = seconds_of(label["word"])
    if seconds and seconds < _MINUTES_S:  # min: is the least
        return Unit("", seconds, is_time=True)
    return None


def _unit_in_brackets(text: str, vouched: str, *, is_time: bool) -> Unit | None:
    seconds = seconds_of(text)
    if is_time and seconds:
        return Unit("", seconds, is_time=True)
    unit = unit_at(text, 0)
    if unit:
        return unit
    is_one_word = text.isalpha()
    if is_one_word and text.lower() not in _QUALIFIERS and text not in vouched:
        raise UnknownUnitError(text)
    return None
