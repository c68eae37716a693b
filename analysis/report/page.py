"""One self-contained page with everything a run says: no network, no script."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from analysis.compare.comparison import compare
from analysis.compare.results import Comparison, Group, Job
from analysis.explain.attribution import explain
from analysis.explain.explanation import UNEXPLAINED, Explained, Explanation
from analysis.explain.narrative import answers, overall_answers
from analysis.explain.waterfall import interval, prediction_lines, seconds, share, step_lines
from analysis.figures.reference import SOURCE, normalised
from analysis.load.metrics import PROBE
from analysis.load.records import Records
from analysis.report import cost_table as expenses
from analysis.report import formatting as words
from analysis.report import interference_table as beside
from analysis.report.grid import grid
from analysis.report.provenance import provenance
from analysis.statistics.ratios import MARGIN
from analysis.warnings.conditions import notices
from suite.results.store import write_atomic

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Picture:
    """A figure: SVG as a data URI, with what it shows and the text that stands for it."""

    uri: str
    caption: str
    alternative: str


def write_report(records: Records, path: Path, *, margin: float = MARGIN, force: bool = False) -> Path:
    """Write the page to ``path`` and return it. Raises StoreError when it cannot be written.

    The same records give the same bytes: nothing on the page is the time or the place of its making.
    """
    comparison = compare(records, margin=margin, force=force)
    explained = explain(records, margin=margin, force=force)
    write_atomic(path, render(records, comparison, explained))
    return path


def render(records: Records, comparison: Comparison, explained: Explained) -> str:
    """The page as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(
        beside=beside, words=words, expenses=expenses, grid=grid, bars=_bars, step_lines=step_lines
    )
    environment.globals.update(seconds=seconds, share=share, interval=interval, prediction_lines=prediction_lines)
    template = environment.from_string((files("analysis.report") / TEMPLATE).read_text(encoding="utf-8"))
    warnings = [*comparison.warnings, *(found for found in explained.warnings if found not in comparison.warnings)]
    return template.render(
        runs=comparison.runs,
        sections=[_section(comparison, explained, job, records) for job in comparison.jobs],
        notices=notices(warnings, comparison.jobs),
        provenance=provenance(records),
        explanation=words.explanation(comparison),
        warmup=words.warmup_line(comparison),
        trains=any(group.job.scenario != PROBE for group in comparison.groups),
        source=SOURCE,
    )


def _section(comparison: Comparison, explained: Explained, job: Job, records: Records) -> dict[str, object]:
    groups = [group for group in comparison.groups if group.job == job]
    explanations = [one for one in explained.explanations if one.job == job]
    return {
        "job": job,
        "groups": groups,
        "headlines": list(overall_answers([one for one in comparison.overall if one.job == job], comparison.margin)),
        "answers": []
        if job.scenario == PROBE
        else [line for group in groups for line in answers(group, explanations, comparison.margin)],
        "overall": list(words.overall_lines(comparison, job)),
        "beside": beside.matrix(comparison, job) if job in beside.jobs(comparison) else None,
        "beside_lines": list(beside.lines(comparison, job)),
        "pictures": _pictures(comparison, groups, records),
        "explanations": explanations,
    }


def _pictures(comparison: Comparison, groups: Sequence[Group], records: Records) -> list[Picture]:
    # Here and not above: matplotlib takes a second to import, and who renders without pictures need not wait.
    from analysis.figures.plots import figures, spread, svg

    text = "relative to bare metal; the table holds the values"
    found = [
        Picture(_uri(svg(one.chart)), one.caption, f"{one.caption}, {text}")
        for one in figures(groups, comparison.jobs, normalised(), comparison)
    ]
    if chart := spread(groups, records.trials):
        text = "throughput of every single trial relative to bare metal's mean, one dot per trial"
        found.append(Picture(_uri(svg(chart)), "Every trial", text))
    return found


def _uri(image: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(image).decode("ascii")


@dataclass(frozen=True)
class Bar:
    """One part of a waterfall, in per cent of the width."""

    left: float
    width: float
    kind: str


def _bars(one: Explanation) -> list[Bar]:
    """Each part where the one before it ended, and the whole from zero."""
    ends = [0.0]
    for part in one.parts:
        ends.append(ends[-1] + part.difference_s)
    low, high = min(ends), max(ends)
    scale = 100 / (high - low) if high > low else 0.0
    spans = list(pairwise(ends))
    kinds = ["rest" if part.name == UNEXPLAINED else "more" if part.difference_s > 0 else "less" for part in one.parts]
    return [
        Bar((min(start, end) - low) * scale, abs(end - start) * scale, kind)
        for (start, end), kind in zip([*spans, (0.0, ends[-1])], [*kinds, "whole"], strict=True)
    ]
