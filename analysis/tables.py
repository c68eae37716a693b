"""A comparison as text: for the terminal (rich), Markdown, CSV and JSON. Substitutes stand beside the numbers in each.

Rows for machines (``as_csv``, ``as_json``; one per group, target and metric), with these keys, which are stable:

scenario, data, profile, recipe, variant, model, target
    what ran; ``variant`` is empty unless settings differ among the records
metric, unit
    throughput (images/s), elapsed (s) or opening (s)
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
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from analysis import words
from analysis.results import METRICS, Comparison, Effect, Estimate, Group, TargetSummary
from analysis.words import ends, explanation, group_lines, number, overall_lines, times

KEYS = (
    *("scenario", "data", "profile", "recipe", "variant", "model", "target", "metric", "unit"),
    *("value", "trials", "failed", "ratio", "blocks", "ratio_low", "ratio_high", "verdict", "p", "more_blocks"),
    *("noise_floor", "noise_method", "substitutes", "marks"),
)
_NARROW = 72  # columns; below, a table would break its words


def rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    """The rows for machines, in the order of the comparison."""
    for group in comparison.groups:
        for summary in group.targets:
            for metric in METRICS:
                estimate, floor = summary.estimates.get(metric.name), group.noise_floors.get(metric.name)
                yield {
                    **asdict(group.job),
                    "model": group.model,
                    "target": summary.target,
                    "metric": metric.name,
                    "unit": metric.unit,
                    "value": estimate.value if estimate else None,
                    "trials": estimate.trials if estimate else 0,
                    "failed": summary.failed,
                    **_effect(estimate),
                    "noise_floor": floor.share if floor else None,
                    "noise_method": floor.method if floor else None,
                    "substitutes": list(summary.substitutes),
                    "marks": list(summary.marks),
                }


def _effect(found: Estimate | Effect | None) -> dict[str, object]:
    interval, verdict = (found.interval, found.verdict) if found else (None, None)
    return {
        "ratio": found.ratio if found else None,
        "blocks": found.blocks if found else 0,
        "ratio_low": interval[0] if interval else None,
        "ratio_high": interval[1] if interval else None,
        "verdict": verdict.name if verdict else None,
        "p": verdict.p if verdict else None,
        "more_blocks": verdict.more_blocks if verdict else None,
    }


def _overall(comparison: Comparison) -> Iterator[dict[str, object]]:
    for found in comparison.overall:
        for name, effect in found.effects.items():
            lists = {"models": list(found.models), "notes": list(found.notes)}
            yield {**asdict(found.job), **lists, "target": found.target, "metric": name, **_effect(effect)}


def _interactions(comparison: Comparison) -> Iterator[dict[str, object]]:
    for group in comparison.groups:
        for name, effect in group.interactions.items():
            yield {**asdict(group.job), "model": group.model, "metric": name, **_effect(effect)}


def as_json(comparison: Comparison) -> str:
    """An object with ``schema_version``, ``runs`` (their ids), ``margin``, ``rows``, and ``warnings`` (kind, message,
    advice). ``overall`` holds ratios over all models, ``interactions`` container-vm's over the product of container's
    and vm's; both with the keys of the rows that they share."""
    return json.dumps(
        {
            "schema_version": 1,
            "runs": list(comparison.runs),
            "margin": comparison.margin,
            "rows": list(rows(comparison)),
            "overall": list(_overall(comparison)),
            "interactions": list(_interactions(comparison)),
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
            cells = (name, *_lines(summary), _trials(summary))
            lines.append("| " + " | ".join(map(_escaped, cells)) + " |")
        lines += ["", *(f"- {_escaped(line)}" for line in group_lines(group)), ""]
    for job in dict.fromkeys(overall.job for overall in comparison.overall):
        lines += [f"### all models: {_escaped(str(job))}", ""]
        lines += [*(f"- {_escaped(line)}" for line in overall_lines(comparison, job)), ""]
    lines += [_escaped(explanation(comparison)), ""]
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
            table = _table(group)
            fits = console.measure(table, options=options).minimum <= options.max_width
            yield table if fits and options.max_width >= _NARROW else _list(group)
            for line in group_lines(group):
                yield Text(line, style="dim")
            yield Text()
        for job in dict.fromkeys(overall.job for overall in self.comparison.overall):
            yield Text("all models", style="bold").append(f"  {job}", style="not bold")
            for line in overall_lines(self.comparison, job):
                yield Text(line)
            yield Text()
        if text := explanation(self.comparison):
            yield Text(text, style="dim")
        for found in self.comparison.warnings:
            yield Text("warning: ", style="yellow").append(_one_line(found.message), style="default")
            yield Text(f"  {_one_line(found.advice)}", style="dim")


def _table(group: Group) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number_of_column, title in enumerate(_header()):
        table.add_column(title, justify="right" if number_of_column else "left", no_wrap=number_of_column > 0)
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
        for title, line in zip(_header()[1:], (*_lines(summary), _trials(summary)), strict=True):
            text.append(f"  {title}: ", style="dim").append(f"{line}\n")
    text.rstrip()
    return text


def _header() -> tuple[str, ...]:
    titles = (metric.unit if metric.name == "throughput" else f"{metric.name} {metric.unit}" for metric in METRICS)
    return ("target", *titles, "trials")


def _cells(summary: TargetSummary) -> list[Text]:
    """Per metric, below each other: the value and, where there are, the ratio, its interval and the verdict."""
    return [_cell(summary.estimates.get(metric.name)) for metric in METRICS]


def _cell(estimate: Estimate | None) -> Text:
    if estimate is None:
        return Text("-")
    ratio = "" if estimate.ratio is None else f"{times(estimate.ratio)}x"
    cell = Text(f"{number(estimate.value)} {ratio:>6}".rstrip())
    if estimate.interval and estimate.verdict:
        cell.append(f"\n{ends(estimate.interval)}", style="dim")
        cell.append(f"\n{words.verdict(estimate.verdict)}", style=_STYLES[estimate.verdict.name])
    return cell


_STYLES = {"slower": "red", "faster": "green", "equivalent": "cyan", "undecided": "dim"}


def _lines(summary: TargetSummary) -> list[str]:
    """Per metric one line: ``12.3 0.972x (0.951 to 0.989), slower``; a dash where nothing was measured."""
    found = [summary.estimates.get(metric.name) for metric in METRICS]
    return ["-" if one is None else f"{number(one.value)} {words.ratio(one)}".rstrip() for one in found]


def _trials(summary: TargetSummary) -> str:
    return f"{summary.ok}, {summary.failed} failed" if summary.failed else str(summary.ok)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
