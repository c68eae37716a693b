"""A grammar of lines that hold rates: a number and its unit, or a label that is a unit and its number; several of them.

A unit before ``:``, ``=`` or a number labels that. What cannot be ordered is not read.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from worker.printed.units import (
    ABBREVIATIONS,
    DEVICES,
    NUMBER,
    SCALES,
    SPREADS,
    UNNAMED,
    Unit,
    amount,
    rate,
    seconds_of,
    time_of_one,
)

_BEFORE = 256
_NEAR = 48
"""The characters before a unit that may hold the name of the rate, and those that may hold its number."""
_LETTERS = "A-Za-z\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}"
_MARK = re.compile(
    rf"/\s?(?P<slash>[{_LETTERS}]+)|[\s_-]per[\s_-](?P<per>[{_LETTERS}]+)|(?<=[a-z])Per(?P<camel>[A-Z][a-z]+)"
    rf"|\b(?P<short>{'|'.join((*ABBREVIATIONS, *map(str.upper, ABBREVIATIONS)))})\b"
)
"""The sign between a thing and a time, with the word after it."""
_HINTS = ("/", "per", "Per", "ps", "PS", "hroughput")
"""One of these is in every line that holds a unit, and to look for them takes no time."""
_WORD = re.compile(rf"([{_LETTERS}]+)\s?\Z")
_ON_DEVICE = re.compile(rf"(?:\s?/\s?|[\s_-]+per[\s_-]+)({'|'.join(DEVICES)})\b", re.IGNORECASE)
_SPREAD = rf"(?:\s*(?:{'|'.join(map(re.escape, SPREADS))})\s*{NUMBER}|\s*\([^()\d]{{0,12}}{NUMBER}[^()\d]{{0,3}}\))"
_QUALITY = r"(?:\s(?:env|train|training|optim|optimizer|gradient|global|micro|input|output|total))"
_LEFT = re.compile(
    rf"(?<![\w.,/-])(?<!\d:)(?P<number>{NUMBER})(?:\s?(?P<scale>[kKMG]))?{_SPREAD}?{_QUALITY}?\s{{0,8}}\Z"
)
_RIGHT = re.compile(
    rf"""["')\]]*(?:\s*(?P<sign>[:=|])\s*|\s+)["'\[(]*(?P<number>{NUMBER})"""
    rf"(?:\s?(?P<scale>[kKMG])(?![\w/])|(?=[{_LETTERS}]|\s|$|[^\w.,:/%-]|[-.,](?!\d)))"
)
_OWN_UNIT = re.compile(rf"\s?(?P<word>[{_LETTERS}%]+)(?!\s*[:=\w])")
_SIGN = re.compile(r"""["')\]]*\s*[:=]""")
_UNKNOWN_YET = re.compile(r"(?:\?|-+|n/?a|none|\.\.\.)\s{0,8}\Z", re.IGNORECASE)
_GROUP_BEFORE = re.compile(r"(?:^|[^\w.,:/])(\d{1,3}(?: \d{3})*) \Z")
_GROUP = re.compile(r"\d{3}(?:[.,]\d+)?")
_COUNTER = re.compile(
    r"\b(?:epoch|step|iter|iteration|batch|rank|gpu|worker|node|rep|run|trial|fold)s?[\s:=#]*\Z", re.IGNORECASE
)
_LABELLED = re.compile(rf"[{_LETTERS}][\w]*\s*\Z")
_OWN_TIME = re.compile(r"time|latency|elapsed|duration", re.IGNORECASE)
_TIME_IN_BRACKETS = re.compile(rf"""\s*[(\[]\s*(?P<time>[{_LETTERS}]+)\s*[)\]]["']?\s*[:=]?\s*(?P<number>{NUMBER})""")
_TIME_AFTER = re.compile(rf"""["']?\s*[:=]?\s*(?P<number>{NUMBER})\s*(?P<time>[{_LETTERS}]+)""")
_CAMEL = re.compile(r"[A-Z]?[a-z]+\Z")
_WITHOUT_UNIT = re.compile(
    rf"\b(?P<word>throughput|tps|sps)\s*[:=|]\s*(?P<number>{NUMBER})(?=\s*(?:$|[,;|]|\w+\s*[:=]|\s\s))", re.IGNORECASE
)
"""Labels of rates of nobody knows what: sps are steps or samples, tps tokens or transactions."""
_BAR = re.compile(r"\d\s?%\s?\|")
_STOPS = re.compile(r"[\d,;|()\[\]{}<>%?]+")
_ROLE = re.compile(
    r"\b(?:(train(?:ing)?)|(val(?:id(?:ation)?)?|eval(?:uation)?|evaluating|validating)|(test(?:ing)?)|(warm-?up))\b",
    re.IGNORECASE,
)
_ROLES = ("train", "val", "test", "warm-up")
_WORDS = re.compile(r"[A-Za-z][A-Za-z-]+")
_SAY_NOTHING = frozenset(
    [
        "throughput",
        "speed",
        "rate",
        "rates",
        "at",
        "is",
        "was",
        "of",
        "with",
        "performance",
        "perf",
        "the",
        "and",
        "per",
        "info",
        "root",
    ]
)
_COUNTERS = frozenset(["epoch", "epochs", "step", "steps", "iter", "iteration", "it", "batch"])
"""Words that name no rate before a number, but do so as the description of a bar."""
SUMMARIES = frozenset(["final", "total", "average", "avg", "mean", "overall", "median", "max", "min", "best", "peak"])


_Match = re.Match[str] | None
NO_NUMBER = "no number"
UNREAD = "unread"


class RateReading(NamedTuple):
    """One unit of a line and its rate, which is None before the first step, and if it cannot be read."""

    label: str
    unit: Unit
    per_s: float | None
    fault: str = ""
    """``NO_NUMBER`` or ``UNREAD``."""


class _UnitSpan(NamedTuple):
    unit: Unit | None
    """None for a unit that does not count progress."""
    begin: int
    end: int


def readings(line: str, decimal_mark: str | None = None) -> Iterator[RateReading]:
    """Yield the rates of a line, and each unit whose number cannot be read."""
    if not any(map(line.__contains__, _HINTS)):
        return
    counts: dict[tuple[str, str], int] = {}
    for span in _places(line):
        if span.unit is None:
            continue
        reading = _reading(line, span, span.unit, decimal_mark)
        key = (reading.label, reading.unit.thing)
        number = counts[key] = counts.get(key, 0) + 1
        if number > 1 and _in_brackets(line, span.begin):  # the mean so far, or the same once more
            continue
        if number > 1:
            reading = reading._replace(label=f"{reading.label} #{number}".strip())
        yield reading
    yield from _without_unit(line, decimal_mark)


def _without_unit(line: str, decimal_mark: str | None) -> Iterator[RateReading]:
    """Yield the numbers whose label names a rate and no unit; they are never chosen in silence."""
    unit = Unit(UNNAMED, known=False)
    for match in _WITHOUT_UNIT.finditer(line):
        label = f"{_label(line, match.start())} {match['word'].lower()}".strip()
        try:
            per_s = amount(match["number"], decimal_mark)
        except ValueError:
            yield RateReading(label, unit, None, UNREAD)
        else:
            yield RateReading(label, unit, per_s or None)


def role_of(text: str) -> str:
    """Return the part of a training that a text names last: ``train``, ``val``, ``test``, ``warm-up``, or none."""
    role = ""
    for match in _ROLE.finditer(text):
        role = _ROLES[(match.lastindex or 1) - 1]
    return role


def unit_at(text: str, begin: int) -> Unit | None:
    """Return the unit that begins there."""
    for span in _places(text, begin):
        is_there = span.unit is not None and not text[begin : span.begin].strip()
        return span.unit if is_there else None
    return None


def unit_before(label: str) -> Unit | None:
    """Return the unit that a label ends with: ``tokens/s``, ``ms/step``."""
    last = None
    for span in _places(label):
        last = span
    if last and last.end == len(label):
        return last.unit
    return None


def _places(line: str, begin: int = 0) -> Iterator[_UnitSpan]:
    """Yield the positions of the units of a line."""
    end = begin
    for mark in _MARK.finditer(line, begin):
        if mark.start() < end:
            continue
        span = _composed(line, mark, begin)
        if span:
            end = span.end
            yield span


def _composed(line: str, mark: re.Match[str], begin: int) -> _UnitSpan | None:
    """Return the unit around a mark: a thing per time, or a time per thing."""
    if mark["short"]:
        declared = Unit(ABBREVIATIONS[mark["short"].lower()])
        return _UnitSpan(declared, *mark.span())
    word_after = mark[mark.lastgroup or "slash"]
    word, start = _word_before(line, begin, mark.start())
    if seconds_of(word_after) is not None:
        return _rate(line, mark, word, start)
    if not word:
        return None
    if seconds_of(word) is not None:
        return _UnitSpan(time_of_one(word, word_after), start, mark.end())
    if _OWN_TIME.fullmatch(word):
        return _time_of_label(line, word_after, start, mark.end())
    return None


def _rate(line: str, mark: re.Match[str], word: str, start: int) -> _UnitSpan | None:
    device = ""
    if word.lower() in DEVICES and line[start - 1 : start] == "/":
        device = word
        word, start = _word_before(line, 0, start - 1)
    end = mark.end()
    on_device = _ON_DEVICE.match(line, end)
    if on_device:
        device = on_device[1]
        end = on_device.end()
    if mark["camel"]:  # RunningAvgSamplesPerSec
        last = _CAMEL.sub("", word)
        word = word[len(last) :] or word
        start += len(last)
    if not word and not line[mark.start() - 1 : mark.start()].isdigit():
        return None
    return _UnitSpan(rate(word, mark[mark.lastgroup or "slash"], device), start, end)


def _word_before(line: str, begin: int, end: int) -> tuple[str, int]:
    """Return the word that ends there, and where it begins; an empty one without a word."""
    match = _WORD.search(line, max(begin, end - _NEAR), end)
    if match:
        return (match[1], match.start())
    return ("", end)


def _time_of_label(line: str, word: str, start: int, end: int) -> _UnitSpan | None:
    """Return the unit of ``time per iteration (ms): 120`` or ``time per batch: 120 ms``."""
    match = _TIME_IN_BRACKETS.match(line, end) or _TIME_AFTER.match(line, end)
    if match is None or seconds_of(match["time"]) is None:
        return None
    return _UnitSpan(time_of_one(match["time"], word), start, match.start("number") - 1)


def _reading(line: str, span: _UnitSpan, unit: Unit, decimal_mark: str | None) -> RateReading:
    left = _LEFT.search(line, max(0, span.begin - _NEAR), span.begin)
    right = _RIGHT.match(line, span.end)
    side = _side(line, left, right, span)
    begin = side.start() if side and side is left else span.begin
    label = _label(line, begin)
    if left is None and right is None:
        return RateReading(label, unit, None, _missing(line, span.begin))
    if side is None or (side is left and _may_be_grouped(line, side)):
        return RateReading(label, unit, None, UNREAD)
    try:
        value = amount(side["number"], decimal_mark)
        per_s = unit.per_second(value * SCALES.get(side["scale"], 1.0))
    except ValueError:
        return RateReading(label, unit, None, UNREAD)
    except ZeroDivisionError:
        return RateReading(label, unit, None)
    if per_s < 0:
        return RateReading(label, unit, None, UNREAD)
    return RateReading(label, unit, per_s or None)


def _missing(line: str, begin: int) -> str:
    """Return the fault of a unit without a number; empty if a mark stands for a number to come."""
    is_to_come = _UNKNOWN_YET.search(line, max(0, begin - 12), begin)
    return "" if is_to_come else NO_NUMBER


def _side(line: str, left: _Match, right: _Match, span: _UnitSpan) -> _Match:
    """Return the number that the unit belongs to; None if either may be it."""
    if left is None:
        return right
    if _SIGN.match(line, span.end) and not _closes_bracket(line, left, span):
        return right
    if right is None or right["sign"]:
        return left
    if _closes_bracket(line, left, span) or _has_own_unit(line, right):
        return left
    if _LABELLED.search(line, max(0, left.start() - _NEAR), left.start()):
        return right
    return None


def _closes_bracket(line: str, left: re.Match[str], span: _UnitSpan) -> bool:
    return line[left.start() - 1 : left.start()] in ("(", "[") and line[span.end : span.end + 1] in (")", "]")


def _has_own_unit(line: str, right: re.Match[str]) -> bool:
    """Return whether the number after the unit has a unit of its own, as in ``410 images/s 12 ms``."""
    unit = _OWN_UNIT.match(line, right.end())
    if unit is None:
        return False
    return unit["word"] == "%" or seconds_of(unit["word"]) is not None or unit_at(line, right.end()) is not None


def _may_be_grouped(line: str, left: re.Match[str]) -> bool:
    """Return whether a space before the number may group its digits, as in ``1 234.5``."""
    gap = line[max(0, left.start() - 1)]
    follows_digit = gap == " " and line[max(0, left.start() - 2)].isdigit()
    if not follows_digit or not _GROUP.fullmatch(left["number"]):
        return False
    least = max(0, left.start() - _NEAR)
    before = _GROUP_BEFORE.search(line, least, left.start())
    return before is not None and not _COUNTER.search(line, least, before.start(1))


def _in_brackets(line: str, begin: int) -> bool:
    least = max(0, begin - _BEFORE)
    return line.rfind("(", least, begin) > line.rfind(")", least, begin)


def _label(line: str, end: int) -> str:
    """Return the words that name a rate: the description of a bar, or the label of the number."""
    begin = max(0, end - _BEFORE)
    bar = _BAR.search(line, begin, end)
    if bar:
        return _label_of(line[begin : bar.start()], "", _SAY_NOTHING)
    before = line[begin:end]
    last = _STOPS.split(before)[-1]
    return _label_of(last, role_of(before), _SAY_NOTHING | _COUNTERS)


@lru_cache(maxsize=1024)
def _label_of(text: str, role: str, silent: frozenset[str]) -> str:
    text = text.replace("_", " ")
    remaining = _ROLE.sub(" ", text)
    words = _WORDS.findall(remaining.lower())[-2:]
    named = [word for word in words if word not in silent]
    return " ".join(filter(None, (role or role_of(text), *named)))
