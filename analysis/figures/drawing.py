"""A drawing: what a figure gives for one thing to show, the canvas it is drawn on, and the ways to save it.

A *figure* is a function of a comparison of one job and of published values, and a member of
``suite.registries.FIGURES``. It yields a drawing for each thing that it can show of the comparison, and none where it
does not apply::

    def throughput_by_model(comparison: Comparison, reference: Reference) -> Iterator[Drawing]: ...

Figures are drawn on canvases of their own with the Agg and SVG back ends, inside contexts: no state of matplotlib is
left changed, and the same comparison gives the same bytes.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.compare.results import Comparison
from analysis.figures.reference import Reference
from suite.results.files import whole

_STYLE = {
    "svg.hashsalt": "virtbench",
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
    "axes.edgecolor": "0.3",
    "grid.color": "0.9",
    "font.family": ["DejaVu Sans"],
    # Names and substitutes are text, and no formulas: $\\frac$ in one of them would end the drawing.
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Drawing:
    """One picture of a comparison."""

    name: str
    """The thing that it shows, fit for a file name: ``throughput``, ``disk``."""
    title: str
    chart: Figure
    number: int | None = None
    """The number of the figure of the paper that shows the same; None where it has none."""
    description: str = "relative to bare metal; the table holds the values"
    """The end of the text that stands for the picture where it cannot be seen."""


FigureKind = Callable[[Comparison, Reference], Iterator[Drawing]]
"""A member of ``suite.registries.FIGURES``."""


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches."""
    chart = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(chart)
    return chart


def style() -> AbstractContextManager[None]:
    """Enter the style in which figures are drawn and saved; matplotlib's own is back afterwards."""
    return mpl.rc_context(sns.axes_style("whitegrid") | sns.plotting_context("notebook") | _STYLE)


def save(chart: Figure, paths: Sequence[Path], below: Path | None = None) -> Sequence[Path]:
    """Write the figure to each path, in the format that its suffix names. ``below``: see ``files.directory``."""
    with style():
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            with whole(path, below=below, sync=False) as file:
                chart.savefig(file, format=path.suffix[1:], dpi=160, metadata=metadata)
    return paths


def svg(chart: Figure) -> bytes:
    """Return the figure as SVG, for a page that holds its pictures."""
    out = io.BytesIO()
    with style():
        chart.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
