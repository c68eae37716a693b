"""Forest plot, a picture to be looked at alone: one row per workload and target, on a logarithmic axis of ratios.

A row has a dot per block, the interval around the ratio, and its verdict or why it has none; the margin is a band, the
noise floor a whisker at bare metal. The title is the answer, the foot where and how it was measured.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullLocator

from analysis.compare.results import Comparison, Contrast
from analysis.figures.colours import palette
from analysis.figures.drawing import (
    MARKERS,
    Drawing,
    canvas,
    common_direction,
    fitted,
    in_column,
    left_out,
    letters,
    page_room,
    points,
    style,
)
from analysis.figures.foot import foot_of, write_foot
from analysis.figures.lettering import LINE_INCHES
from analysis.figures.reference import Reference
from analysis.report.answers.answer import answer
from analysis.report.formatting import floor, hidden, margins, one_line, ratio, readable, verdict
from analysis.statistics.margins import bounds_of, log_difference
from analysis.statistics.ratios import exp_ends
from suite.targets import BASES, base_of

_INCHES = 8.0
_ROW = 0.42
_AROUND = 0.95  # inches, without the foot
_TITLE_LINES = 9
"""The most lines of a title in a column."""
_TITLE_LETTERS = 0.77
"""The letters of a line of the title, over the small ones that would fit."""
_NAME_LETTERS = 13
"""The letters of a line of a row's name in a column."""
_VERDICT_LETTERS = 26
"""The letters of a line of a verdict."""
_ROOM = 0.04
"""The share of the axis on each side that no mark reaches."""
Interval = tuple[float, float]


def _is_base(contrast: Contrast) -> bool:
    return contrast.kind == "target" and contrast.target in BASES


def _span(contrast: Contrast) -> Interval | None:
    """Return the interval of the ratio; of bare metal the noise floor around 1."""
    if not _is_base(contrast) or contrast.noise is None:
        return contrast.interval
    if contrast.noise.share > 1:
        return None
    half_width = log_difference(contrast.noise.share)
    return exp_ends((-half_width, half_width))


def _text(contrast: Contrast) -> str:
    why_not = hidden(contrast).replace(": ", ":\n")
    if contrast.ratio is None:
        return why_not or "no ratio"
    if _is_base(contrast):
        share = contrast.noise.share if contrast.noise else 0.0
        return f"noise floor {floor(share)}"
    if contrast.verdict is None:
        return why_not or ratio(contrast)
    judged = verdict(contrast.verdict)
    number = why_not or ratio(contrast).removesuffix(f", {judged}")
    if contrast.verdict.withheld:
        why = contrast.verdict.withheld[0].partition(" (")[0]
        judged = f"{judged}: {why}"
    return "\n".join([number, *textwrap.wrap(judged, _VERDICT_LETTERS)])


def forest(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield the drawing of every ratio of the job's deciding metrics, of victims over alone; one for each probe."""
    if not comparison.jobs[0].traits.probes:
        yield from _drawing(comparison, "forest")
        return
    for group in comparison.groups:
        yield from _drawing(
            replace(comparison, groups=(group,)),
            f"{group.model}-forest",
        )


def _lines_of(contrast: Contrast) -> int:
    """Return the lines of text that a row has room for: two, or those of its longer text."""
    breaks = max(_text(contrast).count("\n"), _name(contrast).count("\n"))
    return max(2, breaks + 1)


def _drawing(comparison: Comparison, name: str) -> Iterator[Drawing]:
    rows = list(_rows(comparison))
    if all(_is_base(contrast) or contrast.ratio is None for contrast in rows):
        return
    answers = one_line(_title(comparison))
    width = fitted(_INCHES)
    most_lines = None
    if in_column():
        most_lines = _TITLE_LINES
    title = textwrap.fill(
        # A number keeps its per cent, by a blank at which no line is broken.
        answers.replace(" %", "\N{NO-BREAK SPACE}%"),
        int(_TITLE_LETTERS * letters(width)),
        max_lines=most_lines,
        placeholder=" …",
    )
    below = _below(rows, margins(comparison))
    lines_below = below.count("\n") - 1  # two have room on a screen
    around = _AROUND + 0.19 * title.count("\n") + LINE_INCHES * max(lines_below, 0)
    drawn: Sequence[Contrast] = rows
    if in_column():
        drawn = _rows_of_a_page(rows, around)
    lines = sum(map(_lines_of, drawn))
    with style():
        chart = canvas(_INCHES, around + _ROW / 2 * lines)
        _draw(chart.subplots(), drawn, comparison, below)
        chart.suptitle(title, fontsize=points(10), fontweight="bold", x=0.01, ha="left")
    write_foot(chart, foot_of(comparison, width, left_out(len(drawn), len(rows), "rows")))
    text = "every ratio to bare metal with its blocks, interval and verdict"
    yield Drawing(
        name,
        f"{comparison.jobs[0]}: {text}",
        chart,
        description=answers,
    )


def _rows_of_a_page(rows: Sequence[Contrast], around: float) -> Sequence[Contrast]:
    """Return the first rows, as many as a figure has room for on a page, with so many inches around them."""
    room = page_room() - around
    for number, contrast in enumerate(rows):
        room -= _ROW / 2 * _lines_of(contrast)
        if number and room < 0:
            return rows[:number]
    return rows


def _title(comparison: Comparison) -> str:
    """Return the answer in a sentence, with those side by side that have the same one: ``container and vm: slower``."""
    subjects: dict[str, list[str]] = {}
    for row in answer(comparison).rows:
        _, _, result = str(row).partition(f"{row.subject}: ")
        subjects.setdefault(result, []).append(row.subject)
    return "; ".join(f"{' and '.join(names)}: {result}" for result, names in subjects.items())


def _rows(comparison: Comparison) -> Iterator[Contrast]:
    for group in comparison.groups:
        targets = group.targets if group.job.traits.normalised else ()
        for metric, summary in product(group.deciding, targets):
            contrast = group.over_base(summary.target, metric)
            if summary.target not in BASES or contrast.noise:
                yield contrast
    for arm, effects in comparison.of_kind("aggressor").items():
        if not arm.ablation and "throughput" in effects:
            yield effects["throughput"]


def _draw(axes: Axes, rows: Sequence[Contrast], comparison: Comparison, below: str) -> None:
    colours = palette([contrast.target for contrast in rows])
    bands = [bounds_of(margin).ratios for margin in comparison.margins]
    low, high = _limits(list(map(readable, rows)), bands)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    for band in bands:
        axes.axvspan(*band, facecolor="0.9", edgecolor="0.5", linewidth=0.6, zorder=0)
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    for row, contrast in enumerate(rows):
        look: dict[str, Any] = {"color": colours[contrast.target], "zorder": 3}
        shown = readable(contrast)
        if shown.ratio is not None:
            heights = [row + 0.22] * len(contrast.by_block)
            axes.plot(contrast.by_block, heights, ".", markersize=5, **look)
            span = _span(contrast) or ()
            axes.plot(
                span,
                [row] * len(span),
                marker="|",
                markersize=6,
                linewidth=2.2,
                **look,
            )
            axes.plot(
                shown.ratio,
                row,
                MARKERS.get(contrast.target, "P"),
                markersize=7,
                mec="0.1",
                **look,
            )
        axes.annotate(
            _text(contrast),
            (1, row),
            (8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=points(8.5),
        )
    axes.set_yticks(range(len(rows)), [*map(_name, rows)], fontsize=points(9))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    _scale(axes)
    axes.set_xlabel(below, fontsize=points(8.5))


def _name(contrast: Contrast) -> str:
    subject = contrast.model
    if contrast.metric.of_probe:
        subject += f", {contrast.metric.name}"
    if contrast.arm.aggressor:
        subject += f" beside {contrast.arm.aggressor}"
    name = f"{subject}: {contrast.target}"
    if in_column():
        return textwrap.fill(name, _NAME_LETTERS)
    return name


def _limits(rows: Sequence[Contrast], bands: Sequence[Interval]) -> tuple[float, float]:
    """Return the ends of the axis, which holds every dot and interval."""
    ends = [*chain.from_iterable(bands)]
    for contrast in rows:
        ends += [contrast.ratio or 1.0, *contrast.by_block, *(_span(contrast) or ())]
    low = min(ends)
    high = max(ends)
    room = (high / low) ** _ROOM
    return low / room, high * room


def _scale(axes: Axes) -> None:
    low, high = axes.get_xlim()
    locator: Locator = LogLocator()
    if high < 4 * low:
        locator = MaxNLocator(3 if in_column() else 5, steps=[1, 2, 5, 10])
    elif high < 100 * low:
        locator = LogLocator(subs=(1, 2, 5))
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=False, axis="y")


def _below(rows: Sequence[Contrast], margin: str) -> str:
    """Return the text below the axis, in lines that fit a column."""
    base = base_of(rows[0].target)
    if any(contrast.kind == "aggressor" for contrast in rows):
        base = "the same victim alone"
    what = f"ratio to {base}, log scale; grey band: the margin of {margin}; small dots: blocks"
    what = f"{common_direction(contrast.metric for contrast in rows)}\n{what}".lstrip()
    if in_column():
        fitting = int(_TITLE_LETTERS * letters(fitted(_INCHES)))
        return "\n".join(textwrap.fill(line, fitting) for line in what.splitlines())
    return what
