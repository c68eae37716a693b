"""The comparison of targets: values of each, and their ratio to bare metal with interval and verdict.

The trial is the sample, the block its frame: a ratio is formed inside a block (same run, close in time), on the log
scale, and the ratios of the blocks are averaged there. A value is the trimmed geometric mean over the blocks, as it is
in the gate and in a history.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from analysis.compare import contrasts as kinds
from analysis.compare.groups import ALL_IN, circumstances, costs, groups, measured, with_costs
from analysis.compare.noise import burst_variation, differing, noise_floors
from analysis.compare.pairing import plain, with_variants
from analysis.compare.results import Comparison, Contrast, GroupKey
from analysis.compare.same_work import same_work
from analysis.compare.scaling import growth, quality, scaling, trials_with_workers
from analysis.compare.standing import with_standing
from analysis.load.plans import looked_after
from analysis.load.records import Records
from analysis.warnings.conditions import changed, disturbances, disturbed, with_changes
from analysis.warnings.findings import failures, hosts_differ, missing_trials, mixtures, orders, unnormalised
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
    targets = kinds.form(kinds.TARGET, ok, metrics, force=force, also=[ALL_IN])
    again = kinds.form(kinds.AGAIN, ok, metrics).ratios
    victims = kinds.form(kinds.AGGRESSOR, finished, metrics, force=force)
    tabled = {kind: kinds.form(kind, finished, metrics, force=force) for kind in kinds.tabled_kinds()}
    # Opening is left out: one layer comes after the other, and their times add.
    layered = [metric for metric in metrics if metric.name != "opening"]
    sweeps = kinds.sweeps_of(trials)
    of_models, models = kinds.combined(kinds.MODELS, targets.ratios, sweeps)
    of_pairs, pairs = kinds.combined(kinds.ISOLATION, victims.ratios, sweeps)
    floors = dict(noise_floors(finished, again, metrics))
    around = circumstances(trials, disturbed(ok), decided=looked is not None)
    summaries = groups(plain(trials), targets.pairs, metrics)
    ratios = kinds.contrasts(kinds.TARGET, targets.ratios, metrics, margin, looked=looked)
    over_base = [*measured(summaries, targets.pairs, ok, ratios, floors)]
    notes = dict(map(attrgetter("arm", "notes"), over_base))
    isolation = kinds.contrasts(kinds.ISOLATION, of_pairs, metrics, margin, members=pairs, notes=victims.notes)
    several = trials_with_workers(ok, records.evidence)
    every = (
        *over_base,
        *kinds.contrasts(kinds.AGAIN, again, metrics, margin, looked=looked),
        *kinds.contrasts(kinds.LAYERS, kinds.layers(targets.ratios), layered, margin),
        *chain(*(kinds.contrasts(kind, own.ratios, metrics, margin, notes=own.notes) for kind, own in tabled.items())),
        *kinds.contrasts(kinds.AGGRESSOR, victims.ratios, metrics, margin, notes=victims.notes, floors=floors),
        *kinds.beside(finished),
        *sorted(isolation, key=lambda contrast: (contrast.job, -(contrast.ratio or 0.0))),
        *kinds.contrasts(kinds.MODELS, of_models, metrics, margin, looked=looked, members=models, notes=notes),
        *scaling(several),
        *quality(several, metrics, margin),
        *growth(finished),
    )
    contrasted = with_standing(every, around)
    by_group: dict[GroupKey, tuple[Contrast, ...]] = defaultdict(tuple)
    for contrast in contrasted:
        by_group[contrast.arm[:2]] += (contrast,)
    by_cost, by_turns, by_work = costs(ok, targets.pairs), burst_variation(ok, records.evidence), same_work(finished)
    complete = tuple(
        replace(
            group,
            contrasts=by_group[group.key],
            circumstances=around[group.key],
            costs=by_cost.get(group.key, ()),
            turns=by_turns.get(group.key, ()),
            same_work=by_work.get(group.key, ()),
        )
        for group in summaries
    )
    of_records = (*records.warnings, *missing_trials(records, trials), *hosts_differ(trials), *failures(trials))
    refused = chain(*(formed.refused for formed in (targets, *tabled.values(), victims)))
    of_states = (*diverged(trials), *mixtures(plain(trials)), *changed(finished))
    of_trust = (
        *orders(complete, targets.pairs[targets.pairs["target"] != BASELINE]),
        *unnormalised(complete),
        *differing(again, [metric for metric in metrics if not metric.supporting]),
        *disturbances(finished),
        *learning(finished),
    )
    return Comparison(
        runs=tuple(sorted(trials["run_id"].unique())),
        groups=complete,
        contrasts=contrasted,
        warnings=(*of_records, *of_states, *refused, *of_trust),
        margin=margin,
        ratios={kinds.TARGET.name: targets.ratios, kinds.AGGRESSOR.name: victims.ratios},
        warmup_trials=records.warmup_trials,
        trials=ok,
    )
