"""A comparison for other programs: as JSON and as CSV."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from analysis.compare.results import ComparedJob, Comparison, Effect, Estimate
from analysis.report.answer import answer_json
from analysis.report.export import for_spreadsheets


@dataclass(frozen=True)
class Row:
    """One metric of one target: a row of the CSV, and of ``rows`` in the JSON. The names of the fields are stable.

    What is absent is null in JSON and empty in CSV, never zero.
    """

    scenario: str
    data: str
    profile: str
    recipe: str
    variant: str
    """The settings that differ among the records; empty where none does."""
    model: str
    """The model, or the probe."""
    target: str
    metric: str
    """``throughput`` (images/s), ``elapsed`` (s), ``opening`` (s), ``step-tail`` (the 99th percentile of the steps over
    their median), or what the probe measures."""
    unit: str
    value: float | None
    """The geometric mean over the finished trials."""
    trials: int
    failed: int
    ratio: float | None
    """The trimmed geometric mean of the ratios to bare metal inside the blocks."""
    blocks: int
    """The number of blocks that have such a ratio."""
    ratio_low: float | None
    """The lower end of the 95 % interval; absent for bare metal and for a single block."""
    ratio_high: float | None
    verdict: str | None
    """``equivalent``, ``slower``, ``faster`` or ``undecided``; ``tail`` or ``typical-only`` if only the typical trial
    is equivalent. Null where the trials decide nothing; ``withheld`` says why."""
    withheld: list[str]
    """Why there is no verdict, whatever the tests say; empty where it stands."""
    p: float | None
    """The Holm-adjusted level of the verdict."""
    more_blocks: int | None
    """The number of further blocks that would probably decide."""
    detectable: float | None
    """The difference from 1 (a share) that these blocks detect with a chance of 80 %."""
    expected: float | None
    """The ratio of the mean times, slow trials and all. Of a rate the times per unit of work are meant."""
    expected_low: float | None
    expected_high: float | None
    slow_over: float | None
    """The share by which a slow trial is slower than the typical one."""
    slow_trials: int | None
    """The number of the blocks in which the trial was slow, and bare metal's was not."""
    slow_baseline: int | None
    """The number of the blocks in which bare metal's was, and the trial was not."""
    slow_p: float | None
    """The level of McNemar's exact test: whether the target has more slow trials than bare metal."""
    slow_excluded: float | None
    """The share of slow trials such that more are excluded at 95 %."""
    noise_floor: float | None
    """The smallest overhead (a share) that the data could have shown."""
    noise_method: str | None
    """``a/a`` or ``across-blocks``."""
    substitutes: list[str]
    """The substitutes without which the number must not be read, as with ``marks``; joined by "; " in CSV."""
    marks: list[str]
    differences: list[str]
    """The facts in which the target and bare metal differ, and which the marks only count."""


KEYS = tuple(field.name for field in fields(Row))


def as_json(comparison: Comparison) -> str:
    """Return one object: ``schema_version``, ``answer``, ``runs`` (their ids), ``margin``, rows, and ``warnings``.

    ``answer`` has the sentences, and each claim with its number and verdict. Each list has the keys of ``Row`` that it
    shares. ``overall`` holds ratios over all models, ``interactions`` those of container-vm over the product of
    container and vm, ``aa`` those of the second bare-metal trial over the first, ``ablations`` those of a target with
    an ablation over the same target without. ``costs`` is what targets take of the host; see ``results.Cost``.
    ``turns`` is what the bursts of the alternating design say; see ``results.BurstVariation``. ``same_work`` is how the
    losses and weights of each arm agree with bare metal's; see ``results.SameWork``. ``interference`` is a victim
    beside an aggressor over the same alone, ``isolation`` ranks the targets; see ``results.Interference``.
    ``warmup_trials`` were left out of everything. A warning has ``kind``, ``message`` and ``advice``.
    """
    return json.dumps(
        {
            "schema_version": 1,
            "answer": answer_json(comparison),
            "runs": list(comparison.runs),
            "margin": comparison.margin,
            "rows": [vars(row) for row in rows(comparison)],
            "overall": list(_overall(comparison)),
            "interactions": [
                row for group in comparison.groups for row in _rows(group.job, group.interactions, model=group.model)
            ],
            "aa": [row for group in comparison.groups for row in _rows(group.job, group.aa, model=group.model)],
            "ablations": list(_ablations(comparison)),
            "costs": list(_costs(comparison)),
            "turns": [
                {**asdict(group.job), "model": group.model, **asdict(one)}
                for group in comparison.groups
                for one in group.turns
            ],
            "same_work": [
                {**asdict(group.job), "model": group.model, **asdict(one)}
                for group in comparison.groups
                for one in group.same_work
            ],
            "interference": list(_interference(comparison)),
            "isolation": list(_isolation(comparison)),
            "warmup_trials": comparison.warmup_trials,
            "warnings": [warning.as_json() for warning in comparison.warnings],
        },
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )


def as_csv(comparison: Comparison) -> str:
    """Return a header and the rows. The warnings are not part of it: print ``formatting.warning_lines`` beside."""
    out = io.StringIO()
    writer = csv.DictWriter(out, KEYS, lineterminator="\n")
    writer.writeheader()
    for row in rows(comparison):
        cells = vars(row).items()
        texts = {key: "; ".join(value) if isinstance(value, list) else value for key, value in cells}
        writer.writerow({key: for_spreadsheets(value) for key, value in texts.items()})
    return out.getvalue()


def rows(comparison: Comparison) -> Iterator[Row]:
    """Yield one row per group, target and metric, in the order of the comparison."""
    for group in comparison.groups:
        for summary in group.targets:
            for metric in group.metrics:
                estimate, floor = summary.estimates.get(metric.name), group.noise_floors.get(metric.name)
                yield Row(
                    **asdict(group.job),
                    model=group.model,
                    target=summary.target,
                    metric=metric.name,
                    unit=metric.unit,
                    value=estimate.value if estimate else None,
                    trials=estimate.trials if estimate else 0,
                    failed=summary.failed,
                    **_effect(estimate),
                    noise_floor=floor.share if floor else None,
                    noise_method=floor.method if floor else None,
                    substitutes=list(summary.substitutes),
                    marks=list(summary.marks),
                    differences=list(summary.differences),
                )


def _ratio(found: Estimate | Effect | None) -> dict[str, Any]:
    low, high = found.interval if found and found.interval else (None, None)
    ratio, blocks = (found.ratio, found.blocks) if found else (None, 0)
    return {"ratio": ratio, "blocks": blocks, "ratio_low": low, "ratio_high": high}


def _effect(found: Estimate | Effect | None) -> dict[str, Any]:
    verdict = found.verdict if found else None
    judged = {name: getattr(verdict, name, None) for name in ("p", "more_blocks", "detectable")}
    said = {"verdict": verdict and verdict.given, "withheld": list(verdict.withheld) if verdict else []}
    return {**_ratio(found), **said, **judged, **_tail(found)}


def _tail(found: Estimate | Effect | None) -> dict[str, Any]:
    expected, slow = (found.expected, found.slow) if found else (None, None)
    low, high = expected.interval if expected else (None, None)
    return {
        "expected": expected.ratio if expected else None,
        "expected_low": low,
        "expected_high": high,
        "slow_over": slow.over if slow else None,
        "slow_trials": slow.own if slow else None,
        "slow_baseline": slow.base if slow else None,
        "slow_p": slow.p if slow else None,
        "slow_excluded": slow.excluded if slow else None,
    }


def _rows(job: ComparedJob, effects: Mapping[str, Effect], **what: object) -> Iterator[dict[str, Any]]:
    for name, effect in effects.items():
        yield {**asdict(job), **what, "metric": name, **_effect(effect)}


def _overall(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for one in comparison.overall:
        yield from _rows(one.job, one.effects, models=list(one.models), notes=list(one.notes), target=one.target)


def _ablations(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for one in comparison.ablations:
        for row in _rows(one.job, one.effects, model=one.model, target=one.target, ablation=one.ablation):
            yield row | {"notes": list(one.notes)}


def _interference(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for one in comparison.interference:
        alone, beside = one.steal_shares
        kept = {f"kept_{name}": value for name, value in _ratio(one.kept).items()} if one.kept else {}
        more = {**kept, "steal_share_alone": alone, "steal_share_beside": beside, "notes": list(one.notes)}
        what = {"model": one.model, "target": one.target, "ablation": one.ablation, "aggressor": one.aggressor}
        for row in _rows(one.job, one.effects, **what):
            floor = one.noise_floors.get(row["metric"])
            floors = {"noise_floor": floor.share if floor else None, "noise_method": floor.method if floor else None}
            yield row | floors | more


def _isolation(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for rank, one in enumerate(comparison.isolation, start=1):
        for row in _rows(one.job, {"throughput": one.effect}, target=one.target, rank=rank, cells=one.cells):
            yield row | {"notes": list(one.notes)}


def _costs(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for one in comparison.costs:
        row = asdict(one)
        normalised = _ratio(one.normalised) if one.normalised else None
        yield row | {**row.pop("job"), "notes": list(one.notes), "normalised": normalised}
