"""One self-contained page with everything a run says: no network, no script."""

import base64
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined

from analysis.compare.agreement import grid_of
from analysis.compare.comparison import compare
from analysis.compare.published import judge_claims
from analysis.compare.results import ComparedJob, Comparison, Group
from analysis.explain.attribution import explain
from analysis.explain.explanation import Explained
from analysis.figures.drawing import Drawing, svg
from analysis.figures.history import drawings
from analysis.figures.plots import pictures
from analysis.figures.reference import normalised
from analysis.history.history import History, history_document
from analysis.load.records import Records
from analysis.report import formatting
from analysis.report.document import document
from analysis.report.elements import (
    Bar,
    CommandLine,
    Document,
    Figure,
    Heading,
    Line,
    Notes,
    Styled,
    Table,
    line,
    with_explained_columns,
)
from analysis.report.provenance import provenance
from analysis.selftest.judging import certificate_document
from suite.results.store import write_output
from suite.selftest.certificate import Certificate
from suite.targets import BASELINE


def write_report(
    records: Records,
    path: Path,
    *,
    margin: float | None = None,
    force: bool = False,
    certificate: Certificate | None = None,
    claims: bool = False,
) -> Path:
    """Write the page to ``path`` and return it. Raises StoreError when it cannot be written.

    The same records and certificate give the same bytes: nothing on the page is the time or the place of its making.
    """
    comparison = compare(records, margin=margin, force=force)
    explained = explain(records, comparison, force=force)
    comparison = judge_claims(comparison) if claims else comparison
    write_output(path, render(records, comparison, explained, certificate))
    return path


def render(
    records: Records, comparison: Comparison, explained: Explained, certificate: Certificate | None = None
) -> Iterator[str]:
    """Return the page as text, in pieces: that of thousands of runs is hundreds of megabytes."""

    def figures(job: ComparedJob) -> Iterator[Figure]:
        for picture in pictures(comparison, job, normalised()):
            yield Figure(
                _uri(picture.drawing),
                picture.caption,
                f"{picture.caption}, {picture.drawing.description}",
            )
        for group in comparison.of(job).groups:
            yield from _grids(group)

    origins = provenance(records)
    page = document(comparison, "full", costs=True, explained=explained, figures=figures)
    template = _templates().get_template("report.html.j2")
    return template.generate(
        runs=[origin.name for origin in origins],
        document=with_explained_columns(page),
        provenance=origins,
        trains=any(not group.job.traits.probes for group in comparison.groups),
        certificate=certificate,
    )


def write_history(history: History, path: Path) -> Path:
    """Write the page of a history to ``path`` and return it. Raises StoreError when it cannot be written."""
    answer, *document = history_document(history)
    template = _templates().get_template("history.html.j2")
    figures = map(_figure, drawings(history))
    write_output(path, template.generate(runs=history.runs, answer=answer, figures=figures, document=document))
    return path


def _figure(drawing: Drawing) -> Figure:
    return Figure(_uri(drawing), drawing.title, f"{drawing.title}, {drawing.description}")


def _uri(drawing: Drawing) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg(drawing.chart)).decode("ascii")


def fragment(shown: Document) -> str:
    """Return a document as HTML without a page around it, as a notebook shows it; its styles are the notebook's."""
    elements = with_explained_columns(shown)
    return _templates().get_template("fragment.html.j2").render(document=elements)


def _templates() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(formatting=formatting, line=line, certificate_document=certificate_document)
    for kind in (Bar, CommandLine, Figure, Heading, Line, Notes, Styled, Table):
        environment.tests[kind.__name__.lower()] = lambda element, kind=kind: isinstance(element, kind)
    return environment


def _source(name: str) -> str:
    return (files("analysis.report") / name).read_text(encoding="utf-8")


def _grids(group: Group) -> Iterator[Figure]:
    """Yield the generated images of each arm, bare metal's first; of several trials, those that differ most."""
    shown: dict[tuple[str, str], None] = {}
    for work in group.same_work:
        if work.image:
            shown |= dict.fromkeys(zip((BASELINE, work.arm), work.image.records, strict=True))
    for arm, path in shown:
        grid = grid_of(path)
        if grid:
            caption = f"images that {group.model} generated on {arm}"
            yield Figure(f"data:image/png;base64,{grid}", caption, caption, small=True)
