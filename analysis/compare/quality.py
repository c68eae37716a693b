"""Quality: how good the images are of jobs that differ in how they divided the work, at an equal number of images seen.

More workers with the same batch each see more images in as many steps, and take fewer updates to see as many: hence
neither steps nor updates are equal here. A block is a seed. Jobs share no block, so their blocks are independent
samples; see ``statistics.two_samples``.
"""

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.compare.contrasts import DIVISION, effect, order
from analysis.compare.pairing import by_block
from analysis.compare.results import Contrast, Effect
from analysis.compare.scaling import SAME, division
from analysis.load.metrics import Metric
from analysis.statistics.ratios import Location, exp, judge, locate
from analysis.statistics.two_samples import difference
from suite.results.quality import IMAGE_METRICS

_WAY = ["workers", "strategy", "batch"]


def quality(trials: pd.DataFrame, metrics: Sequence[Metric], margin: float) -> list[Contrast]:
    """Return every way in which jobs divided the work beside the first one, which has the fewest workers.

    ``trials`` are those of ``scaling.trials_with_workers``.
    """
    own = [metric for metric in metrics if metric.name in IMAGE_METRICS]
    if trials.empty or not own:
        return []
    # What two runs trained from one seed is one model, and no second sample.
    trials = trials.assign(run_id="", block=trials["seed"])
    jobs = trials.groupby([*SAME, "task", "images_seen"], dropna=False, observed=True)
    found = [one for _, alike in jobs for one in _quality(alike, own, margin)]
    return sorted(found, key=lambda one: (*order(one.arm), one.arm.division and one.arm.division.images_seen))


def _quality(alike: pd.DataFrame, metrics: Sequence[Metric], margin: float) -> Iterator[Contrast]:
    """Yield the ways of jobs that have seen as many images; none if there is one."""
    ways = [trials for _, trials in alike.groupby(_WAY)]
    places = {metric: _places(metric, alike, ways) for metric in metrics}
    compared = {metric: of_metric for metric, of_metric in places.items() if len(of_metric) > 1}
    first = min((number for of_metric in compared.values() for number in of_metric), default=0)
    for metric, of_metric in compared.items():
        base, *others = of_metric.values()
        shifts = [difference(base, place) for place in others]
        effects = [Effect(), *map(effect, shifts, judge(shifts, margin, more_is_faster=metric.more_is_faster))]
        for (number, place), ratio in zip(of_metric.items(), effects, strict=True):
            arm, notes = division(ways[first], ways[number])
            yield Contrast(
                kind=DIVISION.name,
                arm=arm,
                metric=metric,
                value=exp(place.centre),
                trials=int(metric.logs(ways[number]).count()),
                notes=notes,
                **vars(ratio),
            )


def _places(metric: Metric, alike: pd.DataFrame, ways: Sequence[pd.DataFrame]) -> dict[int, Location]:
    """Return the place of each way that has the metric, by its number."""
    logs = metric.logs(alike)
    places = {number: locate(by_block(trials, logs[trials.index])) for number, trials in enumerate(ways)}
    return {number: place for number, place in places.items() if place}
