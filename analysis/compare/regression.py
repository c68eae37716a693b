"""Regression: what has become slower between two runs of the same jobs.

The runs share no block, so their blocks are two independent samples; see ``statistics.two_samples``. A row is slower
when its whole interval is beyond the bound, and not slower when all of it is within; else the blocks cannot tell. Where
both runs have bare metal, the change of the ratio to bare metal says whether the target has changed or the whole host.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analysis.compare import validity
from analysis.compare.matching import KEY, Key, Missing, RowMetric, by_key, matched, missing, name_of
from analysis.compare.pairing import ROW, to_baseline
from analysis.load.metrics import Metric, in_units, metrics_of
from analysis.load.records import Records
from analysis.statistics.ratios import Location, locate
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.statistics.two_samples import detectable, difference, more_blocks
from suite.targets import BASELINE

Outcome = Literal["slower", "incomplete", "cannot tell", "not slower"]
EXIT_CODES: Mapping[Outcome, int] = {"slower": 3, "incomplete": 1, "cannot tell": 4, "not slower": 0}
"""The outcomes of a gate, the one that decides before others first, each with the exit code of the command."""
_LARGEST = 700.0
"""The largest logarithm whose exponential is a number."""


@dataclass(frozen=True)
class Change(RowMetric):
    """One metric on one target, new over old.

    ``slower`` says by how much, as a share; negative is faster. ``interval`` is the 95 % interval of ``ratio``; None
    where a run has a single block. ``normalised`` says that ratios to bare metal are compared, which do not move when
    the whole host changes.
    """

    old: float
    new: float
    trials: tuple[int, int]
    """The blocks of each run that hold the metric."""
    ratio: float
    interval: tuple[float, float] | None
    slower: float
    outcome: Outcome | None
    """None without a bound, and for rows that no run fails by: openings, and ratios to bare metal."""
    detectable: float | None
    """The slowdown, as a share, that these blocks could have seen; None where it is out of reach."""
    more_blocks: int | None
    """The blocks that each run needs besides to tell, if the truth is what was estimated; None if it is told already,
    or out of reach."""
    differences: tuple[str, ...] = ()
    """The facts that changed from the old run to the new one, such as ``kernel 6.1 -> 6.18``: they may explain it."""

    @property
    def name(self) -> str:
        """Return ``resnet50 on vm (engine=podman), throughput``."""
        return f"{self.place}, {self.what}"


@dataclass(frozen=True)
class Regression:
    """The changes between two runs, and what the new one lacks of the old one."""

    changes: tuple[Change, ...]
    fail_above: float | None
    missing: tuple[Missing, ...]
    added: tuple[str, ...]
    """Rows that the new run alone has finished: nothing says how fast they were."""

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome of the gate; None without a bound. Nothing is green that was not compared."""
        if self.fail_above is None:
            return None
        found = {change.outcome for change in self.changes} - {None} or {"incomplete"}
        if self.missing:
            found.add("incomplete")
        return next(outcome for outcome in EXIT_CODES if outcome in found)

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command that ends with this outcome; 0 without a bound."""
        return EXIT_CODES[self.outcome] if self.outcome else 0

    def of(self, outcome: Outcome) -> tuple[Change, ...]:
        """Return the rows of one outcome."""
        return tuple(change for change in self.changes if change.outcome == outcome)


def regress(old: Records, new: Records, fail_above: float | None = None, *, open_ended: bool = False) -> Regression:
    """Compare every metric of every row of the old run with the new one, and its ratio to bare metal.

    ``fail_above`` (0.05 is 5 %) is the bound of the gate. Openings are shown and never fail a run, and neither do
    ratios to bare metal: the same trials would count twice. ``open_ended``: see ``missing``.
    """
    sides = matched(old.trials, new.trials)
    finished = [by_key(trials[trials["ok"]]) for trials in sides]
    ratios = [_ratios(trials, old.metrics) for trials in sides]
    found: list[Change | Missing] = [*missing(*map(by_key, sides), open_ended=open_ended)]
    for key in finished[0]:
        if key in finished[1]:
            both = [side[key] for side in finished]
            formed = [side[key] for side in ratios if key in side]
            found += _compared(key, both, formed, (old.metrics, new.metrics), fail_above)
    return Regression(
        changes=tuple(one for one in found if isinstance(one, Change)),
        fail_above=fail_above,
        missing=tuple(one for one in found if isinstance(one, Missing)),
        added=tuple(name_of(key) for key in finished[1] if key not in finished[0]),
    )


def _ratios(trials: pd.DataFrame, metrics: Sequence[Metric]) -> dict[Key, pd.DataFrame]:
    """Return log ratios to bare metal of the targets as they are, by row; their columns are those of the metrics."""
    formed = validity.usable(to_baseline(trials[trials["ok"]], [metric.column for metric in metrics])).pairs
    return {(*key, ""): rows for key, rows in by_key(formed[formed["target"] != BASELINE], ROW).items()}


def _compared(
    key: Key,
    sides: Sequence[pd.DataFrame],
    ratios: Sequence[pd.DataFrame],
    metrics: tuple[Sequence[Metric], Sequence[Metric]],
    fail_above: float | None,
) -> Iterator[Change | Missing]:
    """Yield the changes of a row; ``ratios`` are its ratios to bare metal in those of the runs that have them."""
    told = validity.changes(*([one.text for one in rows["facts"].astype(object).unique()] for rows in sides))
    for metric in metrics_of(metrics[0], key[KEY.index("scenario")], key[KEY.index("model")]):
        old, new = (_located(rows, _logs(rows, metric)) for rows in sides)
        gates = metric.name != "opening"
        (unit,) = (one.unit for one in in_units([metric], sides[0]["unit"].iloc[0]))
        if metric.supporting or old is None:
            continue
        if new is not None and metric in metrics[1]:
            yield _change(key, metric, (old, new), told, fail_above if gates else None)
        elif gates:
            yield Missing("metric", f"{name_of(key)}, {metric.name}", f"the new run has none in {unit}")
        if len(ratios) == 2:
            before, after = (_located(rows, rows[metric.column]) for rows in ratios)
            if before is not None and after is not None:
                yield _change(key, metric, (before, after), told, None, normalised=True)


def _logs(rows: pd.DataFrame, metric: Metric) -> "pd.Series[float]":
    logs: pd.Series[float] = np.log(rows[metric.column].where(rows[metric.column] > 0))
    return logs


def _located(rows: pd.DataFrame, logs: "pd.Series[float]") -> Location | None:
    """Return the trimmed mean over the blocks; the trials of one block share its weather, and are one value."""
    return locate(list(logs.groupby([rows["run_id"], rows["block"]]).mean()))


def _change(
    key: Key,
    metric: Metric,
    places: tuple[Location, Location],
    differences: tuple[str, ...],
    fail_above: float | None,
    *,
    normalised: bool = False,
) -> Change:
    old, new = places
    found = difference(old, new)
    half = found.half_width
    lost = -found.centre if metric.more_is_faster else found.centre
    bound = None if fail_above is None else math.log1p(fail_above)
    outcome = None if bound is None else _outcome(lost, half, min(old.n, new.n), bound)
    seen = detectable(old, new)
    return Change(
        **dict(zip(KEY, key, strict=True)),
        metric=metric.name,
        normalised=normalised,
        old=_exp(old.centre),
        new=_exp(new.centre),
        trials=(old.n, new.n),
        ratio=_exp(found.centre),
        interval=None if half is None else (_exp(found.centre - half), _exp(found.centre + half)),
        slower=math.expm1(min(lost, _LARGEST)),
        outcome=outcome,
        detectable=math.expm1(seen) if seen is not None and seen < math.log(10) else None,
        more_blocks=_more(places, abs(lost - bound)) if bound is not None and outcome == "cannot tell" else None,
        differences=differences,
    )


def _outcome(lost: float, half: float | None, blocks: int, bound: float) -> Outcome:
    """Return where the interval of the loss lies. Below five blocks nothing is trimmed: one bad block would decide."""
    if half is None or blocks < LEAST_BLOCKS:
        return "cannot tell"
    if lost - half > bound:
        return "slower"
    return "not slower" if lost + half < bound else "cannot tell"


def _more(places: tuple[Location, Location], distance: float) -> int | None:
    """Return the blocks that each run needs besides, to be ``distance`` from the bound and to count at all."""
    least = LEAST_BLOCKS - min(place.n for place in places)
    if any(place.standard_error is None for place in places):
        return least
    needed = more_blocks(*places, distance)
    return None if needed is None else max(needed, least)


def _exp(logarithm: float) -> float:
    return math.exp(min(logarithm, _LARGEST))
