"""When a run that goes on ``--until`` a precision may stop: a pure decision, taken between blocks.

Stopping as soon as an interval is narrow enough stops where the noise happened to look small, and the interval then
covers too rarely: 88 to 95 % of the time, depending on noise and precision, when it was simulated. Simons (Ann. Math.
Statist. 39 (1968) 1946) showed that the sequential procedure of Chow and Robbins (Ann. Math. Statist. 36 (1965) 457)
keeps its coverage when a fixed number of further samples is taken after it would have stopped. These are
``EXTRA_BLOCKS``; their number, and the coverage with them, come from simulation (``benchmarks/validity.py``). The
interval of all blocks is then the ordinary one, so that ``compare`` needs to know nothing about how a run was ended.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.compare.noise import replicas
from analysis.compare.pairing import plain, to_baseline, with_variants
from analysis.compare.validity import usable
from analysis.load.metrics import Metric, metrics_of
from analysis.load.records import Records
from analysis.statistics.ratios import Samples, locate
from suite.errors import RequestError
from suite.plan import BASELINE

EXTRA_BLOCKS = 8
LEAST_BLOCKS = 5


@dataclass(frozen=True)
class Decision:
    """``stop``, and why in words; ``half_width`` is the widest of the requested intervals now, as a share.

    ``at_least`` is how many more blocks are certainly needed (0 when it stops).
    """

    stop: bool
    reason: str
    half_width: float | None
    at_least: int


def should_stop(
    log_ratios: Mapping[str, Samples], half_width: float, *, min_blocks: int = LEAST_BLOCKS, max_blocks: int
) -> Decision:
    """Whether the blocks so far are enough.

    ``log_ratios``: for each requested interval, by its name, log(target / bare metal) per block in the order of the
    run; NaN where a trial failed. ``half_width``: 0.02 for 2 %. Raises RequestError for bounds that make no sense.
    """
    _check(half_width, min_blocks, max_blocks)
    blocks = max((len(values) for values in log_ratios.values()), default=0)
    widest, name = _widest(log_ratios, blocks)
    now = None if widest is None else math.expm1(widest)
    if blocks >= max_blocks:
        return Decision(True, f"the most blocks asked for ({max_blocks}) are measured", now, 0)
    bound = math.log1p(half_width)
    first = _settled(log_ratios, bound, max(min_blocks, LEAST_BLOCKS), blocks)
    if first is None:
        return Decision(False, f"{name} is not yet within {half_width:.1%}", now, EXTRA_BLOCKS + 1)
    if blocks < first + EXTRA_BLOCKS:
        left = first + EXTRA_BLOCKS - blocks
        return Decision(False, f"narrow enough since block {first}; {left} more keep the coverage", now, left)
    if widest is None or widest > bound:
        return Decision(False, f"{name} is again wider than {half_width:.1%}", now, 1)
    return Decision(True, f"every interval is within {half_width:.1%}", now, 0)


def _check(half_width: float, min_blocks: int, max_blocks: int) -> None:
    if not 0 < half_width < 1:
        raise RequestError(f"--until {half_width:.3g}: not a share between 0 and 1", remedy="write it as 2%")
    if not 0 < min_blocks <= max_blocks:
        raise RequestError(
            f"--min-blocks {min_blocks} and --max-blocks {max_blocks}", remedy="ask for 0 < min-blocks <= max-blocks"
        )


def _widest(log_ratios: Mapping[str, Samples], blocks: int) -> tuple[float | None, str]:
    """The half width of the widest interval of the first ``blocks``, and its name; None when one cannot be formed."""
    widths: list[tuple[float, str]] = []
    for name, values in log_ratios.items():
        place = locate(np.asarray(values[:blocks]))
        # A target with fewer good trials than blocks has the coverage of its own number.
        if place is None or place.half_width is None or place.n < LEAST_BLOCKS:
            return None, name
        widths.append((place.half_width, name))
    return max(widths) if widths else (None, "no ratio")


def _settled(log_ratios: Mapping[str, Samples], bound: float, first: int, blocks: int) -> int | None:
    """The first number of blocks after which every interval was narrow enough."""
    for count in range(first, blocks + 1):
        widest, _ = _widest(log_ratios, count)
        if widest is not None and widest <= bound:
            return count
    return None


def should_stop_run(
    records: Records, half_width: float, *, min_blocks: int = LEAST_BLOCKS, max_blocks: int, metric: str = "throughput"
) -> Decision:
    """``should_stop`` for the records of one run so far: the ratio of every target and model to bare metal.

    Of a run of nothing but bare metal, twice in every block: that of the two.

    Of a probe every metric counts, since it has none that stands for all. A block counts when the run has begun it;
    where bare metal or the target failed, or validity refuses, it is a block without a ratio. Call it when a block has
    ended. Warm-up trials are no blocks, and trials with a property switched are not waited for.
    """
    return should_stop(_log_ratios(records, metric), half_width, min_blocks=min_blocks, max_blocks=max_blocks)


def half_widths(records: Records, metric: str = "throughput") -> dict[str, float | None]:
    """How wide each interval is now, as a share, by the name of its ratio; None where one cannot be formed yet."""
    places = {name: locate(np.asarray(values)) for name, values in _log_ratios(records, metric).items()}
    return {
        name: None if place is None or place.half_width is None else math.expm1(place.half_width)
        for name, place in places.items()
    }


def _log_ratios(records: Records, metric: str) -> dict[str, Samples]:
    """For each ratio to bare metal, by its name (``resnet50 on vm``), its logarithm in every block."""
    trials = plain(with_variants(records.trials))
    metrics = [known for known in records.metrics if known.of_probe or known.name == metric]
    formed = usable(to_baseline(trials[trials["ok"]], [known.column for known in metrics])).pairs
    places = trials[["run_id", "block"]].drop_duplicates().sort_values(["run_id", "block"])
    index = pd.MultiIndex.from_frame(places)
    asked = trials.loc[trials["target"] != BASELINE, ["scenario", "model", "target"]].astype(str).drop_duplicates()
    if asked.empty:
        return _against_itself(trials[trials["ok"]], metrics, index)
    ratios: dict[str, Samples] = {}
    for scenario, model, target in asked.itertuples(index=False):
        rows = formed[(formed["model"] == model) & (formed["target"] == target)]
        blocks = rows.groupby(["run_id", "block"])
        own = metrics_of(metrics, scenario, model)
        for known in own:
            name = f"{model} on {target}" + (f", {known.name}" if known.of_probe else "")
            ratios[name] = list(blocks[known.column].mean().reindex(index))
        if not own:  # every trial of the probe failed so far
            ratios[f"{model} on {target}"] = [math.nan] * len(index)
    return ratios


def _against_itself(ok: pd.DataFrame, metrics: Sequence[Metric], index: pd.MultiIndex) -> dict[str, Samples]:
    """The same of bare metal's second trial in a block over the first: ``resnet50 on bare-metal-again``."""
    found = replicas(ok, metrics)
    return {
        f"{model} on {BASELINE}-again" + (f", {known.name}" if known.of_probe else ""): list(values.reindex(index))
        for known in metrics
        for (_, model, _), values in found[known.column].items()
    }
