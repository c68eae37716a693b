"""Pairs trials: groups those that belong together, and joins each to the one that it is compared with."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.results import Arm, ComparedJob, known_first
from analysis.compare.validity import COLUMNS as CHECKED
from analysis.compare.validity import shortened
from analysis.load.computed import together
from suite.job.job import SEQUENTIAL, Alternating, ComparisonKey, TimeSlices
from suite.job.sharing import aggressor_names
from suite.registries import WORKLOADS
from suite.targets import BASES, COMMANDS, TARGETS, VERSUS

JOB = [field.name for field in fields(ComparedJob)]
GROUP = [*JOB, "model"]
ROW = [*GROUP, "target"]
SWITCHES = ["ablation", "aggressor"]
BLOCK = ["scenario", "model", "design", "run_id", "block"]
SECOND = f"command.{VERSUS}"
"""The setting that holds the second of two commands."""
_OF_DESIGNS = Alternating.model_fields.keys() | TimeSlices.model_fields.keys()
_OF_HOST = {"host_cpu_model": "host_cpu_model", "host": "pool"}
"""The parts of a comparison key besides the settings of the job, and their columns."""
FOLLOWING: Mapping[str, Sequence[str]] = {
    "data": ("data_*", "page_cache", "decoder", "loader_workers", "crop", "image_px", "channels"),
    "host": ("host_cpu_model",),
}
"""The settings that may follow from a key that was chosen; where they do, rows and pictures name the key alone."""


def job_of(row: Mapping[Hashable, object] | pd.Series) -> ComparedJob:
    texts = [str(row[key]) for key in JOB]
    return ComparedJob(*texts)


def grouped(trials: pd.DataFrame, keys: Sequence[str] = ROW) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the trials of each key ``(ComparedJob, model, ...)``; ``keys`` begin with ``JOB``."""
    for key, rows in trials.groupby(list(keys)):
        texts = [str(part) for part in key]
        job = ComparedJob(*texts[: len(JOB)])
        further = texts[len(JOB) :]
        yield (job, *further), rows


def papers_order(job: object, model: str, target: str) -> tuple[Any, ...]:
    """Return a sort key: by job, then models and targets in the order of the paper."""
    return (
        job,
        known_first(WORKLOADS.names(), model),
        known_first(TARGETS, target),
    )


def with_variants(trials: pd.DataFrame) -> pd.DataFrame:
    """Add ``variant``: the settings that differ among trials of a scenario and model, ``name=value, …``.

    Two commands that were compared on one target take its place, by their names; ``stack`` keeps it.
    """
    trials = _with_commands(trials)
    keys = _comparison_keys(trials)
    labels: dict[tuple[str, ComparisonKey], str] = {}
    for scenario in trials["scenario"].unique():
        in_scenario = trials["scenario"] == scenario
        keys_of_scenario = keys[in_scenario]
        differing = dict.fromkeys(_differing(keys_of_scenario, trials[in_scenario]))
        for key in keys_of_scenario.unique():
            labels[scenario, key] = _variant(key, differing)
    by_trial = zip(trials["scenario"], keys, strict=True)
    variants = [labels[key] for key in by_trial]
    return trials.assign(variant=variants)


def _variant(key: ComparisonKey, names: Iterable[str]) -> str:
    """Return these settings of a job as text; without those of a design that it does not have."""
    # Jobs recorded before there was a choice of design are sequential, and have no setting for it.
    settings = {"design": SEQUENTIAL, **dict(key.pairs)}
    texts = []
    for name in names:
        if name in settings or name not in _OF_DESIGNS:
            value = settings.get(name, "none")
            texts.append(f"{name}={value}")
    return shortened(", ".join(texts))


def _with_commands(trials: pd.DataFrame) -> pd.DataFrame:
    of_two = set()
    for key in trials["settings"].unique():
        if SECOND in dict(key.pairs):
            of_two.add(key)
    if not of_two:
        return trials.assign(stack=trials["target"])
    ablations = trials["ablation"].astype(object)
    second = ablations == VERSUS
    commands = second.map({False: COMMANDS[0], True: COMMANDS[1]})
    targets = trials["target"].astype(object)
    compares_two = trials["settings"].isin(of_two)
    named = targets.mask(compares_two, commands)
    return trials.assign(
        stack=trials["target"],
        target=named.astype("category"),
        ablation=ablations.mask(second, None),
    )


def _comparison_keys(trials: pd.DataFrame) -> "pd.Series[Any]":
    """Return the comparison key of each trial's job and host: one object for all trials that agree in it.

    It is that of bare metal in the trial's block where it is there, so that a trial that departs from its block stays
    in the group in which its ratio is refused and named.
    """
    columns = ["settings", *_OF_HOST.values()]
    base = baseline(trials)[[*BLOCK, *columns]].drop_duplicates(BLOCK)
    joined = trials[BLOCK].merge(base, on=BLOCK, how="left", indicator=True)
    joined = joined.set_index(trials.index)
    alone = joined["_merge"] == "left_only"
    parts = []
    for name in columns:
        of_base = joined[name].astype(object)
        of_trial = trials[name].astype(object)
        column = of_base.mask(alone, of_trial)
        parts.append(column.fillna("unknown"))
    rows = list(zip(*parts, strict=True))
    keys = {}
    for settings, *of_host in set(rows):
        host = zip(_OF_HOST, map(str, of_host), strict=True)
        keys[settings, *of_host] = ComparisonKey((*settings.pairs, *host))
    keys_of_trials = [keys[row] for row in rows]
    return pd.Series(keys_of_trials, index=trials.index, dtype=object)


def _differing(keys: "pd.Series[Any]", trials: pd.DataFrame) -> Iterator[str]:
    """Yield the settings that differ among the trials of a model and follow from no other, in the order of the keys."""
    for _, of_model in keys.groupby(trials["model"], observed=True):
        data = trials.loc[of_model.index, "data"].astype(str)
        different = dict.fromkeys(zip(of_model, data, strict=True))
        in_order = sorted(different, key=lambda job: str(job[0]))
        jobs = [{**dict(key.pairs), "data": kind} for key, kind in in_order]
        names = dict.fromkeys(chain.from_iterable(jobs))
        names.pop("data", None)
        for name in names:
            values = {settings.get(name) for settings in jobs}
            if name.startswith(("workloads.", "sources.")):
                # Aggressors vary inside a run on purpose: only their own workloads distinguish runs.
                values.discard(None)
            follows = any(decided_by([key], name, jobs) for key in may_decide(name))
            if len(values) > 1 and not follows:
                yield name


def may_decide(name: str) -> list[str]:
    """Return the keys that a setting may follow from."""
    deciding = []
    for key, patterns in FOLLOWING.items():
        if matches_any(name, patterns):
            deciding.append(key)
    return deciding


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def decided_by(keys: Sequence[str], name: str, jobs: Sequence[Mapping[str, str]]) -> bool:
    """Return whether the value of a setting follows from those of ``keys`` in all these jobs."""
    values: dict[tuple[str | None, ...], str | None] = {}
    for job in jobs:
        deciding = tuple(map(job.get, keys))
        value = job.get(name)
        if values.setdefault(deciding, value) != value:
            return False
    return True


def plain(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the targets as they are: without ablation, and with no aggressor beside them."""
    as_it_is = trials["ablation"].isna()
    alone = trials["aggressor"].isna()
    return trials[as_it_is & alone]


def filled(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials, or pairs, in which empty names stand for no ablation and no aggressor."""
    columns: dict[str, Any] = dict.fromkeys(SWITCHES, "")
    for name in SWITCHES:
        if name in trials:
            columns[name] = trials[name].fillna("")
    return trials.assign(**columns)


def baseline(trials: pd.DataFrame) -> pd.DataFrame:
    is_base = trials["target"].isin(BASES)
    return plain(trials[is_base])


def pair(
    own: pd.DataFrame,
    base: pd.DataFrame,
    columns: Sequence[str],
    *,
    same: Sequence[str] = (),
    by_difference: Collection[str] = (),
) -> pd.DataFrame:
    """Join each target and block of ``own`` to the same block of ``base``; both must agree in the columns ``same``.

    The trials are ok and have ``variant``. ``columns`` become log(own / base), of the mean if a block holds two trials
    of a target; if a number is zero, in no block of that target, as the column ``zeros`` says: the others would be no
    sample of it. Those ``by_difference`` become own - base. The columns that ``validity.usable`` needs are kept, those
    of ``base`` with the suffix ``_base``. The pairs are in the order of the blocks.
    """
    shared = [*BLOCK, *same]
    extra = [name for name in CHECKED if name not in ROW]
    left = _means(own, columns, extra, by_difference)
    right = _means(base, columns, extra, by_difference).drop_duplicates(shared)
    of_own = [name for name in ("target", "variant") if name not in same]
    right = right.drop(columns=of_own)
    pairs = left.merge(right, on=shared, suffixes=("", "_base"))
    pairs = pairs.sort_values(["run_id", "block"], ignore_index=True)
    of_zero = {}
    differences = {}
    for column in columns:
        numbers = pairs[column]
        base_numbers = pairs[f"{column}_base"]
        zero = numbers.abs().eq(np.inf)
        base_zero = base_numbers.abs().eq(np.inf)
        of_zero[column] = zero | base_zero
        differences[column] = numbers - base_numbers
    # The copy is of one part, where merging many kinds leaves too many for pandas to add a column quietly.
    pairs = pairs.copy().assign(zeros="", **differences)
    arm_columns = [pairs[name] for name in ROW]
    for column, has_zero in of_zero.items():
        if has_zero.any():
            by_arm = has_zero.groupby(arm_columns, observed=True)
            in_arm = by_arm.transform("any")
            why = f"{column} is zero in some trials, which have no ratio"
            pairs[column] = pairs[column].mask(in_arm)
            pairs["zeros"] = pairs["zeros"].mask(in_arm, why)
    return pairs


def have_failed(trials: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether each trial has failed, or did before it was repeated: what failed is not missing at random."""
    failed = ~trials["ok"].astype(bool)
    repeated = trials["failed_attempts"] > 0
    return failed | repeated


def failed_by_block(
    own: pd.DataFrame,
    base: pd.DataFrame,
    *,
    same: Sequence[str] = (),
) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the key of each target of ``own`` and, for each block that holds a trial of both, which side failed.

    Of two trials of a side in one block the first counts. Targets without a failed trial on either side are left out.
    """
    own = own.assign(failed=have_failed(own))
    base = base.assign(failed=have_failed(base))
    if not (own["failed"].any() or base["failed"].any()):
        return
    shared = [*BLOCK, *same]
    first_own = own.sort_values("replica").drop_duplicates([*ROW, "run_id", "block"])
    first_base = base.sort_values("replica").drop_duplicates(shared)
    blocks = first_own.merge(
        first_base[[*shared, "failed"]],
        on=shared,
        suffixes=("", "_base"),
    )
    for key, rows in grouped(blocks):
        index = pd.MultiIndex.from_frame(rows[["run_id", "block"]])
        sides = {
            "own": rows["failed"].to_numpy(),
            "base": rows["failed_base"].to_numpy(),
        }
        failed = pd.DataFrame(sides, index=index)
        if failed.any(axis=None):
            yield key, failed


def _means(
    trials: pd.DataFrame,
    columns: Sequence[str],
    extra: Sequence[str],
    by_difference: Collection[str],
) -> pd.DataFrame:
    logs_of_ratios = {}
    # A zero has no logarithm; a metric that can be zero declares that it is compared by differences.
    with np.errstate(divide="ignore"):
        for column in columns:
            if column not in by_difference:
                numbers = trials[column].clip(lower=0.0)
                logs_of_ratios[column] = np.log(numbers)
    logs = trials.assign(**logs_of_ratios)
    rate = "throughput_per_s"
    if rate in columns:
        # For jobs that take turns, bursts of the same round are compared, and the rounds averaged.
        burst_s = trials["burst_s"]
        of_bursts = np.log(trials["global_batch"] / burst_s)
        logs[rate] = logs[rate].mask(burst_s.notna(), of_bursts)
    aggregates: dict[str, Any] = dict.fromkeys([*columns, "position"], "mean")
    aggregates |= dict.fromkeys([*extra, "design"], "first")
    if trials["replica"].any():
        aggregates["computed"] = lambda outcomes: together(list(outcomes))
    return logs.groupby([*ROW, "run_id", "block"], as_index=False).agg(aggregates)


def substitutes_of(trials: pd.DataFrame) -> tuple[str, ...]:
    """Return the substitutes without which the numbers of the trials must not be read, each once."""
    texts = [text for text in trials["substitutes"].unique() if text]
    lines = chain.from_iterable(text.splitlines() for text in texts)
    return tuple(dict.fromkeys(lines))


def by_block(trials: pd.DataFrame, values: "pd.Series[float]") -> list[float]:
    """Return the mean of each block: its trials share their weather, and are one value."""
    return [*means_of_blocks(trials, values).values()]


def means_of_blocks(trials: pd.DataFrame, values: "pd.Series[float]") -> dict[tuple[str, int], float]:
    """Return the mean of each run and block that have a value."""
    blocks: dict[tuple[str, int], list[float]] = defaultdict(list)
    for run, block, value in zip(trials["run_id"], trials["block"], values, strict=True):
        if value == value:  # NaN: it was not measured
            blocks[run, block].append(value)
    return {block: fmean(of_block) for block, of_block in blocks.items()}


def to_baseline(ok: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Pair each target with bare metal in its block, bare metal itself too."""
    return pair(plain(ok), baseline(ok), columns)


def order(arm: Arm) -> tuple[object, ...]:
    """Return a sort key: by job, then models and targets in the order of the paper, ablation and aggressor."""
    return (
        *papers_order(arm.job, arm.model, arm.target),
        arm.ablation,
        known_first(aggressor_names(), arm.aggressor),
    )
