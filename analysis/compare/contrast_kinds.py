"""The kinds of contrasts: which trials are divided by which, and what may differ between them.

A kind is a member of ``suite.registries.CONTRASTS``. It names the trials of its two sides, which are paired inside a
block, and what they may differ in; or the kind whose ratios it combines.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from analysis.compare.pairing import (
    baseline,
    filled,
    plain,
)
from analysis.compare.results import Arm
from analysis.load.metrics import METRICS, Metric, with_trait
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.job.ablations import facts_that_may_differ
from suite.registries import CONTRASTS
from suite.targets import BASELINE

RATIO = "ratio"
BASE = "base"
Ratios = Mapping[Arm, pd.DataFrame]
"""Log ratios, each with the run and the block as its index, in a column ``RATIO``; the logarithm of what they are
relative to is in ``BASE``, which a ratio of ratios does not have."""
Sweeps = Mapping[str, str]
"""The sweep of each run: its cells share their blocks, so what spans runs is indexed by the sweep and the block."""
ByColumn = Mapping[str, Ratios]
"""Those of several metrics, by the metric's column."""
Members = Mapping[Arm, tuple[Arm, ...]]
"""What each ratio is the mean over."""
Failed = Mapping[Arm, pd.DataFrame]
"""Whether the trial of each side failed, by run and block; without the arms of which no trial failed."""
SHARED_METRICS = (
    *METRICS[:2],
    Metric("step-p99", "step_p99_s", "s"),
    Metric("cpu-time", "serving_cpu_s", "s"),
    Metric("llc-misses", "llc_load_misses", ""),
    Metric("involuntary-switches", "involuntary_switches", ""),
)
"""The metrics of a victim. A CPU time that grows less than elapsed means waiting for CPUs; one that grows with it means
slower computing. Involuntary switches are those at which the kernel gave a CPU of the victim to another process."""
CHOOSING = slice(1, None, 3)
"""The blocks that choose a plan of CPUs, which the others judge."""
ALLOCATION_BLOCKS = LEAST_BLOCKS + 2
"""The least blocks of which enough judge the plan that the others choose."""
KEPT = Metric("aggressor-speed", "aggressor_beside_per_s", "", "more")
STEAL = Metric("steal-share", "steal_s", "")


@dataclass(frozen=True)
class Sides:
    """Trials, and those of the same block (and of the same values of ``same``) that they are divided by."""

    own: pd.DataFrame
    base: pd.DataFrame
    same: Sequence[str] = ()
    ablation: str = ""
    aggressor: str = ""
    may_differ: Collection[str] = ()
    """The facts that may differ, because they are what the ratio is to show."""


@dataclass(frozen=True)
class ContrastKind:
    name: str
    sides: Callable[[pd.DataFrame], Iterable[Sides]] | None = None
    """None for one that combines the ratios of others, or whose sides share no block."""
    over: str = BASELINE
    """What its trials are divided by: a target, or words."""
    metrics: tuple[Metric, ...] = ()
    """Its own metrics; empty for all that were measured."""
    disturbed_by: Literal["target", "layers", "models", "alone", "both", "both and base", "cells", "runs", ""] = (
        "target"
    )
    """Whose disturbances withhold its verdicts; see ``verdicts``."""
    title: str = ""
    """The title of its table; empty for its name."""
    needs: str = f"at least {LEAST_BLOCKS} blocks are needed"
    """Why fewer decide nothing."""


def _again(ok: pd.DataFrame) -> Iterator[Sides]:
    base = baseline(ok)
    if (base["replica"] == 1).any():
        yield Sides(base[base["replica"] == 1], base[base["replica"] == 0])


def _ablations(ok: pd.DataFrame) -> Iterator[Sides]:
    undisturbed = ok[ok["aggressor"].isna()]
    for name in map(str, undisturbed["ablation"].dropna().unique()):
        switched = undisturbed[undisturbed["ablation"] == name]
        yield Sides(switched, plain(ok), ["target"], name, "", facts_that_may_differ(name))


def beside_and_alone(ok: pd.DataFrame) -> Iterator[Sides]:
    """Yield the victims next to each aggressor, with those of the same target alone."""
    trials = victims(ok)
    for (ablation, aggressor), beside in trials[trials["aggressor"] != ""].groupby(["ablation", "aggressor"]):
        alone = trials[(trials["aggressor"] == "") & (trials["ablation"] == ablation)]
        yield Sides(beside, alone, ["target"], str(ablation), str(aggressor))


def victims(ok: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of victims; empty names stand for no ablation and no aggressor. Empty if none was disturbed."""
    trials = filled(ok[~with_trait(ok, "normalised")])
    return trials if (trials["aggressor"] != "").any() else trials[:0]


TARGET = ContrastKind("target", lambda ok: [Sides(plain(ok), baseline(ok))])
AGAIN = ContrastKind("again", _again)
ABLATION = ContrastKind(
    "ablation",
    _ablations,
    "the same target as it is",
    title="switched",
)
AGGRESSOR = ContrastKind(
    "aggressor",
    beside_and_alone,
    "the same target alone",
    SHARED_METRICS,
    "alone",
)
LAYERS = ContrastKind("layers", over="container times vm", disturbed_by="layers")
MODELS = ContrastKind("models", metrics=METRICS, disturbed_by="models")
ISOLATION = ContrastKind(
    "isolation",
    over="the same target alone",
    metrics=METRICS[:1],
    disturbed_by="alone",
)
STRONG = ContrastKind("strong", over="the smallest number of workers", disturbed_by="")
WEAK = ContrastKind("weak", over=STRONG.over, disturbed_by="")
DIVISION = ContrastKind(
    "division",
    over="the first way to divide the work",
    disturbed_by="",
)
ALLOCATION = ContrastKind(
    "allocation",
    over="equal CPUs for all stages, with equal CPU time",
    disturbed_by="runs",
    needs=f"at least {ALLOCATION_BLOCKS} blocks are needed, of which every third chooses the plan",
)
JOBS = ContrastKind("jobs", over="the same target in another job", disturbed_by="both")
SLOWDOWNS = ContrastKind(
    "slow-downs",
    over="the slow-down of another arm or metric",
    disturbed_by="both and base",
)
"""A slow-down is a ratio of times, or the inverse of a ratio of rates."""
BY = ContrastKind("by", over="the first value of the keys", disturbed_by="cells")
MACHINE = ContrastKind(
    "machine",
    over="the median of the other machines",
    disturbed_by="cells",
)
RUN = ContrastKind("run", over="older runs", disturbed_by="runs")
RELATIVE = ContrastKind(
    "run-relative",
    over=f"the ratio to {BASELINE} in older runs",
    disturbed_by="runs",
)


def tabled_kinds() -> list[ContrastKind]:
    """Return the kinds with a table each: ablations, then those of other packages that ``bench doctor`` can load."""
    names = []
    for name in CONTRASTS.added():
        if name not in CONTRASTS.failures():
            names.append(name)
    return [ABLATION, *(replace(CONTRASTS.get(name), name=name) for name in names)]
