"""Reads the output of a command, and finds the throughput that it has printed.

A match whose number cannot be read, or may mean two numbers, is counted and never guessed; of several rates none is
chosen in silence.
"""

import re
import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from worker.printed.fields import Found, of_objects, of_pattern
from worker.printed.lines import NO_NUMBER, UNREAD, RateReading, readings
from worker.printed.series import MOST_SERIES, RateSeries, listed, main_series, merged, notes_on, parts_named
from worker.printed.units import counted
from worker.protocol import JobError

LONGEST_LINE_BYTES = 1 << 20
"""A longer line is read as several."""
SEARCHED_WITHIN_S = 1.0
"""A pattern that searches one line for so long never ends for all practical purposes. Others take microseconds."""
LAST_LINES = 5
_SHOWN_CHARACTERS = 200
AUTO = "auto"
JSON = "json"
PATTERN = "(?P<"
"""The words, and the mark of a regular expression, in values of ``--throughput``."""
_STYLE = re.compile(rb"\x1b\[[\d;:]*[mK]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]")
"""Escape sequences that colour text; others move the cursor, and end a line for a reader."""
_MOVE = re.compile(rb"\x1b\[[\d;?]*[ -/]*[@-~]|\x08+|\r")
_REMEDY = "correct --throughput, or leave it out"


@dataclass
class NumberReader:
    """Reads the numbers that a command prints.

    ``choice`` is a regular expression, ``json``, ``json:PATH``, ``auto``, the name of one series, or None.
    """

    choice: str | None
    decimal_mark: str | None = None
    clock: Callable[[], float] = time.monotonic
    series: dict[str, RateSeries] = field(default_factory=dict)
    steps: int | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    begun_s: float = 0.0
    ended_s: float = 0.0
    _together: set[str] = field(default_factory=set)
    """The paths of JSON that one object has held side by side."""
    _has_json: bool = False
    _pending: bytes = b""

    def __post_init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        """The last keys of the paths that are read as the throughput."""
        word, _, path = (self.choice or "").partition(":")
        if word == JSON:
            self._keys = tuple((path or "throughput").split("."))

    def begin(self) -> None:
        """Take the moment at which the command starts."""
        self.begun_s = self.clock()

    def read(self, output: bytes, *, ended: bool = False) -> None:
        """Read further output by lines; progress bars end theirs by a carriage return. Raises JobError."""
        unread = self._pending + output.replace(b"\r", b"\n")
        whole, _, self._pending = unread.rpartition(b"\n")
        if ended or len(self._pending) > LONGEST_LINE_BYTES:
            whole = b"\n".join((whole, self._pending))
            self._pending = b""
        lines = _plain(whole).split("\n")
        self.last.extend(line.strip()[:_SHOWN_CHARACTERS] for line in [*filter(str.strip, lines)][-LAST_LINES:])
        self.ended_s = self.clock()
        self._has_json = self._has_json or b'"throughput"' in whole
        self._read_lines(lines)

    def chosen(self) -> RateSeries | None:
        """Return the series that counts; None without any, or with several."""
        printed = self.printed()
        if self.choice == AUTO:
            candidates = main_series(printed, self.begun_s, self.ended_s)
            if len(candidates) != 1 or candidates[0].is_doubtful():
                return None
            return candidates[0]
        if self._keys:
            return self._of_paths(printed)
        for series in printed:
            if series.name in (self.choice, canonical(str(self.choice))):
                return series
        return None

    def printed(self) -> list[RateSeries]:
        """Return the series that have rates, read or not."""
        return [series for series in self.series.values() if series.rates or series.unread]

    def throughput(self) -> float | None:
        """Return the median of the rates. Raises JobError if none was printed, or too many could not be read.

        With ``auto`` it is None then.
        """
        series = self.chosen()
        if self.choice in (None, AUTO):
            if series:
                return series.median()
            return None
        if series is None:
            raise self._missing()
        if series.is_doubtful():
            remedy = (
                "print plain numbers such as 1234.5, 1.2k or 1.60s/it, or give --decimal-mark or another --throughput"
            )
            raise JobError(series.unread_note(), kind="command", remedy=remedy)
        return series.median()

    def notes(self) -> Iterator[str]:
        """Yield sentences on the rates that the median holds, those it leaves out, and all others."""
        series = self.chosen()
        if self.choice == AUTO:
            yield from self._notes_of_auto(series)
        elif self._keys and len(self.series) > 1:
            yield f"throughput: read from {listed(self.series.values())}"
        if series:
            yield from notes_on(series)

    def printed_last(self) -> str:
        """Return the last lines, as the end of a sentence."""
        if self.last:
            return f"; it printed last: {' | '.join(self.last)}"
        return "; it has printed nothing"

    def _notes_of_auto(self, series: RateSeries | None) -> Iterator[str]:
        printed = self.printed()
        others = [other for other in printed if other is not series]
        if series:
            yield f"throughput: {series.summary()}"
        elif printed:
            yield "throughput: none, the elapsed time decides"
        elif self.series:
            yield f"throughput: none, the elapsed time decides; printed without a number: {', '.join(self.series)}"
        else:
            hint = ""
            if self._has_json:
                hint = f"; --throughput {JSON} reads its JSON"
            yield f"throughput: none is printed, the elapsed time decides{hint}"
        if others:
            example = shlex.quote(others[0].name)
            yield f"printed: {listed(others)}; choose one with --throughput, such as --throughput {example}"
        for other in others:
            why = other.outside(self.begun_s, self.ended_s)
            if why:
                yield why
            yield from notes_on(other)

    def _missing(self) -> JobError:
        printed = self.printed()
        if not printed:
            return JobError(
                f"the command has printed no throughput{self.printed_last()}", kind="command", remedy=_REMEDY
            )
        message = f"the command has not printed the one throughput {self.choice}, but {listed(printed)}"
        return JobError(message, kind="command", remedy=f"choose one: --throughput {shlex.quote(printed[0].name)}")

    def _read_lines(self, lines: Sequence[str]) -> None:
        if self.choice is None:
            return
        if PATTERN in self.choice:
            self._read_by_pattern(self.choice, lines)
        elif self._keys:
            self._read_objects(lines)
        else:
            for line in lines:
                for reading in readings(line, self.decimal_mark):
                    self._take(reading, line)

    def _read_by_pattern(self, pattern: str, lines: Sequence[str]) -> None:
        series = self.series.setdefault(pattern, RateSeries(pattern))
        with _time_limit() as restart:
            for line in lines:
                restart()
                for value in of_pattern(pattern, line, self.decimal_mark):
                    self._count(series, value, line)
                    self._note_step(value)

    def _read_objects(self, lines: Sequence[str]) -> None:
        for line in lines:
            for values in of_objects(self._keys, line, self.decimal_mark):
                paths = {value.path for value in values} - {""}
                if len(paths) > 1:
                    self._together |= paths
                for value in values:
                    path = value.path or ".".join(self._keys)
                    if value.path or value.fault:
                        self._count(self._series(f"{JSON}:{path}", label=path), value, line)
                    self._note_step(value)

    def _of_paths(self, paths: Sequence[RateSeries]) -> RateSeries | None:
        """Return the series of all paths, if they may be the same rate."""
        if len(paths) > 1 and (self._together or len(parts_named(paths)) > 1):
            return None
        if paths:
            return merged(paths)
        return None

    def _take(self, reading: RateReading, line: str) -> None:
        name = f"{reading.label} {reading.unit.thing}/s".lstrip()
        series = self._series(name, reading.label, reading.unit.thing, known=reading.unit.known)
        if reading.fault != NO_NUMBER:
            self._count(series, Found(reading.per_s, reading.unit.thing, reading.fault), line)

    def _series(self, name: str, label: str = "", thing: str = "", *, known: bool = True) -> RateSeries:
        if name not in self.series and len(self.series) >= MOST_SERIES:
            name = "others"
        if name not in self.series:
            self.series[name] = RateSeries(name, thing, label, known)
        return self.series[name]

    def _note_step(self, found: Found) -> None:
        if found.step is not None:
            self.steps = max(found.step, self.steps or 0)

    def _count(self, series: RateSeries, found: Found, line: str) -> None:
        if found.fault:
            series.miss(line, found.fault.removeprefix(UNREAD))
        elif found.per_s is not None:
            series.add(found.per_s, self.ended_s)
            if found.thing not in series.thing.split("+"):
                things = (series.thing, found.thing)
                series.thing = "+".join(filter(None, things))


def canonical(name: str) -> str:
    """Return the name of a series as it is listed: ``train it/s`` is that of ``train iterations/s``."""
    label, _, rate = name.rpartition(" ")
    word = rate.partition("/")[0]
    return f"{label.lower()} {counted(word)[0]}/s".lstrip()


def _plain(output: bytes) -> str:
    """Return the text of an output without colours; a moved cursor begins a line."""
    if b"\x1b" in output or b"\x08" in output:
        output = _MOVE.sub(b"\n", _STYLE.sub(b"", output))
    return output.decode(errors="replace")


@contextmanager
def _time_limit() -> Iterator[Callable[[], object]]:
    """Refuse a search that takes too long; what it gives starts the time again."""
    before = signal.signal(signal.SIGALRM, _refuse)  # the interpreter's matching looks for signals
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, SEARCHED_WITHIN_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _refuse(_number: int, _frame: FrameType | None) -> None:
    raise JobError(
        f"--throughput searched one line for more than {SEARCHED_WITHIN_S:g} s",
        kind="command",
        remedy="write it without repetitions inside of repetitions, such as (a+)+",
    )
