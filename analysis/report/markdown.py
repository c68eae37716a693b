"""A comparison as Markdown."""

from collections.abc import Iterable, Iterator

from analysis.compare.results import Comparison
from analysis.report.cost_table import cost_table
from analysis.report.formatting import (
    group_lines,
    one_line,
    overall_lines,
    reading_guide,
    warmup_line,
    warning_lines,
)
from analysis.report.interference_table import TITLE, interference_lines, interference_table, jobs_with_aggressors
from analysis.report.table import Table, ablation_table, line, results_table


def as_markdown(comparison: Comparison) -> str:
    """Return one table per group, and what it took of the host; the warnings after them."""
    lines = []
    for group in comparison.groups:
        lines += [f"### {_escaped(group.model)}: {_escaped(str(group.job))}", "", *_pipes(results_table(group))]
        lines += ["", *_items(group_lines(group)), ""]
        tables = [*([ablation_table(group)] if group.ablations else []), *([cost_table(group)] if group.costs else [])]
        for table in tables:
            lines += [_escaped(table.caption), "", *_pipes(table), ""]
    for job in jobs_with_aggressors(comparison):
        lines += [f"### {TITLE}: {_escaped(str(job))}", "", *_pipes(interference_table(comparison, job))]
        lines += ["", *_items(interference_lines(comparison, job)), ""]
    for job in dict.fromkeys(overall.job for overall in comparison.overall):
        lines += [f"### all models: {_escaped(str(job))}", "", *_items(overall_lines(comparison, job)), ""]
    lines += [_escaped(text) for text in (reading_guide(comparison), warmup_line(comparison)) if text]
    lines += ["", *_items(warning_lines(comparison))]
    return "\n".join(lines).rstrip() + "\n"


def _items(lines: Iterable[str]) -> Iterator[str]:
    return (f"- {_escaped(text)}" for text in lines)


def _pipes(table: Table) -> list[str]:
    rows = [(table.corner, *map(str, table.columns)), *((str(head), *map(line, cells)) for head, cells in table.rows)]
    header, *texts = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    return [header, "|:---|" + "---:|" * len(table.columns), *texts]


def _escaped(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
