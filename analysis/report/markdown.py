"""A comparison as Markdown."""

import re
from collections.abc import Iterable, Iterator

from analysis.compare.results import Comparison
from analysis.report.answer import answer
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
from analysis.report.table import Table, ablation_table, epoch_table, line, results_table, shows_expected


def as_markdown(comparison: Comparison) -> str:
    """Return the answer, one table per group and what it took of the host, the warnings, and the answer again."""
    sentences = [line for text in answer(comparison) for line in (f"**{_escaped(text)}**", "")]
    lines = [*sentences]
    for group in comparison.groups:
        lines += [f"### {_escaped(group.model)}: {_escaped(str(group.job))}", "", *_pipes(results_table(group))]
        lines += ["", *_items(group_lines(group)), ""]
        ablations = ablation_table(group) if group.ablations else None
        for table in filter(None, (epoch_table(group), ablations, cost_table(group) if group.costs else None)):
            lines += [_escaped(table.caption), "", *_pipes(table), ""]
    for job in jobs_with_aggressors(comparison):
        lines += [f"### {TITLE}: {_escaped(str(job))}", "", *_pipes(interference_table(comparison, job))]
        lines += ["", *_items(interference_lines(comparison, job)), ""]
    for job in dict.fromkeys(overall.job for overall in comparison.overall):
        lines += [f"### all models: {_escaped(str(job))}", "", *_items(overall_lines(comparison, job)), ""]
    guide = reading_guide(comparison, expected=shows_expected(comparison))
    lines += [_escaped(text) for text in (guide, warmup_line(comparison)) if text]
    lines += ["", *_items(warning_lines(comparison)), "", *sentences]
    return "\n".join(lines).rstrip() + "\n"


def _items(lines: Iterable[str]) -> Iterator[str]:
    return (f"- {_escaped(text)}" for text in lines)


def _pipes(table: Table) -> list[str]:
    rows = [(table.corner, *map(str, table.columns)), *((str(head), *map(line, cells)) for head, cells in table.rows)]
    header, *texts = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    return [header, "|:---|" + "---:|" * len(table.columns), *texts]


def _escaped(text: str) -> str:
    # A link or an image of a name would lead whoever reads the page elsewhere.
    return re.sub(r"([\\|\[\]`])", r"\\\1", one_line(text)).replace("<", "&lt;")
