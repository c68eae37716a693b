"""From trials to pairs: which trials belong to one group, and each target beside bare metal in its block."""

import re
from collections.abc import Iterable
from dataclasses import fields

import numpy as np
import pandas as pd

from analysis.results import METRICS, Job
from analysis.validity import COLUMNS as CHECKED
from suite.envelope import GIB
from suite.plan import BASELINE

JOB = [field.name for field in fields(Job)]
GROUP = [*JOB, "model"]
ROW = [*GROUP, "target"]
METRIC_COLUMNS = [metric.column for metric in METRICS]
_BLOCK = ["scenario", "model", "run_id", "block"]
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


def with_variants(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials with ``variant``: the settings that differ among trials of a scenario and model, ``name=value, …``.

    The settings are those of bare metal in the trial's block where it is there, so that a trial that departs from its
    block stays in the group in which its ratio is refused and named.
    """
    base = trials.loc[trials["target"] == BASELINE, [*_BLOCK, *_SETTINGS]].drop_duplicates(_BLOCK)
    own = trials[[*_BLOCK, *_SETTINGS]]
    found = own[_BLOCK].merge(base, on=_BLOCK, how="left", indicator=True).set_index(own.index)
    alone = found["_merge"] == "left_only"
    settings = {name: found[name].astype(object).mask(alone, own[name].astype(object)) for name in _SETTINGS}
    return trials.assign(variant=_variants(own.assign(**settings)))


def _variants(settings: pd.DataFrame) -> pd.Series:
    variant = pd.Series("", index=settings.index, dtype=object)
    for name in _SETTINGS:
        values = settings[name].astype(object).where(settings[name].notna(), "unknown")
        if values.groupby([settings["scenario"], settings["model"]]).nunique().le(1).all():
            continue
        distinct = values.unique()
        common = _common_lines(distinct) if name == "options" else None
        texts = {value: _setting(name, value, common) for value in distinct}
        variant = variant.where(variant == "", variant + ", ") + values.map(texts)
    return variant


def _setting(name: str, value: object, common: set[str] | None) -> str:
    if common is not None:
        lines = [line for line in str(value).splitlines() if line not in common]
        # Of a digest, the beginning tells as much as a reader can use.
        return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", ", ".join(lines)) or "default options"
    if name == "memory_bytes" and isinstance(value, (int, float)):
        return f"memory={value / GIB:.4g} GiB"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _common_lines(texts: Iterable[str]) -> set[str]:
    return set.intersection(*(set(text.splitlines()) for text in texts))


def pair(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per target and block that has bare metal too, from trials that are ok and have ``variant``.

    ``METRIC_COLUMNS`` hold log(target / bare metal); of two trials of a target in a block the mean counts. What
    ``validity.assess`` needs is there too, bare metal's under names with ``_base``. In the order of the blocks.
    """
    # A zero has no logarithm and is left out, as an absent value is.
    logs = trials.assign(**{column: np.log(trials[column].where(trials[column] > 0)) for column in METRIC_COLUMNS})
    extra = [name for name in (*CHECKED, "options") if name not in ROW]
    how = dict.fromkeys(METRIC_COLUMNS, "mean") | dict.fromkeys(extra, "first")
    blocks = logs.groupby([*ROW, "run_id", "block"], as_index=False).agg(how)
    base = blocks[blocks["target"] == BASELINE].drop_duplicates(_BLOCK).drop(columns=["target", "variant"])
    pairs = blocks.merge(base, on=_BLOCK, suffixes=("", "_base")).sort_values(["run_id", "block"], ignore_index=True)
    return pairs.assign(**{column: pairs[column] - pairs[f"{column}_base"] for column in METRIC_COLUMNS})
