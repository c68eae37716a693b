"""Quality: how good the images are of jobs that differ in how they divided the work, at an equal number of images seen.

More workers with the same batch each see more images in as many steps, and take fewer updates to see as many: hence
neither steps nor updates are equal here. A block is a seed. Jobs share no block, so their blocks are independent
samples; see ``statistics.two_samples``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.compare.effects import effect
from analysis.compare.groups import estimate
from analysis.compare.pairing import by_block, papers_order
from analysis.compare.results import Estimate, Quality
from analysis.compare.scaling import SAME, division
from analysis.load.metrics import Metric
from analysis.statistics.ratios import judge, locate
from analysis.statistics.two_samples import difference
from suite.results.quality import IMAGE_METRICS

_WAY = ["workers", "strategy", "batch"]


def quality(trials: pd.DataFrame, metrics: Sequence[Metric], margin: float) -> tuple[Quality, ...]:
    """Return every way in which jobs divided the work beside the first one, which has the fewest workers.

    ``trials`` are those of ``scaling.trials_with_workers``.
    """
    own = [metric for metric in metrics if metric.name in IMAGE_METRICS]
    if trials.empty or not own:
        return ()
    # What two runs trained from one seed is one model, and no second sample.
    trials = trials.assign(run_id="", block=trials["seed"])
    rows = (
        row
        for _, alike in trials.groupby([*SAME, "task", "images_seen"], dropna=False, observed=True)
        for row in _quality(alike, own, margin)
    )
    return tuple(sorted(rows, key=lambda row: (*papers_order(row.job, row.model, row.target), row.images_seen)))


def _quality(alike: pd.DataFrame, metrics: Sequence[Metric], margin: float) -> Iterator[Quality]:
    """Yield the ways of jobs that have seen as many images; none if there is one."""
    ways: dict[Any, pd.DataFrame] = dict(iter(alike.groupby(_WAY)))
    estimates: dict[Any, dict[str, Estimate]] = {way: {} for way in ways}
    for metric in metrics:
        logs = metric.logs(alike)
        places = {way: place for way, own in ways.items() if (place := locate(by_block(own, logs[own.index])))}
        if len(places) < 2:
            continue
        first, *others = places.values()
        shifts = [difference(first, other) for other in others]
        verdicts = judge(shifts, margin, more_is_faster=metric.more_is_faster)
        effects = [None, *map(effect, shifts, verdicts)]
        for (way, place), found in zip(places.items(), effects, strict=True):
            estimates[way][metric.name] = estimate(place, int(logs[ways[way].index].count()), found)
    known = {way: trials for way, trials in ways.items() if estimates[way]}
    for way, own in known.items():
        yield Quality(
            **division(next(iter(known.values())), own),
            strategy=str(own["strategy"].iloc[0]),
            images_seen=int(own["images_seen"].iloc[0]),
            estimates=estimates[way],
        )
