"""Effects, made of log ratios by block: of targets, ablations and layers, and over all models.

An ablation is compared with the same target of the same block as it is, by the rules that compare a target with bare
metal; only what was switched may differ. Its verdicts are a family of their own per job and metric: the question is not
what the targets cost, and asking it must not change the answer to that.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from analysis.compare.pairing import grouped, pair, papers_order, plain, substitutes_of
from analysis.compare.results import AblationEffect, ComparedJob, Effect, Expected, Overall, known_first
from analysis.compare.validity import marks_of, usable
from analysis.load.metrics import METRICS, Metric, metrics_of
from analysis.statistics.order import DEPENDENCE_LEVEL, dependence
from analysis.statistics.ratios import SIGNIFICANCE, Location, Verdict, exp, holm, judge, locate
from analysis.statistics.sequential import level_of
from analysis.statistics.tails import Tail, qualified, tail_of
from analysis.warnings.findings import refusals
from analysis.warnings.types import AnalysisWarning
from suite.job.ablations import facts_that_may_differ
from suite.targets import TARGETS

_Key = TypeVar("_Key", bound=tuple[Any, ...])
GroupKey = tuple[ComparedJob, str]
"""A job and a model."""
Key = tuple[ComparedJob, str, str]
"""A job, a model and a target."""
RATIO, BASE = "ratio", "base"
Ratios = Mapping[Key, pd.DataFrame]
"""Log ratios, each with the run and the block as its index, in a column ``RATIO``; the logarithm of what they are
relative to is in ``BASE``, which a ratio of ratios does not have."""


def ratios_of(pairs: pd.DataFrame, metric: Metric) -> dict[Key, pd.DataFrame]:
    """Return the log ratios of every target of the pairs, in the blocks in which the metric was measured."""
    return all_ratios(pairs, [metric])[metric.column]


def all_ratios(pairs: pd.DataFrame, metrics: Sequence[Metric]) -> dict[str, dict[Key, pd.DataFrame]]:
    """Return those of every metric, by its column."""
    ratios: dict[str, dict[Key, pd.DataFrame]] = {metric.column: {} for metric in metrics}
    for key, rows in grouped(pairs):
        blocks = pd.MultiIndex.from_frame(rows[["run_id", "block"]])
        for metric in metrics_of(metrics, key[0].scenario, key[1]):
            measured = rows[metric.column].notna().to_numpy()
            if measured.any():
                values = {RATIO: rows[metric.column].to_numpy(), BASE: rows[f"{metric.column}_base"].to_numpy()}
                ratios[metric.column][key] = pd.DataFrame(values, index=blocks)[measured]
    return ratios


def judged(
    ratios: Mapping[str, Mapping[_Key, pd.DataFrame]],
    metrics: Iterable[Metric],
    margin: float,
    looked: int | None = None,
) -> dict[str, dict[_Key, Effect]]:
    """Return the effect of each, by the metric's column as in ``ratios``.

    Verdicts are corrected for all ratios of a metric and job, which are one family; dependence for all that are given.
    ``looked``: the blocks after which the run began to look whether they decide; None if it did not.
    """
    effects = {metric.column: _judged(ratios[metric.column], metric, margin, looked) for metric in metrics}
    levels = iter(holm([dependence(one.by_block) for of_metric in effects.values() for one in of_metric.values()]))
    return {
        column: {
            key: replace(effect, dependent=level if (level := next(levels)) <= DEPENDENCE_LEVEL else None)
            for key, effect in of_metric.items()
        }
        for column, of_metric in effects.items()
    }


def _judged(
    ratios: Mapping[_Key, pd.DataFrame], metric: Metric, margin: float, looked: int | None
) -> dict[_Key, Effect]:
    families: dict[ComparedJob, list[_Key]] = defaultdict(list)
    for key in ratios:
        families[key[0]].append(key)
    effects: dict[_Key, Effect] = {}
    for keys in families.values():
        places = [locate(ratios[key][RATIO].to_numpy()) for key in keys]
        tails = [_tail(ratios[key], metric) for key in keys]
        level = level_of(places, looked) if looked else SIGNIFICANCE
        verdicts = judge(places, margin, more_is_faster=metric.more_is_faster, level=level)
        verdicts = qualified(verdicts, places, tails, margin)
        for key, place, verdict, tail in zip(keys, places, verdicts, tails, strict=True):
            if place is not None:
                ratios_by_block = tuple(map(exp, ratios[key][RATIO].dropna()))
                effects[key] = replace(effect(place, verdict, tail), by_block=ratios_by_block)
    return effects


def _tail(ratios: pd.DataFrame, metric: Metric) -> Tail | None:
    if BASE not in ratios:
        return None
    return tail_of(ratios[RATIO].to_numpy(), ratios[BASE].to_numpy(), more_is_faster=metric.more_is_faster)


def effects_of(
    ratios: Mapping[str, Mapping[_Key, pd.DataFrame]],
    metrics: Sequence[Metric],
    margin: float,
    looked: int | None = None,
) -> dict[_Key, dict[str, Effect]]:
    """Return the effects of each key by the metric's name. ``ratios`` by the metric's column."""
    names = {metric.column: metric.name for metric in metrics}
    effects: dict[_Key, dict[str, Effect]] = defaultdict(dict)
    for column, of_metric in judged(ratios, metrics, margin, looked).items():
        for key, result in of_metric.items():
            effects[key][names[column]] = result
    return effects


def effect(place: Location, verdict: Verdict | None = None, tail: Tail | None = None) -> Effect:
    """Return the effect that a mean of log ratios stands for."""
    interval = place.interval and _exp(place.interval)
    if tail is None:
        return Effect(exp(place.centre), place.n, interval, verdict)
    expected = Expected(exp(tail.expected.centre), _exp(tail.expected.interval))
    return Effect(exp(place.centre), place.n, interval, verdict, expected, tail.slow)


def _exp(ends: tuple[float, float]) -> tuple[float, float]:
    return exp(ends[0]), exp(ends[1])


def notes_of(trials: pd.DataFrame, pairs: pd.DataFrame) -> dict[Key, tuple[str, ...]]:
    """Return the substitutes of the trials, what changed between them, and the marks of their pairs."""
    texts: dict[Key, dict[str, None]] = defaultdict(dict)
    for key, rows in grouped(trials):
        texts[key] |= dict.fromkeys((*substitutes_of(rows), *rows["changed"].unique()))
    for key, rows in grouped(pairs):
        texts[key] |= dict.fromkeys(marks_of(rows))
    return {key: tuple(filter(None, notes)) for key, notes in texts.items()}


def ablation_effects(
    ok: pd.DataFrame, metrics: Sequence[Metric], margin: float, *, force: bool = False
) -> tuple[list[AblationEffect], list[AnalysisWarning]]:
    """Return the effects of ablations, in the order of the paper, and what is refused.

    ``ok`` are the trials that are ok; they have ``variant``.
    """
    ratios: dict[str, dict[tuple[ComparedJob, str, str, str], pd.DataFrame]] = {one.column: {} for one in metrics}
    notes: dict[tuple[Any, ...], tuple[str, ...]] = {}
    warnings: list[AnalysisWarning] = []
    undisturbed = ok[ok["aggressor"].isna()]
    for name in map(str, undisturbed["ablation"].dropna().unique()):
        switched = undisturbed[undisturbed["ablation"] == name]
        pairs = pair(switched, plain(ok), list(ratios), same=["target"])
        formed = usable(pairs, force=force, switched=facts_that_may_differ(name))
        warnings += refusals(formed.refused, "the same target as it is", name)
        for column, of_metric in all_ratios(formed.pairs, metrics).items():
            ratios[column] |= {(*key, name): values for key, values in of_metric.items()}
        notes |= {(*key, name): texts for key, texts in notes_of(switched, formed.pairs).items()}
    effects = effects_of(ratios, metrics, margin)
    order = sorted(effects, key=lambda key: (*papers_order(*key[:3]), key[3]))
    return [AblationEffect(*key, effects=effects[key], notes=notes.get(key, ())) for key in order], warnings


def interactions(ratios: Ratios) -> dict[GroupKey, pd.DataFrame]:
    """Return log(container-vm / (container x vm)) of each job and model, in the blocks that hold all four targets."""
    layered = {}
    for job, model in dict.fromkeys(key[:2] for key in ratios):
        both, container, vm = (ratios.get((job, model, target)) for target in ("container-vm", "container", "vm"))
        if both is not None and container is not None and vm is not None:
            layered[job, model] = (both[[RATIO]] - container[[RATIO]] - vm[[RATIO]]).dropna()
    return {key: values for key, values in layered.items() if len(values)}


def overall(ratios: Mapping[str, Ratios], margin: float, looked: int | None = None) -> tuple[Overall, ...]:
    """Return the ratios of each job and target over all models, per metric of a training.

    Empty for a single model. ``ratios`` by the metric's column.
    """
    models: dict[tuple[ComparedJob, str], list[str]] = defaultdict(list)
    for job, model, target in dict.fromkeys(key for metric in METRICS for key in ratios[metric.column]):
        models[job, target].append(model)
    means = {
        metric.column: {
            (job, target): _mean(ratios[metric.column], job, names, target)
            for (job, target), names in models.items()
            if len(names) > 1
        }
        for metric in METRICS
    }
    effects = effects_of(means, METRICS, margin, looked)
    order = sorted(effects, key=lambda key: (key[0], known_first(TARGETS, key[1])))
    return tuple(Overall(job, target, tuple(models[job, target]), effects[job, target]) for job, target in order)


def _mean(ratios: Ratios, job: ComparedJob, models: list[str], target: str) -> pd.DataFrame:
    """Return the mean over the models, per block; blocks that lack a model are left out, so that all weigh the same."""
    of_models = [ratios[job, model, target] for model in models if (job, model, target) in ratios]
    if len(of_models) < len(models):
        return pd.DataFrame(columns=[RATIO, BASE], dtype=float)
    return mean_of(of_models)


def mean_of(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of frames of the same columns per block, of the blocks that all of them have."""
    joined = pd.concat(frames, axis=1, join="inner").dropna()
    return pd.DataFrame({name: joined.loc[:, joined.columns == name].mean(axis=1) for name in frames[0].columns})
