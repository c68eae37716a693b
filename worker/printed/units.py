"""Printed numbers with one meaning, and units of rates, such as ``kimg/s``, ``s/it`` and ``ms per step``.

``12,345`` has two meanings without a decimal mark.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import TypeVar

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


_Meaning = TypeVar("_Meaning")


def _by_word(spelled: Mapping[_Meaning, str]) -> dict[str, _Meaning]:
    """Return the meaning of each word."""
    meanings: dict[str, _Meaning] = {}
    for meaning, words in spelled.items():
        meanings |= dict.fromkeys(words.split(), meaning)
    return meanings


_SECONDS = {
    1e-9: "ns nsec nsecs nanosecond nanoseconds",
    1e-6: "us µs usec usecs microsecond microseconds",
    1e-3: "ms msec msecs millis millisecond milliseconds",
    1.0: "s sec secs second seconds",
    60.0: "min mins minute minutes",
    3600.0: "h hr hrs hour hours",
}
_TIMES = _by_word(_SECONDS)
_COUNTED = {
    "images": "img imgs image images pic pics",
    "samples": "sample samples smp smpl spl",
    "examples": "ex example examples",
    "sequences": "seq seqs sequence sequences",
    "sentences": "sent sents sentence sentences",
    "tokens": "tok toks token tokens",
    "words": "word words",
    "iterations": "it its iter iters iteration iterations",
    "steps": "step steps",
    "updates": "update updates",
    "batches": "batch batches minibatch minibatches",
    "epochs": "epoch epochs",
    "frames": "frame frames",
    "rows": "row rows",
    "records": "record records",
    "items": "item items",
    "episodes": "episode episodes",
    "clips": "clip clips",
    "videos": "video videos",
    "pairs": "pair pairs",
    "triples": "triple triples",
    "graphs": "graph graphs",
    "nodes": "node nodes",
    "molecules": "molecule molecules",
    "queries": "query queries",
    "loops": "loop loops",
    "games": "game games",
}
_THINGS = _by_word(_COUNTED)
ABBREVIATIONS = {"fps": "frames", "wps": "words", "ups": "updates"}
"""Rates that one word names."""
UNNAMED = "units"
"""Stands for a thing that is not printed, as in ``2081.28/s``."""
STEPS = frozenset(("iterations", "steps", "batches", "updates"))
"""Counts of steps: they repeat a rate of samples."""
SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
DEVICES = frozenset(
    [
        "gpu",
        "gpus",
        "device",
        "devices",
        "core",
        "cores",
        "chip",
        "chips",
        "worker",
        "workers",
        "rank",
        "ranks",
        "thread",
        "threads",
    ]
)
_PHYSICAL = re.compile(
    r"(?:[kKMGTP]?i?(?:[Bb]|[Bb]its?|[Bb]ytes?)|[kKMGTP]?(?:FLOPs?|[Ff]lops?|MACs?|[Oo]ps?|IOPS)|[cmk]?m|meters?|miles?"
    r"|rad|deg|rev|[cm]?L|[kMG]?Hz|[kMG]?W|[kM]?J)"
)
"""Bytes, operations, lengths and the like: no progress of a training."""


@dataclass(frozen=True)
class Unit:
    """A rate, or the time that one thing takes. ``thing`` is a plural."""

    thing: str
    scale: float = 1.0
    """The things per second in one of it; of a time the seconds."""
    is_time: bool = False
    known: bool = True
    """Whether a training is known to count its progress by it."""

    def per_second(self, number: float) -> float:
        """Return the rate. Raises ZeroDivisionError for a time of zero."""
        if self.is_time:
            return 1 / (number * self.scale)
        return number * self.scale


@lru_cache(maxsize=1024)
def seconds_of(word: str) -> float | None:
    """Return the seconds of a unit of time in any usual spelling; None for another word."""
    return _TIMES.get(word.lower().replace("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}"))


@lru_cache(maxsize=1024)
def counted(word: str) -> tuple[str, float, bool]:
    """Return the plural of what a word counts, the factor of its prefix, and whether it is known."""
    if not word or word in SCALES:
        return UNNAMED, SCALES.get(word, 1.0), True
    thing = _THINGS.get(word.lower())
    if thing:
        return thing, 1.0, True
    if word[:1] in SCALES and (thing := _THINGS.get(word[1:].lower())):
        return thing, SCALES[word[0]], True
    return word.lower(), 1.0, False


@lru_cache(maxsize=1024)
def rate(word: str, time: str, device: str = "") -> Unit | None:
    """Return the unit of ``word`` per ``time``, on each device if one is named; None if it does not count progress."""
    seconds = seconds_of(time)
    if seconds is None or _PHYSICAL.fullmatch(word):
        return None
    thing, factor, known = counted(word)
    if device:
        thing = f"{thing}-per-{device.lower().removesuffix('s')}"
    return Unit(thing, factor / seconds, known=known)


@lru_cache(maxsize=1024)
def time_of_one(time: str, word: str) -> Unit | None:
    """Return the unit of ``time`` per ``word``."""
    seconds = seconds_of(time)
    if seconds is None or seconds_of(word) is not None or _PHYSICAL.fullmatch(word):
        return None
    thing, factor, known = counted(word)
    return Unit(thing, seconds / factor, is_time=True, known=known)
