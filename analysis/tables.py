"""A comparison as text: for the terminal (rich), Markdown, CSV and JSON. Substitutes stand beside the numbers in each.

Rows for machines (``as_csv``, ``as_json``; one per group, target and metric), with these keys, which are stable:

scenario, data, profile, recipe, variant, model, target
    what ran; ``variant`` is empty unless settings differ among the records
metric, unit
    throughput (images/s), elapsed (s) or opening (s)
value, trials, failed
    geometric mean over so many finished trials, and the number of failed ones; absent where nothing was measured
ratio, blocks
    geometric mean of the ratios to bare metal inside so many blocks; absent where there is none
substitutes, marks
    what the number must not be read without; lists in JSON, joined by "; " in CSV

Absent is null in JSON and empty in CSV, never zero.
"""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from analysis.results import METRICS, Comparison, Estimate, Group, TargetSummary

KEYS = (
    *("scenario", "data", "profile", "recipe", "variant", "model", "target", "metric", "unit"),
    *("value", "trials", "failed", "ratio", "blocks", "substitutes", "marks"),
)
_NARROW = 72  # columns; below, a table would break its words


def rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    """The rows for machines, in the order of the comparison."""
    for group in comparison.groups:
        for summary in group.targets:
            for metric in METRICS:
                estimate = summary.estimates.get(metric.name)
                yield {
                    **asdict(group.job),
                    "model": group.model,
                    "target": summary.target,
                    "metric": metric.name,
                    "unit": metric.unit,
                    "value": estimate.value if estimate else None,
                    "trials": estimate.trials if estimate else 0,
                    "failed": summary.failed,
                    "ratio": estimate.ratio if estimate else None,
                    "blocks": estimate.blocks if estimate else 0,
                    "substitutes": list(summary.substitutes),
                    "marks": list(summary.marks),
                }


def as_json(comparison: Comparison) -> str:
    """An object with ``schema_version``, ``runs`` (their ids), ``rows``, and ``warnings`` (kind, message, advice)."""
    return json.dumps(
        {
            "schema_version": 1,
            "runs": list(comparison.runs),
            "rows": list(rows(comparison)),
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
    """One table per group, the warnings after them."""
    lines = []
    for group in comparison.groups:
        lines += [f"### {_escaped(group.model)}: {_escaped(str(group.job))}", ""]
        lines += ["| " + " | ".join(_header()) + " |", "|:---|" + "---:|" * (len(METRICS) + 1)]
        for summary in group.targets:
            name = " ".join((summary.target, *(f"({note})" for note in summary.notes)))
            lines.append("| " + " | ".join(map(_escaped, (name, *_cells(summary), _trials(summary)))) + " |")
        lines.append("")
    lines += [f"- {_escaped(line)}" for line in warning_lines(comparison)]
    return "\n".join(lines).rstrip() + "\n"


def warning_lines(comparison: Comparison) -> list[str]:
    """Each warning as one line of plain text."""
    return [f"warning: {_one_line(f'{found.message}; {found.advice}')}" for found in comparison.warnings]


class Terminal:
    """A comparison to print on a rich console: tables, or lists where the terminal is narrow; then the warnings."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for group in self.comparison.groups:
            yield Text(group.model, style="bold").append(f"  {group.job}", style="not bold")
            yield _list(group) if options.max_width < _NARROW else _table(group)
            yield Text()
        if any(estimate.ratio is not None for group in self.comparison.groups for estimate in _estimates(group)):
            yield Text("x: times bare metal, geometric mean of the ratios inside blocks", style="dim")
        for found in self.comparison.warnings:
            yield Text("warning: ", style="yellow").append(_one_line(found.message), style="default")
            yield Text(f"  {_one_line(found.advice)}", style="dim")


def _table(group: Group) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, title in enumerate(_header()):
        table.add_column(title, justify="right" if number else "left", no_wrap=number > 0)
    for summary in group.targets:
        name = Text(summary.target)
        for note in summary.notes:
            name.append(f"\n  {note}", style="yellow")
        table.add_row(name, *_cells(summary), _trials(summary))
    return table


def _list(group: Group) -> Text:
    text = Text()
    for summary in group.targets:
        text.append(summary.target, style="bold")
        text.append("".join(f", {note}" for note in summary.notes) + "\n", style="yellow")
        for title, cell in zip(_header()[1:], (*_cells(summary), _trials(summary)), strict=True):
            text.append(f"  {title}: ", style="dim").append(f"{' '.join(cell.split())}\n")
    text.rstrip()
    return text


def _estimates(group: Group) -> Iterator[Estimate]:
    for summary in group.targets:
        yield from summary.estimates.values()


def _header() -> tuple[str, ...]:
    titles = (metric.unit if metric.name == "throughput" else f"{metric.name} {metric.unit}" for metric in METRICS)
    return ("target", *titles, "trials")


def _cells(summary: TargetSummary) -> list[str]:
    """Per metric the value and, where there is one, the ratio: ``12.3 0.97x``; a dash where nothing was measured."""
    return [_cell(summary.estimates.get(metric.name)) for metric in METRICS]


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    ratio = "" if estimate.ratio is None else f"{number(estimate.ratio)}x"
    return f"{number(estimate.value)} {ratio:>6}".rstrip()


def _trials(summary: TargetSummary) -> str:
    return f"{summary.ok}, {summary.failed} failed" if summary.failed else str(summary.ok)


def number(value: float) -> str:
    """Three significant digits without an exponent where that is readable: ``0.0123``, ``4.56``, ``789``, ``12345``."""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.2e}"
    magnitude = int(f"{value:.2e}".split("e")[1])
    return f"{value:.{max(2 - magnitude, 0)}f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
