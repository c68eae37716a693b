"""Time against money: a point with both intervals for each arm that has the time and the price of a job."""

from collections.abc import Iterator
from typing import Any

from analysis.compare.results import Comparison, Contrast
from analysis.costs.decision import arms, name_of
from analysis.costs.job import TIME
from analysis.costs.prices import RATES
from analysis.figures.drawing import MARKERS, Drawing, canvas, label, palette, stamp, style
from analysis.figures.reference import Reference


def time_money(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield one drawing for each kind of price."""
    every = arms(comparison)
    for name in RATES:
        points = {arm: (row[TIME.name], row[name]) for arm, row in every.items() if name in row}
        if not points:
            continue
        title = f"Time and {name.replace('-', ' on ')} of a job"
        colours, currency = palette([arm.target for arm in points]), next(iter(points.values()))[1].metric.unit
        with style():
            chart = canvas(6.4, 4.6)
            axes = chart.subplots()
            for arm, pair in points.items():
                (x, across), (y, up) = map(_point, pair)
                look: dict[str, Any] = {"fmt": MARKERS.get(arm.target, "P"), "color": colours[arm.target]}
                axes.errorbar(x, y, up, across, capsize=3, **look)
                axes.annotate(name_of(arm, every), (x, y), xytext=(6, 6), textcoords="offset points", fontsize=9)
            label(axes, title, "with 95 % intervals; better is left and below", currency, normalised=False)
            axes.set_xlabel("seconds")
            axes.margins(0.2)
        stamp(chart, next(iter(points)).job.profile)
        yield Drawing(f"time-{name}", title, chart, description="the table holds the values")


def _point(row: Contrast) -> tuple[float, list[list[float]]]:
    """Return the value, and how far its interval reaches below and above."""
    value = row.value or 0.0
    low, high = row.value_interval or (value, value)
    return value, [[value - low], [high - value]]
