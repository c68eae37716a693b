"""The history of records: a series for each number of each row, with its change points.

The run is the sample: what differs from night to night is in the noise between runs, which the intervals of the runs
do not hold. Two runs belong to one series if their jobs agree in everything but the image, and their host is the same.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.compare.matching import KEY, Key, by_key, prepared
from analysis.compare.pairing import to_baseline, with_variants
from analysis.compare.validity import changes as changes_of
from analysis.compare.validity import usable
from analysis.history.results import SCHEMA_VERSION, History, Point, Series, Shift
from analysis.load.metrics import Metric, in_units, metrics_of
from analysis.load.records import Records
from analysis.statistics.change_points import change_points
from analysis.statistics.ratios import exp, locate, slower_by
from analysis.statistics.two_samples import difference
from suite.job.job import settings_in
from suite.targets import BASELINE

_KEY = [*KEY, "host"]
_RUN = "directory"


def history_of(records: Records) -> History:
    """Return the series of all runs, in the order of the paper."""
    host = records.trials["hostname"].fillna("a host without a name")
    trials = prepared(records.trials).assign(
        host=host if host.nunique() > 1 else "",
        directory=records.trials["path"].map(lambda path: str(Path(path).parents[1])),
        image=records.trials["settings"].astype(str).map(lambda text: settings_in(text).get("image", "")),
    )
    # A directory is a run, whatever its name: the firings of a schedule hold cells of the same names.
    trials = with_variants(trials.assign(run_id=trials[_RUN]))
    ok = trials[trials["ok"]]
    formed = usable(to_baseline(ok, [metric.column for metric in records.metrics])).pairs
    hosts = ok.drop_duplicates("run_id").set_index("run_id")
    ratios = formed[formed["target"] != BASELINE]
    ratios = ratios.assign(arm="", **{name: ratios["run_id"].map(hosts[name]) for name in ("host", _RUN)})
    values, normalised = by_key(ok, _KEY), by_key(ratios, _KEY)
    series = (_series_of(key, rows, normalised.get(key), records.metrics) for key, rows in values.items())
    return History(SCHEMA_VERSION, ok["run_id"].nunique(), tuple(itertools.chain.from_iterable(series)))


def _series_of(
    key: Key, rows: pd.DataFrame, ratios: pd.DataFrame | None, metrics: Sequence[Metric]
) -> Iterator[Series]:
    runs = rows.groupby(_RUN)["started_at"].min().sort_values()
    facts = rows.drop_duplicates(_RUN).set_index(_RUN)[["facts", "image"]]
    measured = metrics_of(metrics, key[KEY.index("scenario")], key[KEY.index("model")])
    for metric in in_units(measured, rows["unit"].iloc[0]):
        if metric.supporting:
            continue
        logs = {False: (rows, metric.logs(rows))}
        if ratios is not None:
            logs[True] = (ratios, ratios[metric.column])
        for normalised, (table, values) in logs.items():
            points = tuple(_points(table, values, runs))
            if points:
                yield Series(
                    **dict(zip(_KEY, key, strict=True)),
                    metric=metric.name,
                    unit="x" if normalised else metric.unit,
                    normalised=normalised,
                    points=points,
                    shifts=tuple(_shifts(points, facts, more_is_faster=metric.more_is_faster)),
                )


def _points(table: pd.DataFrame, logs: "pd.Series[float]", runs: "pd.Series[str]") -> Iterator[Point]:
    blocks = logs.groupby([table[_RUN], table["block"]]).mean().dropna()
    by_run = {str(run): list(values) for run, values in blocks.groupby(level=0)}
    for run, started_at in runs.items():
        if location := locate(by_run.get(str(run), ())):
            ends = location.interval
            interval = None if ends is None else (exp(ends[0]), exp(ends[1]))
            yield Point(str(run), started_at, exp(location.centre), interval, location.n)


def _shifts(points: Sequence[Point], facts: pd.DataFrame, *, more_is_faster: bool) -> Iterator[Shift]:
    logs = np.log([point.value for point in points])
    changes = change_points(logs)
    for begin, first, end in zip([0, *changes], changes, [*changes[1:], len(points)], strict=False):
        before, after = locate(logs[begin:first]), locate(logs[first:end])
        if before is None or after is None:
            continue
        shift = difference(before, after)
        half = shift.half_width
        at, machine = _changed(points, facts, first)
        yield Shift(
            run=points[first].run,
            started_at=points[first].started_at,
            before=exp(before.centre),
            after=exp(after.centre),
            runs=(before.n, after.n),
            ratio=exp(shift.centre),
            interval=None if half is None else (exp(shift.centre - half), exp(shift.centre + half)),
            slower=slower_by(exp(shift.centre), more_is_faster=more_is_faster),
            machine=machine,
            machine_at=at,
        )


def _changed(points: Sequence[Point], facts: pd.DataFrame, first: int) -> tuple[str | None, tuple[str, ...]]:
    """Return what changed on the machine where the level did, else a run before or after, and at which run."""
    for number in (first, first - 1, first + 1):
        if 0 < number < len(points):
            old, new = (facts.loc[points[neighbour].run] for neighbour in (number - 1, number))
            texts = changes_of([old["facts"].text], [new["facts"].text])
            if new["image"] and old["image"] and new["image"] != old["image"]:
                before, after = (run["image"].removeprefix("sha256:")[:12] for run in (old, new))
                texts = (*texts, f"image {before} -> {after}")
            if texts:
                return points[number].run, texts
    return None, ()
