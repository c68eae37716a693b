"""Quality: how good the images are of jobs that differ in how they divided the work, at an equal number of images seen.

More workers with the same batch each see more images in as many steps, and take fewer updates to see as many: hence
neither steps nor updates are equal here. A block is a seed. Jobs share no block, so their blocks are independent
samples; see ``statistics.two_samples``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.compare.effects import effect
from analysis.compare.groups import estimate, mean_losses
from analysis.compare.pairing import by_block, job_of, papers_order, substitutes_of
from analysis.compare.results import Estimate, Quality
from analysis.compare.scaling import SAME
from analysis.load.metrics import Metric
from analysis.statistics.ratios import judge, locate
from analysis.statistics.two_samples import difference
from suite.results.quality import QUALITY_METRICS

_WAY = ["workers", "strategy", "batch"]


def quality(trials: pd.DataFrame, metrics: Sequence[Metric], margin: float) -> tuple[Quality, ...]:
    """Return every way in which jobs divided the work beside the first one, which has the fewest workers.

    ``trials`` are those of ``scaling.trials_with_workers``.
    """
    own = [metric for metric in metrics if metric.name in QUALITY_METRICS]
    if trials.empty or not own:
        return ()
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
    for (workers, strategy, batch), own in known.items():
        row = own.iloc[0]
        yield Quality(
            job=job_of(next(iter(known.values())).iloc[0]),
            model=str(row["model"]),
            target=str(row["target"]),
            strategy=strategy,
            workers=workers,
            batch=int(batch),
            global_batch=int(row["global_batch"]),
            images_seen=int(row["images_seen"]),
            estimates=estimates[workers, strategy, batch],
            losses=mean_losses(own["losses"]),
            notes=substitutes_of(own),
        )
