"""A history for the terminal, printed by rich: the answer, a table for each cell, and what changed when."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from analysis.history.results import History, Series, Shift
from analysis.report.formatting import ends, number, one_line, times
from analysis.report.layout import empty_table
from analysis.statistics.change_points import LEAST_RUNS


class HistoryTerminal:
    """A history to print on a rich console."""

    def __init__(self, found: History) -> None:
        self.found = found

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        yield Text(answer(self.found), style="bold")
        for place in dict.fromkeys(one.place for one in self.found.series):
            own = [one for one in self.found.series if one.place == place]
            yield Text(f"\n{place}", style="bold")
            yield _table(own)
            for one in own:
                for shift in one.shifts:
                    yield Text.assemble(("changed: ", "yellow"), one_line(f"{one.what}: {shift_line(one, shift)}"))


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
    values = f"{number(shift.before)} to {number(shift.after)} {series.unit}, {times(shift.ratio)}x{interval}"
    return f"{_direction(shift)} since {_day(shift.started_at)} ({shift.run}): {values}; {'; '.join(_machine(shift))}"


def _machine(shift: Shift) -> Iterator[str]:
    if not shift.machine:
        yield "nothing that the records know changed on the machine then"
        return
    yield from shift.machine
    if shift.machine_at != shift.run:
        yield f"all of it a run beside, at {shift.machine_at}"


def _table(series: list[Series]) -> Table:
    table = empty_table(("metric", "runs", "first", "latest", "unit", "latest / first", "changes"))
    for one in series:
        first, latest = one.points[0], one.points[-1]
        table.add_row(
            one.what,
            str(len(one.points)),
            number(first.value),
            number(latest.value),
            one.unit,
            f"{times(latest.value / first.value)}x",
            str(len(one.shifts)) if one.shifts else "-",
        )
    return table


def _direction(shift: Shift) -> str:
    return f"{number(abs(shift.slower) * 100)} % {'slower' if shift.slower > 0 else 'faster'}"


def _day(started_at: str) -> str:
    """Return the date and minute of an ISO time."""
    return started_at[:16].replace("T", " ")
