"""Histories: the numbers of a cell over time, with the places where their level changed.

A figure of a history is a function ``(History) -> Iterator[Drawing]``, and a member of
``suite.registries.HISTORY_FIGURES``.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.lines import Line2D

from analysis.compare.results import ComparedJob
from analysis.figures.colours import GROUND, palette
from analysis.figures.drawing import (
    MARKERS,
    Drawing,
    canvas,
    column,
    direction,
    in_column,
    legend_below,
    letters,
    points,
    stamp,
    style,
    write,
)
from analysis.figures.foot import write_foot
from analysis.figures.lettering import filled, label
from analysis.history.history import History, Series
from analysis.report.formatting import sensible
from suite.registries import HISTORY_FIGURES
from suite.results.layout import USUAL_FORMATS
from suite.targets import BASELINE
from suite.units import count

HistoryFigure = Callable[[History], Iterator[Drawing]]
"""A member of ``suite.registries.HISTORY_FIGURES``."""


def draw_history(
    history: History,
    directory: Path,
    formats: Sequence[str] = USUAL_FORMATS,
    width: float | None = None,
) -> list[Path]:
    """Write every figure of a history, and return the paths. Raises RequestError if it cannot.

    ``width``: that of a column of a paper, in inches; None for the own width of each figure.
    """
    with column(width):
        return write(((drawing.name, drawing.chart) for drawing in drawings(history)), directory, formats)


def drawings(history: History) -> Iterator[Drawing]:
    """Yield the drawings of every figure of a history that can be used here."""
    broken = HISTORY_FIGURES.failures()
    figures: list[HistoryFigure] = [HISTORY_FIGURES.get(name) for name in HISTORY_FIGURES if name not in broken]
    return chain.from_iterable(figure(history) for figure in figures)


def values(history: History) -> Iterator[Drawing]:
    """Yield a drawing for each metric of each job and model: its targets over time, and their changes.

    Those that have changed come first.
    """
    pictures: dict[tuple[str, ...], list[Series]] = {}
    # A ratio has no unit: its ends are those of what was measured.
    units = {(row.model, row.metric): row.unit for row in history.series if not row.normalised}
    for row in history.series:
        job = (row.scenario, row.data, row.profile, row.recipe, row.variant, row.model, row.host)
        pictures.setdefault((*job, row.metric, "relative" if row.normalised else ""), []).append(row)
    for key, series in sorted(pictures.items(), key=lambda picture: -_changes(picture[1])):
        parts = [re.sub(r"[^A-Za-z0-9_.]+", "-", part).strip("-") for part in key]
        name = "-".join(filter(None, ("history", *parts)))
        unit = units.get((series[0].model, series[0].metric), series[0].unit)
        yield _drawing(name, series, unit)


def _drawing(name: str, series: Sequence[Series], measured_unit: str) -> Drawing:
    first = series[0]
    colours = palette([row.target for row in series])
    with style():
        chart = canvas(8.0, 4.0)
        axes = chart.subplots()
        entries = [_line(axes, row, colours[row.target]) for row in series]
        unit = f"relative to {BASELINE}" if first.normalised else first.unit
        towards = direction(measured_unit, more_is_better=first.more_is_faster)
        job = ComparedJob(first.scenario, first.data, first.profile, first.recipe, first.variant)
        cell = ", ".join(filter(None, (str(job), first.host)))
        below = f"{cell}\none mark per run with its 95 % interval; dashed: the level of {first.metric} changed"
        label(
            axes,
            f"{first.model}: {first.what}",
            below,
            f"{unit}\n{towards}",
            normalised=first.normalised,
        )
        most_ticks = 10
        if in_column():
            most_ticks = 5
        places = AutoDateLocator(minticks=3, maxticks=most_ticks)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(places)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(places))  # type: ignore[no-untyped-call]
        legend_below(chart, entries, 4)
    stamp(chart, first.profile)
    write_foot(chart, filled(_foot(series), letters(chart.get_figwidth())))
    return Drawing(
        name,
        f"{first.model}: {first.what}",
        chart,
        description=f"over time, with {count(_changes(series), 'change')}",
    )


def _foot(series: Sequence[Series]) -> str:
    """Return how many runs the series have, and from when."""
    begun = {point.run_id: point.started_at[:10] for row in series for point in row.points}
    return f"{count(len(begun), 'run')}, {min(begun.values())} to {max(begun.values())}; times in UTC"


def _changes(series: Sequence[Series]) -> int:
    return sum(len(row.shifts) for row in series)


def _line(axes: Axes, series: Series, colour: object) -> Line2D:
    """Draw the runs of a series and the places where its level changed; return the entry of the legend."""
    times = _times(point.started_at for point in series.points)
    lows = []
    highs = []
    for point in series.points:
        low = high = point.value
        if point.interval and sensible(point.interval):
            low, high = point.interval
        lows.append(low)
        highs.append(high)
    look: dict[str, Any] = {"color": colour, "linewidth": 1}
    mark: dict[str, Any] = {"marker": MARKERS.get(series.target, "P"), "markersize": points(4)}
    if series.arm:  # as the target without it, but hollow
        mark["markerfacecolor"] = GROUND
    axes.vlines(times, lows, highs, **look)
    axes.plot(
        times,
        [point.value for point in series.points],
        **mark,
        **look,
    )
    changes = _times(shift.started_at for shift in series.shifts)
    axes.vlines(
        changes,
        0,
        1,
        transform=axes.get_xaxis_transform(),
        linestyle=(0, (4, 3)),
        **look,
    )
    name = ", ".join(filter(None, (series.target, series.arm)))
    return Line2D([], [], label=name, **mark, **look)


def _times(started_at: Iterable[str]) -> "np.ndarray[tuple[int], np.dtype[np.datetime64]]":
    """Return times in UTC, as numpy counts them: without a zone."""
    times = [datetime.datetime.fromisoformat(text).astimezone(datetime.UTC) for text in started_at]
    return np.array([time.replace(tzinfo=None) for time in times], dtype="datetime64[s]")
