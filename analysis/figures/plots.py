"""Every figure of a comparison: walks the jobs and, for each, the registry of figures.

As in Lin, Pai and Chou (2018), bars are grouped by model, one per target, normalised to bare metal. Pictures are named
after the figures of that paper which show the same, if they are of its sizes (the profile ``paper``):

    figure-2-synthetic-throughput   figure-4-real-throughput
    figure-3-synthetic-elapsed      figure-5-real-elapsed

figure-6 to figure-9 show distributed runs, figure-10-shared jobs beside each other. What the paper does not show
(the forest of all ratios, the opening of targets, probes, every trial, the heat map of interference) has a name without
a number: synthetic-forest, probe-disk. Where a scenario has several jobs, what tells them apart follows the scenario.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from analysis.compare.results import ComparedJob, Comparison
from analysis.figures.drawing import Drawing, FigureKind, column, stamp, write
from analysis.figures.foot import foot_of, write_foot
from analysis.figures.reference import Reference
from analysis.report.tables import differing
from suite.registries import FIGURES
from suite.results.layout import USUAL_FORMATS

_LONGEST_NAME = 200


@dataclass(frozen=True)
class Picture:
    stem: str
    caption: str
    drawing: Drawing


def draw(
    comparison: Comparison,
    directory: Path,
    reference: Reference | None = None,
    formats: Sequence[str] = USUAL_FORMATS,
    width: float | None = None,
) -> list[Path]:
    """Write every figure, marked with published ratios, and return the paths. Raises RequestError if it cannot.

    ``width``: that of a column of a paper, in inches; None for the own width of each figure.
    """
    with column(width):
        return write(_charts(comparison, reference or {}), directory, formats)


def _charts(comparison: Comparison, reference: Reference) -> Iterator[tuple[str, Figure]]:
    """Yield every figure with its name for files."""
    for job in comparison.jobs:
        for picture in pictures(comparison, job, reference):
            yield picture.stem, picture.drawing.chart
    # Values of a key are separate jobs, and one picture has all of them.
    if not comparison.of_kind("by"):
        return
    by_key: list[FigureKind] = [FIGURES.get(name) for name in ("by", "time-money")]
    for figure in by_key:
        for drawing in figure(comparison, {}):
            _add_foot(drawing, comparison)
            yield _for_files(drawing.name), drawing.chart


def _add_foot(drawing: Drawing, comparison: Comparison) -> None:
    width = drawing.chart.get_figwidth()
    foot = foot_of(comparison, width, drawing.foot)
    write_foot(drawing.chart, foot)


def pictures(comparison: Comparison, job: ComparedJob, reference: Reference) -> Iterator[Picture]:
    """Yield what each figure of the registry that can be loaded draws of one job; ``bench doctor`` names the others."""
    of_job = comparison.of(job)
    broken = FIGURES.failures()
    of_scenario = [other for other in comparison.jobs if other.scenario == job.scenario]
    settings = [getattr(job, name) for name in differing(of_scenario)]
    settings_for_files = [_for_files(text).strip("-") for text in settings if text]
    job_parts = [job.scenario, *settings_for_files]
    figures: list[FigureKind] = [FIGURES.get(name) for name in FIGURES if name not in broken]
    for figure in figures:
        for drawing in figure(of_job, reference):
            stamp(drawing.chart, job.profile)
            _add_foot(drawing, of_job)
            parts = [*job_parts, drawing.name]
            caption = drawing.title
            if drawing.number is not None:
                parts.insert(0, f"figure-{drawing.number}")
                caption += " (numbered as in the paper)"
            # A metric is called as its record likes: its name must not lead to another directory.
            stem = _for_files("-".join(parts))
            yield Picture(stem, caption, drawing)


def _for_files(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:_LONGEST_NAME]
