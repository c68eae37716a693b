"""Forest plot, a picture to be looked at alone: one row per workload and target, on a logarithmic axis of ratios.

A row has a dot per block, the interval around the ratio, and its verdict or why it has none; the margin is a band, the
noise floor a whisker at bare metal. The title is the answer, the foot where and how it was measured.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from analysis.compare.results import Comparison, Effect, Estimate, Group
from analysis.figures.drawing import Drawing, canvas, palette, style, targets_of
from analysis.figures.reference import Reference
from analysis.report.answer import answer, claims
from analysis.report.formatting import floor, one_line, percent, ratio, sensible, verdict
from suite.targets import BASELINE
from suite.units import count

_INCHES = 8.0
_ROW, _AROUND = 0.42, 1.1  # inches
_TITLE_LETTERS, _FOOT_LETTERS, _VERDICT_LETTERS = 86, 120, 34
"""The letters of a line of the title and the foot, and of a verdict."""
_FARTHEST, _ROOM = 4.0, 1.02
"""The axis ends at this factor beyond the outermost dot: an interval that goes on has an arrow there."""
Interval = tuple[float, float]
_MARKERS = {BASELINE: "s", "container": "o", "vm": "^", "container-vm": "D"}


@dataclass(frozen=True)
class _Row:
    name: str
    target: str
    found: Estimate | Effect | None
    noise: float | None = None
    """The noise floor, of bare metal alone."""

    @property
    def is_base(self) -> bool:
        return self.target == BASELINE and not isinstance(self.found, Effect)

    @property
    def interval(self) -> Interval | None:
        """Return the interval of the ratio; of bare metal the noise floor around 1."""
        if self.noise is not None:
            return (1 / (1 + self.noise), 1 + self.noise) if self.noise <= 1 else None
        return self.found.interval if self.found else None

    @property
    def text(self) -> str:
        """Return the ratio with its interval, and the verdict below."""
        if self.found is None or self.found.ratio is None:
            return "no ratio"
        if self.is_base:
            return f"noise floor {floor(self.noise or 0.0)}"
        judged = self.found.verdict
        if judged is None:
            return ratio(self.found)
        why = f": {judged.withheld[0].partition(' (')[0]}" if judged.withheld else ""
        number = ratio(self.found).removesuffix(f", {verdict(judged)}")
        return "\n".join([number, *textwrap.wrap(f"{verdict(judged)}{why}", _VERDICT_LETTERS)])


def forest(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield one drawing: every ratio of the job's deciding metrics; of victims, beside aggressors over alone.

    Probes have a drawing each, since all of their metrics decide.
    """
    if not comparison.jobs[0].traits.probes:
        yield from _drawing(comparison, "forest")
        return
    for group in comparison.groups:
        yield from _drawing(replace(comparison, groups=(group,)), f"{group.model}-forest")


def _drawing(comparison: Comparison, name: str) -> Iterator[Drawing]:
    rows = [row for group in comparison.groups for row in _rows(group)] + [*_shared(comparison)]
    if all(row.is_base or row.found is None or row.found.ratio is None for row in rows):
        return
    # A number keeps its per cent, by a blank at which no line is broken.
    title = textwrap.fill(one_line(" ".join(answer(comparison))).replace(" %", "\N{NO-BREAK SPACE}%"), _TITLE_LETTERS)
    foot = textwrap.fill("; ".join(_foot(comparison)), _FOOT_LETTERS)
    lines = sum(max(2, row.text.count("\n") + 1) for row in rows)
    with style():
        chart = canvas(_INCHES, _AROUND + _ROW / 2 * lines + 0.19 * (title.count("\n") + foot.count("\n")))
        axes = chart.subplots()
        _draw(axes, rows, comparison)
        chart.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
        chart.supxlabel(foot, fontsize=8, color="0.3", x=0.01, ha="left")
    text = "every ratio to bare metal with its blocks, interval and verdict"
    yield Drawing(name, f"{comparison.jobs[0]}: {text}", chart, description=one_line(title))


def _rows(group: Group) -> Iterator[_Row]:
    if not group.job.traits.normalised:
        return
    for metric in group.deciding:
        what = f"{group.model}, {metric.name}" if metric.of_probe else group.model
        noise = group.noise_floors.get(metric.name)
        for summary in group.targets:
            share = noise.share if noise and summary.target == BASELINE else None
            if summary.target != BASELINE or noise:
                yield _Row(f"{what}: {summary.target}", summary.target, summary.estimates.get(metric.name), share)


def _shared(comparison: Comparison) -> Iterator[_Row]:
    for one in comparison.interference:
        if not one.ablation and (effect := one.effects.get("throughput")):
            yield _Row(f"{one.model} beside {one.aggressor}: {one.target}", one.target, effect)


def _draw(axes: Axes, rows: Sequence[_Row], comparison: Comparison) -> None:
    colours = palette(targets_of(comparison.groups))
    low, high = _limits(rows, 1 + comparison.margin)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.axvspan(1 / (1 + comparison.margin), 1 + comparison.margin, color="0.85", zorder=0)
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    for place, row in enumerate(rows):
        look: dict[str, Any] = {"color": colours.get(row.target, "0.5"), "zorder": 3}
        if row.found and row.found.ratio is not None:
            blocks = () if row.is_base else row.found.by_block
            axes.plot(blocks, [place + 0.22] * len(blocks), ".", markersize=5, alpha=0.6, **look)
            _interval(axes, place, row.interval, (low, high), look)
            axes.plot(row.found.ratio, place, _MARKERS.get(row.target, "P"), markersize=7, mec="0.1", **look)
        end: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
        axes.annotate(row.text, (1, place), (8, 0), **end, fontsize=8.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    _label(axes, rows, comparison.margin)


def _limits(rows: Sequence[_Row], bound: float) -> tuple[float, float]:
    """Return the ends of the axis: it holds every dot, and the intervals as far as they leave the dots apart."""
    found = [row.found for row in rows if row.found and row.found.ratio is not None]
    dots = [1 / bound, bound, *(one.ratio or 1.0 for one in found), *(dot for one in found for dot in one.by_block)]
    ends = [*dots, *(end for row in rows for end in row.interval or ())]
    return max(min(dots) / _FARTHEST, min(ends)) / _ROOM, min(max(dots) * _FARTHEST, max(ends)) * _ROOM


def _label(axes: Axes, rows: Sequence[_Row], margin: float) -> None:
    low, high = axes.get_xlim()
    near = MaxNLocator(5, steps=[1, 2, 5, 10]) if high < 4 * low else LogLocator(subs=(1, 2, 5))
    axes.xaxis.set_major_locator(near if high < 100 * low else LogLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    alone = any(isinstance(row.found, Effect) for row in rows)
    base = "the same victim alone" if alone else BASELINE
    what = f"ratio to {base}, log scale; grey band: the margin of {percent(margin)}; small dots: blocks"
    axes.set_xlabel(what, fontsize=8.5)
    axes.grid(visible=False, axis="y")


def _interval(axes: Axes, place: int, found: Interval | None, ends: Interval, look: dict[str, Any]) -> None:
    """Draw an interval as far as the axis goes, with an arrow where it goes on."""
    if found is None:
        return
    shown = [min(max(end, ends[0]), ends[1]) for end in found]
    axes.plot(shown, [place, place], linewidth=2.2 if sensible(found) else 1, **look)
    for end, inside, marker in zip(found, shown, "<>", strict=True):
        axes.plot(inside, place, "|" if end == inside else marker, markersize=6, clip_on=False, **look)


def _foot(comparison: Comparison) -> Iterator[str]:
    """Yield host, engine, blocks, profile, date and substitutes."""
    found, groups = claims(comparison), comparison.groups
    yield from dict.fromkeys(f"host {' and '.join(one.around.hosts)}" for one in found if one.around.hosts)
    yield from dict.fromkeys(one.around.engine for one in found if one.around.engine)
    yield count(max((one.found.blocks for one in found if one.found), default=0), "block")
    yield str(comparison.jobs[0])
    yield from [str(comparison.trials["started_at"].min())[:10]] if len(comparison.trials) else []
    names = dict.fromkeys(name for group in groups for one in group.targets for name in one.substitutes)
    yield from [f"substitutes: {', '.join(names)}"] if names else []
