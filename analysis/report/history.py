"""A history as a document: the answer, a table for each cell, and what changed when."""

from collections.abc import Iterator

from analysis.history.history import History, Series, Shift
from analysis.report.elements import Element, Head, Heading, Line, Table
from analysis.report.formatting import ends, times
from analysis.statistics.change_points import LEAST_RUNS
from suite.units import number

_COLUMNS = ("runs", "first", "latest", "unit", "latest / first", "changes")


def history_document(found: History) -> Iterator[Element]:
    """Yield a history: the answer, a table for each cell, and what changed when."""
    yield Line(answer(found), "strong")
    for place in dict.fromkeys(series.place for series in found.series):
        of_place = [series for series in found.series if series.place == place]
        yield Heading(place)
        rows = []
        for one in of_place:
            first, latest = one.points[0].value, one.points[-1].value
            cells = (str(len(one.points)), number(first), number(latest), one.unit, f"{times(latest / first)}x")
            rows.append((Head(one.what), (*cells, str(len(one.shifts) or "-"))))
        yield Table("metric", "", tuple(map(Head, _COLUMNS)), tuple(rows), compact=True)
        for series in of_place:
            for shift in series.shifts:
                yield Line(f"{series.what}: {shift_line(series, shift)}", label="changed")


def answer(found: History) -> str:
    """Return how many numbers changed over how many runs, and the latest change."""
    numbers = f"{len(found.series)} numbers over {found.runs} run{'s' if found.runs > 1 else ''}"
    latest = [(shift.started_at, one, shift) for one in found.series for shift in one.shifts]
    if not latest and max((len(one.points) for one in found.series), default=0) < 2 * LEAST_RUNS:
        return f"No change can be found yet: {numbers}; a series takes {2 * LEAST_RUNS} runs."
    if not latest:
        return f"No change found: {numbers}."
    at, one, shift = max(latest, key=lambda each: each[0])
    what = f"{one.place}, {one.what}: {_direction(shift)}"
    return f"{found.shifts} change{'s' if found.shifts > 1 else ''} in {numbers}. The latest: {what} since {_day(at)}."


def shift_line(series: Series, shift: Shift) -> str:
    """Return ``5.3 % slower since 2026-03-14 02:00 (RUN): 39.0 to 37.0 images/s, 0.949x (0.940 to 0.958); …``."""
    interval = f" ({ends(shift.interval)})" if shift.interval else ""
    values = f"{number(shift.before)} to {number(shift.after)} {series.unit}".rstrip()
    values += f", {times(shift.ratio)}x{interval}"
    machine = "; ".join(shift.machine) or "nothing that the records know changed on the machine then"
    elsewhere = f"; all of it a run beside, at {shift.machine_at}"
    machine += elsewhere if shift.machine and shift.machine_at != shift.run else ""
    return f"{_direction(shift)} since {_day(shift.started_at)} ({shift.run}): {values}; {machine}"


def _direction(shift: Shift) -> str:
    return f"{number(abs(shift.slower) * 100)} % {'slower' if shift.slower > 0 else 'faster'}"


def _day(started_at: str) -> str:
    return started_at[:16].replace("T", " ")
