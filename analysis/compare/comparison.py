"""The comparison of targets: values of each, and their ratio to bare metal with interval and verdict.

The trial is the sample, the block its frame: a ratio is formed inside a block (same run, close in time), on the log
scale, and the ratios of the blocks are averaged there. A value is the trimmed geometric mean over the blocks, as it is
in the gate and in a history. Its noise is what bare metal shows against itself, and how bursts of turns vary.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.compare import combined, contrasts, verdicts
from analysis.compare import contrast_kinds as kinds
from analysis.compare.agreement import same_work, with_agreement
from analysis.compare.groups import ALL_IN, circumstances, costs, measured, with_costs
from analysis.compare.groups import groups as groups_of_targets
from analysis.compare.pairing import (
    GROUP,
    JOB,
    ROW,
    baseline,
    grouped,
    means_of_blocks,
    plain,
    with_variants,
)
from analysis.compare.results import (
    Arm,
    BurstVariation,
    ComparedJob,
    Comparison,
    Contrast,
    Group,
    GroupKey,
)
from analysis.compare.scaling import growth, quality, scaling, trials_with_workers
from analysis.compare.verdicts import with_standing
from analysis.load.bursts import step_variance, switching
from analysis.load.metrics import Metric, by_ratio, metrics_of
from analysis.load.plans import Terms, terms_of
from analysis.load.records import Records
from analysis.statistics.alternating import (
    Components,
    Costs,
    Design,
    SwitchingCost,
    choose,
    components,
)
from analysis.statistics.ratios import NoiseFloor, locate, noise_floor
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
from analysis.warnings.types import AnalysisWarning, Touched
from suite.records.record import Alternation
from suite.targets import BASELINE, BASES

Turns = tuple[Alternation, Alternation]
"""The turns of a target and of bare metal in one block."""


def compare(records: Records, *, margin: float | None = None, force: bool = False) -> Comparison:
    """Compare the targets of every group, in the order of the paper. Never raises for what the records hold alone.

    ``margin`` replaces that of each job's plans, which must agree (RequestError). ``force`` only marks refused ratios.
    """
    return with_agreement(_pooled(records, margin=margin, force=force), records)


class _FormedKinds(NamedTuple):
    """The ratios of each kind that is formed of pairs of trials."""

    targets: contrasts.Formed
    second_trials: contrasts.Formed
    victims: contrasts.Formed
    tabled: Mapping[kinds.ContrastKind, contrasts.Formed]


def _pooled(records: Records, *, margin: float | None, force: bool) -> Comparison:
    trials = with_costs(with_changes(with_variants(records.trials)))
    finished = trials[trials["ok"]]
    ok = plain(finished)
    terms = terms_by_job(trials, margin)
    formed = _form_kinds(trials, records.metrics, force=force)
    pairs = formed.targets.pairs
    by_circumstances = circumstances(trials, disturbed(ok), terms)
    groups = groups_of_targets(plain(trials), pairs, records.metrics)
    unjudged = _contrasts(records, trials, formed, groups, terms)
    with_reasons = with_standing(unjudged, by_circumstances)
    by_group = _by_group(with_reasons)
    by_cost = costs(ok, pairs)
    by_turns = burst_variation(ok, records.evidence)
    by_work = same_work(finished)
    complete = []
    for group in groups:
        whole = replace(
            group,
            contrasts=by_group[group.key],
            circumstances=by_circumstances[group.key],
            costs=by_cost.get(group.key, ()),
            turns=by_turns.get(group.key, ()),
            same_work=by_work.get(group.key, ()),
        )
        complete.append(whole)
    warnings = (*_warnings(records, trials, formed, complete), *combined.unknown_spread(with_reasons))
    return Comparison(
        runs=tuple(trials["run_id"].unique()),
        groups=tuple(complete),
        contrasts=with_reasons,
        warnings=warnings,
        terms=terms,
        ratios={
            kinds.TARGET.name: formed.targets.ratios,
            kinds.AGGRESSOR.name: formed.victims.ratios,
        },
        warmup_trials=records.warmup_trials,
        trials=ok,
        places=records.places,
    )


def _form_kinds(trials: pd.DataFrame, metrics: Sequence[Metric], *, force: bool) -> _FormedKinds:
    return _FormedKinds(
        targets=contrasts.form(
            kinds.TARGET,
            plain(trials),
            metrics,
            force=force,
            also=[ALL_IN],
        ),
        second_trials=contrasts.form(kinds.AGAIN, plain(trials), metrics),
        victims=contrasts.form(kinds.AGGRESSOR, trials, metrics, force=force),
        tabled={kind: contrasts.form(kind, trials, metrics, force=force) for kind in kinds.tabled_kinds()},
    )


def _contrasts(
    records: Records,
    trials: pd.DataFrame,
    formed: _FormedKinds,
    groups: Sequence[Group],
    terms: verdicts.TermsByJob,
) -> Iterator[Contrast]:
    """Yield the contrasts of all kinds, before their trials have withheld any verdict."""
    metrics = records.metrics
    targets = formed.targets
    finished = trials[trials["ok"]]
    ok = plain(finished)
    sweeps = combined.sweeps_of(trials)
    second_trials = formed.second_trials
    floors = dict(noise_floors(finished, second_trials.ratios, metrics))
    ratios = contrasts.contrasts(
        kinds.TARGET,
        targets.ratios,
        metrics,
        terms,
        failed=targets.failed,
        machines=contrasts.machines_of(trials),
    )
    over_base = [*measured(groups, targets.pairs, ok, ratios, floors, targets.failed)]
    yield from over_base
    yield from contrasts.contrasts(
        kinds.AGAIN,
        second_trials.ratios,
        metrics,
        terms,
        failed=second_trials.failed,
    )
    yield from _interactions(targets, sweeps, metrics, terms)
    yield from _switched(
        {**formed.tabled, kinds.AGGRESSOR: formed.victims},
        metrics,
        terms,
        floors,
    )
    yield from contrasts.beside(finished)
    yield from _isolation(formed.victims, sweeps, metrics, terms)
    notes = dict(map(attrgetter("arm", "notes"), over_base))
    yield from _over_models(targets, sweeps, metrics, terms, notes)
    distributed = trials_with_workers(ok, records.evidence)
    yield from scaling(distributed)
    yield from quality(distributed, metrics, terms)
    yield from growth(finished)


def _warnings(
    records: Records,
    trials: pd.DataFrame,
    formed: _FormedKinds,
    groups: Sequence[Group],
) -> Iterator[AnalysisWarning]:
    """Yield what to know before the numbers are read: of the records, of states, of refused pairs, and of trust."""
    finished = trials[trials["ok"]]
    yield from records.warnings
    yield from missing_trials(records, trials)
    yield from hosts_differ(trials)
    yield from failures(trials)
    yield from diverged(trials)
    yield from mixtures(plain(trials))
    yield from changed(finished)
    for of_kind in (formed.targets, *formed.tabled.values(), formed.victims):
        yield from of_kind.refused
    pairs = formed.targets.pairs
    yield from orders(groups, pairs[~pairs["target"].isin(BASES)])
    yield from unnormalised(groups)
    telling = [metric for metric in by_ratio(records.metrics) if not metric.supporting]
    yield from differing(formed.second_trials.ratios, telling)
    yield from disturbances(finished)
    yield from learning(finished)


def _by_group(with_reasons: Iterable[Contrast]) -> dict[GroupKey, tuple[Contrast, ...]]:
    groups: dict[GroupKey, tuple[Contrast, ...]] = defaultdict(tuple)
    for contrast in with_reasons:
        groups[contrast.arm[:2]] += (contrast,)
    return groups


def _switched(
    formed: Mapping[kinds.ContrastKind, contrasts.Formed],
    metrics: Sequence[Metric],
    terms: verdicts.TermsByJob,
    floors: contrasts.Floors,
) -> Iterator[Contrast]:
    """Yield the contrasts of a target with itself: those of ablations, and of victims beside aggressors."""
    for kind, sides in formed.items():
        of_base = floors if kind is kinds.AGGRESSOR else {}
        yield from contrasts.contrasts(
            kind,
            sides.ratios,
            metrics,
            terms,
            notes=sides.notes,
            floors=of_base,
            failed=sides.failed,
        )


def _interactions(
    targets: contrasts.Formed,
    sweeps: kinds.Sweeps,
    metrics: Sequence[Metric],
    terms: verdicts.TermsByJob,
) -> list[Contrast]:
    """Return container-vm against container times vm."""
    layered = [metric for metric in by_ratio(metrics) if not metric.of_target]
    layers = combined.layers(targets.ratios)
    members = combined.layer_members(layers)
    failed = combined.failed_together(members, targets.failed, sweeps)
    return contrasts.contrasts(kinds.LAYERS, layers, layered, terms, failed=failed)


def _isolation(
    victims: contrasts.Formed,
    sweeps: kinds.Sweeps,
    metrics: Sequence[Metric],
    terms: verdicts.TermsByJob,
) -> list[Contrast]:
    """Return the mean over all victims beside aggressors of each target, the best first."""
    ratios, members = combined.combined(kinds.ISOLATION, victims.ratios, sweeps)
    failed = combined.failed_together(members, victims.failed, sweeps)
    ranked = contrasts.contrasts(
        kinds.ISOLATION,
        ratios,
        metrics,
        terms,
        members=members,
        notes=victims.notes,
        failed=failed,
    )
    return sorted(ranked, key=lambda contrast: (contrast.job, -(contrast.ratio or 0.0)))


def _over_models(
    targets: contrasts.Formed,
    sweeps: kinds.Sweeps,
    metrics: Sequence[Metric],
    terms: verdicts.TermsByJob,
    notes: Mapping[Arm, tuple[str, ...]],
) -> list[Contrast]:
    """Return the mean over all models of each target."""
    ratios, members = combined.combined(kinds.MODELS, targets.ratios, sweeps)
    failed = combined.failed_together(members, targets.failed, sweeps)
    return contrasts.contrasts(
        kinds.MODELS,
        ratios,
        metrics,
        terms,
        members=members,
        notes=notes,
        failed=failed,
    )


def terms_by_job(trials: pd.DataFrame, margin: float | None = None) -> dict[ComparedJob, Terms]:
    """Return how each job is judged, by the plans of its runs unless a margin is given."""
    terms: dict[ComparedJob, Terms] = {}
    paths = trials[[*JOB, "path"]]
    for (job, *_), rows in grouped(paths, JOB):
        # Of 100,000 records each has a path, and few have a run of their own.
        directories = dict.fromkeys(path.rpartition("/")[0] for path in rows["path"])
        runs = [Path(trials_of_run).parent for trials_of_run in directories]
        terms[job] = terms_of(runs, margin)
    return terms


def noise_floors(
    ok: pd.DataFrame,
    second_trials: kinds.ByColumn,
    metrics: Sequence[Metric],
) -> Iterator[tuple[tuple[Arm, str], NoiseFloor]]:
    """Yield the noise floor of bare metal by each metric's name, then those of victims alone.

    ``ok`` are the trials that are ok, ``second_trials`` the ratios of the second bare-metal trials of their blocks.
    """
    for (job, model), rows in grouped(baseline(ok), GROUP):
        arm = Arm(job, model, str(rows["target"].iloc[0]))
        replicas = _replicas(rows)
        for metric in metrics_of(by_ratio(metrics), job.scenario, model):
            ratios = second_trials[metric.column].get(arm)
            twice = [] if ratios is None else list(ratios[kinds.RATIO])
            floor = _floor(replicas, metric, twice)
            if floor:
                yield (arm, metric.name), floor
    alone = kinds.victims(ok)
    for key, rows in grouped(alone[alone["aggressor"] == ""], [*ROW, "ablation"]):
        replicas = _replicas(rows)
        for metric in kinds.SHARED_METRICS:
            floor = _floor(replicas, metric)
            if floor:
                yield (Arm(*key), metric.name), floor


def _replicas(rows: pd.DataFrame) -> list[pd.DataFrame]:
    return [rows[rows["replica"] == replica] for replica in range(2)]


def _floor(replicas: Sequence[pd.DataFrame], metric: Metric, twice: Sequence[float] | None = None) -> NoiseFloor | None:
    """Return the noise floor of one arm; ``twice``: the ratios of its second trials, if others may form them."""
    first, second = (means_of_blocks(trials, metric.logs(trials)) for trials in replicas)
    if twice is None:
        in_both = [block for block in first if block in second]
        twice = [second[block] - first[block] for block in in_both]
    runs: dict[str, list[float]] = defaultdict(list)
    for run, block in sorted(first):
        runs[run].append(first[run, block])
    return noise_floor(twice, list(runs.values()))


def differing(ratios: kinds.ByColumn, metrics: Sequence[Metric]) -> Iterator[AnalysisWarning]:
    """Yield the groups whose two bare-metal trials differ: their interval excludes 1, whatever the margin."""
    for metric in metrics:
        for (job, model, base, *_), values in ratios[metric.column].items():
            ratio = locate(values[kinds.RATIO].to_numpy())
            if ratio and ratio.interval and not ratio.interval[0] <= 0 <= ratio.interval[1]:
                low, high = np.exp(ratio.interval)
                yield AnalysisWarning(
                    "a-a-differs",
                    f"{job}, {model}: the second {base} trial of a block has {np.exp(ratio.centre):.3f} times the "
                    f"{metric.name} of the first (95 % interval {low:.3f} to {high:.3f}); no smaller difference "
                    "between targets means anything",
                    "look for what changes inside a block: other load, temperature, a cache that the first trial fills",
                    touches=(Touched(job, base, model),),
                )


def burst_variation(ok: pd.DataFrame, evidence: pd.DataFrame) -> dict[GroupKey, tuple[BurstVariation, ...]]:
    """Return, by job and model, how the bursts of each target vary; ``evidence`` holds their bursts.

    ``ok`` are trials as they are, with ``variant``. Targets are compared with the first bare metal of a block; the
    second one, if there is one, counts as a target.
    """
    if ok["burst_s"].isna().all():
        return {}
    columns = ["path", "alternation", "turn_steps"]
    in_turns = evidence.loc[evidence["turn_steps"].notna(), columns]
    trials = ok.merge(in_turns.drop_duplicates("path"), on="path")
    of_second = (trials["replica"] == 1).map({True: " again", False: ""})
    sides = trials["target"].astype(str) + of_second
    variations: dict[GroupKey, tuple[BurstVariation, ...]] = {}
    for key, group in grouped(trials.assign(side=sides), GROUP):
        is_base = group["side"] == BASELINE
        base = group[is_base]
        targets = group[~is_base].groupby("side", sort=False)
        of_targets = (_variation(str(side), rows, base) for side, rows in targets)
        measured_targets = tuple(filter(None, of_targets))
        if measured_targets:
            variations[key] = measured_targets
    return variations


def _variation(side: str, rows: pd.DataFrame, base: pd.DataFrame) -> BurstVariation | None:
    """Return the variation of one target; None if no block holds it and bare metal."""
    turns = _turns_by_block(rows)
    base_turns = _turns_by_block(base)
    pairs = [(turns[block], base_turns[block]) for block in turns if block in base_turns]
    if not pairs:
        return None
    levels = components([[_log_ratios(*pair)] for pair in pairs])
    switched = switching(rows)
    own_step = step_variance(rows)
    base_step = step_variance(base)
    step = None
    if own_step is not None and base_step is not None:
        step = own_step + base_step
    best = _best(levels, switched, pairs, step)
    return BurstVariation(side, len(pairs), levels, switched, best)


def _turns_by_block(trials: pd.DataFrame) -> dict[Any, Alternation]:
    return trials.set_index(["run_id", "block"])["alternation"].to_dict()


def _best(
    levels: Components,
    switched: SwitchingCost | None,
    pairs: Sequence[Turns],
    step: float | None,
) -> Design | None:
    """Return the arrangement that these blocks, as a pilot, suggest; None if too little was repeated in them.

    A block of more targets counts as a block of this pair, with its part of the seconds outside the turns.
    """
    if levels.burst is None or levels.block is None:
        return None
    round_s = fmean(own.turn_s + base.turn_s for own, base in pairs)
    steps = pairs[0][0].bursts[0].steps
    beside_s = fmean(own.block_s * 2 / own.instances - round_s * len(own.bursts) for own, _ in pairs)
    switch_s = fmean(_handing_s(own) + _handing_s(base) for own, base in pairs)
    if switched and switched.shown:
        switch_s += round_s / steps
    costs = Costs(round_s, max(0.0, beside_s), steps, switch_s=min(round_s, switch_s))
    return choose(levels, costs, step)


def _handing_s(side: Alternation) -> float:
    """Return the seconds of one turn in which no step was taken."""
    return fmean(max(0.0, burst.ended_s - burst.begun_s - burst.span_s) for burst in side.bursts)


def _log_ratios(own: Alternation, base: Alternation) -> list[float]:
    """Return log(own / base) of the throughput in every round that both have."""
    rates = _log_rates(own)
    base_rates = _log_rates(base)
    return [rates[number] - base_rates[number] for number in rates if number in base_rates]


def _log_rates(side: Alternation) -> dict[int, float]:
    """Return log(steps per second) of each round."""
    return {burst.round: math.log(burst.steps / burst.span_s) for burst in side.bursts}
