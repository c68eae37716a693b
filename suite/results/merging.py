"""Merge runs of one plan made on several hosts into one run. The sources are only read.

Everything is checked before anything is written, and each record is written whole or not at all: a merge that is cut
off is repeated, and one that is repeated changes nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suite.errors import RequestError
from suite.host_compatibility import Host, differences
from suite.plan import Plan
from suite.records.headers import read_header, record_entries
from suite.results import files
from suite.results.manifest import ListedFile, read_manifest
from suite.results.runs import SWEEP, is_run, is_sweep
from suite.results.store import ATTEMPTS, PLAN, TRIALS, Run, plan_differences, stored_plan, write_atomic
from suite.trial_names import RECORD_FILES, attempt_file, attempts_of, record_file, trial_of_attempt

GROWING = ("blocks", "warmup_blocks")
"""Fields of a plan that may differ: with more blocks every record stays part of it."""


@dataclass
class Merged:
    """The result of a merge: trial ids, and files that were left out because they are not records."""

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
    """Yield each directory of a merged run, with the runs that become part of it."""
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
    found = {place: _text(place / SWEEP) for place in (into, *sources)}
    texts = {place: text for place, text in found.items() if text is not None}
    if len(set(texts.values())) > 1:
        raise RequestError(
            f"{', '.join(map(str, texts))} are sweeps of different plans", remedy="merge sweeps of one plan file"
        )
    if texts and into not in texts:
        write_atomic(into / SWEEP, next(iter(texts.values())))


@dataclass(frozen=True)
class _Chosen:
    """The record of a trial that will be copied. A digest stands for its text: 100,000 texts are too many."""

    path: Path
    digest: bytes
    ok: bool
    started_at: str


class _Step:
    """One merged run. Making it reads and checks everything; ``write`` copies the records."""

    def __init__(self, into: Path, runs: Sequence[Path], merged: Merged) -> None:
        self.into, self.merged = into, merged
        self.runs = [*([into] if is_run(into) else []), *runs]
        self.plan = _common_plan(self.runs)
        self.chosen: dict[str, _Chosen] = {}
        self.hosts: dict[Host, None] = {}
        for run in self.runs:
            for entry in record_entries(run):
                self._take(Path(entry.path))

    def _take(self, path: Path) -> None:
        header = read_header(path)
        # The trial's name is to become a file's: what the record says of itself could lead elsewhere.
        if header is None or path.name != record_file(header.trial_id):
            self.merged.left_out.append(str(path))
            return
        self.hosts[header.host] = None
        digest = hashlib.sha256(files.read(path)).digest()
        before = self.chosen.get(header.trial_id)
        if before and before.digest != digest and before.ok and header.ok:
            raise RequestError(
                f"two records of {header.trial_id} are ok and differ: {before.path} and {path}",
                remedy="leave one of the runs out: a trial is measured once",
            )
        # Of two records of a trial one that is ok stays, else the later one.
        if before is None or (header.ok, header.started_at) > (before.ok, before.started_at):
            self.chosen[header.trial_id] = _Chosen(path, digest, header.ok, header.started_at)

    def write(self) -> None:
        run = Run(self.into)
        with run.exclusive():
            plan = self.plan.model_dump_json(indent=2) + "\n"
            if _text(self.into / PLAN) != plan:
                run.unlist(PLAN)
                write_atomic(self.into / PLAN, plan)
            for trial_id, chosen in self.chosen.items():
                place = self.into / TRIALS / record_file(trial_id)
                there, text = _text(place), files.read(chosen.path).decode()
                if there == text:
                    self.merged.kept += 1
                    continue
                run.unlist(f"{TRIALS}/{place.name}")
                write_atomic(place, text, below=self.into)
                (self.merged.added if there is None else self.merged.replaced).append(trial_id)
            for source in self.runs:
                _copy_attempts(source, self.into)
            run.seal(self._listed())

    def _listed(self) -> dict[str, ListedFile]:
        """Return the digests under which the sources list what was copied: an edited record stays an edited one."""
        manifests = {run: read_manifest(run) for run in self.runs}
        found = {}
        for chosen in self.chosen.values():
            name = f"{TRIALS}/{chosen.path.name}"
            manifest = manifests[chosen.path.parents[1]]
            if manifest and name in manifest.files:
                found[name] = manifest.files[name]
        return found


def _common_plan(runs: Sequence[Path]) -> Plan:
    plans = [stored_plan(run) for run in runs]
    for run, plan in zip(runs, plans, strict=True):
        if different := [name for name in plan_differences(plans[0], plan) if name not in GROWING]:
            raise RequestError(
                f"{run} is of another plan than {runs[0]}: {', '.join(different)} differ",
                remedy="merge runs of one plan; bench compare takes runs of different ones",
            )
    return plans[0].model_copy(update={name: max(getattr(plan, name) for plan in plans) for name in GROWING})


def _copy_attempts(source: Path, into: Path) -> None:
    """Copy every attempt that is not there yet, under the next number that is free."""
    if source == into:
        return
    for path in sorted((source / ATTEMPTS).glob(RECORD_FILES)):
        trial_id, text = trial_of_attempt(path.name), _text(path)
        there = sorted((into / ATTEMPTS).glob(attempts_of(trial_id)))
        if trial_id and text is not None and text not in set(map(_text, there)):
            write_atomic(into / ATTEMPTS / attempt_file(trial_id, len(there) + 1), text, below=into)


def _text(path: Path) -> str | None:
    """Return what a file holds; None where there is no regular file of text."""
    try:
        return files.read(path).decode()
    except (FileNotFoundError, files.SpecialFileError, UnicodeDecodeError):
        return None
