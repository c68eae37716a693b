"""The history of records: a series for each number of each row, with its change points.

The run is the sample: what differs from night to night is in the noise between runs, which the intervals of the runs
do not hold. Two runs belong to one series if their jobs agree in everything but the image, and their host is the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from analysis.compare.contrast_kinds import RELATIVE, RUN
from analysis.compare.matching import logs_of, place_of, prepared, switches_of, tables
from analysis.compare.pairing import with_variants
from analysis.compare.results import ComparedJob
from analysis.compare.validity import changes as changes_of
from analysis.load.metrics import Metric, by_ratio, in_units, metrics_of
from analysis.load.records import Records, run_of
from analysis.report.elements import Element, Head, Heading, Line, Table
from analysis.report.formatting import ends, times
from analysis.statistics.change_points import LEAST_RUNS, change_points
from analysis.statistics.margins import slower_by
from analysis.statistics.ratios import Samples, locate
from analysis.statistics.two_samples import difference
from suite.targets import BASELINE
from suite.units import number

SCHEMA_VERSION: Final = 1
"""The version of the JSON: that of ``History`` as its fields stand here, described in ``docs/guide/nightly.md``."""
_COLUMNS = ("runs", "first", "latest", "unit", "latest / first", "changes")


@dataclass(frozen=True)
class Point:
    """One run: the trimmed geometric mean of its blocks, in the unit of the series, with its 95 % interval."""

    run: str
    """Its directory."""
    run_id: str
    """Its identity."""
    started_at: str
    value: float
    interval: tuple[float, float] | None
    """None for a single block."""
    blocks: int


@dataclass(frozen=True)
class Shift:
    """A change of the level, from the runs before it to those after it, up to the next change on each side."""

    run: str
    """The first run of the new level."""
    started_at: str
    before: float
    after: float
    runs: tuple[int, int]
    """The runs of both levels."""
    ratio: float
    interval: tuple[float, float] | None
    """The 95 % interval of the ratio, with runs as samples; None where one side has a single run."""
    slower: float
    """The change as a share; negative is faster."""
    machine: tuple[str, ...]
    """What changed on the machine, ``old -> new``: kernel, engine, suite, image and every other fact of a record."""
    machine_at: str | None
    """The run at which that changed: the first of the new level, or its neighbour, since a place is known to within a
    run. None where nothing changed."""


@dataclass(frozen=True)
class Series(ComparedJob):
    """One number of a job on one target, over all runs of one machine in the order of time."""

    model: str
    target: str
    arm: str
    """The ablation of the trials and the aggressor in their blocks; empty for neither."""
    metric: str
    normalised: bool
    """Whether it is the ratio to bare metal, which does not move when the whole machine changes."""
    host: str
    """The name of the machine; empty where all runs are of one."""
    unit: str
    more_is_faster: bool
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...]

    @property
    def place(self) -> str:
        """Return ``resnet50 on vm (engine=podman)``."""
        return f"{self.model} on {place_of(self.target, self.variant, self.arm, self.host)}"

    @property
    def what(self) -> str:
        """Return ``throughput``, or ``throughput, relative to bare-metal``."""
        return f"{self.metric}{f', relative to {BASELINE}' if self.normalised else ''}"


@dataclass(frozen=True)
class History:
    """All series of a directory, in the order of the paper."""

    schema_version: Literal[1]
    runs: int
    series: tuple[Series, ...]


def history_of(records: Records) -> History:
    """Return the series of all runs, by host and in the order of the paper."""
    host = records.trials["hostname"].fillna("a host without a name")
    trials = prepared(records.trials).assign(
        host=host if host.nunique() > 1 else "",
        directory=records.trials["path"].map(run_of),
        image=records.trials["settings"].astype(object).map(lambda key: dict(key.pairs).get("image", "")),
    )
    trials = with_variants(trials)
    ok = trials[trials["ok"]]
    series = (_series_of(str(host), of_host, records.metrics) for host, of_host in ok.groupby("host"))
    return History(
        SCHEMA_VERSION,
        ok["run_id"].nunique(),
        tuple(chain.from_iterable(series)),
    )


def _series_of(host: str, ok: pd.DataFrame, metrics: Sequence[Metric]) -> Iterator[Series]:
    kinds = tables(ok, metrics)
    for arm, rows in kinds[RUN].items():
        begun = rows.sort_values("started_at").drop_duplicates("run_id")
        runs = begun.set_index(begun["run_id"].astype(str))
        facts = runs[["facts", "image"]].to_dict("index")
        measured = in_units(
            metrics_of(by_ratio(metrics), arm.job.scenario, arm.model),
            rows["unit"].iloc[0],
        )
        for metric, kind in product(measured, kinds):
            by_run = logs_of(kind, kinds[kind].get(arm), metric)
            points = tuple(_points(runs, by_run))
            if points and not metric.supporting:
                yield Series(
                    **vars(arm.job),
                    model=arm.model,
                    target=arm.target,
                    arm=switches_of(arm),
                    host=host,
                    metric=metric.name,
                    unit=metric.unit if kind is RUN else "x",
                    more_is_faster=metric.more_is_faster,
                    normalised=kind is RELATIVE,
                    points=points,
                    shifts=tuple(_shifts(points, facts, more_is_faster=metric.more_is_faster)),
                )


def _points(runs: pd.DataFrame, by_run: Mapping[str, Samples]) -> Iterator[Point]:
    """Yield the runs that have a value; ``runs`` holds their first trials, ``by_run`` their logarithms by block."""
    for run_id, directory, started_at in runs[["directory", "started_at"]].itertuples(name=None):
        level = locate(by_run.get(run_id, ()))
        if level:
            yield Point(
                directory,
                run_id,
                started_at,
                level.ratio,
                level.ratio_interval,
                level.n,
            )


def _shifts(points: Sequence[Point], facts: Mapping[Any, Any], *, more_is_faster: bool) -> Iterator[Shift]:
    logs = np.log([point.value for point in points])
    changes = change_points(logs)
    for begin, first, end in zip([0, *changes], changes, [*changes[1:], len(points)], strict=False):
        before = locate(logs[begin:first])
        after = locate(logs[first:end])
        if before is None or after is None:
            continue
        shift = difference(before, after)
        at, machine = _changed(points, facts, first)
        yield Shift(
            run=points[first].run,
            started_at=points[first].started_at,
            before=before.ratio,
            after=after.ratio,
            runs=(before.n, after.n),
            ratio=shift.ratio,
            interval=shift.ratio_interval,
            slower=slower_by(shift.ratio, more_is_faster=more_is_faster),
            machine=machine,
            machine_at=at,
        )


def _changed(points: Sequence[Point], facts: Mapping[Any, Any], first: int) -> tuple[str | None, tuple[str, ...]]:
    """Return what changed on the machine where the level did, else a run before or after, and at which run.

    ``facts`` holds the facts and the image of each run.
    """
    for index in (first, first - 1, first + 1):
        if 0 < index < len(points):
            old, new = (facts[points[neighbour].run_id] for neighbour in (index - 1, index))
            texts = changes_of([old["facts"]], [new["facts"]])
            if new["image"] and old["image"] and new["image"] != old["image"]:
                before, after = (run["image"].removeprefix("sha256:")[:12] for run in (old, new))
                texts = (*texts, f"image {before} -> {after}")
            if texts:
                return points[index].run, texts
    return None, ()


def history_document(history: History) -> Iterator[Element]:
    """Yield a history: the answer, a table for each cell, and what changed when."""
    yield Line(answer(history), "strong")
    for place in dict.fromkeys(series.place for series in history.series):
        of_place = [series for series in history.series if series.place == place]
        yield Heading(place, rank=2)
        rows = []
        for of_metric in of_place:
            first = of_metric.points[0].value
            latest = of_metric.points[-1].value
            cells = (
                str(len(of_metric.points)),
                number(first),
                number(latest),
                of_metric.unit,
                f"{times(latest / first)}x",
            )
            rows.append((Head(of_metric.what), (*cells, str(len(of_metric.shifts) or "-"))))
        yield Table("metric", "", tuple(map(Head, _COLUMNS)), tuple(rows), compact=True)
        for series in of_place:
            for shift in series.shifts:
                yield Line(f"{series.what}: {shift_line(series, shift)}", label="changed")


def answer(history: History) -> str:
    """Return how many numbers changed over how many runs, and the latest change."""
    numbers = f"{len(history.series)} numbers over {history.runs} run{'s' if history.runs > 1 else ''}"
    shifts = []
    for series in history.series:
        shifts += [(series, shift) for shift in series.shifts]
    longest = max((len(series.points) for series in history.series), default=0)
    if not shifts and longest < 2 * LEAST_RUNS:
        return f"No change can be found yet: {numbers}; a series takes {2 * LEAST_RUNS} runs."
    if not shifts:
        return f"No change found: {numbers}."
    series, latest = max(shifts, key=lambda change: change[1].started_at)
    changes = f"{len(shifts)} change{'s' if len(shifts) > 1 else ''}"
    text = f"{series.place}, {series.what}: {_direction(latest)} since {_day(latest.started_at)}"
    return f"{changes} in {numbers}. The latest: {text}."


def shift_line(series: Series, shift: Shift) -> str:
    """Return ``5.3 % slower since 2026-03-14 02:00 (RUN): 39.0 to 37.0 images/s, 0.949x (0.940 to 0.958); …``."""
    interval = f" ({ends(shift.interval)})" if shift.interval else ""
    values = f"{number(shift.before)} to {number(shift.after)} {series.unit}".rstrip()
    values += f", {times(shift.ratio)}x{interval}"
    machine = "; ".join(shift.machine) or "nothing that the records know changed on the machine then"
    elsewhere = f"; all of it a run beside, at {shift.machine_at}"
    machine += elsewhere if shift.machine and shift.machine_at != shift.run else ""
    return f"{_direction(shift)} since {_day(shift.started_at)} ({shift.run}): {values}; {machine}"


def _direction(shift: Shift) -> str:
    return f"{number(abs(shift.slower) * 100)} % {'slower' if shift.slower > 0 else 'faster'}"


def _day(started_at: str) -> str:
    return started_at[:16].replace("T", " ")
