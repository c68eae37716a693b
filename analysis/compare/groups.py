"""Groups: the targets of each job and model, in which circumstances they ran, and whether all did the same work."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from analysis.compare.contrasts import TARGET, Formed, valued
from analysis.compare.images import same_image
from analysis.compare.pairing import (
    BLOCK,
    GROUP,
    ROW,
    SWITCHES,
    baseline,
    by_block,
    grouped,
    job_of,
    plain,
    substitutes_of,
)
from analysis.compare.results import (
    Arm,
    Circumstances,
    ComparedJob,
    Contrast,
    Disturbed,
    Effect,
    Group,
    GroupKey,
    SameWork,
    TargetSummary,
    known_first,
)
from analysis.compare.validity import agreements, all_named, compact, rounding
from analysis.load.computed import AGREEMENTS, Agreement
from analysis.load.metrics import Metric, in_units, metrics_of, with_trait
from analysis.statistics.ratios import NoiseFloor, locate
from suite.registries import WORKLOADS
from suite.targets import BASELINE, TARGETS
from suite.trial_names import arm_name

_BLOCK = ["run_id", "block"]
_SIDES = ["computed", "facts", "generated_weights", "generated_pixels", "path"]


def groups(trials: pd.DataFrame, pairs: pd.DataFrame, metrics: Sequence[Metric]) -> list[Group]:
    """Return the targets of each job and model, in the order of the paper, as yet without what was measured.

    ``trials`` are those of the targets as they are, failed ones too; ``pairs`` are the usable pairs with bare metal.
    """
    targets: dict[GroupKey, list[TargetSummary]] = defaultdict(list)
    units: dict[GroupKey, object] = {}
    with_base = dict(grouped(pairs))
    for key, rows in grouped(trials):
        job, model, target = key
        targets[job, model].append(_summary(target, rows, with_base.get(key, pairs[:0])))
        units[job, model] = rows["unit"].iloc[0]
    names = WORKLOADS.names()
    # Trainings are the question; the probes after them explain.
    order = sorted(targets, key=lambda key: (key[0].traits.probes, key[0], known_first(names, key[1])))
    return [
        Group(
            job=job,
            model=model,
            targets=tuple(sorted(targets[job, model], key=lambda summary: known_first(TARGETS, summary.target))),
            metrics=in_units(metrics_of(metrics, job.scenario, model), units[job, model]),
        )
        for job, model in order
    ]


def measured(
    groups: Iterable[Group],
    formed: Formed,
    ok: pd.DataFrame,
    effects: Mapping[str, Mapping[Arm, Effect]],
    floors: Mapping[tuple[Arm, str], NoiseFloor],
) -> Iterator[Contrast]:
    """Yield every metric of every target over bare metal, also where nothing was measured.

    ``ok`` are the trials that are ok, of targets as they are; ``effects`` are by the metric's column.
    """
    of_target, with_base = dict(grouped(ok)), dict(grouped(formed.pairs))
    for group, summary in ((one, summary) for one in groups for summary in one.targets):
        arm = Arm(*group.key, summary.target)
        trials, pairs = of_target.get(arm[:3], ok[:0]), with_base.get(arm[:3], formed.pairs[:0])
        for metric in group.metrics:
            logs = metric.logs(trials)
            place, effect = locate(by_block(trials, logs)), effects[metric.column].get(arm)
            if place and summary.target == BASELINE and (blocks := int(pairs[metric.column].count())):
                effect = Effect(ratio=1.0, blocks=blocks)
            yield Contrast(
                kind=TARGET.name,
                arm=arm,
                metric=metric,
                **valued(place),
                trials=int(logs.count()),
                failed=summary.failed,
                noise=floors.get((arm._replace(target=BASELINE), metric.name)),
                notes=summary.notes,
                **vars(effect if place and effect else Effect()),
            )


def mean_losses(trials: "pd.Series[Any]") -> dict[str, float]:
    """Return the mean of each loss over the trials that have it."""
    columns: dict[str, list[float]] = defaultdict(list)
    for losses in trials:
        for name, value in losses.items() if isinstance(losses, dict) else ():
            columns[name].append(value)
    return {name: fmean(values) for name, values in columns.items()}


def _summary(target: str, trials: pd.DataFrame, pairs: pd.DataFrame) -> TargetSummary:
    """Return the facts of a target, from all its trials and their pairs with bare metal."""
    ok, named = trials[trials["ok"]], all_named(pairs["named"])
    return TargetSummary(
        target=target,
        ok=len(ok),
        failed=len(trials) - len(ok),
        substitutes=substitutes_of(trials),
        marks=(*filter(None, (*trials["changed"].unique(), *pairs["marks"].unique())), *compact(named)),
        differences=tuple(difference.text for difference in named),
        losses=mean_losses(ok["losses"]),
    )


def circumstances(
    trials: pd.DataFrame, disturbed: Mapping[tuple[str, ...], tuple[Disturbed, ...]], *, decided: bool = False
) -> dict[GroupKey, Circumstances]:
    """Return engine, hosts, what a further block takes, and what disturbed the trials, by job and model.

    ``trials`` are all that count, failed ones too, with ``variant``.
    """
    block_s = _block_seconds(trials)
    groups = {}
    for key, rows in grouped(trials, GROUP):
        own = [*vars(key[0]).values(), key[1]]
        spans = block_s[block_s.index.get_level_values("run_id").isin(rows["run_id"].unique())]
        groups[key] = Circumstances(
            engine=", ".join(sorted(rows["engine"].dropna().astype(str).unique())),
            hosts=tuple(sorted(rows["hostname"].dropna().astype(str).unique())),
            block_s=float(spans.median()) if len(spans) else None,
            decided=decided,
            disturbed={target: kinds for (*group, target), kinds in disturbed.items() if group == own},
        )
    return groups


def _block_seconds(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the seconds of every block, all models and targets of its run together.

    The times from start to start include what happens between the trials; without them, the trials' own count.
    """
    starts = pd.to_datetime(trials["started_at"], utc=True, errors="coerce", format="ISO8601")
    # Trials that take turns are open at once: each has its share of their block.
    of_turns = trials["block_s"] / trials.groupby([*_BLOCK, "model", "design"])["block_s"].transform("count")
    of_trials = trials[["open_s", "elapsed_s"]].sum(axis=1).mask(of_turns.notna(), of_turns)
    table = pd.DataFrame({**{name: trials[name] for name in _BLOCK}, "start": starts, "seconds": of_trials})
    blocks = table.groupby(_BLOCK)
    count = blocks.size()
    between = (blocks["start"].max() - blocks["start"].min()).dt.total_seconds() / (count - 1).where(count > 1)
    both = pd.DataFrame({"between": between * count, "seconds": blocks["seconds"].sum()})
    spans: pd.Series[float] = both.max(axis=1)
    return spans[spans > 0]


def same_work(ok: pd.DataFrame) -> dict[GroupKey, tuple[SameWork, ...]]:
    """Return how each arm agrees with the first bare-metal trial of its blocks in what it computed, by job and model.

    Jobs that share the machine may have fewer threads than on bare metal: a victim is held against its target alone.
    Validity refuses or names the pairs that do not agree; this covers every arm: ablations, second trials, victims.
    ``ok`` are the trials that are ok, with ``variant``.
    """
    first = baseline(ok)
    first = first[first["replica"] == 0].drop_duplicates(BLOCK)
    columns = dict.fromkeys((*ROW, "replica", *SWITCHES, *BLOCK, *_SIDES, "rounds_freely"))
    trials = ok.loc[~ok.index.isin(first.index), list(columns)]
    victims = trials[trials["aggressor"].notna()]
    alone = plain(ok[ok["replica"] == 0]).drop_duplicates([*BLOCK, "target"])
    equal = trials.drop(victims.index).loc[lambda left: with_trait(left, "normalised")]
    pairs = pd.concat(
        [
            equal.merge(first[[*BLOCK, *_SIDES]], on=BLOCK, suffixes=("", "_base")),
            victims.merge(alone[[*BLOCK, "target", *_SIDES]], on=[*BLOCK, "target"], suffixes=("", "_base")),
        ]
    )
    arms: dict[tuple[ComparedJob, str, str], list[tuple[Agreement, str, Mapping[Any, Any]]]] = defaultdict(list)
    for row, agreed in zip(pairs.to_dict("records"), agreements(pairs), strict=True):
        if agreed:
            ablation, aggressor = (row[name] if isinstance(row[name], str) else None for name in SWITCHES)
            arm = arm_name(row["target"], row["replica"], ablation, aggressor)
            why = rounding(row["rounds_freely"], row["facts"].text, row["facts_base"].text)
            arms[job_of(row), row["model"], arm].append((agreed, why, row))
    by_group: dict[GroupKey, tuple[SameWork, ...]] = defaultdict(tuple)
    for (job, model, arm), agreed_trials in arms.items():
        least, why, _ = max(agreed_trials, key=lambda trial: (AGREEMENTS.index(trial[0].kind), trial[0].apart or 0.0))
        different = sum(agreement.kind == "other" for agreement, *_ in agreed_trials)
        image = same_image(row for *_, row in agreed_trials)
        kind, text, apart, seeds_apart, drawn, _ = least
        work = SameWork(arm, kind, len(agreed_trials), different, text, apart, seeds_apart, drawn, why, image)
        by_group[job, model] += (work,)
    return by_group
