"""The comparison of targets: values of each, and their ratio to bare metal with interval and verdict.

The trial is the sample, the block its frame: a ratio is formed inside a block (same run, close in time), on the log
scale, and the ratios of the blocks are averaged there. A value is the geometric mean of the trials, which belongs to
that scale.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from analysis.compare.ablations import ablation_effects
from analysis.compare.circumstances import circumstances
from analysis.compare.costs import ALL_IN, costs, with_costs
from analysis.compare.effects import effects_of, interactions, judged, overall, ratios_of
from analysis.compare.groups import groups
from analysis.compare.interference import interference, isolation
from analysis.compare.noise import differing, noise_floors, replicas
from analysis.compare.pairing import plain, to_baseline, with_variants
from analysis.compare.results import AblationEffect, Circumstances, Comparison, Cost, Group, Overall
from analysis.compare.same_work import same_work
from analysis.compare.standing import with_standing
from analysis.compare.turns import turns_of
from analysis.compare.validity import usable
from analysis.load.metrics import with_trait
from analysis.load.plans import looked_after
from analysis.load.records import Records
from analysis.statistics.ratios import MARGIN
from analysis.warnings.conditions import changed, disturbances, disturbed, with_changes
from analysis.warnings.findings import failures, hosts_differ, missing_trials, mixtures, refusals, unnormalised
from analysis.warnings.training import diverged, learning
from suite.targets import BASELINE


def compare(records: Records, *, margin: float = MARGIN, force: bool = False) -> Comparison:
    """Compare the targets of every group, in the order of the paper. Never raises for what the records hold.

    ``margin``: the share (0.02 is 2 %) by which a ratio may differ from 1 and still be called equivalent. ``force``
    forms the ratios that validity refuses, and marks them.
    """
    trials, metrics = with_costs(with_changes(with_variants(records.trials))), records.metrics
    every_ok = trials[trials["ok"]]
    ok = plain(every_ok)
    formed = usable(to_baseline(ok, [*(metric.column for metric in metrics), ALL_IN]), force=force)
    targets = formed.pairs[formed.pairs["target"] != BASELINE]
    ratios = {metric.column: ratios_of(targets, metric) for metric in metrics}
    looked = looked_after(records.directories)
    effects = {metric.column: judged(ratios[metric.column], metric, margin, looked) for metric in metrics}
    # Opening is left out: one layer comes after the other, and their times add.
    layered = [metric for metric in metrics if metric.name != "opening"]
    layers = effects_of({one.column: interactions(ratios[one.column]) for one in layered}, layered, margin)
    again = replicas(ok, metrics)
    floors, itself = noise_floors(ok, again, metrics), effects_of(again, metrics, margin, looked)
    ablations, refused = ablation_effects(every_ok, metrics, margin, force=force)
    taken = costs(ok, formed.pairs)
    shared = interference(every_ok, margin, force=force)
    around = circumstances(trials, disturbed(ok))
    turns = turns_of(ok, records.evidence)
    work = same_work(every_ok)
    found = [
        replace(
            group,
            noise_floors=floors.get((group.job, group.model), {}),
            interactions=layers.get((group.job, group.model, ""), {}),
            aa=itself.get((group.job, group.model, BASELINE), {}),
            ablations=_of(group, ablations),
            costs=_of(group, taken),
            circumstances=around.get((group.job, group.model), Circumstances()),
            turns=turns.get((group.job, group.model), ()),
            same_work=work.get((group.job, group.model), ()),
        )
        for group in groups(plain(trials), formed.pairs, metrics, effects)
    ]
    of_runs = (*records.warnings, *missing_trials(records, trials), *hosts_differ(trials))
    of_records = (*of_runs, *failures(trials), *diverged(trials), *mixtures(plain(trials)), *changed(every_ok))
    # Jobs that share the machine are compared with themselves alone, and on bare metal they may have all CPUs.
    apart = formed.refused[with_trait(formed.refused, "normalised")]
    of_ratios = (*refusals(apart), *refused, *shared.warnings)
    normalised = [one for one in found if one.job.traits.normalised]
    of_trust = (
        *unnormalised(normalised),
        *differing(again, [metric for metric in metrics if not metric.supporting]),
        *disturbances(every_ok),
        *learning(every_ok),
    )
    return with_standing(
        Comparison(
            runs=tuple(sorted(trials["run_id"].unique())),
            groups=tuple(found),
            warnings=(*of_records, *of_ratios, *of_trust),
            overall=tuple(replace(one, notes=_notes(one, found)) for one in overall(ratios, margin, looked)),
            interference=shared.found,
            isolation=isolation(shared, margin),
            margin=margin,
            warmup_trials=records.warmup_trials,
            trials=ok,
        )
    )


_Found = TypeVar("_Found", AblationEffect, Cost)


def _of(group: Group, found: Sequence[_Found]) -> tuple[_Found, ...]:
    return tuple(one for one in found if (one.job, one.model) == (group.job, group.model))


def _notes(one: Overall, groups: Iterable[Group]) -> tuple[str, ...]:
    summaries = [summary for group in groups if group.job == one.job for summary in group.targets]
    return tuple(dict.fromkeys(note for found in summaries if found.target == one.target for note in found.notes))
