"""The comparison of targets: values of each, and their ratio to bare metal with interval and verdict.

The trial is the sample, the block its frame: a ratio is formed inside a block (same run, close in time), on the log
scale, and the ratios of the blocks are averaged there. A value is the trimmed geometric mean over the blocks, as it is
in the gate and in a history.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from analysis.compare.costs import ALL_IN, costs, with_costs
from analysis.compare.effects import (
    GroupKey,
    ablation_effects,
    all_ratios,
    effects_of,
    interactions,
    judged,
    overall,
)
from analysis.compare.groups import circumstances, groups, same_work
from analysis.compare.interference import interference, isolation
from analysis.compare.noise import burst_variation, differing, noise_floors, replicas
from analysis.compare.pairing import plain, to_baseline, with_variants
from analysis.compare.quality import quality
from analysis.compare.results import AblationEffect, Comparison, Cost, Group, Overall
from analysis.compare.scaling import scaling, trials_with_workers
from analysis.compare.standing import with_standing
from analysis.compare.validity import usable
from analysis.load.metrics import with_trait
from analysis.load.plans import looked_after
from analysis.load.records import Records
from analysis.statistics.ratios import MARGIN
from analysis.warnings.conditions import changed, disturbances, disturbed, with_changes
from analysis.warnings.findings import (
    failures,
    hosts_differ,
    missing_trials,
    mixtures,
    orders,
    refusals,
    unnormalised,
)
from analysis.warnings.training import diverged, learning
from suite.targets import BASELINE


def compare(records: Records, *, margin: float = MARGIN, force: bool = False) -> Comparison:
    """Compare the targets of every group, in the order of the paper. Never raises for what the records hold.

    ``margin``: the share (0.02 is 2 %) by which a ratio may differ from 1 and still be called equivalent. ``force``
    forms the ratios that validity refuses, and marks them.
    """
    trials, metrics = with_costs(with_changes(with_variants(records.trials))), records.metrics
    finished = trials[trials["ok"]]
    ok = plain(finished)
    formed = usable(to_baseline(ok, [*(metric.column for metric in metrics), ALL_IN]), force=force)
    targets = formed.pairs[formed.pairs["target"] != BASELINE]
    ratios = all_ratios(targets, metrics)
    looked = looked_after(records.directories)
    effects = judged(ratios, metrics, margin, looked)
    # Opening is left out: one layer comes after the other, and their times add.
    layered = [metric for metric in metrics if metric.name != "opening"]
    layers = {metric.column: interactions(ratios[metric.column]) for metric in layered}
    second = replicas(ok, metrics)
    ablations, ablations_refused = ablation_effects(finished, metrics, margin, force=force)
    shared = interference(finished, margin, force=force)
    parts: dict[str, dict[GroupKey, Any]] = {
        "noise_floors": noise_floors(ok, second, metrics),
        "interactions": effects_of(layers, layered, margin),
        "aa": effects_of(second, metrics, margin, looked),
        "ablations": _by_group(ablations),
        "costs": _by_group(costs(ok, formed.pairs)),
        "circumstances": circumstances(trials, disturbed(ok), decided=looked is not None),
        "turns": burst_variation(ok, records.evidence),
        "same_work": same_work(finished),
    }
    complete = tuple(
        replace(group, **{name: part[group.key] for name, part in parts.items() if group.key in part})
        for group in groups(plain(trials), formed.pairs, metrics, effects)
    )
    # Jobs that share the machine are compared with themselves alone, and on bare metal they may have all CPUs.
    of_ratios = (*refusals(formed.refused[with_trait(formed.refused, "normalised")]), *ablations_refused)
    of_records = (*records.warnings, *missing_trials(records, trials), *hosts_differ(trials), *failures(trials))
    of_states = (*diverged(trials), *mixtures(plain(trials)), *changed(finished))
    of_trust = (
        *orders(complete, targets),
        *unnormalised([group for group in complete if group.job.traits.normalised]),
        *differing(second, [metric for metric in metrics if not metric.supporting]),
        *disturbances(finished),
        *learning(finished),
    )
    several = trials_with_workers(ok, records.evidence)
    return with_standing(
        Comparison(
            runs=tuple(sorted(trials["run_id"].unique())),
            groups=complete,
            warnings=(*of_records, *of_states, *of_ratios, *shared.warnings, *of_trust),
            overall=tuple(replace(one, notes=_notes(one, complete)) for one in overall(ratios, margin, looked)),
            interference=shared.found,
            isolation=isolation(shared, margin),
            scaling=scaling(several),
            quality=quality(several, metrics, margin),
            margin=margin,
            warmup_trials=records.warmup_trials,
            trials=ok,
        )
    )


_Part = TypeVar("_Part", AblationEffect, Cost)


def _by_group(results: Iterable[_Part]) -> dict[GroupKey, tuple[_Part, ...]]:
    by_group: dict[GroupKey, tuple[_Part, ...]] = defaultdict(tuple)
    for result in results:
        by_group[result.job, result.model] += (result,)
    return by_group


def _notes(over_models: Overall, groups: Iterable[Group]) -> tuple[str, ...]:
    """Return the notes of the target in all groups of the job."""
    summaries = [summary for group in groups if group.job == over_models.job for summary in group.targets]
    of_target = (summary for summary in summaries if summary.target == over_models.target)
    return tuple(dict.fromkeys(note for summary in of_target for note in summary.notes))
