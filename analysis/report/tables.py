"""A comparison as text: for the terminal (rich), Markdown, CSV and JSON. Substitutes stand beside the numbers in each.

Rows for machines (``as_csv``, ``as_json``; one per group, target and metric), with these keys, which are stable:

scenario, data, profile, recipe, variant, model, target
    what ran; ``variant`` is empty unless settings differ among the records
metric, unit
    throughput (images/s), elapsed (s), opening (s) and what the workload has of its own; of a probe (scenario probe,
    named as the model) what it measures
value, trials, failed
    geometric mean over so many finished trials, and the number of failed ones; absent where nothing was measured
ratio, blocks
    trimmed geometric mean of the ratios to bare metal inside so many blocks; absent where there is none
ratio_low, ratio_high
    its 95 % interval; absent for bare metal and for a single block
verdict, p, more_blocks
    equivalent, slower, faster or undecided; the Holm-adjusted level; how many more blocks would probably decide
noise_floor, noise_method
    the smallest overhead (a share) that the data could have shown; from a/a or across-blocks
substitutes, marks
    what the number must not be read without; lists in JSON, joined by "; " in CSV

Absent is null in JSON and empty in CSV, never zero.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from analysis.compare.results import Comparison, Group
from analysis.report import cost_table as expenses
from analysis.report import formatting as words
from analysis.report import interference_table as beside
from analysis.report.formatting import ends, explanation, group_lines, number, overall_lines, times, warmup_line
from analysis.report.grid import Cell, Grid, Head, grid
from analysis.report.rows import (
    KEYS,
    aa_rows,
    ablation_rows,
    cost_rows,
    interaction_rows,
    interference_rows,
    isolation_rows,
    overall_rows,
    rows,
)
from analysis.warnings.conditions import notices

__all__ = ["KEYS", "Terminal", "as_csv", "as_json", "as_markdown", "rows", "warning_lines"]
_NARROW = 72  # columns; below, a table would break its words


def as_json(comparison: Comparison) -> str:
    """An object with ``schema_version``, ``runs`` (their ids), ``margin``, ``rows``, and ``warnings`` (kind, message,
    advice). With the keys of the rows that they share: ``overall`` holds ratios over all models, ``interactions``
    container-vm's over the product of container's and vm's, ``aa`` the second bare-metal trial's over the first's, and
    ``ablations`` a switched target's over the same target as it is. ``costs`` is what targets take of the host; see
    ``results.Cost``. ``interference`` is a victim beside an aggressor over the same alone, ``isolation`` ranks the
    targets; see ``results.Interference``. ``warmup_trials`` were left out of all."""
    return json.dumps(
        {
            "schema_version": 1,
            "runs": list(comparison.runs),
            "margin": comparison.margin,
            "rows": list(rows(comparison)),
            "overall": list(overall_rows(comparison)),
            "interactions": list(interaction_rows(comparison)),
            "aa": list(aa_rows(comparison)),
            "ablations": list(ablation_rows(comparison)),
            "costs": list(cost_rows(comparison)),
            "interference": list(interference_rows(comparison)),
            "isolation": list(isolation_rows(comparison)),
            "warmup_trials": comparison.warmup_trials,
            "warnings": [warning.as_json() for warning in comparison.warnings],
        },
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )


def as_csv(comparison: Comparison) -> str:
    """A header and the rows. The warnings are not part of it: print them beside, see ``warning_lines``."""
    out = io.StringIO()
    writer = csv.DictWriter(out, KEYS, lineterminator="\n")
    writer.writeheader()
    for row in rows(comparison):
        writer.writerow({key: "; ".join(value) if isinstance(value, list) else value for key, value in row.items()})
    return out.getvalue()


def as_markdown(comparison: Comparison) -> str:
    """One table per group, and what it took of the host; the warnings after them."""
    lines = []
    for group in comparison.groups:
        lines += [f"### {_escaped(group.model)}: {_escaped(str(group.job))}", "", *_markdown(grid(group))]
        lines += ["", *(f"- {_escaped(line)}" for line in group_lines(group)), ""]
        if caption := expenses.caption(group):
            costs = [expenses.cells(cost) for cost in group.costs]
            lines += [_escaped(caption), "", *_pipes(expenses.HEADER, costs), ""]
    for job in beside.jobs(comparison):
        lines += [f"### {beside.TITLE}: {_escaped(str(job))}", "", *_markdown(beside.matrix(comparison, job))]
        lines += ["", *(f"- {_escaped(line)}" for line in beside.lines(comparison, job)), ""]
    for job in dict.fromkeys(overall.job for overall in comparison.overall):
        lines += [f"### all models: {_escaped(str(job))}", ""]
        lines += [*(f"- {_escaped(line)}" for line in overall_lines(comparison, job)), ""]
    lines += [_escaped(text) for text in (explanation(comparison), warmup_line(comparison)) if text]
    lines += ["", *(f"- {_escaped(line)}" for line in warning_lines(comparison))]
    return "\n".join(lines).rstrip() + "\n"


def _markdown(laid: Grid) -> list[str]:
    header = (laid.corner, *map(_noted, laid.columns))
    return _pipes(header, [(_noted(head), *map(_line, found)) for head, found in laid.rows])


def _pipes(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    texts = ["| " + " | ".join(map(_escaped, cells)) + " |" for cells in (header, *lines)]
    return [texts[0], "|:---|" + "---:|" * (len(header) - 1), *texts[1:]]


def _noted(head: Head) -> str:
    return " ".join((head.text, *(f"({note})" for note in head.notes)))


def warning_lines(comparison: Comparison) -> list[str]:
    """Each warning as one line of plain text, those of the same finding as one."""
    found = notices(comparison.warnings, comparison.jobs)
    return [f"warning: {_one_line(f'{message}; {advice}')}" for message, advice in found]


class Terminal:
    """A comparison to print on a rich console: tables, or lists where the terminal is narrow; then the warnings."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for group in self.comparison.groups:
            yield Text(group.model, style="bold").append(f"  {group.job}", style="not bold")
            yield _fitting(console, options, _table(grid(group)), _list(grid(group)))
            for line in group_lines(group):
                yield Text(line, style="dim")
            if group.costs:
                yield Text(expenses.caption(group), style="dim")
                yield _fitting(console, options, _costs(group), _cost_list(group))
            yield Text()
        for job in beside.jobs(self.comparison):
            yield Text(beside.TITLE, style="bold").append(f"  {job}", style="not bold")
            laid = beside.matrix(self.comparison, job)
            yield _fitting(console, options, _table(laid), _list(laid))
            yield from (Text(line, style="dim") for line in beside.lines(self.comparison, job))
            yield Text()
        for job in dict.fromkeys(overall.job for overall in self.comparison.overall):
            yield Text("all models", style="bold").append(f"  {job}", style="not bold")
            yield from (Text(line) for line in overall_lines(self.comparison, job))
            yield Text()
        for text in filter(None, (explanation(self.comparison), warmup_line(self.comparison))):
            yield Text(text, style="dim")
        for message, advice in notices(self.comparison.warnings, self.comparison.jobs):
            yield Text("warning: ", style="yellow").append(_one_line(message), style="default")
            yield Text(f"  {_one_line(advice)}", style="dim")


def _fitting(console: Console, options: ConsoleOptions, table: Table, text: Text) -> Table | Text:
    # Measured on a console without an end: on this one rich would take any table to fit, and cut its cells. The words
    # of the first column may stand below each other.
    endless = options.update(max_width=10_000)
    first = [console.measure(cell, options=endless) for cell in table.columns[0].cells]
    spare = max(found.maximum for found in first) - max(found.minimum for found in first) if first else 0
    fits = console.measure(table, options=endless).maximum - spare <= options.max_width
    return table if fits and options.max_width >= _NARROW else text


def _empty(titles: Sequence[Text | str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place else "left", no_wrap=place > 0)
    return table


def _table(laid: Grid) -> Table:
    table = _empty((laid.corner, *map(_head, laid.columns)))
    for head, found in laid.rows:
        table.add_row(_head(head), *map(_cell, found))
    return table


def _head(head: Head) -> Text:
    text = Text(head.text)
    for note in head.notes:
        text.append(f"\n  {note}", style="yellow")
    return text


def _list(laid: Grid) -> Text:
    text = Text()
    for head, found in laid.rows:
        text.append(head.text, style="bold")
        text.append("".join(f", {note}" for note in head.notes) + "\n", style="yellow")
        for column, cell in zip(laid.columns, found, strict=True):
            text.append(f"  {_noted(column)}: ", style="dim").append(f"{_line(cell)}\n")
    text.rstrip()
    return text


def _costs(group: Group) -> Table:
    table = _empty(expenses.HEADER)
    for cost in group.costs:
        name, *rest = expenses.cells(cost)
        table.add_row(_head(Head(name, cost.notes)), *rest)
    return table


def _cost_list(group: Group) -> Text:
    lines = []
    for cost in group.costs:
        name, *rest = expenses.cells(cost)
        parts = (f"{title} {cell}" for title, cell in zip(expenses.HEADER[1:], rest, strict=True) if cell != "-")
        lines.append(f"{_noted(Head(name, cost.notes))}: {'; '.join(parts)}")
    return Text("\n".join(lines), style="dim")


def _cell(found: Cell) -> Text:
    """Below each other: the value and, where there are, the ratio, its interval and the verdict."""
    if found is None or isinstance(found, str):
        return Text(found or "-")
    ratio = "" if found.ratio is None else f"{times(found.ratio)}x"
    cell = Text(f"{number(found.value)} {ratio:>6}".rstrip())
    if found.interval and found.verdict:
        cell.append(f"\n{ends(found.interval)}", style="dim")
        cell.append(f"\n{words.verdict(found.verdict)}", style=_STYLES[found.verdict.name])
    return cell


_STYLES = {"slower": "red", "faster": "green", "equivalent": "cyan", "undecided": "dim"}


def _line(found: Cell) -> str:
    """``12.3 0.972x (0.951 to 0.989), slower``; a dash where nothing was measured."""
    if found is None or isinstance(found, str):
        return found or "-"
    return f"{number(found.value)} {words.ratio(found)}".rstrip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
