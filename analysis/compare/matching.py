"""Match the trials of two runs by their jobs, and name what the new run lacks of the old one.

Two trials belong together if their jobs agree in everything but the image: what is in it is checked as the userland,
and it is built anew at will. A row is a job on a target, with its ablation and aggressor.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import pandas as pd

from analysis.compare.pairing import JOB, ROW, papers_order, with_variants
from analysis.compare.results import Arm
from suite.host_compatibility import Host, differences
from suite.job.envelope import GIB
from suite.job.job import BETWEEN
from suite.targets import BASELINE

KEY = [*ROW, "arm"]
Key = tuple[str, ...]
"""The values of ``KEY``. ``arm`` names the ablation and the aggressor; empty where there is none."""
_CELL = len(JOB) + 1
_HARDWARE = {
    "hostname": "hostname",
    "host_cpu_model": "cpu_model",
    "host_cpus": "cpus",
    "host_memory_bytes": "memory_bytes",
}
"""The columns that say which machine it is, and their names in a ``Host``."""
_SIDES = ("old", "new")


@dataclass(frozen=True)
class RowMetric:
    """One number of a job on a target, followed over runs. ``variant`` holds the settings that differ among them."""

    scenario: str
    data: str
    profile: str
    recipe: str
    variant: str
    model: str
    target: str
    arm: str
    """The ablation of the trials and the aggressor beside them; empty where there is none."""
    metric: str
    normalised: bool
    """Whether it is the ratio to bare metal, which does not move when the whole machine changes."""

    @property
    def key(self) -> Key:
        """Return the values of ``KEY``."""
        return tuple(getattr(self, part) for part in KEY)

    @property
    def place(self) -> str:
        """Return ``resnet50 on vm (engine=podman)``."""
        return name_of(self.key)

    @property
    def what(self) -> str:
        """Return ``throughput``, or ``throughput, relative to bare-metal``."""
        return f"{self.metric}{f', relative to {BASELINE}' if self.normalised else ''}"


@dataclass(frozen=True)
class Missing:
    """Something of the old run that the new one lacks, so that it could not be compared."""

    what: Literal["cell", "target", "metric", "trials"]
    name: str
    """``resnet50 on vm (engine=podman)``."""
    why: str


def matched(old: pd.DataFrame, new: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with the columns ``variant``, which tells all jobs of both apart, and ``arm``."""
    # Hosts were held against each other before. Runs of one name in two directories are two runs.
    sides = [
        prepared(trials).assign(host_cpu_model="", run_id=f"{side}/" + trials["run_id"].astype(str), side=side)
        for side, trials in zip(_SIDES, (old, new), strict=True)
    ]
    both = with_variants(pd.concat(sides, ignore_index=True))
    return both[both["side"] == "old"], both[both["side"] == "new"]


def prepared(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials with ``arm``, without the digest of the image in ``settings``, and of whichever pool of hosts."""
    # Hosts are checked, or a key of the rows, wherever these are matched.
    settings = trials["settings"].astype(str).map(_without_image)
    return trials.assign(settings=settings, pool="", arm=list(_arms(trials)))


def _without_image(settings: str) -> str:
    return BETWEEN.join(part for part in settings.split(BETWEEN) if not part.startswith("image="))


def code_in(settings: str) -> str:
    """Return the settings that change with the user's own code: of a workload's file, or the files of a command."""
    parts = settings.split(BETWEEN)
    digests = ("workload_sha256=", *(["data_sha256="] if "data_kind=files" in parts else []))
    return BETWEEN.join(part for part in parts if part.startswith(digests))


def without_code(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials without the digests of the user's own code in ``settings``."""
    settings = ((text.split(BETWEEN), code_in(text).split(BETWEEN)) for text in trials["settings"].astype(str))
    kept = [BETWEEN.join(part for part in parts if part not in code) for parts, code in settings]
    return trials.assign(settings=kept)


def other_code(old: pd.DataFrame, new: pd.DataFrame) -> str:
    """Return ``code of train.py 3f0a9c... -> 77aa01...`` for models of both runs that share no code; else nothing."""
    sides: list[dict[str, set[str]]] = [{}, {}]
    for found, trials in zip(sides, (old, new), strict=True):
        for model, settings in zip(trials["model"].astype(str), trials["settings"].astype(str), strict=True):
            found.setdefault(model, set()).add(code_in(settings).partition("=")[2][:12])
    both = {model: (sides[0][model], sides[1][model]) for model in sides[0].keys() & sides[1].keys()}
    changed = {model: pair for model, pair in sorted(both.items()) if not pair[0] & pair[1]}
    return "; ".join(f"code of {model} {' -> '.join(map(', '.join, pair))}" for model, pair in changed.items())


def _arms(trials: pd.DataFrame) -> Iterator[str]:
    for ablation, aggressor in zip(trials["ablation"], trials["aggressor"], strict=True):
        switched = f"ablation {ablation}" if isinstance(ablation, str) else ""
        yield ", ".join(filter(None, (switched, f"beside {aggressor}" if isinstance(aggressor, str) else "")))


def by_key(trials: pd.DataFrame, columns: Sequence[str] = KEY) -> dict[Key, pd.DataFrame]:
    """Return the trials of each row, in the order of the paper."""
    found = {tuple(map(str, key)): rows for key, rows in trials.groupby(list(columns), observed=True, sort=False)}
    return dict(sorted(found.items(), key=lambda each: _order(each[0])))


def _order(key: Key) -> tuple[object, ...]:
    return *papers_order(key[: _CELL - 1], key[_CELL - 1], key[_CELL]), key[_CELL + 1 :]


def name_of(key: Key) -> str:
    """Return ``resnet50 on vm (engine=podman, ablation seccomp)``."""
    return f"{key[_CELL - 1]} on {place_of(key[_CELL], key[_CELL - 2], *key[_CELL + 1 :])}"


def named(arm: Arm) -> str:
    """Return ``resnet50 beside disk on vm (engine=podman, seccomp)``."""
    model = " beside ".join(filter(None, (arm.model, arm.aggressor)))
    return f"{model} on {place_of(arm.target, arm.job.variant, arm.ablation)}"


def place_of(target: str, *settings: str) -> str:
    """Return the target, with its settings where they tell it apart: ``vm (engine=docker)``."""
    told = ", ".join(filter(None, settings))
    return f"{target} ({told})" if told else target


def missing(
    old: Mapping[Key, pd.DataFrame], new: Mapping[Key, pd.DataFrame], *, open_ended: bool = False
) -> Iterator[Missing]:
    """Yield the cells, targets and trials of the old run that the new one has not finished, each once.

    ``old`` and ``new`` hold failed trials, too, in the order of ``by_key``. A row that the old run has not finished
    cannot be compared either. A new run that is ``open_ended`` lacks no block after its last one: a stop rule has ended
    it.
    """
    last = max((rows["block"].max() for rows in new.values()), default=-1) if open_ended else math.inf
    finished = {key: rows for key, rows in new.items() if rows["ok"].any()}
    for cell, of_cell in groupby(old, lambda key: key[:_CELL]):
        keys = list(of_cell)
        if not any(key[:_CELL] == cell for key in finished):
            targets = ", ".join(place_of(*key[_CELL:]) for key in keys)
            yield Missing("cell", _cell_name(cell), f"no trial was finished on {targets}{_failures(new.get(keys[0]))}")
            continue
        for key in keys:
            if not old[key]["ok"].any():
                yield Missing("target", name_of(key), "the baseline has no finished trial")
            elif key not in finished:
                yield Missing("target", name_of(key), f"no trial was finished{_failures(new.get(key))}")
            else:
                yield from _missing_trials(key, old[key], finished[key], last)


def _missing_trials(key: Key, old: pd.DataFrame, new: pd.DataFrame, last: float) -> Iterator[Missing]:
    if gone := sorted(place for place in _places(old) - _places(new) if place[0] <= last):
        blocks = ", ".join(str(block) for block, _ in gone)
        why = f"{len(gone)} of {len(_places(old))} trials are missing (block {blocks}){_failures(new)}"
        yield Missing("trials", name_of(key), why)


def _places(rows: pd.DataFrame) -> set[tuple[int, int]]:
    ok = rows[rows["ok"]]
    return set(zip(ok["block"], ok["replica"], strict=True))


def _cell_name(cell: Key) -> str:
    scenario, data, profile, recipe, variant, model = cell
    return f"{model} ({', '.join(filter(None, (scenario, data, profile, recipe, variant)))})"


def _failures(rows: pd.DataFrame | None) -> str:
    """Return ``; 2 failed: out of memory``; empty where none failed."""
    failed = pd.DataFrame() if rows is None else rows[~rows["ok"]]
    return f"; {len(failed)} failed: {failed['error_message'].iloc[0]}" if len(failed) else ""


def other_hosts(old: pd.DataFrame, new: pd.DataFrame) -> str:
    """Return the hosts of both runs where the new one has a host that the old one has not; empty if it has none.

    The kernel may change: that is what is looked for. Another name is another machine, even of the same kind.
    """
    known, seen = _hosts(old), _hosts(new)
    if all(any(one.hostname == host.hostname and not differences((one, host)) for one in known) for host in seen):
        return ""
    return " and ".join(", ".join(map(_described, hosts)) for hosts in (known, seen))


def _hosts(trials: pd.DataFrame) -> list[Host]:
    rows = trials[list(_HARDWARE)].drop_duplicates().rename(columns=_HARDWARE).astype(object)
    return [Host.model_validate(row) for row in rows.where(rows.notna(), None).to_dict("records")]


def _described(host: Host) -> str:
    memory = "unknown memory" if host.memory_bytes is None else f"{host.memory_bytes / GIB:.4g} GiB"
    return f"{host.name} ({host.cpu_model or 'unknown CPU model'}, {host.cpus or 'unknown'} CPUs, {memory})"
