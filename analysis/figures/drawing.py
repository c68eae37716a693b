"""A drawing: what a figure gives for one thing to show, its canvas and look, and the ways to save it.

A *figure* is a function of a comparison of one job and of published values, and a member of
``suite.registries.FIGURES``. It yields a drawing for each thing that it can show of the comparison, and none where it
does not apply::

    def throughput_by_model(comparison: Comparison, reference: Reference) -> Iterator[Drawing]: ...

Figures are drawn on separate canvases with the Agg and SVG back ends, inside contexts: no state of matplotlib is
left changed, and the same comparison gives the same bytes.
"""

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from analysis.compare.published import published_claims, selected
from analysis.compare.results import ComparedJob, Comparison, Group
from analysis.figures.colours import GROUND, colour_of, palette
from analysis.figures.reference import PAPERS_KEY, SOURCE, Reference, kind_of
from analysis.load.metrics import Metric
from analysis.report.formatting import notes_by_target
from suite.errors import RequestError
from suite.job.profiles import PROFILES
from suite.results.files import output, remove_temporaries
from suite.results.layout import PLOTS, USUAL_FORMATS
from suite.targets import TARGETS

_STYLE = {
    "svg.hashsalt": "virtbench",
    "pdf.fonttype": 42,  # TrueType, which publishers take and programs can edit
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
    "axes.edgecolor": "0.3",
    "grid.color": "0.9",
    "font.family": ["DejaVu Sans"],
    # Names and substitutes are text, and no formulas: $\\frac$ in one of them would end the drawing.
    "text.parse_math": False,
}
_DPI = 160
_COLUMN: ContextVar[float | None] = ContextVar("_COLUMN", default=None)
"""The width in inches for which figures are drawn; None where each has its own."""
_IN_COLUMN = 0.8
"""The size of letters and heights in a column, over those on a screen: 6.4 to 8 points."""
_LETTERS_PER_INCH = 14
_PAGE_INCHES = 8.5
"""The height of a page: that of a figure in a column at most."""
_BELOW_INCHES = 0.8
"""The height of the legend and the foot of a figure in a column."""
_MOST_PANELS = 3
"""The panels that a column has below each other at most."""


@dataclass(frozen=True)
class Drawing:
    name: str
    """The thing that it shows, fit for a file name: ``throughput``, ``disk``."""
    title: str
    chart: Figure
    number: int | None = None
    """The number of the figure of the paper that shows the same; None where it has none."""
    description: str = "relative to bare metal; the table holds the values"
    """The end of the text that stands for the picture where it cannot be seen."""
    foot: str = ""
    """What the foot adds to the facts of the comparison: what the picture has no room for."""


Item = TypeVar("Item")
FigureKind = Callable[[Comparison, Reference], Iterator[Drawing]]
"""A member of ``suite.registries.FIGURES``."""


def title_of(figure: int | None, what: str) -> str:
    """Return the title of a drawing: with the number of the paper's figure, or with a capital."""
    if figure:
        return f"Figure {figure}: {what}"
    return f"{what[0].upper()}{what[1:]}"


@contextmanager
def column(width: float | None) -> Iterator[None]:
    """Draw figures for a column of a paper, this many inches wide; None leaves each as wide as its content."""
    token = _COLUMN.set(width)
    try:
        yield
    finally:
        _COLUMN.reset(token)


def in_column() -> bool:
    return _COLUMN.get() is not None


def fitted(width: float) -> float:
    """Return the width of a figure that is this wide on a screen, in inches: that of the column if there is one."""
    return _COLUMN.get() or width


def points(size: float) -> float:
    """Return the size of letters that have this one on a screen."""
    return size * _IN_COLUMN if in_column() else size


def letters(width: float) -> int:
    """Return how many small letters fit on so many inches."""
    return int(_LETTERS_PER_INCH * width / points(1))


def panel_inches(axes: Axes) -> tuple[float, float]:
    """Return the width and height of the share that a panel has of its figure, letters included."""
    chart = axes.get_figure(root=True)
    spec = axes.get_subplotspec()
    if chart is None:
        return fitted(_LEAST_INCHES), _LEAST_INCHES
    width, height = chart.get_size_inches()
    if spec is None:
        return width, height
    grid_spec = spec.get_gridspec()
    return width / grid_spec.ncols, height / grid_spec.nrows


def grid(panels: int) -> tuple[int, int]:
    """Return the rows and columns of a figure's panels: beside each other, or in a column below each other."""
    return (panels, 1) if in_column() else (1, panels)


def on_a_page(height: float) -> float:
    """Return a height in inches; in a column, which stands on a page, that of the page at most."""
    return min(height, _page_inches()) if in_column() else height


def page_room() -> float:
    """Return the height of a canvas on a page in inches on a screen: without legend and foot."""
    return (_page_inches() - _BELOW_INCHES) / points(1)


def _page_inches() -> float:
    """Return the height of the page that has the column; a wide one is that of a poster."""
    return max(_PAGE_INCHES, fitted(0))


def of_a_page(panels: Sequence[Item]) -> Sequence[Item]:
    """Return the panels that a figure has: all, or in a column the first ones, as many as a page has room for."""
    return panels[:_MOST_PANELS] if in_column() else panels


def left_out(drawn: int, count_of_all: int, what: str) -> str:
    """Return ``3 of 7 panels, the table holds the others`` for the foot; empty where all are drawn."""
    if drawn == count_of_all:
        return ""
    return f"{drawn} of {count_of_all} {what}, the table holds the others"


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches on a screen; in a column it leaves room for legend and foot."""
    if in_column():
        height = min(height, page_room())
    chart = Figure(figsize=(fitted(width), points(height)), layout="constrained")
    FigureCanvasAgg(chart)
    return chart


def style() -> AbstractContextManager[None]:
    """Enter the style in which figures are drawn and saved; matplotlib's own is back afterwards."""
    context = sns.plotting_context("notebook")
    if in_column():
        context = sns.plotting_context("paper", font_scale=_IN_COLUMN)
    return mpl.rc_context(sns.axes_style("whitegrid") | context | _STYLE)


def _save_png(chart: Figure, file: IO[bytes]) -> None:
    chart.set_dpi(_DPI)
    drawn: Any = FigureCanvasAgg(chart)
    # Not by ``savefig``, which draws once more before it saves a figure that has yet to be laid out. More compression
    # takes three times as long for a tenth of the bytes.
    drawn.print_png(file, metadata={"Software": None}, pil_kwargs={"compress_level": 2})


def _save_svg(chart: Figure, file: IO[bytes]) -> None:
    chart.savefig(file, format="svg", dpi=_DPI, metadata={"Date": None})


def _save_pdf(chart: Figure, file: IO[bytes]) -> None:
    chart.savefig(file, format="pdf", dpi=_DPI, metadata={"CreationDate": None})


_FORMATS: Mapping[str, Callable[[Figure, IO[bytes]], None]] = {"png": _save_png, "svg": _save_svg, "pdf": _save_pdf}


def write(charts: Iterable[tuple[str, Figure]], directory: Path, formats: Sequence[str] = USUAL_FORMATS) -> list[Path]:
    """Write each figure in these formats under its name, and return the paths. Raises RequestError if it cannot."""
    # Whoever may write the run could have made a link of its plots/; a directory that the user names may be one.
    below = directory.parent if directory.name == PLOTS else None
    paths = [directory]
    remove_temporaries(directory)
    try:
        for name, chart in charts:
            for suffix in formats:
                paths.append(directory / f"{name}.{suffix}")
                with style(), output(paths[-1], below=below, sync=False, one_of_many=True) as file:
                    _FORMATS[suffix](chart, file)
                # Laid out once: that takes as long as to draw, and both formats then look alike. ``savefig`` draws
                # before it saves wherever there is an engine, one called "none" too.
                chart.set_layout_engine(None)
    except OSError as error:
        remedy = "free some space there, or name another directory"
        raise RequestError(f"cannot write {paths[-1]}: {error.strerror}", remedy=remedy) from error
    return paths[1:]


def stamp(chart: Figure, profile: str) -> None:
    """Write across a figure of trials that decide nothing what they are good for."""
    if profile not in PROFILES or PROFILES[profile].decides:
        return
    width, height = chart.get_size_inches()
    rotation = min(25, 0.7 * math.degrees(math.atan2(height, width)))
    with style():
        chart.text(
            0.5,
            0.5,
            "smoke run: not a measurement",
            fontsize=3.2 * width,
            color="crimson",
            ha="center",
            va="center",
            alpha=0.28,
            zorder=9,
            rotation=rotation,
        )


def svg(chart: Figure) -> bytes:
    """Return the figure as SVG, for a page that holds its pictures."""
    out = io.BytesIO()
    with style():
        chart.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


# Hatches for print in grey.
_HATCHES = dict(zip(TARGETS, ("", "///", "\\\\\\", "xxx"), strict=True))
MARKERS = dict(zip(TARGETS, "so^D", strict=True))
WIDTH = 0.84
"""The width of the bars of one place together, where places are 1 apart."""
HOURS_FROM_S = 7200.0
"""From here on the time of a job is shown in hours."""
BAR_INCHES = 0.75
AROUND_INCHES = 2.0
"""The width that a figure has for each bar, and for the axis and its labels."""
_LEAST_INCHES = 6.4
_ENTRY_INCHES = 0.75
_LEGEND_LETTER_INCHES = 0.08
"""The width of an entry of a legend without its text, and of each of its letters."""
_LEGEND_LINES = 3
_LEGEND_LINE_INCHES = 0.17
"""The lines of a legend that a figure has room for, and the height of each further one."""
_SIDE_BY_SIDE = 0.012
"""How far points of several lines stand from each other, as a share of their axis."""
_LEAST_SPAN = 0.1
"""Ratios that are closer to each other than this are drawn on an axis that is this long, at least."""
_TIME_UNITS = ("s", "ms", "us", "ns")
_LINEAR_RANGE = 20.0
"""Ratios further apart than this are drawn on a logarithmic axis: on a linear one the small bars would vanish."""


def legend(groups: Sequence[Group]) -> dict[str, Patch]:
    """Return an entry for each target, those of the paper first, which names its substitutes and marks."""
    summaries = chain.from_iterable(group.targets for group in groups)
    notes_of_targets = notes_by_target((summary.target, summary.notes) for summary in summaries)
    return {target: entry(target, notes) for target, notes in notes_of_targets.items()}


def entry(target: str, notes: Iterable[str] = ()) -> Patch:
    lines = [target, *(textwrap.fill(note, 40) for note in notes)]
    return Patch(
        facecolor=colour_of(target),
        hatch=_HATCHES.get(target, "..."),
        edgecolor="white",
        label="\n".join(lines),
    )


def hollow(bar: Rectangle, target: str) -> None:
    """Leave of a bar whose number has no verdict the outline and the hatch, in the colour of its target."""
    colour = colour_of(target)
    bar.set_facecolor(GROUND)
    bar.set_edgecolor(colour)
    bar.set_hatchcolor(colour)
    bar.set_linewidth(1.6)


def hollow_entry() -> Patch:
    """Return the entry of the legend for bars without a verdict."""
    return Patch(facecolor=GROUND, edgecolor="0.2", linewidth=1.6, label="hollow: no verdict")


def legend_below(chart: Figure, entries: Sequence[Artist | Container], columns: int) -> None:
    """Put the legend under the figure, in as many columns as its width has room for, and ``columns`` at most.

    The figure grows by the lines of notes, so that they leave the axes their height.
    """
    labels = [str(entry.get_label()).splitlines() for entry in entries]
    columns = max(min(columns, len(labels)), 1)
    while columns > 1 and _inches_of(_columns(labels, columns)) > chart.get_figwidth():
        columns -= 1
    more_lines = 0
    for column_of_labels in _columns(labels, columns):
        more_lines = max(more_lines, sum(map(len, column_of_labels)) - _LEGEND_LINES)
    chart.set_figheight(on_a_page(chart.get_figheight() + points(_LEGEND_LINE_INCHES * more_lines)))
    chart.legend(
        handles=entries,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=points(9),
    )


def _columns(labels: Sequence[Sequence[str]], columns: int) -> list[Sequence[Sequence[str]]]:
    """Return the labels of each column of a legend, of which the first ones may have one more, as matplotlib does."""
    rows, longer = divmod(len(labels), columns)
    parts = []
    first = 0
    for number in range(columns):
        end = first + rows + (number < longer)
        parts.append(labels[first:end])
        first = end
    return parts


def _inches_of(columns: Sequence[Sequence[Sequence[str]]]) -> float:
    """Return the width of a legend: of each column a patch, and the longest line."""
    letters_of_columns = [max(map(len, chain.from_iterable(labels))) for labels in columns]
    return points(_ENTRY_INCHES * len(columns) + _LEGEND_LETTER_INCHES * sum(letters_of_columns))


def grouped(axes: Axes, bars: pd.DataFrame, places: Sequence[str], targets: Sequence[str]) -> None:
    """Draw a bar of its ``height`` for each row, by ``place`` and, inside that, ``target``; add ``x``, its middle."""
    sns.barplot(
        bars,
        x="place",
        y="height",
        hue="target",
        order=places,
        hue_order=targets,
        palette=palette(targets),
        saturation=1,
        errorbar=None,
        width=WIDTH,
        edgecolor="white",
        linewidth=0.8,
        legend=False,
        ax=axes,
    )
    for number, target in enumerate(targets):
        for patch in axes.containers[number]:
            patch.set_hatch(_HATCHES.get(target, "..."))
    middles = bars["place"].map(places.index)
    within = (bars["target"].map(targets.index) + 0.5) * WIDTH / len(targets)
    bars["x"] = middles + within - WIDTH / 2


def dot_entry(target: str, text: str) -> Line2D:
    """Return the entry of the legend for the dots of a target."""
    look: dict[str, Any] = {"color": colour_of(target), "markersize": 8, "markeredgecolor": "0.1"}
    return Line2D([], [], linestyle="none", marker=MARKERS.get(target, "P"), label=text, **look)


def dot_entries(legend: Mapping[str, Patch]) -> list[Artist | Container]:
    """Return the entries of a legend for dots in place of bars."""
    return [dot_entry(target, str(patch.get_label())) for target, patch in legend.items()]


def dots(axes: Axes, bars: pd.DataFrame) -> None:
    """Replace bars by dots (Cleveland, 1985): a ratio lies around 1, and a logarithmic axis has no zero to begin at."""
    for container in list(axes.containers):
        container.remove()
    colours = palette([str(target) for target in bars["target"].unique()])
    for target, rows in bars.groupby("target"):
        axes.plot(
            rows["x"],
            rows["height"],
            MARKERS.get(str(target), "P"),
            color=colours[str(target)],
            markersize=9,
            markeredgecolor="0.1",
            zorder=3,
        )


def side_by_side(numbers: Iterable[float], index: int, count: int, span: float) -> list[float]:
    """Return where one of ``count`` lines has its points on an axis of this span, so that equal ones are all seen."""
    shift = (index - (count - 1) / 2) * _SIDE_BY_SIDE * span
    return [number + shift for number in numbers]


def intervals(axes: Axes, bars: pd.DataFrame) -> Container | None:
    """Draw the intervals of the bars that have one, from ``low`` to ``high`` at ``x``; None where none has."""
    bounded = bars[bars["low"].notna() & bars["height"].notna()]
    if bounded.empty:
        return None
    below = bounded["height"] - bounded["low"]
    beyond = bounded["high"] - bounded["height"]
    return axes.errorbar(
        bounded["x"],
        bounded["height"],
        [below, beyond],
        fmt="none",
        ecolor="0.1",
        elinewidth=1.2,
        capsize=3,
        label="95 % interval",
    )


def printed_range(job: ComparedJob, model: str, target: str, metric: str, aggressor: str = "") -> tuple[float, float]:
    """Return the range that the text of the paper gives a ratio, whose ends may be infinite; NaN where it has none."""
    of_arm = {"model": model, "target": target, "aggressor": aggressor}
    facts = {**vars(job), "data": kind_of(job.data), **of_arm}
    for claim in published_claims(PAPERS_KEY):
        if claim.over or claim.metric != metric or not claim.between:
            continue
        if selected(facts, {"aggressor": [""], **claim.where}):
            least, most = claim.between
            return least, most
    return math.nan, math.nan


def ranges(axes: Axes, bars: pd.DataFrame, targets: int) -> Patch | None:
    """Outline published ranges, ``least`` to ``most``, open at an infinite end; return the entry of the legend."""
    outlined = bars[bars["least"].notna()]
    if outlined.empty:
        return None
    ends = list(filter(math.isfinite, (*outlined["least"], *outlined["most"])))
    low, high = axes.get_ylim()
    low = min(low, *ends)
    high = max(high, 1.1 * max(ends))
    lowest = low / 2 if low > 0 else low - high
    highest = 2 * high
    look: dict[str, Any] = {"fill": False, "linestyle": ":", "edgecolor": "black", "linewidth": 1.6}
    width = WIDTH / targets
    for bar in outlined.to_dict("records"):
        left = bar["x"] - width / 2
        bottom = max(bar["least"], lowest)
        height = min(bar["most"], highest) - bottom
        axes.add_patch(Rectangle((left, bottom), width, height, **look, zorder=4))
    axes.set_ylim(low, high)
    return Patch(**look, label=f"{SOURCE},\nby its text")


def scale(axes: Axes, heights: "pd.Series[float]", *, around_one: bool) -> None:
    """Fit the vertical axis to the heights: around 1 for ratios, else from zero; logarithmic if they are far apart."""
    low = heights.min()
    high = heights.max()
    if low > 0 and high / low > _LINEAR_RANGE:
        axes.set_yscale("log")
        axes.set_ylim(min(low, 1) / 3, high * 3)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif around_one:
        low = min(low, 1.0)
        high = max(high, 1.0)
        span = max(high - low, _LEAST_SPAN)
        axes.set_ylim(low - 0.15 * span, high + 0.3 * span)  # above are the values
    else:
        axes.set_ylim(0, high * 1.15)


def keep_widths(axes: Axes, places: int, targets: int) -> None:
    """Leave room on both sides of few bars, which would fill the figure; places are 1 apart."""
    chart = axes.get_figure(root=True)
    fitting = (chart.get_figwidth() - AROUND_INCHES) / (BAR_INCHES * targets) if chart else places
    room = 0.5 + max(fitting - places, 0) / 2
    axes.set_xlim(-room, places - 1 + room)


def direction(unit: str, *, more_is_better: bool) -> str:
    """Return what the ends of an axis mean, in the order in which it is read: of times and rates, faster and slower."""
    ends = ["worse", "better"]
    if unit in _TIME_UNITS or unit.endswith("/s"):
        ends = ["slower", "faster"]
    if not more_is_better:
        ends.reverse()
    return " \N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW} ".join(ends)


def common_direction(metrics: Iterable[Metric]) -> str:
    """Return what the ends of an axis of several metrics mean; empty where it differs from metric to metric."""
    directions = {direction(metric.unit, more_is_better=metric.more_is_faster) for metric in metrics}
    return directions.pop() if len(directions) == 1 else ""


def size(places: int, targets: int) -> float:
    """Return the width of a figure in inches, with so many bars and the room around them."""
    return max(_LEAST_INCHES, AROUND_INCHES + BAR_INCHES * places * targets)
