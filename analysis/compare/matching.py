"""Match the trials of two runs by their jobs, and name what the new run lacks of the old one.

Two trials belong together if their jobs agree in everything but the image: what is in it is checked as the userland,
and it is built anew at will. A row is a job on a target, with its ablation and aggressor.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import pandas as pd

from analysis.compare.contrast_kinds import RELATIVE, RUN, ContrastKind
from analysis.compare.pairing import (
    ROW,
    SWITCHES,
    by_block,
    filled,
    grouped,
    order,
    to_baseline,
    with_variants,
)
from analysis.compare.results import Arm
from analysis.compare.validity import usable
from analysis.load.metrics import Metric, by_ratio
from analysis.warnings.findings import hosts_of
from suite.differ import Host, differences, gib
from suite.job.datasets import FILES
from suite.job.job import ComparisonKey
from suite.targets import BASES

REFUSED = "the audit refuses it"
"""Stands for the error of a trial whose record does not count."""


@dataclass(frozen=True)
class Missing:
    """Something of the old run that the new one lacks, so that it could not be compared."""

    what: Literal["cell", "target", "metric", "trials"]
    name: str
    """``resnet50 on vm (engine=podman)``."""
    why: str
    failed_in: Literal["old", "new"] | None = None
    """The run whose failed or refused trials explain it; null where neither has any."""
    blocks: int | None = None
    """The blocks that the new run needs to lack no trial of this row; null for anything but trials."""


def matched(old: pd.DataFrame, new: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with the column ``variant``, which tells all jobs of both apart."""
    # Hosts were held against each other before. Runs of one name in two directories are two runs.
    sides = []
    for side, trials in (("old", old), ("new", new)):
        run_ids = f"{side}/" + trials["run_id"].astype(str)
        of_side = prepared(trials).assign(
            host_cpu_model="",
            run_id=run_ids,
            side=side,
        )
        sides.append(of_side)
    joined = pd.concat(sides, ignore_index=True)
    both = with_variants(joined)
    is_old = both["side"] == "old"
    return both[is_old], both[~is_old]


def prepared(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials without the digest of the image in ``settings``, and of whichever pool of hosts."""
    settings = [key.without(["image"]) for key in trials["settings"]]
    # Hosts are checked, or a key of the rows, wherever these are matched.
    return trials.assign(settings=settings, pool="")


def _code_in(key: ComparisonKey) -> dict[str, str]:
    """Return the settings that change with the user's own code: of a workload's file, or the files of a command."""
    digests = ["workload_sha256"]
    if ("data_kind", FILES) in key.pairs:
        digests.append("data_sha256")
    return {name: value for name, value in key.pairs if name in digests}


def without_code(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials without the digests of the user's own code in ``settings``."""
    settings = [key.without(_code_in(key)) for key in trials["settings"]]
    return trials.assign(settings=settings)


def other_code(old: pd.DataFrame, new: pd.DataFrame) -> str:
    """Return ``code of train.py 3f0a9c... -> 77aa01...`` for models of both runs that share no code; else nothing."""
    before = _codes(old)
    after = _codes(new)
    changes = []
    for model in sorted(before.keys() & after.keys()):
        if before[model].isdisjoint(after[model]):
            old_digests = ", ".join(before[model])
            new_digests = ", ".join(after[model])
            changes.append(f"code of {model} {old_digests} -> {new_digests}")
    return "; ".join(changes)


def _codes(trials: pd.DataFrame) -> dict[str, set[str]]:
    """Return the digests of the user's own code, shortened, by model; an empty one stands for none."""
    codes: dict[str, set[str]] = defaultdict(set)
    for model, key in zip(trials["model"].astype(str), trials["settings"], strict=True):
        digests = _code_in(key).values()
        digest = next(iter(digests), "")
        codes[model].add(digest[:12])
    return codes


def tables(ok: pd.DataFrame, metrics: Sequence[Metric]) -> dict[ContrastKind, dict[Arm, pd.DataFrame]]:
    """Return the finished trials of each arm, and its pairs with bare metal."""
    columns = [metric.column for metric in by_ratio(metrics)]
    pairs, _ = usable(to_baseline(ok, columns))
    of_base = pairs["target"].isin(BASES)
    return {RUN: by_row(ok), RELATIVE: by_row(pairs[~of_base])}


def logs_of(kind: ContrastKind, rows: pd.DataFrame | None, metric: Metric) -> dict[str, list[float]]:
    """Return the logarithms of a metric, or of its ratios to bare metal, by run and block.

    Of a metric that is compared by differences return the numbers; it has no ratios to bare metal.
    """
    if rows is None or (kind is RELATIVE and metric.by_difference):
        return {}
    if kind is RELATIVE or metric.by_difference:
        logs = rows[metric.column]
    else:
        logs = metric.logs(rows)
    runs: dict[str, list[float]] = {}
    for run, of_run in rows.groupby("run_id"):
        blocks = by_block(of_run, logs[of_run.index])
        if blocks:
            runs[str(run)] = blocks
    return runs


def by_row(trials: pd.DataFrame) -> dict[Arm, pd.DataFrame]:
    """Return the trials of each arm, in the order of the paper; pairs of trials are of arms that have no switch."""
    rows = {}
    by_key = grouped(filled(trials), [*ROW, *SWITCHES])
    for key, of_arm in by_key:
        rows[Arm(*key)] = of_arm
    return {arm: rows[arm] for arm in sorted(rows, key=order)}


def name_of(arm: Arm) -> str:
    """Return ``resnet50 on vm (engine=podman, ablation seccomp)``."""
    place = place_of(arm.target, arm.job.variant, switches_of(arm))
    return f"{arm.model} on {place}"


def switches_of(arm: Arm) -> str:
    """Return the ablation of an arm and the aggressor in its blocks: ``ablation seccomp, beside disk``."""
    switches = []
    if arm.ablation:
        switches.append(f"ablation {arm.ablation}")
    if arm.aggressor:
        switches.append(f"beside {arm.aggressor}")
    return ", ".join(switches)


def named(arm: Arm) -> str:
    """Return ``resnet50 beside disk on vm (engine=podman, seccomp)``."""
    model = " beside ".join(filter(None, (arm.model, arm.aggressor)))
    place = place_of(arm.target, arm.job.variant, arm.ablation)
    return f"{model} on {place}"


def place_of(target: str, *settings: str) -> str:
    """Return the target, with its settings where they tell it apart: ``vm (engine=docker)``."""
    shown = ", ".join(filter(None, settings))
    if not shown:
        return target
    return f"{target} ({shown})"


def missing(
    old: Mapping[Arm, pd.DataFrame],
    new: Mapping[Arm, pd.DataFrame],
    *,
    open_ended: bool = False,
) -> Iterator[Missing]:
    """Yield the cells, targets and trials of the old run that the new one has not finished, each once.

    ``old`` and ``new`` hold failed trials, too, in the order of ``by_row``. A row that the old run has not finished
    cannot be compared either. A new run that is ``open_ended`` lacks no block after its last one: a stop rule has ended
    it.
    """
    last = math.inf
    if open_ended:
        last_blocks = [rows["block"].max() for rows in new.values()]
        last = max(last_blocks, default=-1)
    finished = {arm: rows for arm, rows in new.items() if rows["ok"].any()}
    for cell, of_cell in groupby(old, lambda arm: arm[:2]):
        arms = list(of_cell)
        if not any(arm[:2] == cell for arm in finished):
            job, model = cell
            targets = ", ".join(place_of(arm.target, switches_of(arm)) for arm in arms)
            settings = ", ".join(filter(None, vars(job).values()))
            yield _unfinished(
                "cell",
                f"{model} ({settings})",
                f"no trial was finished on {targets}",
                new.get(arms[0]),
            )
            continue
        for arm in arms:
            if not old[arm]["ok"].any():
                why = f"the baseline has no finished trial{_failures(old[arm])}"
                yield Missing("target", name_of(arm), why, "old")
            elif arm not in finished:
                yield _unfinished(
                    "target",
                    name_of(arm),
                    "no trial was finished",
                    new.get(arm),
                )
            else:
                yield from _missing_trials(arm, old[arm], finished[arm], last)


def _unfinished(what: Literal["cell", "target"], name: str, why: str, rows: pd.DataFrame | None) -> Missing:
    failures = _failures(rows)
    return Missing(what, name, f"{why}{failures}", "new" if failures else None)


def _missing_trials(arm: Arm, old: pd.DataFrame, new: pd.DataFrame, last: float) -> Iterator[Missing]:
    # A trial that failed is there, and its share is judged.
    finished = old[old["ok"]]
    due = set(zip(finished["block"], finished["replica"], strict=True))
    tried = set(zip(new["block"], new["replica"], strict=True))
    untried = due - tried
    blocks = sorted(block for block, _ in untried if block <= last)
    if blocks:
        numbers = ", ".join(map(str, blocks))
        why = f"{len(blocks)} of {len(due)} trials are missing (block {numbers}){_failures(new)}"
        # A trial that failed is there: those that are missing have never run.
        yield Missing("trials", name_of(arm), why, blocks=int(blocks[-1]) + 1)


def _failures(rows: pd.DataFrame | None) -> str:
    """Return ``; 2 failed: out of memory``; empty where none failed."""
    if rows is None or rows["ok"].all():
        return ""
    failed = rows[~rows["ok"]]
    return f"; {len(failed)} failed: {failed['error_message'].iloc[0]}"


def other_hosts(old: pd.DataFrame, new: pd.DataFrame) -> str:
    """Return the hosts of both runs where the new one has a host that the old one has not; empty if it has none.

    The kernel may change: that is what is looked for. Another machine is another, even of the same kind.
    """
    unknown = {"host_kernel": None, "host_mitigations": None}
    of_old = hosts_of(old.assign(**unknown))
    of_new = hosts_of(new.assign(**unknown))
    if all(_is_among(host, of_old) for host in of_new):
        return ""
    old_hosts = ", ".join(map(_described, of_old))
    new_hosts = ", ".join(map(_described, of_new))
    return f"{old_hosts} and {new_hosts}"


def _is_among(host: Host, others: Sequence[Host]) -> bool:
    alike = (other for other in others if host.machine == other.machine)
    return any(not differences((other, host)) for other in alike)


def _described(host: Host) -> str:
    memory = "unknown memory"
    if host.memory_bytes is not None:
        memory = gib(host.memory_bytes)
    cpu_model = host.cpu_model or "unknown CPU model"
    cpus = host.cpus or "unknown"
    return f"{host.name} ({cpu_model}, {cpus} CPUs, {memory})"
