"""From trials to pairs: which trials belong to one group, and each beside the one that it is held against."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

import numpy as np
import pandas as pd

from analysis.results import Job
from analysis.validity import COLUMNS as CHECKED
from suite.envelope import GIB
from suite.plan import BASELINE

JOB = [field.name for field in fields(Job)]
GROUP = [*JOB, "model"]
ROW = [*GROUP, "target"]
_BLOCK = ["scenario", "model", "run_id", "block"]
_SETTINGS = (
    "batch",
    "image_px",
    "warmup_steps",
    "steps",
    "cpus",
    "memory_bytes",
    "threads",
    "page_cache",
    "data_sha256",
    "options",
    "host_cpu_model",
)


def with_variants(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials with ``variant``: the settings that differ among trials of a scenario and model, ``name=value, …``.

    The settings are those of bare metal in the trial's block where it is there, so that a trial that departs from its
    block stays in the group in which its ratio is refused and named.
    """
    known = trials.assign(data_sha256=_data_of_run(trials))
    base = baseline(known)[[*_BLOCK, *_SETTINGS]].drop_duplicates(_BLOCK)
    own = known[[*_BLOCK, *_SETTINGS]]
    found = own[_BLOCK].merge(base, on=_BLOCK, how="left", indicator=True).set_index(own.index)
    alone = found["_merge"] == "left_only"
    settings = {name: found[name].astype(object).mask(alone, own[name].astype(object)) for name in _SETTINGS}
    return trials.assign(variant=_variants(own.assign(**settings)))


def _data_of_run(trials: pd.DataFrame) -> pd.Series:
    """The data set of each trial's run, which has one: a failed trial does not know it, and stays with the others."""
    if trials["data_sha256"].isna().all():
        return trials["data_sha256"]
    run = ["scenario", "model", "run_id"]
    bare_metal_first = trials.sort_values("target", key=lambda target: target != BASELINE, kind="stable")
    return bare_metal_first.groupby(run)["data_sha256"].transform("first").reindex(trials.index)


def plain(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials of the targets as they are: without those that have a property switched, or an aggressor beside."""
    return trials[trials["ablation"].isna() & trials["aggressor"].isna()]


def baseline(trials: pd.DataFrame) -> pd.DataFrame:
    """Bare metal as it is."""
    return plain(trials[trials["target"] == BASELINE])


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
    if name == "data_sha256":
        return f"{name}={str(value)[:12]}"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _common_lines(texts: Iterable[str]) -> set[str]:
    return set.intersection(*(set(text.splitlines()) for text in texts))


def pair(own: pd.DataFrame, base: pd.DataFrame, columns: Sequence[str], *, same: Sequence[str] = ()) -> pd.DataFrame:
    """One row per target and block of ``own`` of which ``base`` has the same block, and the same in columns ``same``.

    Of trials that are ok and have ``variant``. ``columns`` come to hold log(own / base); of two trials of a target in a
    block the mean counts. What ``validity.assess`` needs is there too, that of ``base`` under names with ``_base``. In
    the order of the blocks.
    """
    shared = [*_BLOCK, *same]
    extra = [name for name in (*CHECKED, "options") if name not in ROW]
    left, right = (_means(trials, columns, extra) for trials in (own, base))
    right = right.drop_duplicates(shared).drop(columns=[name for name in ("target", "variant") if name not in same])
    pairs = left.merge(right, on=shared, suffixes=("", "_base")).sort_values(["run_id", "block"], ignore_index=True)
    return pairs.assign(**{column: pairs[column] - pairs[f"{column}_base"] for column in columns})


def _means(trials: pd.DataFrame, columns: Sequence[str], extra: Sequence[str]) -> pd.DataFrame:
    # A zero has no logarithm and is left out, as an absent value is.
    logs = trials.assign(**{column: np.log(trials[column].where(trials[column] > 0)) for column in columns})
    how = dict.fromkeys(columns, "mean") | dict.fromkeys(extra, "first")
    return logs.groupby([*ROW, "run_id", "block"], as_index=False).agg(how)


def to_baseline(ok: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Each target beside bare metal in its block, bare metal itself too."""
    return pair(plain(ok), baseline(ok), columns)
