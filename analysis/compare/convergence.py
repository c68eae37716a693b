"""Convergence of a run: how wide its intervals are so far, and whether the stop rule ends it."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.compare.effects import RATIO
from analysis.compare.noise import replicas
from analysis.compare.pairing import plain, to_baseline, with_variants
from analysis.compare.validity import usable
from analysis.load.metrics import METRICS, Metric, metrics_of
from analysis.load.records import Records
from analysis.statistics.ratios import MARGIN, Samples, locate
from analysis.statistics.sequential import LEAST_BLOCKS, Decision, should_stop, should_stop_deciding
from suite.request.repetitions import Repetitions
from suite.targets import BASELINE


def should_stop_run(
    records: Records | None, asked: Repetitions, *, min_blocks: int = LEAST_BLOCKS, max_blocks: int
) -> Decision:
    """Decide on the records of one run so far, by the ratio of every target and model to bare metal.

    ``asked`` says ``until`` when it goes on; ``records`` is None as long as none counts. In a run of bare metal alone,
    twice in every block, the ratio of the two counts. Every metric of a probe counts, since none stands for all. A
    block counts once the run has begun it; if bare metal or the target failed, or validity refuses the pair, it is a
    block without a ratio. Call this when a block has ended. Warm-up trials are no blocks, and ablations are not waited
    for.
    """
    families = log_ratios(records, "throughput") if records else {}
    if asked.decides:
        margin = asked.margin_share or MARGIN
        return should_stop_deciding(families.values(), margin, min_blocks=min_blocks, max_blocks=max_blocks)
    ratios = {name: values for family in families.values() for name, values in family.items()}
    return should_stop(ratios, asked.half_width or 0.0, min_blocks=min_blocks, max_blocks=max_blocks)


def intervals(records: Records) -> dict[str, tuple[float, float, float]]:
    """Return each ratio so far with the ends of its interval, by its name; the widest first."""
    places = {name: locate(np.asarray(values)) for name, values in _of_all_metrics(records, "throughput").items()}
    ends = {name: (place.centre, *place.interval) for name, place in places.items() if place and place.interval}
    widest = sorted(ends.items(), key=lambda each: each[1][1] - each[1][2])
    return {name: (math.exp(centre), math.exp(low), math.exp(high)) for name, (centre, low, high) in widest}


def half_widths(records: Records, metric: str = "throughput") -> dict[str, float | None]:
    """Return how wide each interval is now, as a share, by the name of its ratio; None if it cannot be formed yet."""
    places = {name: locate(np.asarray(values)) for name, values in _of_all_metrics(records, metric).items()}
    return {
        name: None if place is None or place.half_width is None else math.expm1(place.half_width)
        for name, place in places.items()
    }


def _of_all_metrics(records: Records, metric: str) -> dict[str, Samples]:
    return {name: values for family in log_ratios(records, metric).values() for name, values in family.items()}


def log_ratios(records: Records, metric: str) -> dict[str, dict[str, Samples]]:
    """Return the logarithm of each ratio to bare metal in every block, by its name: ``resnet50 on vm``.

    The ratios of a metric, whose column is the key, are one family of comparisons.
    """
    trials = plain(with_variants(records.trials))
    if metric == METRICS[0].name and trials[METRICS[0].column].isna().all():
        metric = METRICS[1].name  # a command that prints no throughput is decided by its elapsed time
    metrics = [known for known in records.metrics if known.of_probe or known.name == metric]
    formed = usable(to_baseline(trials[trials["ok"]], [known.column for known in metrics])).pairs
    places = trials[["run_id", "block"]].drop_duplicates().sort_values(["run_id", "block"])
    index = pd.MultiIndex.from_frame(places)
    kinds = ["scenario", "model", "target", "design"]
    asked = trials.loc[trials["target"] != BASELINE, kinds].astype(str).drop_duplicates()
    if asked.empty:
        return _against_itself(trials[trials["ok"]], metrics, index)
    ratios: dict[str, dict[str, Samples]] = {}
    for scenario, model, target, design in asked.itertuples(index=False):
        rows = formed[(formed["model"] == model) & (formed["target"] == target) & (formed["design"] == design)]
        blocks = rows.groupby(["run_id", "block"])
        own = metrics_of(metrics, scenario, model)
        for known in own:
            name = f"{model} on {target}" + (f", {known.name}" if known.of_probe else _told(design))
            ratios.setdefault(known.column, {})[name] = list(blocks[known.column].mean().reindex(index))
        if not own:  # every trial of the probe failed so far
            ratios.setdefault("", {})[f"{model} on {target}"] = [math.nan] * len(index)
    return ratios


def _against_itself(ok: pd.DataFrame, metrics: Sequence[Metric], index: pd.MultiIndex) -> dict[str, dict[str, Samples]]:
    """Return those of the second bare-metal trial over the first, by the name ``resnet50 on bare-metal-again``."""
    found = replicas(ok, metrics)
    return {
        known.column: {
            f"{model} on {BASELINE}-again" + (f", {known.name}" if known.of_probe else _told(job.variant)): list(
                ratios[RATIO].reindex(index)
            )
            for (job, model, _), ratios in found[known.column].items()
        }
        for known in metrics
    }


def _told(design: str) -> str:
    return ", alternating" if "alternating" in design else ""
