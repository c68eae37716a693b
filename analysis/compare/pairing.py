"""Pairs trials: groups those that belong together, and puts each beside the one that it is compared with."""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.results import ComparedJob, known_first
from analysis.compare.validity import COLUMNS as CHECKED
from analysis.load.computed import together
from suite.job.job import BETWEEN, SEQUENTIAL, Alternating, settings_in
from suite.registries import WORKLOADS
from suite.targets import BASELINE, TARGETS

JOB = [field.name for field in fields(ComparedJob)]
GROUP = [*JOB, "model"]
ROW = [*GROUP, "target"]
BLOCK = ["scenario", "model", "design", "run_id", "block"]
_SETTINGS = ["settings", "host_cpu_model"]


def job_of(row: Mapping[Hashable, object] | pd.Series) -> ComparedJob:
    """Return the job of a row of trials that have ``variant``."""
    return ComparedJob(*(str(row[key]) for key in JOB))


def papers_order(job: object, model: str, target: str) -> tuple[Any, ...]:
    """Return a sort key: by job, then models and targets in the order of the paper."""
    return job, known_first(WORKLOADS.names(), model), known_first(TARGETS, target)


def with_variants(trials: pd.DataFrame) -> pd.DataFrame:
    """Add ``variant``: the settings that differ among trials of a scenario and model, ``name=value, …``."""
    (found,) = with_common_variants([trials])
    return found


def with_common_variants(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Add ``variant`` to tables that are held against each other, such as the trials of two runs.

    A setting is told where it differs inside a table. What differs between tables alone is what their comparison is
    about, and does not keep their trials apart.
    """
    keys = [_comparison_keys(trials) for trials in tables]
    scenarios = {name for trials in tables for name in trials["scenario"].unique()}
    labels: dict[tuple[str, str], str] = {}
    for scenario in scenarios:
        own = [(key[trials["scenario"] == scenario], trials) for key, trials in zip(keys, tables, strict=True)]
        told = {name: None for key, trials in own for name in _differing(key, trials["model"])}
        labels |= {(scenario, text): _label(text, told) for key, _ in own for text in key.unique()}
    return [
        trials.assign(variant=[labels[place] for place in zip(trials["scenario"], key, strict=True)])
        for trials, key in zip(tables, keys, strict=True)
    ]


def _comparison_keys(trials: pd.DataFrame) -> "pd.Series[str]":
    """Return the comparison key of each trial's job and host as one text, ``name=value; ...``.

    It is that of bare metal in the trial's block where it is there, so that a trial that departs from its block stays
    in the group in which its ratio is refused and named.
    """
    own = trials[[*BLOCK, *_SETTINGS]]
    base = baseline(trials)[[*BLOCK, *_SETTINGS]].drop_duplicates(BLOCK)
    found = own[BLOCK].merge(base, on=BLOCK, how="left", indicator=True).set_index(own.index)
    alone = found["_merge"] == "left_only"
    key = pd.DataFrame({name: found[name].astype(object).mask(alone, own[name].astype(object)) for name in _SETTINGS})
    return key["settings"] + f"{BETWEEN}host_cpu_model=" + key["host_cpu_model"].fillna("unknown").astype(str)


def _differing(keys: "pd.Series[str]", models: pd.Series) -> Iterator[str]:
    """Yield the names of the settings that differ among the trials of a model, in the order of the keys."""
    for _, texts in keys.groupby(models, observed=True):
        found = [settings_in(text) for text in sorted(texts.unique())]
        for name in dict.fromkeys(name for settings in found for name in settings):
            values = {settings.get(name) for settings in found}
            # Which aggressors a run has is varied on purpose: only what one of them runs tells runs apart.
            if len(values - {None} if name.startswith(("workloads.", "sources.")) else values) > 1:
                yield name


def _label(key: str, told: Iterable[str]) -> str:
    # Sequential is what jobs were before there was a choice: it is no setting of theirs, and neither are its turns.
    settings = {"design": SEQUENTIAL, **settings_in(key)}
    shown = [name for name in told if name in settings or name not in Alternating.model_fields]
    text = ", ".join(f"{name}={settings.get(name, 'none')}" for name in shown)
    # The beginning of a digest tells as much as a reader can use.
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


def plain(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the targets as they are: without ablation, and with no aggressor beside them."""
    return trials[trials["ablation"].isna() & trials["aggressor"].isna()]


def baseline(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of bare metal as it is."""
    return plain(trials[trials["target"] == BASELINE])


def pair(own: pd.DataFrame, base: pd.DataFrame, columns: Sequence[str], *, same: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per target and block of ``own`` if ``base`` has the same block.

    They agree in the columns ``same``, too. The trials are ok and have ``variant``. ``columns`` come to hold
    log(own / base); of two trials of a target in a block the mean counts. What ``validity.assess`` needs is there, too,
    that of ``base`` under names with ``_base``. The pairs are in the order of the blocks.
    """
    shared = [*BLOCK, *same]
    extra = [name for name in CHECKED if name not in ROW]
    left, right = (_means(trials, columns, extra) for trials in (own, base))
    right = right.drop_duplicates(shared).drop(columns=[name for name in ("target", "variant") if name not in same])
    pairs = left.merge(right, on=shared, suffixes=("", "_base")).sort_values(["run_id", "block"], ignore_index=True)
    return pairs.assign(**{column: pairs[column] - pairs[f"{column}_base"] for column in columns})


def _means(trials: pd.DataFrame, columns: Sequence[str], extra: Sequence[str]) -> pd.DataFrame:
    # A zero has no logarithm and is left out, as an absent value is.
    logs = trials.assign(**{column: np.log(trials[column].where(trials[column] > 0)) for column in columns})
    if (rate := "throughput_per_s") in columns:
        # Of jobs that take turns, burst is held against burst of the same round, and the rounds are averaged.
        images = trials["batch"] * trials["devices"].fillna(1)
        logs[rate] = logs[rate].mask(trials["burst_s"].notna(), np.log(images / trials["burst_s"]))
    how: dict[str, Any] = dict.fromkeys(columns, "mean") | dict.fromkeys([*extra, "design"], "first")
    if trials["replica"].any():
        how["computed"] = lambda found: together(list(found))
    return logs.groupby([*ROW, "run_id", "block"], as_index=False).agg(how)


def to_baseline(ok: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Pair each target with bare metal in its block, bare metal itself too."""
    return pair(plain(ok), baseline(ok), columns)
