"""Runs of one plan made on several hosts become one run. The sources are only read.

Everything is checked before anything is written, and each record is written whole or not at all: a merge that is cut
off is repeated, and one that is repeated changes nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from suite.errors import RequestError
from suite.host_compatibility import Host, differences
from suite.plan import Plan
from suite.records.migrations import NewerRecordError, current
from suite.results.runs import SWEEP, is_run, is_sweep
from suite.results.store import ATTEMPTS, PLAN, TRIALS, Run, plan_differences, stored_plan, write_atomic

GROWING = ("blocks", "warmup_blocks")
"""Of a plan: every record stays part of it when there are more; one machine may have run the warm-up blocks for all."""


class _Outcome(BaseModel):
    status: str


class _Environments(BaseModel):
    host: dict[str, Any]


class _Seen(BaseModel):
    """What a merge must know of a record."""

    trial_id: str
    started_at: str
    outcome: _Outcome
    environment: _Environments

    @property
    def rank(self) -> tuple[bool, str]:
        """Of two records of a trial the higher one stays: one that is ok, else the later one."""
        return self.outcome.status == "ok", self.started_at


@dataclass
class Merged:
    """What a merge did: trial ids, and files that are no records and were left out."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    kept: int = 0
    left_out: list[str] = field(default_factory=list)
    host_differences: tuple[str, ...] = ()


def merge(sources: Sequence[Path], into: Path, *, force: bool = False) -> Merged:
    """Merge runs into a run, or sweeps into a sweep, cell by cell.

    Raises RequestError, and has changed nothing, when a source is neither, when plans differ in more than their blocks,
    when a trial is ok in two records that differ, or when the hosts are not equal and ``force`` does not say that they
    are to be pooled all the same (the comparison then warns).
    """
    if into.resolve() in {source.resolve() for source in sources}:
        raise RequestError(
            f"--into {into} is among the sources", remedy="leave it out there: what it holds stays in it"
        )
    merged = Merged()
    steps = [_Step(cell, runs, merged) for cell, runs in _cells(sources, into)]
    merged.host_differences = differences(host for step in steps for host in step.hosts)
    if merged.host_differences and not force:
        raise RequestError(
            f"the hosts are not equal: {'; '.join(merged.host_differences)}",
            remedy="compare the runs one at a time, or pool them all the same with --force",
        )
    _copy_sweep(sources, into)
    for step in steps:
        step.write()
    return merged


def _cells(sources: Sequence[Path], into: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Each run directory to be, and the runs that come together in it."""
    if all(map(is_run, sources)):
        if is_sweep(into):
            raise RequestError(f"--into {into} is a sweep and the sources are runs", remedy="name one of its cells")
        yield into, list(sources)
        return
    for source in sources:
        if not is_sweep(source):
            what = "is a run and others are sweeps" if is_run(source) else "is neither a run nor a sweep"
            raise RequestError(f"{source} {what}", remedy="merge runs (with a plan.json) or sweeps, not both")
    names = sorted({run.name for source in sources for run in source.iterdir() if is_run(run)})
    for name in names:
        yield into / name, [source / name for source in sources if is_run(source / name)]


def _copy_sweep(sources: Iterable[Path], into: Path) -> None:
    texts = {place: (place / SWEEP).read_text() for place in (into, *sources) if (place / SWEEP).is_file()}
    if len(set(texts.values())) > 1:
        raise RequestError(
            f"{', '.join(map(str, texts))} are sweeps of different plans", remedy="merge sweeps of one plan file"
        )
    if texts and into not in texts:
        write_atomic(into / SWEEP, next(iter(texts.values())))


class _Step:
    """One run directory to be. Made: everything is read and checked; ``write``: the records are copied."""

    def __init__(self, into: Path, runs: Sequence[Path], merged: Merged) -> None:
        self.into, self.merged = into, merged
        self.runs = [*([into] if is_run(into) else []), *runs]
        self.plan = _common_plan(self.runs)
        self.chosen: dict[str, tuple[_Seen, Path, bytes]] = {}
        """By trial: what was seen of its record, where, and a digest of the file: 100,000 texts are too many."""
        self.hosts: dict[Host, None] = {}
        for run in self.runs:
            for path in sorted((run / TRIALS).glob("[!.]*.json")):
                self._take(path)

    def _take(self, path: Path) -> None:
        content = path.read_bytes()
        seen, digest = _seen(path, content), hashlib.sha256(content).digest()
        if seen is None:
            self.merged.left_out.append(str(path))
            return
        self.hosts[Host.of(seen.environment.host)] = None
        before = self.chosen.get(seen.trial_id)
        if before and before[2] != digest and before[0].rank[0] and seen.rank[0]:
            raise RequestError(
                f"two records of {seen.trial_id} are ok and differ: {before[1]} and {path}",
                remedy="leave one of the runs out: a trial is measured once",
            )
        if before is None or seen.rank > before[0].rank:
            self.chosen[seen.trial_id] = (seen, path, digest)

    def write(self) -> None:
        run = Run(self.into)
        with run.exclusive():
            write_atomic(self.into / PLAN, self.plan.model_dump_json(indent=2) + "\n")
            for trial_id, (_, path, _) in self.chosen.items():
                place = self.into / TRIALS / f"{trial_id}.json"
                there, text = place.read_text() if place.exists() else None, path.read_text()
                if there == text:
                    self.merged.kept += 1
                    continue
                write_atomic(place, text)
                (self.merged.added if there is None else self.merged.replaced).append(trial_id)
            for source in self.runs:
                _copy_attempts(source / ATTEMPTS, self.into / ATTEMPTS)


def _common_plan(runs: Sequence[Path]) -> Plan:
    plans = [stored_plan(run) for run in runs]
    for run, plan in zip(runs, plans, strict=True):
        if different := [name for name in plan_differences(plans[0], plan) if name not in GROWING]:
            raise RequestError(
                f"{run} is of another plan than {runs[0]}: {', '.join(different)} differ",
                remedy="merge runs of one plan; bench compare takes runs of different ones",
            )
    return plans[0].model_copy(update={name: max(getattr(plan, name) for plan in plans) for name in GROWING})


def _seen(path: Path, content: bytes) -> _Seen | None:
    """None for what is no record, or is not named as its trial."""
    try:
        seen = _Seen.model_validate_json(current(content))
    except NewerRecordError as error:
        raise NewerRecordError(f"{path}: {error.message}", remedy=error.remedy) from error
    except ValidationError:
        return None
    # The name is to become a file's: what the record says of itself could lead elsewhere.
    return seen if path.name == f"{seen.trial_id}.json" else None


def _copy_attempts(source: Path, into: Path) -> None:
    """Every attempt once, under the next number that is free: ``ID.N.json``."""
    if source == into:
        return
    for path in sorted(source.glob("[!.]*.json")):
        trial_id = path.name.removesuffix(".json").rpartition(".")[0]
        text = path.read_text()
        there = sorted(into.glob(f"{trial_id}.*.json"))
        if trial_id and text not in {other.read_text() for other in there}:
            write_atomic(into / f"{trial_id}.{len(there) + 1}.json", text)
