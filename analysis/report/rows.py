"""The rows of a comparison for machines; ``tables`` says what their keys mean."""

from collections.abc import Iterator
from dataclasses import asdict

from analysis.compare.results import Comparison, Effect, Estimate

KEYS = (
    *("scenario", "data", "profile", "recipe", "variant", "model", "target", "metric", "unit"),
    *("value", "trials", "failed", "ratio", "blocks", "ratio_low", "ratio_high", "verdict", "p", "more_blocks"),
    *("noise_floor", "noise_method", "substitutes", "marks"),
)
Row = dict[str, object]


def rows(comparison: Comparison) -> Iterator[Row]:
    """One per group, target and metric, in the order of the comparison."""
    for group in comparison.groups:
        for summary in group.targets:
            for metric in group.metrics:
                estimate, floor = summary.estimates.get(metric.name), group.noise_floors.get(metric.name)
                yield {
                    **asdict(group.job),
                    "model": group.model,
                    "target": summary.target,
                    "metric": metric.name,
                    "unit": metric.unit,
                    "value": estimate.value if estimate else None,
                    "trials": estimate.trials if estimate else 0,
                    "failed": summary.failed,
                    **_effect(estimate),
                    "noise_floor": floor.share if floor else None,
                    "noise_method": floor.method if floor else None,
                    "substitutes": list(summary.substitutes),
                    "marks": list(summary.marks),
                }


def _effect(found: Estimate | Effect | None) -> Row:
    interval, verdict = (found.interval, found.verdict) if found else (None, None)
    return {
        "ratio": found.ratio if found else None,
        "blocks": found.blocks if found else 0,
        "ratio_low": interval[0] if interval else None,
        "ratio_high": interval[1] if interval else None,
        "verdict": verdict.name if verdict else None,
        "p": verdict.p if verdict else None,
        "more_blocks": verdict.more_blocks if verdict else None,
    }


def overall_rows(comparison: Comparison) -> Iterator[Row]:
    for found in comparison.overall:
        for name, effect in found.effects.items():
            lists = {"models": list(found.models), "notes": list(found.notes)}
            yield {**asdict(found.job), **lists, "target": found.target, "metric": name, **_effect(effect)}


def interaction_rows(comparison: Comparison) -> Iterator[Row]:
    for group in comparison.groups:
        for name, effect in group.interactions.items():
            yield {**asdict(group.job), "model": group.model, "metric": name, **_effect(effect)}


def aa_rows(comparison: Comparison) -> Iterator[Row]:
    for group in comparison.groups:
        for name, effect in group.aa.items():
            yield {**asdict(group.job), "model": group.model, "metric": name, **_effect(effect)}


def ablation_rows(comparison: Comparison) -> Iterator[Row]:
    for one in comparison.ablations:
        for name, effect in one.effects.items():
            what = {"model": one.model, "target": one.target, "ablation": one.ablation, "metric": name}
            yield {**asdict(one.job), **what, **_effect(effect), "notes": list(one.notes)}


def interference_rows(comparison: Comparison) -> Iterator[Row]:
    for one in comparison.interference:
        what = {"model": one.model, "target": one.target, "ablation": one.ablation, "aggressor": one.aggressor}
        alone, beside = one.steal_shares
        more = {"steal_share_alone": alone, "steal_share_beside": beside, "notes": list(one.notes)}
        kept = {f"kept_{name}": value for name, value in (_ratio(one.kept) if one.kept else {}).items()}
        for name, found in one.effects.items():
            floor = one.noise_floors.get(name)
            floors = {"noise_floor": floor.share if floor else None, "noise_method": floor.method if floor else None}
            yield {**asdict(one.job), **what, "metric": name, **_effect(found), **floors, **kept, **more}


def isolation_rows(comparison: Comparison) -> Iterator[Row]:
    for rank, one in enumerate(comparison.isolation, start=1):
        what = {"target": one.target, "rank": rank, "cells": one.cells, "metric": "throughput"}
        yield {**asdict(one.job), **what, **_effect(one.effect), "notes": list(one.notes)}


def cost_rows(comparison: Comparison) -> Iterator[Row]:
    for one in comparison.costs:
        row = asdict(one)
        row |= {**row.pop("job"), "notes": list(one.notes), "normalised": None}
        yield row | ({"normalised": _ratio(one.normalised)} if one.normalised else {})


def _ratio(effect: Effect) -> Row:
    return {name: value for name, value in _effect(effect).items() if name.startswith("ratio") or name == "blocks"}
