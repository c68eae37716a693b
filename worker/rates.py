"""Reads rates and steps from the lines that a command prints.

A match whose number cannot be read, or may mean two numbers, is counted and never guessed.
"""

import json
import re
import signal
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from types import FrameType

from worker.protocol import JobError

LONGEST_LINE_BYTES = 1 << 20
"""A longer line is read as several."""
SEARCHED, SHARED = 4096, 256
"""The characters that a pattern searches at once, and those that two such pieces of a long line share."""
SEARCHED_WITHIN_S = 1.0
"""A pattern that searches one line for so long never ends for all practical purposes. Others take microseconds."""
MOST_NUMBERS = 100_000
"""Beyond these every second number is dropped: the worker writes them in one line, whose length is bounded."""
UNREAD_ONE_IN = 20
"""More matches that cannot be read fail the trial: they may be the slow steps."""
LAST_LINES = 5
_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3}
_QUANTITY = re.compile(
    r"(?<![\w.,'])(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,}|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
    r"(?!\d|[.,'_:]\d)(?:(?P<scale>[kKMG])(?!\d|i?[Bb])|(?P<space>\s?)(?P<time>[num\N{MICRO SIGN}]?s|secs?|seconds?)"
    r"(?![A-Za-z])(?:\s?/\s?(?P<counted>[A-Za-z]+))?)?"
)
"""A number with one possible meaning, and its unit: 1,234.5 is one, 1,234 and 1.234,5 are not. Progress bars shorten
rates to 1.2kimg/s and, below one per second, to 1.60s/it."""
_GROUPED = re.compile(r"\d{1,3}[,'_]\d{3}(?!\d)")
_MORE_TIME = re.compile(r"[A-Za-z]|\s(?:m|mins?|minutes?|h|hrs?|hours?)\b")
_USUAL = (
    r"(?P<throughput>[0-9.]+) ?(?![kKMGT]?i?[Bb](?:its?|ytes?)?/|[A-Z]?FLOP)(?P<unit>[A-Za-z]+)"
    r"(?: ?/ ?s(?:ec(?:onds?)?)?| per second)(?![A-Za-z])"
)
"""Rates as most programs print them; bytes and operations are no progress of a training."""
_ITERATIONS = {"it", "iter", "iters", "iterations"}
_MOST_UNITS = 16
_KEY = re.compile(r"""["']throughput["']\s*:\s*["']?[-+.\d]""")
"""Not the key alone: a warning shows the line of the program that prints it."""


@dataclass
class NumberReader:
    """Reads the numbers that a command prints. ``pattern`` is a regular expression, ``json``, ``auto`` or None."""

    pattern: str | None
    numbers: list[float] = field(default_factory=list)
    every: int = 1
    """Which of the ``rates`` that were read are kept in ``numbers``: every such one."""
    rates: int = 0
    unread: int = 0
    unread_line: str = ""
    steps: int | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    _pending: bytes = b""
    _units: dict[str, "NumberReader"] = field(default_factory=dict)
    """With ``auto``, what was read in each unit."""

    def read(self, output: bytes, *, ended: bool = False) -> None:
        """Read further output by lines; progress bars end theirs by a carriage return. Raises JobError."""
        whole, _, self._pending = (self._pending + output.replace(b"\r", b"\n")).rpartition(b"\n")
        if ended or len(self._pending) > LONGEST_LINE_BYTES:
            whole, self._pending = b"\n".join((whole, self._pending)), b""
        lines = whole.decode(errors="replace").split("\n")
        self.last.extend(line.strip()[:200] for line in [*filter(str.strip, lines)][-LAST_LINES:])
        if self.pattern is None:
            return
        before = signal.signal(signal.SIGALRM, _refuse)  # the interpreter's matching looks for signals
        try:
            for line in lines:
                signal.setitimer(signal.ITIMER_REAL, SEARCHED_WITHIN_S)
                if self.pattern == "auto":
                    self._sort(line)
                else:
                    self._take(line, _objects(line) if self.pattern == "json" else _matches(self.pattern, line))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def chosen(self) -> "NumberReader":
        """Return the reader whose rates count: with ``auto`` that of the only unit, or an empty one."""
        if self.pattern != "auto":
            return self
        units = self._printed()
        only = self._units[units[0]] if len(units) == 1 else None
        return only if only and not only.doubtful() else NumberReader(None)

    def doubtful(self) -> bool:
        return self.unread * UNREAD_ONE_IN > self.rates + self.unread

    def throughput(self) -> float | None:
        """Return the median of the rates. Raises JobError if none was printed, or too many could not be read.

        With ``auto`` it is None then.
        """
        if (chosen := self.chosen()) is not self:
            return chosen.throughput()
        if self.pattern is None:
            return None
        why, remedy = "", "correct --throughput-pattern, or leave it out"
        if self.doubtful():
            why, remedy = self._unread(), "print plain numbers such as 1234.5, 1.2k or 1.60s/it, or correct the pattern"
        elif not self.numbers:
            why = f"the command has printed no throughput{self.printed_last()}"
        if why:
            raise JobError(why, kind="command", remedy=remedy)
        return statistics.median(self.numbers)

    def notes(self) -> Iterator[str]:
        """Yield a sentence on each part of the output that the median leaves out, and on what ``auto`` has found."""
        choose = "give --throughput-pattern to choose another"
        if len(units := self._printed()) > 1:
            yield f"throughput: none, as rates in several units are printed: {', '.join(units)}; {choose}"
        for unit in units if len(units) == 1 else ():
            reader = self._units[unit]
            yield f"throughput: {'none, ' if reader.doubtful() else ''}{unit}/s, printed {reader.rates} times; {choose}"
            yield from reader.notes()
        if self.unread:
            yield self._unread()
        if self.every > 1:
            yield f"the command printed {self.rates} throughputs; one in {self.every} is kept"

    def printed_last(self) -> str:
        """Return the last lines, as the end of a sentence."""
        return f"; it printed last: {' | '.join(self.last)}" if self.last else "; it has printed nothing"

    def _printed(self) -> list[str]:
        """Return the units of the rates that ``auto`` has found; iterations only if there is no other."""
        return sorted(set(self._units) - _ITERATIONS) or sorted(self._units)

    def _sort(self, line: str) -> None:
        """Take the usual rates of a line, each for its unit."""
        text = _QUANTITY.sub(_written_out, line)
        for match in _found(_USUAL, text):
            if match["unit"] in self._units or len(self._units) < _MOST_UNITS:
                reader = self._units.setdefault(match["unit"], NumberReader(_USUAL))
                reader._take(line, [{"throughput": _token(text, match, "throughput")}])

    def _unread(self) -> str:
        total = self.rates + self.unread
        return f"{self.unread} of {total} printed throughputs cannot be read, such as in: {self.unread_line}"

    def _take(self, line: str, matches: Iterable[Mapping[str, object]]) -> None:
        for fields in matches:
            with suppress(ValueError):
                self.steps = max(int(_quantity(fields.get("step"))[0]), self.steps or 0)
            try:
                rate = _rate(fields)
            except ValueError:
                self.unread, self.unread_line = self.unread + 1, self.unread_line or line.strip()[:200]
                continue
            self.rates += rate is not None
            if rate is not None and self.rates % self.every == 0:
                self.numbers.append(rate)
        if len(self.numbers) > MOST_NUMBERS:
            self.numbers, self.every = self.numbers[1::2], 2 * self.every


def _objects(line: str) -> Iterator[Mapping[str, object]]:
    """Yield the JSON objects of a line, also those behind a progress bar.

    A line that holds none, but a number after the key of one, is yielded as a rate that cannot be read.
    """
    end, whole, decoder = 0, False, json.JSONDecoder()
    while (begin := line.find("{", end)) >= 0:
        try:
            fields, end = decoder.raw_decode(line, begin)
        except (ValueError, RecursionError):
            end = begin + 1
        else:
            whole = True
            yield {key: fields.get(key) for key in ("throughput", "step")}
    if not whole and _KEY.search(line):
        yield {"throughput": line}


def _matches(pattern: str, line: str) -> list[dict[str, object]]:
    """Return the groups of each match, in the line or, if more match, with its short rates written out."""
    text, matches = line, _found(pattern, line)
    if "(?P<seconds>" not in pattern and (plain := _QUANTITY.sub(_written_out, line)) != line:
        text, matches = max((text, matches), (plain, _found(pattern, plain)), key=lambda pair: len(pair[1]))
    return [{name: _token(text, match, name) for name in match.re.groupindex if match[name]} for match in matches]


def _found(pattern: str, text: str) -> list[re.Match[str]]:
    """Return the matches, of a long text in pieces: a pattern with ``.*`` takes time by the square of the length."""
    compiled, matches, end = re.compile(pattern), [], 0
    rates = compiled.groupindex.keys() & {"throughput", "seconds"}
    for begin in range(0, max(1, len(text) - SHARED), SEARCHED - SHARED):
        for match in compiled.finditer(text, begin, begin + SEARCHED):
            span = max(map(match.span, rates), default=(-1, -1))
            if not 0 <= span[0] < end:  # not the number that both pieces share, whole or cut
                matches.append(match)
            end = max(end, span[1])
    return matches


def _token(text: str, match: re.Match[str], name: str) -> str:
    """Return a group with its unit and the whole number that it may be a part of.

    A separator that the pattern itself matches, such as the commas of a table, ends the number.
    """
    begin, end = match.span(name)
    before = text[max(0, begin - 32) : begin] if begin == match.start() else ""
    head = re.search(r"(?:[\d.,'_]*\d[eE][-+]?)?[\d.,'_]*$", before)
    is_cell = end < match.end() and text[end] in ",'_:" and not _GROUPED.match(text, begin)
    return f"{head[0] if head else ''}{text[begin:end]}{'' if is_cell else text[end : end + 16]}".strip()


def _written_out(short: re.Match[str]) -> str:
    number = float(short["number"].replace(",", "")) * _UNITS.get(short["scale"] or short["time"], 1.0)
    if short["scale"]:
        return f"{number:.15f}".rstrip("0").rstrip(".")
    return f"{1 / number:.15f}{short['space']}{short['counted']}/s" if short["counted"] and number else short[0]


def _quantity(printed: object) -> tuple[float, re.Match[str]]:
    """Return the number that a text begins with, and its parts. Raises ValueError."""
    match = _QUANTITY.match(str(printed))
    if match is None or not isfinite(number := float(match["number"].replace(",", ""))):
        raise ValueError(printed)
    return number, match


def _rate(fields: Mapping[str, object]) -> float | None:
    """Return the rate per second; None before the first step, when bars show ``?`` or zero. Raises ValueError."""
    is_time = fields.get("throughput") is None
    printed = fields.get("seconds" if is_time else "throughput")
    if printed is None or str(printed).startswith("?"):
        return None
    number, match = _quantity(printed)
    number *= _UNITS.get(match["scale"] or match["time"], 1.0)
    is_inverse = is_time or match["counted"] is not None
    if _misplaced(match, is_time) or number < 0 or (is_inverse and not number):
        raise ValueError(printed)
    return 1 / number if is_inverse else number or None


def _misplaced(match: re.Match[str], is_time: bool) -> bool:
    """Return whether a time stands in place of a rate, or ``1.2k`` or a part of ``1m20s`` in place of a time."""
    if is_time:
        return bool(match["scale"] or _MORE_TIME.match(match.string, match.end()))
    return bool(match["time"]) and not match["counted"]


def _refuse(_number: int, _frame: FrameType | None) -> None:
    raise JobError(
        f"--throughput-pattern searched one line for more than {SEARCHED_WITHIN_S:g} s",
        kind="command",
        remedy="write it without repetitions inside of repetitions, such as (a+)+",
    )
