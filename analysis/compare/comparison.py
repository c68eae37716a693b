"""The comparison of targets: values of each, and their ratio to bare metal with interval and verdict.

The trial is the sample, the block its frame: a ratio is formed inside a block (same run, close in time), on the log
scale, and the ratios of the blocks are averaged there. A value is the trimmed geometric mean over the blocks, as it is
in the gate and in a history.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from analysis.compare.contrasts import (
    AGAIN,
    AGGRESSOR,
    ISOLATION,
    LAYERS,
    MODELS,
    TARGET,
    beside,
    combined,
    contrasts,
    form,
    judged,
    layers,
    sweeps_of,
    tabled,
)
from analysis.compare.costs import ALL_IN, costs, with_costs
from analysis.compare.groups import circumstances, groups, measured, same_work
from analysis.compare.noise import burst_variation, differing, noise_floors
from analysis.compare.pairing import plain, with_variants
from analysis.compare.quality import quality
from analysis.compare.results import Comparison, Contrast, GroupKey
from analysis.compare.scaling import scaling, trials_with_workers
from analysis.compare.standing import with_standing
from analysis.load.plans import looked_after
from analysis.load.records import Records
from analysis.warnings.conditions import changed, disturbances, disturbed, with_changes
from analysis.warnings.findings import (
    failures,
    hosts_differ,
    missing_trials,
    mixtures,
    orders,
    unnormalised,
)
from analysis.warnings.training import diverged, learning
from suite.request.repetitions import MARGIN
from suite.targets import BASELINE


def compare(records: Records, *, margin: float = MARGIN, force: bool = False) -> Comparison:
    """Compare the targets of every group, in the order of the paper. Never raises for what the records hold.

    ``margin``: the share (0.02 is 2 %) by which a ratio may differ from 1 and still be called equivalent. ``force``
    forms the ratios that validity refuses, and marks them.
    """
    trials, metrics = with_costs(with_changes(with_variants(records.trials))), records.metrics
    finished = trials[trials["ok"]]
    ok, looked = plain(finished), looked_after(records.directories)
    targets = form(TARGET, ok, metrics, force=force, also=[ALL_IN])
    again = form(AGAIN, ok, metrics).ratios
    disturbed_by = form(AGGRESSOR, finished, metrics, force=force)
    others, refused = tabled(finished, metrics, margin, force=force)
    # Opening is left out: one layer comes after the other, and their times add.
    layered = [metric for metric in metrics if metric.name != "opening"]
    sweeps = sweeps_of(trials)
    of_models, models = combined(MODELS, targets.ratios, sweeps)
    of_pairs, pairs = combined(ISOLATION, disturbed_by.ratios, sweeps)
    floors = dict(noise_floors(finished, again, metrics))
    around = circumstances(trials, disturbed(ok), decided=looked is not None)
    summaries = groups(plain(trials), targets.pairs, metrics)
    over_base = [*measured(summaries, targets, ok, judged(targets.ratios, metrics, margin, looked), floors)]
    isolation = contrasts(ISOLATION, of_pairs, metrics, margin, members=pairs, notes=disturbed_by.notes)
    several = trials_with_workers(ok, records.evidence)
    every = (
        *over_base,
        *contrasts(AGAIN, again, metrics, margin, looked=looked),
        *contrasts(LAYERS, layers(targets.ratios), layered, margin),
        *others,
        *contrasts(AGGRESSOR, disturbed_by.ratios, metrics, margin, notes=disturbed_by.notes, floors=floors),
        *beside(finished),
        *sorted(isolation, key=lambda contrast: (contrast.job, -(contrast.ratio or 0.0))),
        *contrasts(
            MODELS,
            of_models,
            metrics,
            margin,
            looked=looked,
            members=models,
            notes=dict(map(attrgetter("arm", "notes"), over_base)),
        ),
        *scaling(several),
        *quality(several, metrics, margin),
    )
    contrasted = with_standing(every, around)
    parts: dict[str, Mapping[GroupKey, Any]] = {
        "contrasts": _by_group(contrasted),
        "costs": costs(ok, targets.pairs),
        "circumstances": around,
        "turns": burst_variation(ok, records.evidence),
        "same_work": same_work(finished),
    }
    complete = tuple(
        replace(group, **{name: part[group.key] for name, part in parts.items() if group.key in part})
        for group in summaries
    )
    of_records = (*records.warnings, *missing_trials(records, trials), *hosts_differ(trials), *failures(trials))
    of_states = (*diverged(trials), *mixtures(plain(trials)), *changed(finished))
    of_trust = (
        *orders(complete, targets.pairs[targets.pairs["target"] != BASELINE]),
        *unnormalised([group for group in complete if group.job.traits.normalised]),
        *differing(again, [metric for metric in metrics if not metric.supporting]),
        *disturbances(finished),
        *learning(finished),
    )
    return Comparison(
        runs=tuple(sorted(trials["run_id"].unique())),
        groups=complete,
        contrasts=contrasted,
        warnings=(*of_records, *of_states, *targets.refused, *refused, *disturbed_by.refused, *of_trust),
        margin=margin,
        ratios={TARGET.name: targets.ratios, AGGRESSOR.name: disturbed_by.ratios},
        warmup_trials=records.warmup_trials,
        trials=ok,
    )


def _by_group(contrasts: Iterable[Contrast]) -> dict[GroupKey, tuple[Contrast, ...]]:
    by_group: dict[GroupKey, list[Contrast]] = defaultdict(list)
    for contrast in contrasts:
        by_group[contrast.job, contrast.model].append(contrast)
    return {key: tuple(of_group) for key, of_group in by_group.items()}
