"""Findings that a reader must know: typed warnings, made of the trials and of their summaries."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.compare.pairing import ROW, job_of
from analysis.compare.results import ComparedJob, Group
from analysis.load.metrics import PROBE
from analysis.warnings.types import FailedTrials, HostsDiffer, Incomparable, MixedSubstitutes, NotNormalised
from suite.host_compatibility import Host, differences
from suite.job.ablations import label_of
from suite.targets import BASELINE

_HOST_COLUMNS = ["hostname", "host_kernel", "host_cpu_model", "host_cpus", "host_memory_bytes", "host_mitigations"]


def _what(row: Mapping[Hashable, object] | pd.Series) -> str:
    """Return the job and the model of a row as text."""
    return f"{job_of(row)}, {row['model']}"


def failures(trials: pd.DataFrame) -> Iterator[FailedTrials]:
    """Yield one warning per target and model that has failed trials, with the first of them."""
    if trials["ok"].all():
        return
    arms = trials.assign(ablation=trials["ablation"].fillna(""), aggressor=trials["aggressor"].fillna(""))
    arm = [*ROW, "ablation", "aggressor"]
    of = arms.groupby(arm)["ok"].transform("size")
    for _, failed in arms[~arms["ok"]].groupby(arm):
        first = failed.iloc[0]
        target = f"{first['target']}, {label_of(first['ablation'])}" if first["ablation"] else first["target"]
        target += f", beside {first['aggressor']}" if first["aggressor"] else ""
        error = f"{first['error_kind']}: {first['error_message']}"
        yield FailedTrials(_what(first), target, len(failed), int(of[failed.index[0]]), error, Path(first["path"]))


def mixtures(trials: pd.DataFrame) -> Iterator[MixedSubstitutes]:
    """Yield one warning per target and model whose finished trials did not all use the same substitutes."""
    used = trials[trials["ok"]].groupby(ROW)["substitutes"].unique()
    for row in used[used.map(len) > 1].reset_index().to_dict("records"):
        sets = [set(text.splitlines()) for text in row["substitutes"]]
        differing = set.union(*sets) - set.intersection(*sets)
        yield MixedSubstitutes(_what(row), row["target"], tuple(sorted(differing)))


def refusals(refused: pd.DataFrame, against: str = BASELINE, ablation: str = "") -> Iterator[Incomparable]:
    """Yield one warning per target, model and difference of the pairs that ``validity.usable`` refused."""
    for _, blocks in refused.groupby([*(refused[key] for key in ROW), refused["difference"]]):
        first = blocks.iloc[0]
        target = f"{first['target']}, {label_of(ablation)}" if ablation else str(first["target"])
        yield Incomparable(_what(first), target, len(blocks), str(first["difference"]), against)


def unnormalised(groups: Sequence[Group]) -> Iterator[NotNormalised]:
    """Yield one warning per job and reason, with the targets and models whose values have no ratio."""
    found: dict[tuple[ComparedJob, str], tuple[list[str], list[str]]] = {}
    for group in groups:
        reason = _no_ratio(group)
        bare = [
            summary.target
            for summary in group.targets
            if summary.target != BASELINE and any(estimate.ratio is None for estimate in summary.estimates.values())
        ]
        if bare:
            models, targets = found.setdefault((group.job, reason), ([], []))
            models.append(group.model)
            targets += (target for target in bare if target not in targets)
    for (job, reason), (models, targets) in found.items():
        yield NotNormalised(str(job), tuple(models), tuple(targets), reason, _request(job))


def _request(job: ComparedJob) -> dict[str, str]:
    """Return the options of ``bench run`` that ask for this job."""
    keys = ("scenario", "profile") if job.scenario == PROBE else ("scenario", "profile", "recipe")
    request = {key: str(getattr(job, key)) for key in keys}
    if job.data != "synthetic":
        request["data"] = job.data if job.data == "generated" else f"{job.data}:DIR"
    return request


def _no_ratio(group: Group) -> str:
    baseline = next((summary for summary in group.targets if summary.target == BASELINE), None)
    if baseline is None:
        return f"there is no {BASELINE} trial"
    if not baseline.ok:
        return f"every {BASELINE} trial failed"
    return f"no block holds both and a comparable {BASELINE} trial"


def hosts_differ(trials: pd.DataFrame) -> Iterator[HostsDiffer]:
    """Yield one warning if the hosts of the trials are not equal. Absent facts differ from known ones."""
    rows = trials[_HOST_COLUMNS].drop_duplicates()
    if len(rows) < 2:
        return
    hosts = [_host(row) for row in rows.astype(object).where(rows.notna(), None).to_dict("records")]
    if found := differences(hosts):
        yield HostsDiffer(tuple(dict.fromkeys(host.name for host in hosts)), found)


def _host(row: Mapping[Hashable, Any]) -> Host:
    known = row["host_mitigations"]
    pairs = [line.partition(": ") for line in str(known).splitlines()] if known is not None else None
    return Host.model_validate(
        {
            "hostname": row["hostname"],
            "kernel": row["host_kernel"],
            "cpu_model": row["host_cpu_model"],
            "cpus": row["host_cpus"],
            "memory_bytes": row["host_memory_bytes"],
            "mitigations": None if pairs is None else tuple((name, how) for name, _, how in pairs),
        }
    )
