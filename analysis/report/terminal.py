"""Comparisons for the terminal, printed by rich."""

import textwrap
from collections.abc import Iterator
from functools import cached_property

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from analysis.compare.results import Comparison, Effect, Estimate, Group
from analysis.load.metrics import PROBE, SHARED
from analysis.report.answer import answer
from analysis.report.cost_table import cost_table
from analysis.report.formatting import (
    ends,
    group_lines,
    number,
    one_line,
    overall_lines,
    reading_guide,
    times,
    warmup_line,
)
from analysis.report.interference_table import TITLE, interference_lines, interference_table, jobs_with_aggressors
from analysis.report.layout import empty_table, fits
from analysis.report.overview import Notes, Overview, verdict_text
from analysis.report.table import EXPECTED, Cell, Head, Table, ablation_table, epoch_table, line, results_table
from analysis.warnings.types import notices

_NARROW = 72  # columns; below, a table would break its words
_NOTE_WIDTH = 20  # columns; a longer note is broken at its blanks and hyphens


class Sentences:
    """The answer of a comparison to print on a rich console."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        for text in self.lines:
            yield Text(one_line(text), style="bold")

    @cached_property
    def lines(self) -> list[str]:
        """Return the sentences; they are shown twice, and computed once."""
        return answer(self.comparison)


class Terminal:
    """A comparison to print on a rich console: the answer first, then an overview and its notes.

    ``costs`` adds what each target takes of the host, ``verbose`` every metric with its interval, ablations, noise,
    advice, and how to read the numbers.
    """

    def __init__(self, comparison: Comparison, *, costs: bool = False, verbose: bool = False) -> None:
        self.comparison = comparison
        self.sentences = Sentences(comparison)
        self.costs = costs
        self.verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.sentences
        yield from self._details(console, options) if self.verbose else self._overview(console, options)
        for group in self.comparison.groups:
            if self.costs and group.costs:
                # Targets beside each other: eight resources in a row are wider than 80 columns.
                costs = cost_table(group).turned()
                yield _title(group.model, group.job)
                yield Text(costs.caption, style="dim")
                yield _fitting(console, options, costs)

    def _overview(self, console: Console, options: ConsoleOptions) -> RenderResult:
        notes = Notes(self.comparison)
        if trained := [group for group in self.comparison.groups if group.job.scenario not in (PROBE, SHARED)]:
            yield Overview(trained, notes)
            yield from self._epochs(console, options)
        for group in self.comparison.groups:
            if group.job.scenario == PROBE:
                yield _title(group.model, group.job)
                yield _fitting(console, options, results_table(group, full=False))
        yield from self._interference(console, options)
        yield from notes.lines()

    def _details(self, console: Console, options: ConsoleOptions) -> RenderResult:
        expected = False
        yield Text()
        for group in self.comparison.groups:
            table = _fitting(console, options, results_table(group), results_table(group, full=False))
            expected |= isinstance(table, RichTable) and EXPECTED in [str(one.header) for one in table.columns]
            yield _title(group.model, group.job)
            yield table
            yield from _notes(group_lines(group))
            yield from self._epochs(console, options, group)
            if group.ablations:
                switched = ablation_table(group)
                yield Text(switched.caption, style="dim")
                yield _fitting(console, options, switched)
            yield Text()
        yield from self._interference(console, options)
        for job in dict.fromkeys(overall.job for overall in self.comparison.overall):
            yield _title("all models", job)
            yield from map(Text, overall_lines(self.comparison, job))
            yield Text()
        guide = reading_guide(self.comparison, expected=expected)
        yield from _notes(filter(None, (guide, warmup_line(self.comparison))))
        for one in notices(self.comparison.warnings, self.comparison.jobs):
            yield _warning(one_line(one.message))
            yield Text(f"  {one_line(one.advice)}", style="dim")

    def _epochs(self, console: Console, options: ConsoleOptions, only: Group | None = None) -> RenderResult:
        """Yield the times per epoch and the losses, of one group below its own table or of all."""
        for group in (only,) if only else self.comparison.groups:
            if table := epoch_table(group):
                yield Text(table.caption, style="dim") if only else _title(group.model, table.caption)
                yield _fitting(console, options, table)

    def _interference(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for job in jobs_with_aggressors(self.comparison):
            yield _title(TITLE, job)
            yield _fitting(console, options, interference_table(self.comparison, job))
            yield from _notes(interference_lines(self.comparison, job))
            yield Text()

    def more(self) -> str:
        """Return which options show what is not shown, for the line that says where the figures are."""
        verbose = "" if self.verbose else "--verbose"
        costs = "--costs" if self.comparison.costs and not self.costs else ""
        hints = ", ".join(filter(None, (verbose, costs)))
        return f"; more: {hints}" if hints else ""


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
    lines = [line.replace(" ", "_") for head in heads for line in head.plain.splitlines()[1:]]
    words = [*(head.text for head, _ in table.rows), table.corner, *lines]
    return shown if options.max_width >= _NARROW and fits(console, options, shown, words) else None


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
            text.append("\n").append_text(verdict_text(cell.verdict))
    return text
