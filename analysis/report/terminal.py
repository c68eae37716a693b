"""Comparisons and regressions for the terminal, printed by rich."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from analysis.compare.regression import Change, Regression, place_of
from analysis.compare.results import Comparison, Effect, Estimate
from analysis.report.cost_table import cost_table
from analysis.report.formatting import (
    ends,
    group_lines,
    number,
    one_line,
    overall_lines,
    reading_guide,
    times,
    verdict,
    warmup_line,
)
from analysis.report.interference_table import TITLE, interference_lines, interference_table, jobs_with_aggressors
from analysis.report.table import Cell, Head, Table, ablation_table, line, results_table
from analysis.warnings.types import notices
from suite.targets import BASELINE

_NARROW = 72  # columns; below, a table would break its words
_NOTE_WIDTH = 20  # columns; a longer note is broken at its blanks and hyphens
_STYLES = {
    "slower": "red",
    "faster": "green",
    "equivalent": "cyan",
    "undecided": "dim",
    "tail": "yellow",
    "typical-only": "yellow",
}


class Terminal:
    """A comparison to print on a rich console: tables, or lists where the terminal is narrow; then the warnings.

    ``costs`` adds what each target takes of the host.
    """

    def __init__(self, comparison: Comparison, *, costs: bool = False) -> None:
        self.comparison = comparison
        self.costs = costs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for group in self.comparison.groups:
            yield _title(group.model, group.job)
            yield _fitting(console, options, results_table(group), results_table(group, full=False))
            yield from _notes(group_lines(group))
            if group.ablations:
                switched = ablation_table(group)
                yield Text(switched.caption, style="dim")
                yield _fitting(console, options, switched)
            if self.costs and group.costs:
                # Targets beside each other: eight resources in a row are wider than 80 columns.
                costs = cost_table(group).turned()
                yield Text(costs.caption, style="dim")
                yield _fitting(console, options, costs)
            yield Text()
        for job in jobs_with_aggressors(self.comparison):
            yield _title(TITLE, job)
            yield _fitting(console, options, interference_table(self.comparison, job))
            yield from _notes(interference_lines(self.comparison, job))
            yield Text()
        for job in dict.fromkeys(overall.job for overall in self.comparison.overall):
            yield _title("all models", job)
            yield from map(Text, overall_lines(self.comparison, job))
            yield Text()
        more = "CPU, memory and disk that each target takes of the host: add --costs"
        hint = more if self.comparison.costs and not self.costs else ""
        yield from _notes(filter(None, (reading_guide(self.comparison), warmup_line(self.comparison), hint)))
        for message, advice in notices(self.comparison.warnings, self.comparison.jobs):
            yield _warning(one_line(message))
            yield Text(f"  {one_line(advice)}", style="dim")


class RegressionTerminal:
    """A regression to print on a rich console: a line per change, and what exceeds the bound."""

    def __init__(self, found: Regression) -> None:
        self.found = found

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        for change in self.found.changes:
            yield Text(change_line(change), style="red" if change.exceeded else "")
        for difference in dict.fromkeys(text for change in self.found.changes for text in change.differences):
            yield _warning(f"new against old differs in {difference}")
        for name in self.found.unmatched:
            yield _warning(f"{name} was finished in one run only")
        if self.found.fail_above is not None:
            found = "slower by more than" if self.found.exceeded else "nothing is slower by more than"
            yield Text(f"{found} {self.found.fail_above:.3g} (as a share)", style="bold")


def change_line(change: Change) -> str:
    """Return ``resnet50 on vm, throughput: 39.0 to 35.0, 0.898x (0.890 to 0.907)``."""
    what = f"{change.metric}, relative to {BASELINE}" if change.normalised else change.metric
    interval = f" ({ends(change.interval)})" if change.interval else f" (no interval: {min(change.trials)} trial)"
    return (
        f"{change.model} on {place_of(change.target, change.variant)}, {what}: "
        f"{number(change.old)} to {number(change.new)}, {times(change.ratio)}x{interval}"
    )


def empty_table(titles: Sequence[Text | str]) -> RichTable:
    """Return a table without rows or borders: the first column to the left, numbers to the right."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place else "left", no_wrap=place > 0)
    return table


def _title(what: str, job: object) -> Text:
    return Text(what, style="bold").append(f"  {job}", style="not bold")


def _notes(lines: Iterator[str]) -> Iterator[Text]:
    return (Text(text, style="dim") for text in lines)


def _warning(text: str) -> Text:
    return Text("warning: ", style="yellow").append(text, style="default")


def _fitting(console: Console, options: ConsoleOptions, *tables: Table) -> RichTable | Text:
    """Return the first table that is not too wide for the terminal; else the last one turned, or as a list."""
    shown = (_if_fitting(console, options, each) for each in (*tables, tables[-1].turned()))
    return next((each for each in shown if each), _list(tables[-1]))


def _if_fitting(console: Console, options: ConsoleOptions, table: Table) -> RichTable | None:
    """Return the table; None where the terminal is too narrow for it."""
    shown = empty_table((table.corner, *(_head(head, "") for head in table.columns)))
    heads = [_head(head, "  ") for head, _ in table.rows]
    for head, (_, cells) in zip(heads, table.rows, strict=True):
        shown.add_row(head, *map(_cell, cells))
    # The words of the first column may stand below each other, but its notes keep their lines.
    words = [word for head, _ in table.rows for word in head.text.split()]
    lines = [line for head in heads for line in head.plain.splitlines()[1:]]
    first = shown.columns[0]
    first.min_width = max(map(len, (table.corner, *words, *lines)))
    spare = max((len(line) for head in heads for line in head.plain.splitlines()), default=0) - first.min_width
    # Measured on a console without an end: on this one rich would take any table to fit, and cut its cells.
    needed = console.measure(shown, options=options.update(max_width=10_000)).maximum - max(spare, 0)
    return shown if max(needed, _NARROW) <= options.max_width else None


def _head(head: Head, indent: str) -> Text:
    text = Text(head.text)
    for note in head.notes:
        lines = textwrap.wrap(note, _NOTE_WIDTH, break_long_words=False)
        text.append("".join(f"\n{indent}{line}" for line in lines), style="yellow")
    return text


def _list(table: Table) -> Text:
    text = Text()
    for head, cells in table.rows:
        text.append(head.text, style="bold")
        text.append("".join(f", {note}" for note in head.notes) + "\n", style="yellow")
        for column, cell in zip(table.columns, cells, strict=True):
            text.append(f"  {column}: ", style="dim").append(f"{line(cell)}\n")
    text.rstrip()
    return text


def _cell(cell: Cell) -> Text:
    """Return below each other the value and, where there are, the ratio, its interval and the verdict."""
    if not isinstance(cell, (Estimate, Effect)):
        return Text("\n".join(cell) if isinstance(cell, tuple) else cell or "-")
    ratio = "" if cell.ratio is None else f"{times(cell.ratio)}x"
    text = Text(f"{number(cell.value)} {ratio:>6}".rstrip() if isinstance(cell, Estimate) else ratio)
    if cell.interval:
        text.append(f"\n{ends(cell.interval)}", style="dim")
        if cell.verdict:
            text.append(f"\n{verdict(cell.verdict)}", style=_STYLES[cell.verdict.name])
    return text
