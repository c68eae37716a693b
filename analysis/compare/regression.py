"""Regression: what has become slower between two runs of the same targets.

The runs share no block, so their trials are two independent samples: the interval is Yuen's t of the trimmed means of
the logarithms (Biometrika 61 (1974) 165; Welch's where nothing is trimmed). What the host did between the runs is part
of the difference. Where both runs have bare metal, the change of the ratio to bare metal says whether the target has
changed or the whole host.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.compare import validity
from analysis.compare.pairing import ROW, papers_order, plain, to_baseline, with_common_variants
from analysis.load.metrics import Metric, metrics_of
from analysis.load.records import Records
from analysis.statistics.ratios import CONFIDENCE, Location, locate, t_quantile
from suite.targets import BASELINE


@dataclass(frozen=True)
class Change:
    """One metric on one target, new over old.

    ``slower`` says by how much, as a share; negative is faster. ``interval`` is the 95 % interval of ``ratio``; None
    where a run has a single trial. ``normalised`` says that ratios to bare metal are compared, which do not move when
    the whole host changes.
    """

    scenario: str
    data: str
    profile: str
    recipe: str
    variant: str
    """The settings that differ among the trials of a run; empty where they are all alike."""
    model: str
    target: str
    metric: str
    normalised: bool
    old: float
    new: float
    trials: tuple[int, int]
    ratio: float
    interval: tuple[float, float] | None
    slower: float
    exceeded: bool
    differences: tuple[str, ...] = ()
    """The differences between the two runs besides the time: userland, envelope and the like."""


@dataclass(frozen=True)
class Regression:
    """The changes between two runs; ``unmatched`` are the targets that one run lacks."""

    changes: tuple[Change, ...]
    fail_above: float | None
    unmatched: tuple[str, ...]

    @property
    def exceeded(self) -> bool:
        """Return whether any change is beyond ``fail_above``."""
        return any(change.exceeded for change in self.changes)


def regress(old: Records, new: Records, fail_above: float | None = None) -> Regression:
    """Compare every metric of every target that both runs finished, and its ratio to bare metal where both have it.

    A change exceeds ``fail_above`` (0.05 is 5 %) when it is slower by more than that and its interval does not hold 1;
    from single trials, which have no interval, the value alone decides. Opening times are shown and never fail a run,
    and neither do ratios to bare metal: the same trials would count twice.
    """
    trials = [plain(found) for found in with_common_variants([old.trials, new.trials])]
    metrics = [metric for metric in old.metrics if metric in new.metrics and not metric.supporting]
    finished = [frame[frame["ok"]] for frame in trials]
    keys = [set(map(tuple, frame[ROW].astype(str).drop_duplicates().to_numpy())) for frame in finished]
    unmatched = tuple(sorted(f"{key[-2]} on {place_of(key[-1], key[-3])}" for key in keys[0] ^ keys[1]))
    columns = [metric.column for metric in metrics]
    comparable = [validity.usable(to_baseline(frame, columns)).pairs for frame in finished]
    changes: list[Change] = []
    for key in sorted(keys[0] & keys[1], key=lambda key: papers_order(key[:-2], *key[-2:])):
        mine = [_of(frame, key) for frame in finished]
        differences = _differences(mine[0].iloc[0], mine[1].iloc[0])
        ratios = [_of(frame, key) for frame in comparable] if key[-1] != BASELINE else []
        for metric in metrics_of(metrics, key[0], key[-2]):
            logs = [np.log(frame[metric.column].where(frame[metric.column] > 0)) for frame in mine]
            changes += _change(key, metric, logs, differences, fail_above)
            if ratios and not any(frame.empty for frame in ratios):
                changes += _change(key, metric, [frame[metric.column] for frame in ratios], differences, None, True)
    return Regression(tuple(changes), fail_above, unmatched)


def _of(frame: pd.DataFrame, key: tuple[str, ...]) -> pd.DataFrame:
    for column, value in zip(ROW, key, strict=True):
        frame = frame[frame[column].astype(str) == value]
    return frame


def _differences(old: "pd.Series", new: "pd.Series") -> tuple[str, ...]:
    """Return in what two trials differ. An image is left out: its userland is checked, and it is built anew at will."""
    names = list(validity.COLUMNS)
    both = pd.DataFrame([{**new[names], **{f"{name}_base": old[name] for name in names}}])
    found = validity.assess(both, switched=("image",))
    checked = (*found.refused.iloc[0].split("; "), found.declared.iloc[0])
    return tuple(filter(None, (*checked, *(one.text for one in found.named.iloc[0]))))


def _change(
    key: tuple[str, ...],
    metric: Metric,
    logs: "list[pd.Series[float]]",
    differences: tuple[str, ...],
    fail_above: float | None,
    normalised: bool = False,
) -> Iterator[Change]:
    old, new = (locate(list(values)) for values in logs)
    if old is None or new is None:
        return
    difference = new.centre - old.centre
    half = _half_width(old, new)
    slower = math.expm1(-difference if metric.more_is_faster else difference)
    sure = half is None or abs(difference) > half
    yield Change(
        **dict(zip(ROW, key, strict=True)),
        metric=metric.name,
        normalised=normalised,
        old=math.exp(old.centre),
        new=math.exp(new.centre),
        trials=(old.n, new.n),
        ratio=math.exp(difference),
        interval=None if half is None else (math.exp(difference - half), math.exp(difference + half)),
        slower=slower,
        exceeded=fail_above is not None and metric.name != "opening" and slower > fail_above and sure,
        differences=differences,
    )


def _half_width(old: Location, new: Location) -> float | None:
    """Return the half width of the interval, with the degrees of freedom of Welch and Satterthwaite."""
    if old.standard_error is None or new.standard_error is None:
        return None
    variances = (old.standard_error**2, new.standard_error**2)
    total = sum(variances)
    if total == 0:
        return 0.0
    parts = zip(variances, (old.degrees_of_freedom, new.degrees_of_freedom), strict=True)
    freedom = total**2 / sum(variance**2 / degrees for variance, degrees in parts)
    return math.sqrt(total) * t_quantile((1 + CONFIDENCE) / 2, freedom)


def place_of(target: str, variant: str) -> str:
    """Return the target, with its settings where they tell it apart: ``vm (engine=docker)``."""
    return f"{target} ({variant})" if variant else target
