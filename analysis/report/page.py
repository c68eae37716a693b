"""One self-contained page with everything a run says: no network, no script."""

import base64
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from analysis.compare.comparison import compare
from analysis.compare.results import ComparedJob, Comparison
from analysis.explain.attribution import explain
from analysis.explain.explanation import UNEXPLAINED, Explained, Explanation
from analysis.figures.drawing import svg
from analysis.figures.plots import pictures
from analysis.figures.reference import SOURCE, normalised
from analysis.load.metrics import PROBE
from analysis.load.records import Records
from analysis.report import formatting
from analysis.report.answer import answer, claims, overall_claims
from analysis.report.certificate import COLUMNS, cells_of, certificate_lines
from analysis.report.cost_table import cost_table
from analysis.report.interference_table import TITLE, interference_lines, interference_table, jobs_with_aggressors
from analysis.report.provenance import provenance
from analysis.report.table import ablation_table, epoch_table, line, results_table, shows_expected
from analysis.report.waterfall import interval, prediction_lines, reason, share, step_lines
from analysis.statistics.ratios import MARGIN
from analysis.warnings.types import notices
from suite.results.store import write_atomic
from suite.selftest.certificate import Certificate

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class EmbeddedPicture:
    """A figure: SVG as a data URI, with what it shows and the text that stands for it."""

    uri: str
    caption: str
    alternative: str


def write_report(
    records: Records,
    path: Path,
    *,
    margin: float = MARGIN,
    force: bool = False,
    certificate: Certificate | None = None,
) -> Path:
    """Write the page to ``path`` and return it. Raises StoreError when it cannot be written.

    The same records and certificate give the same bytes: nothing on the page is the time or the place of its making.
    """
    comparison = compare(records, margin=margin, force=force)
    explained = explain(records, margin=margin, force=force)
    write_atomic(path, render(records, comparison, explained, certificate))
    return path


def render(
    records: Records, comparison: Comparison, explained: Explained, certificate: Certificate | None = None
) -> str:
    """Return the page as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(formatting=formatting, line=line, bars=_bars)
    environment.globals.update(results_table=results_table, ablation_table=ablation_table, cost_table=cost_table)
    environment.globals.update(epoch_table=epoch_table)
    environment.globals.update(share=share, interval=interval, step_lines=step_lines, prediction_lines=prediction_lines)
    template = environment.from_string((files("analysis.report") / TEMPLATE).read_text(encoding="utf-8"))
    warnings = [*comparison.warnings, *(found for found in explained.warnings if found not in comparison.warnings)]
    # What a section answers by itself stands there, with the part of a trial that costs most.
    listed = {one.sentence for one in claims(comparison) if one.job.scenario != PROBE}
    return template.render(
        runs=comparison.runs,
        answer=[text for text in answer(comparison) if text not in listed],
        sections=[_section(comparison, explained, job) for job in comparison.jobs],
        notices=notices(warnings, comparison.jobs),
        provenance=provenance(records),
        reading_guide=formatting.reading_guide(comparison, expected=shows_expected(comparison)),
        warmup=formatting.warmup_line(comparison),
        trains=any(group.job.scenario != PROBE for group in comparison.groups),
        source=SOURCE,
        certificate=certificate,
        certificate_columns=COLUMNS,
        certificate_cells=cells_of,
        certificate_lines=certificate_lines,
    )


def _section(comparison: Comparison, explained: Explained, job: ComparedJob) -> dict[str, object]:
    own = comparison.of(job)
    explanations = [one for one in explained.explanations if one.job == job]
    why = {(one.model, one.target): reason(one) for one in explanations}
    of_probes = job.scenario == PROBE
    found = [] if of_probes else claims(own)
    return {
        "job": job,
        "groups": own.groups,
        "headlines": [one.sentence for one in overall_claims(own)],
        "answers": [f"{one.sentence}{why.get((one.what, one.target), '')}" for one in found],
        "overall": list(formatting.overall_lines(comparison, job)),
        "interference": replace(interference_table(comparison, job), caption=TITLE)
        if job in jobs_with_aggressors(comparison)
        else None,
        "interference_lines": list(interference_lines(comparison, job)),
        "pictures": _pictures(comparison, job),
        "explanations": explanations,
    }


def _pictures(comparison: Comparison, job: ComparedJob) -> list[EmbeddedPicture]:
    found = []
    for one in pictures(comparison, job, normalised()):
        uri = "data:image/svg+xml;base64," + base64.b64encode(svg(one.drawing.chart)).decode("ascii")
        found.append(EmbeddedPicture(uri, one.caption, f"{one.caption}, {one.drawing.description}"))
    return found


@dataclass(frozen=True)
class Bar:
    """One part of a waterfall, in per cent of the width."""

    left: float
    width: float
    kind: str


def _bars(one: Explanation) -> list[Bar]:
    """Return a bar for each part, beginning where the one before ended, and one for the whole, from zero."""
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
