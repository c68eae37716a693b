"""Effects, made of log ratios by block: of targets, of layers on each other, and over all models."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from analysis.compare.pairing import ROW
from analysis.compare.results import ComparedJob, Effect, Expected, Overall, known_first
from analysis.compare.validity import marks_of
from analysis.load.metrics import METRICS, Metric
from analysis.statistics.ratios import SIGNIFICANCE, Location, Verdict, judge, locate
from analysis.statistics.sequential import level_of
from analysis.statistics.tails import Tail, qualified, tail_of
from suite.targets import TARGETS

_Key = TypeVar("_Key", bound=tuple[Any, ...])
Key = tuple[ComparedJob, str, str]
"""A job, a model (or nothing), and a target (or nothing)."""
RATIO, BASE = "ratio", "base"
Ratios = Mapping[Key, pd.DataFrame]
"""Log ratios, each with the run and the block as its index, in a column ``RATIO``; the logarithm of what they are
relative to is in ``BASE``, which a ratio of ratios does not have."""


def ratios_of(pairs: pd.DataFrame, metric: Metric) -> dict[Key, pd.DataFrame]:
    """Return the log ratios of every target of the pairs, in the blocks in which the metric was measured."""
    columns = {metric.column: RATIO, f"{metric.column}_base": BASE}
    measured = pairs.loc[metric.rows(pairs) & pairs[metric.column].notna(), [*ROW, "run_id", "block", *columns]]
    found = {}
    for key, rows in measured.rename(columns=columns).set_index(["run_id", "block"]).groupby(ROW):
        *job, model, target = (str(part) for part in key)
        found[ComparedJob(*job), model, target] = rows[[RATIO, BASE]]
    return found


def judged(
    ratios: Mapping[_Key, pd.DataFrame], metric: Metric, margin: float, looked: int | None = None
) -> dict[_Key, Effect]:
    """Return the effect of each. Verdicts are corrected for all ratios given of the same job, which are one family.

    ``looked``: the blocks after which the run began to look whether they decide; None if it did not.
    """
    families: dict[ComparedJob, list[_Key]] = defaultdict(list)
    for key in ratios:
        families[key[0]].append(key)
    found: dict[_Key, Effect] = {}
    for keys in families.values():
        places = [locate(ratios[key][RATIO].to_numpy()) for key in keys]
        tails = [_tail(ratios[key], metric) for key in keys]
        level = level_of(places, looked) if looked else SIGNIFICANCE
        verdicts = judge(places, margin, more_is_faster=metric.more_is_faster, level=level)
        verdicts = qualified(verdicts, places, tails, margin)
        for key, place, verdict, tail in zip(keys, places, verdicts, tails, strict=True):
            if place is not None:
                found[key] = effect(place, verdict, tail)
    return found


def _tail(ratios: pd.DataFrame, metric: Metric) -> Tail | None:
    if BASE not in ratios:
        return None
    return tail_of(ratios[RATIO].to_numpy(), ratios[BASE].to_numpy(), more_is_faster=metric.more_is_faster)


def effects_of(
    ratios: Mapping[str, Mapping[_Key, pd.DataFrame]],
    metrics: Iterable[Metric],
    margin: float,
    looked: int | None = None,
) -> dict[_Key, dict[str, Effect]]:
    """Return the effects of each key by the metric's name. ``ratios`` by the metric's column."""
    effects: dict[_Key, dict[str, Effect]] = defaultdict(dict)
    for metric in metrics:
        for key, found in judged(ratios[metric.column], metric, margin, looked).items():
            effects[key][metric.name] = found
    return effects


def effect(place: Location, verdict: Verdict | None = None, tail: Tail | None = None) -> Effect:
    """Return the effect that a mean of log ratios stands for."""
    ends = place.interval
    interval = None if ends is None else (math.exp(ends[0]), math.exp(ends[1]))
    found = Effect(math.exp(place.centre), place.n, interval, verdict)
    if tail is None:
        return found
    low, high = tail.expected.interval
    expected = Expected(math.exp(tail.expected.centre), (math.exp(low), math.exp(high)))
    return replace(found, expected=expected, slow=tail.slow)


def notes_of(own: pd.DataFrame, pairs: pd.DataFrame) -> dict[Key, tuple[str, ...]]:
    """Return the substitutes of the trials, what changed between them, and the marks of their pairs."""
    texts: dict[Key, dict[str, None]] = defaultdict(dict)
    for table in (own, pairs):
        for key, rows in table.groupby(ROW):
            *job, model, target = (str(part) for part in key)
            found = marks_of(rows) if table is pairs else _own_notes(rows)
            texts[ComparedJob(*job), model, target] |= dict.fromkeys(filter(None, found))
    return {key: tuple(found) for key, found in texts.items()}


def _own_notes(trials: pd.DataFrame) -> tuple[str, ...]:
    return (*"\n".join(trials["substitutes"].unique()).splitlines(), *trials["changed"].unique())


def interactions(ratios: Ratios) -> dict[Key, pd.DataFrame]:
    """Return log(container-vm / (container x vm)) of each job and model, in the blocks that hold all four targets."""
    found = {}
    for job, model, target in ratios:
        parts = [ratios.get((job, model, part)) for part in ("container-vm", "container", "vm")]
        if target != "container-vm" or any(part is None for part in parts):
            continue
        both, container, vm = parts
        if both is not None and container is not None and vm is not None:
            found[job, model, ""] = (both[[RATIO]] - container[[RATIO]] - vm[[RATIO]]).dropna()
    return {key: values for key, values in found.items() if len(values)}


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
    found = [ratios[job, model, target] for model in models if (job, model, target) in ratios]
    if len(found) < len(models):
        return pd.DataFrame(columns=[RATIO, BASE], dtype=float)
    return mean_of(found)


def mean_of(found: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of frames of the same columns per block, of the blocks that all of them have."""
    joined = pd.concat(found, axis=1, join="inner").dropna()
    return pd.DataFrame({name: joined.loc[:, joined.columns == name].mean(axis=1) for name in found[0].columns})
