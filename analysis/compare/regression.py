"""Regression: what has become slower between two runs of the same jobs.

The runs share no block, so their blocks are two independent samples; see ``statistics.two_samples``. A row is slower
when its whole interval is beyond the bound, and not slower when all of it is within, and that of the mean too, in which
slow trials count; else the blocks cannot tell. Neither can trials that carry no verdict; see ``standing``. If both runs
have bare metal, the change of the ratio to bare metal shows whether the target has changed or the whole host.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.compare import validity
from analysis.compare.matching import KEY, Key, Missing, RowMetric, by_key, matched, missing, name_of
from analysis.compare.pairing import ROW, by_block, to_baseline
from analysis.compare.results import Disturbed
from analysis.compare.standing import withheld
from analysis.load.metrics import Metric, in_units, metrics_of
from analysis.load.records import Records
from analysis.statistics.ratios import Location, Samples, exp, locate, slower_by
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.statistics.two_samples import detectable, difference, mean_shift, more_blocks
from analysis.warnings.conditions import disturbed
from suite.targets import BASELINE

Outcome = Literal["slower", "incomplete", "cannot tell", "not slower"]
EXIT_CODES: Mapping[Outcome, int] = {"slower": 3, "incomplete": 1, "cannot tell": 4, "not slower": 0}
"""The outcomes of a gate, the one that decides before others first, each with the exit code of the command."""


@dataclass(frozen=True)
class Change(RowMetric):
    """One metric on one target, new over old.

    ``old`` and ``new`` are trimmed geometric means over the blocks. ``slower`` is the share of a rate that is lost, or
    of a time that is added; negative is faster. ``interval`` is the 95 % interval of ``ratio``; None where a run has a
    single block. ``normalised`` says that ratios to bare metal are compared, which do not move when the whole host
    changes.
    """

    unit: str
    old: float
    new: float
    trials: tuple[int, int]
    """The blocks of each run that hold the metric."""
    ratio: float
    interval: tuple[float, float] | None
    slower: float
    detectable: float | None
    """The slowdown, as a share, that these blocks could have seen; None where it is out of reach."""
    withheld: tuple[str, ...]
    """Why the trials cannot tell, besides the width of the interval: disturbances, slow trials, profile, blocks."""
    outcome: Outcome | None = None
    """None without a bound, and for rows that no run fails by: openings, and ratios to bare metal."""
    more_blocks: int | None = None
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


@dataclass(frozen=True)
class _Side:
    """One of the two runs, by row: its finished trials, its log ratios to bare metal, and what has disturbed it."""

    trials: Mapping[Key, pd.DataFrame]
    ratios: Mapping[Key, pd.DataFrame]
    disturbed: Mapping[Key, tuple[Disturbed, ...]]
    metrics: Sequence[Metric]

    @classmethod
    def of(cls, trials: pd.DataFrame, metrics: Sequence[Metric]) -> "_Side":
        ok = trials[trials["ok"]]
        formed = validity.usable(to_baseline(ok, [metric.column for metric in metrics])).pairs
        ratios = {(*key, ""): rows for key, rows in by_key(formed[formed["target"] != BASELINE], ROW).items()}
        # What runs beside a victim is no disturbance of it.
        return cls(by_key(ok), ratios, disturbed(ok[ok["aggressor"].isna()], KEY), metrics)

    def logs(self, key: Key, metric: Metric) -> list[float]:
        """Return the logarithms of a metric, by block."""
        return by_block(self.trials[key], metric.logs(self.trials[key])) if metric in self.metrics else []

    def ratios_of(self, key: Key, metric: Metric) -> list[float]:
        """Return the log ratios to bare metal, by block."""
        return by_block(self.ratios[key], self.ratios[key][metric.column]) if key in self.ratios else []

    def facts(self, key: Key) -> list[str]:
        """Return the facts of a row's trials, each once."""
        return [facts.text for facts in self.trials[key]["facts"].astype(object).unique()]


def regress(old: Records, new: Records, fail_above: float | None = None, *, open_ended: bool = False) -> Regression:
    """Compare every metric of every row of the old run with the new one, and its ratio to bare metal.

    ``fail_above`` (0.05 is 5 %) is the bound of the gate. Openings are shown and never fail a run, and neither do
    ratios to bare metal: the same trials would count twice. ``open_ended``: see ``missing``.
    """
    tables = matched(old.trials, new.trials)
    before, after = _Side.of(tables[0], old.metrics), _Side.of(tables[1], new.metrics)
    results: list[Change | Missing] = [*missing(*map(by_key, tables), open_ended=open_ended)]
    for key in before.trials:
        if key in after.trials:
            results += _compared(key, before, after, fail_above)
    return Regression(
        changes=tuple(one for one in results if isinstance(one, Change)),
        fail_above=fail_above,
        missing=tuple(one for one in results if isinstance(one, Missing)),
        added=tuple(name_of(key) for key in after.trials if key not in before.trials),
    )


def _compared(key: Key, old: _Side, new: _Side, fail_above: float | None) -> Iterator[Change | Missing]:
    """Yield the changes of a row."""
    differences = validity.changes(old.facts(key), new.facts(key))
    sides = {"of the old run": old.disturbed.get(key, ()), "of the new run": new.disturbed.get(key, ())}
    reasons = partial(withheld, key[KEY.index("profile")], sides=sides)
    for metric in metrics_of(old.metrics, key[KEY.index("scenario")], key[KEY.index("model")]):
        before, after = old.logs(key, metric), new.logs(key, metric)
        if metric.supporting or not before:
            continue
        (named,) = in_units([metric], old.trials[key]["unit"].iloc[0])
        gates = metric.name != "opening"
        if after:
            change = _change(key, named, (before, after), reasons)
            if gates and fail_above is not None:
                change = _gated(change, named, (before, after), reasons, fail_above)
            yield replace(change, differences=differences)
        elif gates:
            yield Missing("metric", f"{name_of(key)}, {metric.name}", f"the new run has none in {named.unit}")
        before, after = old.ratios_of(key, metric), new.ratios_of(key, metric)
        if before and after:
            change = _change(key, replace(named, unit="x"), (before, after), reasons)
            yield replace(change, normalised=True, differences=differences)


def _change(
    key: Key, metric: Metric, samples: tuple[Samples, Samples], reasons: Callable[[int], tuple[str, ...]]
) -> Change:
    old, new = _places(samples)
    shift, seen = difference(old, new), detectable(old, new)
    row: dict[str, Any] = dict(zip(KEY, key, strict=True))
    half = shift.half_width
    return Change(
        **row,
        metric=metric.name,
        unit=metric.unit,
        normalised=False,
        old=exp(old.centre),
        new=exp(new.centre),
        trials=(old.n, new.n),
        ratio=exp(shift.centre),
        interval=None if half is None else (exp(shift.centre - half), exp(shift.centre + half)),
        slower=_slower(_sign(metric) * shift.centre, metric),
        detectable=_slower(seen, metric) if seen is not None and seen < math.log(10) else None,
        withheld=reasons(min(old.n, new.n)),
    )


def _gated(
    change: Change,
    metric: Metric,
    samples: tuple[Samples, Samples],
    reasons: Callable[[int], tuple[str, ...]],
    fail_above: float,
) -> Change:
    """Return a change with its outcome by a bound, a share; see ``Change.slower``."""
    old, new = _places(samples)
    shift, sign = difference(old, new), _sign(metric)
    mean = mean_shift(*(sign * np.asarray(sample) for sample in samples))
    lost, bound, half = sign * shift.centre, sign * math.log1p(sign * fail_above), shift.half_width
    if change.withheld or half is None or mean is None:
        more = None if reasons(LEAST_BLOCKS) else _more((old, new), abs(lost - bound))
        return replace(change, outcome="cannot tell", more_blocks=more)
    if lost - half > bound:
        return replace(change, outcome="slower")
    if lost + half >= bound:
        return replace(change, outcome="cannot tell", more_blocks=_more((old, new), abs(lost - bound)))
    # As a verdict of a comparison is, "not slower" is held against what a long queue of jobs pays.
    if (most := mean.interval[1]) < bound:
        return replace(change, outcome="not slower")
    share = _slower(most, metric) * 100
    tail = f"a typical block is not slower, but with slow trials the mean may be {share:.3g} % slower"
    return replace(change, outcome="cannot tell", withheld=(tail,))


def _places(samples: tuple[Samples, Samples]) -> tuple[Location, Location]:
    old, new = map(locate, samples)
    assert old and new, "samples without a value are not compared"  # noqa: S101, PT018
    return old, new


def _sign(metric: Metric) -> int:
    """Return the sign of a log ratio by which it is a loss."""
    return -1 if metric.more_is_faster else 1


def _slower(loss: float, metric: Metric) -> float:
    return slower_by(exp(_sign(metric) * loss), more_is_faster=metric.more_is_faster)


def _more(places: tuple[Location, Location], distance: float) -> int | None:
    """Return the blocks that each run needs besides, to be ``distance`` from the bound and to count at all."""
    least = LEAST_BLOCKS - min(place.n for place in places)
    if any(place.standard_error is None for place in places):
        return least
    needed = more_blocks(*places, distance)
    return None if needed is None else max(needed, least)
