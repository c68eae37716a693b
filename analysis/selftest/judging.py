"""Judges a self-test: each injury in size, in place and in verdict, with the methods that compare every run.

The estimates are those of ablations, with their correction for many comparisons. The truth comes from elsewhere: see
``suite.selftest.injuries``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from analysis.compare.comparison import terms_by_job
from analysis.compare.contrast_kinds import ABLATION
from analysis.compare.contrasts import contrasts, form
from analysis.compare.pairing import with_variants
from analysis.compare.results import Effect, by_arm
from analysis.explain.attribution import Parts, difference
from analysis.load.metrics import METRICS, Metric
from analysis.load.records import Records, load
from analysis.report.elements import Cell, Element, Head, Notes, Styled, Table
from analysis.report.formatting import ends, times
from analysis.statistics.margins import Bounds, bounds_of, share_of
from analysis.statistics.ratios import locate
from analysis.warnings.conditions import with_changes
from analysis.warnings.findings import hosts_of
from suite.differ import machine_of
from suite.records.record import TrialRecord
from suite.request.repetitions import MARGIN
from suite.results.store import Run
from suite.selftest.certificate import FACETS, Certificate, InjuryFinding
from suite.selftest.injuries import MEMORY, PHASES, Injury, Truth, get_injury
from suite.units import count, number

METRICS_OF_INJURIES = (*METRICS, Metric(MEMORY, "serving_peak_memory_bytes", "bytes"))
ENOUGH = 2.0
"""How many half widths beyond the margin a truth must lie for the blocks to be expected to decide on it."""
UNDECIDED = "undecided"
SLOWER = "slower"
EQUIVALENT = "equivalent"
_MACHINE = {"cpu_model": "host_cpu_model", "kernel": "host_kernel", "image": "userland_sha256"}
"""The columns of trials that must hold what the certificate's machine has."""


@dataclass(frozen=True)
class Judged:
    """The findings of one run, and the smallest effects that its blocks could have shown, by metric."""

    findings: tuple[InjuryFinding, ...]
    smallest: dict[str, float]


def judge(run: Path, margin: float = MARGIN) -> Judged:
    """Judge the injuries of one run. Raises RequestError where it holds no usable record at all."""
    store = Run(run)
    plan = store.plan()
    records = load([run])
    trials = with_changes(with_variants(records.trials))
    finished = trials[trials["ok"].astype(bool)]
    ratios = form(ABLATION, finished, METRICS_OF_INJURIES).ratios
    terms = terms_by_job(trials, margin)
    arms = by_arm(contrasts(ABLATION, ratios, METRICS_OF_INJURIES, terms))
    by_injury = {(arm.target, arm.ablation): effects for arm, effects in arms.items()}
    measured = [record for record in store.records() if not record.warm_up]
    findings = []
    if plan:
        for target, name in product(plan.targets, plan.ablations):
            if target in get_injury(name).targets:
                effects = by_injury.get((target, name), {})
                findings.append(_finding(name, target, measured, effects, margin))
    harmless = [effects for (_, name), effects in by_injury.items() if not get_injury(name).changes]
    return Judged(tuple(findings), _smallest(harmless))


def _smallest(harmless: Sequence[Mapping[str, Effect]]) -> dict[str, float]:
    """Return the smallest slowdown, as a share, that could have been seen of each metric on every target."""
    smallest: dict[str, float] = {}
    for effects in harmless:
        for metric, effect in effects.items():
            width = _half_width(effect)
            if width is not None:
                smallest[metric] = max(smallest.get(metric, 0.0), share_of(width))
    return smallest


def _finding(
    name: str,
    target: str,
    records: Sequence[TrialRecord],
    effects: Mapping[str, Effect],
    margin: float,
) -> InjuryFinding:
    injury = get_injury(name)
    effect = effects.get(injury.metric)
    if effect:
        blocks = list(_blocks(name, target, records))
        judgement = _judgement(injury, blocks, effect, margin)
    else:
        trials = [record for record in records if record.target == target and record.ablation == name]
        all_messages = (record.outcome.message for record in trials)
        messages = list(filter(None, all_messages))
        why = "no block can be compared"
        if messages:
            why = f"its trials failed: {messages[0]}"
        judgement = {"blocks": 0, "verdict_right": False, "note": why}
    return InjuryFinding(
        scenario=records[0].job.scenario,
        target=target,
        injury=name,
        summary=injury.summary,
        metric=injury.metric,
        witness=injury.witness,
        phase=injury.phase,
        **judgement,
    )


def _judgement(
    injury: Injury,
    blocks: Sequence[tuple[TrialRecord, TrialRecord]],
    effect: Effect,
    margin: float,
) -> dict[str, Any]:
    """Return the fields of a finding that depend on what was measured."""
    measured: dict[str, Any] = {
        "blocks": effect.blocks,
        "ratio": effect.ratio,
        "interval": effect.interval,
        "verdict": effect.verdict.name if effect.verdict else None,
    }
    truths = [injury.truth(injured, usual) for injured, usual in blocks]
    absent = truths.count(None)
    if absent:
        note = f"it was not there in {absent} of {count(len(truths), 'block')}, by {injury.witness}"
        return {**measured, "size": False, "verdict_right": False, "note": note}
    truth = _mean(list(filter(None, truths)))
    measured["truth"] = (truth.low, truth.high)
    width = _half_width(effect)
    if width is None or effect.interval is None:
        return {**measured, "note": "one block has no interval"}
    grown = _grown(blocks)
    phase_seen = None
    if injury.phase and grown and _away(truth) > width:
        phase_seen = grown == injury.phase
    right = _verdict_right(injury, truth, effect, width, margin)
    low, high = effect.interval
    return {
        **measured,
        "grown": grown,
        "size": low <= truth.high and truth.low <= high,
        "place": phase_seen,
        "verdict_right": right,
        "note": "" if right is not None else f"too small for {count(effect.blocks, 'block')}",
    }


def _blocks(name: str, target: str, records: Sequence[TrialRecord]) -> Iterator[tuple[TrialRecord, TrialRecord]]:
    """Yield the injured trial and the trial as it is of each block that has both."""
    ok = [record for record in records if record.target == target and record.outcome.status == "ok"]
    usual = {record.block: record for record in ok if record.ablation is None}
    for record in ok:
        if record.ablation == name and record.block in usual:
            yield record, usual[record.block]


def _mean(truths: Sequence[Truth]) -> Truth:
    """Return the mean of the blocks, formed as that of their ratios is."""
    low = _centre([truth.low for truth in truths])
    high = _centre([truth.high for truth in truths])
    return Truth(low, high)


def _centre(ratios: Sequence[float]) -> float:
    logs = [math.log(ratio) if ratio else -math.inf for ratio in ratios]
    location = locate(logs)
    return math.exp(location.centre) if location else 0.0


def _half_width(effect: Effect) -> float | None:
    """Return half of the interval's width, as a log ratio."""
    if not effect.interval:
        return None
    low, high = effect.interval
    return math.log(high / low) / 2


def _away(truth: Truth) -> float:
    """Return how far from 1 the truth is at least, as a log ratio."""
    if truth.low <= 1 <= truth.high:
        return 0.0
    if truth.low > 1:
        return math.log(truth.low)
    return -math.log(truth.high)


def _beyond(truth: Truth, bounds: Bounds) -> float:
    """Return how far the truth lies beyond the margin at least, as a log ratio; negative where it may be within."""
    if truth.low <= 1 <= truth.high:
        return bounds.beyond(0.0)
    nearest = truth.low if truth.low > 1 else truth.high
    return bounds.beyond(math.log(nearest))


def _verdict_right(injury: Injury, truth: Truth, effect: Effect, width: float, margin: float) -> bool | None:
    """Return whether the verdict is that of the truth; None if the blocks are too few to decide."""
    if effect.verdict is None:
        return None
    name = effect.verdict.name
    if not injury.changes:
        return name in (EQUIVALENT, UNDECIDED)
    beyond = _beyond(truth, bounds_of(margin))
    if name == UNDECIDED:
        enough = beyond > ENOUGH * width
        return False if enough else None
    return name == (SLOWER if beyond > 0 else EQUIVALENT)


def _grown(blocks: Sequence[tuple[TrialRecord, TrialRecord]]) -> str | None:
    """Return the phase of the steps that grew most; None if its growth is within its interval."""
    injured = []
    usual = []
    for with_injury, as_it_is in blocks:
        injured.append(Parts.of(with_injury).seconds)
        usual.append(Parts.of(as_it_is).seconds)
    parts = []
    for name in PHASES:
        if all(name in seconds for seconds in (*injured, *usual)):
            before_s = [seconds[name] for seconds in usual]
            after_s = [seconds[name] for seconds in injured]
            parts.append(difference(name, before_s, after_s))
    most = max(parts, key=lambda part: part.difference_s)
    return most.name if most.interval and most.interval[0] > 0 else None


def speaks_for(certificate: Certificate, records: Records) -> bool:
    """Return whether a certificate is of the machine of all trials that are ok: host, CPU model, kernel and image."""
    ok = records.trials[records.trials["ok"].astype(bool)]
    certified = certificate.machine
    machine = machine_of(certified.machine_id, certified.hostname)
    if {host.machine for host in hosts_of(ok)} != {machine}:
        return False
    return all((ok[column] == getattr(certified, name)).all() for name, column in _MACHINE.items())


def certificate_document(certificate: Certificate) -> Iterator[Element]:
    """Yield a row per finding, and what was not done."""
    # Names are for looking up: they stay whole, and what has several words is broken between them.
    names = {"on": False, "known": True, "found": True, "phase": False, "verdict": False, "": True}
    columns = tuple(Head(name, wraps=wraps) for name, wraps in names.items())
    rows = []
    for finding in certificate.findings:
        rows.append((Head(finding.injury), cells_of(finding)))
    yield Table("injury", "", columns, tuple(rows), compact=True)
    yield Notes(tuple(certificate_lines(certificate)))


def cells_of(finding: InjuryFinding) -> tuple[Cell, ...]:
    """Return the cells of a finding after its injury."""
    truth = " to ".join(dict.fromkeys(map(times, finding.truth or ())))
    ratio = ""
    if finding.ratio is not None:
        ratio = f"{finding.metric} {times(finding.ratio)}x"
    if finding.interval:
        ratio += f" ({ends(finding.interval)})"
    wrong = ", ".join(name for name, right in finding.facets.items() if right is False)
    outcome = Styled(finding.note, "dim")
    if finding.found:
        outcome = Styled("found", "found")
    elif finding.judged:
        outcome = Styled(f"missed: {finding.note or wrong}", "missed")
    return (
        finding.target,
        truth,
        ratio,
        finding.grown or "-",
        finding.verdict or "-",
        outcome,
    )


def certificate_lines(certificate: Certificate) -> Iterator[str]:
    """Yield what is known of all findings together, and what was not done."""
    for facet in FACETS:
        right, of = certificate.count(facet)
        yield f"{facet} right: {right} of {of}"
    for metric, share in certificate.smallest.items():
        yield f"smallest {metric} effect that {count(certificate.blocks, 'block')} show: {number(share * 100)} %"
    for absent in certificate.absent:
        yield f"not done: {absent.name}: {absent.reason}"
    yield certificate.line()
