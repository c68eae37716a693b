"""Targets beside each other: values of each, and their ratio to bare metal.

The trial is the sample, the block its frame: a ratio is formed inside a block (same run, close in time), on the log
scale, and the ratios of the blocks are averaged there. A value is the geometric mean of the trials, which belongs to
that scale.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from analysis.findings import failures, mixtures, other_userlands, unnormalised
from analysis.load import Records
from analysis.results import METRICS, Comparison, Estimate, Group, Job, TargetSummary
from suite.envelope import GIB
from suite.plan import BASELINE, TARGETS
from suite.profiles import MODELS

_JOB = [field.name for field in fields(Job)]
_KEYS = [*_JOB, "model"]
_ROW = [*_KEYS, "target"]
_BLOCK = [*_KEYS, "run_id", "block"]
_SETTINGS = (
    "batch",
    "image_px",
    "warmup_steps",
    "steps",
    "cpus",
    "memory_bytes",
    "threads",
    "options",
    "host_cpu_model",
)
_COLUMNS = [metric.column for metric in METRICS]


def compare(records: Records) -> Comparison:
    """Every target of every group, in the order of the paper. Never raises for what the records hold."""
    trials = records.trials.assign(variant=_variants(records.trials))
    pairs = _pairs(trials[trials["ok"]])
    alike = pairs["userland_sha256"] == pairs["userland_sha256_base"]
    table = _table(trials, pairs[alike])
    groups = sorted(_groups(table), key=lambda group: (group.job, _order(MODELS, group.model)))
    found = (*failures(trials), *mixtures(trials), *other_userlands(pairs[~alike]), *unnormalised(groups))
    runs = tuple(sorted(trials["run_id"].unique()))
    return Comparison(runs, tuple(groups), (*records.warnings, *found))


def _order(known: Sequence[str], name: str) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def _variants(trials: pd.DataFrame) -> pd.Series:
    """Per trial, the settings that differ among trials of the same scenario and model, as ``name=value, …``."""
    variant = pd.Series("", index=trials.index, dtype=object)
    for name in _SETTINGS:
        values = trials[name].astype(object).where(trials[name].notna(), "unknown")
        if values.groupby([trials["scenario"], trials["model"]]).nunique().le(1).all():
            continue
        distinct = values.unique()
        common = _common_lines(distinct) if name == "options" else None
        texts = {value: _setting(name, value, common) for value in distinct}
        variant = variant.where(variant == "", variant + ", ") + values.map(texts)
    return variant


def _setting(name: str, value: object, common: set[str] | None) -> str:
    if common is not None:
        return ", ".join(line for line in str(value).splitlines() if line not in common) or "default options"
    if name == "memory_bytes" and isinstance(value, int):
        return f"memory={value / GIB:.4g} GiB"
    return f"{name}={value}"


def _common_lines(texts: Iterable[str]) -> set[str]:
    return set.intersection(*(set(text.splitlines()) for text in texts))


def _pairs(ok: pd.DataFrame) -> pd.DataFrame:
    """One row per target and block that has bare metal too: mean logarithms, and bare metal's as ``…_base``."""
    # A zero has no logarithm and is left out, as an absent value is.
    logs = ok.assign(**{column: np.log(ok[column].where(ok[column] > 0)) for column in _COLUMNS})
    known = logs.fillna({"userland_sha256": "unknown", "torch_cpu_capability": "unknown"})
    firsts = ("userland_sha256", "torch_cpu_capability")
    how = dict.fromkeys(_COLUMNS, "mean") | dict.fromkeys(firsts, "first")
    blocks = known.groupby([*_BLOCK, "target"], as_index=False).agg(how)
    base = blocks[blocks["target"] == BASELINE].drop(columns="target")
    return blocks.merge(base, on=_BLOCK, suffixes=("", "_base"))


def _table(trials: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per group and target with everything that a TargetSummary says."""
    rows = trials.groupby(_ROW)
    table = rows["ok"].agg(ok="sum", of="size")
    table["substitutes"] = rows["substitutes"].unique()
    differing = pairs[pairs["torch_cpu_capability"] != pairs["torch_cpu_capability_base"]]
    marks = differing["torch_cpu_capability"] + " against " + differing["torch_cpu_capability_base"]
    table["marks"] = marks.groupby([differing[key] for key in _ROW]).unique()
    ok = trials[trials["ok"]]
    for column in _COLUMNS:
        logs = np.log(ok[column].where(ok[column] > 0)).groupby([ok[key] for key in _ROW])
        ratios = (pairs[column] - pairs[f"{column}_base"]).groupby([pairs[key] for key in _ROW])
        table[f"{column}_value"], table[f"{column}_trials"] = np.exp(logs.mean()), logs.count()
        table[f"{column}_ratio"], table[f"{column}_blocks"] = np.exp(ratios.mean()), ratios.count()
    return table.reset_index()


def _groups(table: pd.DataFrame) -> list[Group]:
    targets: dict[tuple[Job, str], list[TargetSummary]] = {}
    for row in table.to_dict("records"):
        job = Job(*(row[key] for key in _JOB))
        targets.setdefault((job, row["model"]), []).append(_summary(row))
    return [
        Group(job, model, tuple(sorted(found, key=lambda summary: _order(TARGETS, summary.target))))
        for (job, model), found in targets.items()
    ]


def _summary(row: Mapping[Hashable, Any]) -> TargetSummary:
    estimates = {}
    for metric in METRICS:
        value, trials, ratio, blocks = (
            row[f"{metric.column}_{part}"] for part in ("value", "trials", "ratio", "blocks")
        )
        if value == value:  # not NaN: it was measured
            known = ratio == ratio
            estimates[metric.name] = Estimate(value, int(trials), ratio if known else None, int(blocks) if known else 0)
    return TargetSummary(
        target=row["target"],
        ok=int(row["ok"]),
        failed=int(row["of"] - row["ok"]),
        substitutes=_items(row["substitutes"]),
        marks=() if isinstance(row["marks"], float) else tuple(row["marks"]),
        estimates=estimates,
    )


def _items(texts: Iterable[str]) -> tuple[str, ...]:
    """The distinct lines of all texts."""
    return tuple(dict.fromkeys(line for text in texts for line in text.splitlines()))
