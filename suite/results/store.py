"""The store: one directory per run, one file per trial, each written whole or not at all.

DIR/plan.json           the plan
DIR/trials/ID.json      a record
DIR/attempts/ID.N.json  each record of the trial that failed, which one of a repetition does not replace
DIR/models/DIGEST.pt    a kept model, by the digest of its weights
DIR/bench.log           what ``bench run`` has printed to standard error
DIR/notes.json          what people have noted; see ``suite.results.notes``
DIR/quality.json        what ``bench quality`` measured of the models
DIR/manifest.json       digests of plan, records and quality, so that an edited, missing or added file is seen
"""

import datetime
import hashlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import Field, ValidationError

from suite.differ import differ
from suite.errors import BenchError, RequestError
from suite.job.profiles import Sizes
from suite.part import Count, Part, first_problem
from suite.plan import Plan, Trial
from suite.records.reader import NewerRecordError, clean_record
from suite.records.record import TrialRecord
from suite.results import files, layout
from suite.trial_names import RECORD_FILES, attempt_file, record_file, trial_of_attempt
from suite.untrusted.parse import parse_object
from suite.version import suite_version

PLAN = layout.PLAN
TRIALS = layout.TRIALS
MODELS = "models"
MANIFEST = "manifest.json"
LOG = "bench.log"
LOCK = ".lock"
"""The file that the one process which writes a run has locked."""
LOCKS = ".locks"
"""The directory of a sweep's locks."""
ATTEMPTS = "attempts"
"""The directory that keeps every failed record."""
STOP = ".stop"
"""The file that asks the process which runs a run or a sweep to end after its current trial."""
StopRequest = tuple[int, int, int]
"""A file of that name, by device, inode and time: clocks can be set, and so decide nothing."""


DRAWN = ("run_id", "order_seed", "suite_version")
"""The fields of a plan that its run adds when it begins."""


class StoreError(BenchError):
    """A file of the store could not be written or read."""

    kind = "store"


class StopRequested(Exception):  # noqa: N818 (not an error)
    """A run or a sweep is to end after its current trial."""


class ListedFile(Part):
    """One file as it was when its run ended. The size alone shows most edits, and costs no reading."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Count

    @classmethod
    def of(cls, path: Path) -> "ListedFile":
        """Describe the file as it is now. Raises OSError."""
        with open(path, "rb", opener=files.open_regular) as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(sha256=digest.hexdigest(), size_bytes=file.tell())

    @classmethod
    def of_content(cls, content: bytes) -> "ListedFile":
        return cls(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


class Manifest(Part):
    """The content of ``manifest.json``; ``files`` by their paths in the run's directory.

    It is written by rename at every orderly end of a run. A digest that is listed stays until the suite itself writes
    that file again: to continue a run must not turn an edited record into a listed one. A run that was killed has no
    manifest, or one that lists fewer files than it has.
    """

    schema_version: Literal[1] = 1
    files: dict[str, ListedFile]


def read_manifest(run: Path) -> Manifest | None:
    """Return the manifest of a run; None if it has none.

    Raises RequestError for a file that is not one, and OSError for want of descriptors or memory.
    """
    path = run / MANIFEST
    try:
        return Manifest.model_validate_json(files.read(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        if files.is_shortage(error):
            raise
        why = error.strerror if isinstance(error, OSError) else "or of a newer suite"
        remedy = "remove it, if nobody can say what it listed"
        raise RequestError(f"{path} is not a manifest ({why})", remedy=remedy) from error


def write_atomic(
    path: Path, text: str | bytes | Iterator[str], *, below: Path | None = None, new: bool = False
) -> None:
    """Write ``path`` whole or not at all; see ``files.whole``, for ``below`` too. ``text`` may come in pieces.

    ``new``: leave a file that another process has written first. Raises StoreError, with the old content in place,
    when the disk is full or the directory cannot be written.
    """
    try:
        with unwritable(path), files.whole(path, below=below, new=new) as file:
            _write_text(file, text)
    except StoreError:
        if not (new and path.exists()):
            raise


def write_output(path: Path, text: str | bytes | Iterator[str]) -> None:
    """Write to a path that a user named; see ``files.output``. Raises StoreError as ``write_atomic`` does."""
    with unwritable(path), files.output(path) as file:
        _write_text(file, text)


def _write_text(file: IO[bytes], text: str | bytes | Iterator[str]) -> None:
    pieces = [text] if isinstance(text, str | bytes) else text
    file.writelines(piece.encode() if isinstance(piece, str) else piece for piece in pieces)


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Raise StoreError for an OSError of writing ``path``."""
    try:
        yield
    except OSError as error:
        remedy = "name another file" if isinstance(error, files.SpecialFileError) else None
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}",
            remedy=remedy or "free some space, or give another place with --out; what was measured before is kept",
        ) from error


def stop_requested(directory: Path) -> bool:
    return (directory / STOP).exists()


def request_stop(directory: Path) -> None:
    """Ask the process that runs a run or a sweep to end after its current trial. Raises StoreError."""
    write_atomic(directory / STOP, "")


def stop_request(directory: Path) -> StopRequest | None:
    """Return which request to stop is there; None if there is none."""
    try:
        status = (directory / STOP).lstat()
    except OSError:
        return None
    return *files.identity_of(status), status.st_mtime_ns


def clear_stop(directory: Path, earlier: StopRequest | None) -> None:
    """Withdraw the ``earlier`` request to stop, of an earlier run, unless there is another one. Raises StoreError."""
    if earlier is None or stop_request(directory) != earlier:
        return
    try:
        (directory / STOP).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot remove {directory / STOP}: {error.strerror}") from error


def sweep_temporaries(directory: Path) -> list[Path]:
    """Remove what a killed writer left in a directory of a run or a sweep; return what was removed.

    What a living process of this machine, or any process of another machine, is writing is left alone.
    """
    top = directory.resolve()
    runs = [top]
    if (top / layout.SWEEP).exists():
        runs += [path for path in top.iterdir() if path.is_dir() and not path.is_symlink()]
    parts = ("", TRIALS, MODELS, ATTEMPTS, layout.PLOTS, layout.KEPT, LOCKS)
    return [path for run in runs for part in parts for path in files.remove_temporaries(run / part)]


def new_run_directory(results: Path | None = None) -> Path:
    """Return a new directory whose name sorts by time: ``results/20180312T101500-4242``."""
    results = results or layout.results_directory()
    return results / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{os.getpid()}"


class Run:
    # Another number of blocks is the same plan, for longer or for less long: every record stays part of it.
    growing = frozenset({"blocks", "detection", "margin"})

    def __init__(self, directory: Path, *, repeats_failed: bool = False) -> None:
        """``repeats_failed``: trials that have failed are due again."""
        self.directory = directory
        self.repeats_failed = repeats_failed

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the directory against other processes. Raises RequestError if another one holds it."""
        with ExitStack() as stack:
            try:
                stack.enter_context(files.locked(self.directory / LOCK))
            except BlockingIOError as error:
                raise RequestError(
                    f"another bench is writing {self.directory}", remedy="wait for it, or give another --out"
                ) from error
            except OSError as error:
                raise RequestError(
                    f"cannot write {self.directory}: {error.strerror}", remedy="give another --out"
                ) from error
            yield

    def begin(self, plan: Plan) -> Plan:
        """Store the plan, or check that it equals the stored one: then the run continues. Raises RequestError.

        Return it with the identity of the run, the order of its trials and the suite that began it: a new run draws
        them, one that continues has those of the stored plan.
        """
        plan = plan.model_copy(update=self.drawn())
        stored = self.plan()
        if stored:
            plan = plan.continuing(stored)
            differences = plan_differences(stored, plan)
            if set(differences) - self.growing:
                raise RequestError(
                    f"{self.directory} holds a run of another plan: {', '.join(differences)} differ",
                    remedy="give another directory with --out, or the same options as before",
                )
            if not differences or stored.blocks > plan.blocks:
                return plan
            self.unlist(PLAN)
        self._write_plan(plan)
        return plan

    def fix_steps(self, trial: Trial, sizes: Sizes) -> Plan:
        """Store the steps that a trial has fixed for all trials of its job; return the plan. Raises StoreError."""
        plan = stored_plan(self.directory).with_fixed_steps(trial.job.model, trial.job.design, sizes)
        self.unlist(PLAN)
        self._write_plan(plan)
        return plan

    def _write_plan(self, plan: Plan) -> None:
        write_atomic(self.directory / PLAN, plan.model_dump_json(indent=2) + "\n")

    def drawn(self) -> dict[str, object]:
        """Return the fields of the stored plan that its run has drawn; of a run that was not begun, draw them."""
        stored = self.plan()
        if stored:
            return {name: getattr(stored, name) for name in DRAWN}
        return self.draw()

    def draw(self) -> dict[str, object]:
        """Return what a new run adds to its plan, by its fields.

        Two runs are two, whatever their directories are called, and have two orders, whatever their ``seed`` is.
        """
        return {
            "run_id": secrets.token_hex(8),
            "order_seed": secrets.randbits(32),
            "suite_version": suite_version(),
        }

    def plan(self) -> Plan | None:
        """Return the stored plan; None if the run was not begun. Raises RequestError for a file that is not a plan."""
        if (self.directory / PLAN).exists():
            return stored_plan(self.directory)
        return None

    def save(self, record: TrialRecord) -> Path:
        """Write the record, in place of an older one of its trial; return its file. Raises StoreError.

        A failed one is kept as an attempt as well: it counts whatever a repetition of its trial comes to.
        """
        path = self._path_of(record.trial_id)
        attempts = self.attempts()
        counted = record.model_copy(update={"failed_attempts": attempts[record.trial_id]})
        if record.outcome.status == "failed":
            self._write_attempt(counted)
        write_atomic(path, counted.model_dump_json(indent=1) + "\n", below=self.directory)
        return path

    def _path_of(self, trial_id: str) -> Path:
        return self.directory / TRIALS / record_file(trial_id)

    def outcomes_of(self, trial_ids: Iterable[str]) -> dict[str, Literal["ok", "failed"]]:
        """Return the outcomes of those of some trials that have a record."""
        outcomes: dict[str, Literal["ok", "failed"]] = {}
        for trial_id in trial_ids:
            path = self._path_of(trial_id)
            record = read_record(path) if path.exists() else None
            if record:
                outcomes[trial_id] = record.outcome.status
        return outcomes

    def keep_attempt(self, record: TrialRecord) -> None:
        """Keep a failed attempt beside the record of its trial, which counts it. Raises StoreError."""
        self._write_attempt(record)
        stored = read_record(self._path_of(record.trial_id))
        if stored and stored.outcome.status == "ok":
            self.unlist(f"{TRIALS}/{record_file(record.trial_id)}")
            self.save(stored)

    def _write_attempt(self, record: TrialRecord) -> None:
        number = self.attempts()[record.trial_id] + 1
        path = self.directory / ATTEMPTS / attempt_file(record.trial_id, number)
        write_atomic(path, record.model_dump_json(indent=1) + "\n", below=self.directory)

    def attempts(self) -> Counter[str]:
        """Count the failed attempts of each trial."""
        paths = (self.directory / ATTEMPTS).glob(RECORD_FILES)
        return Counter(trial_of_attempt(path.name) for path in paths)

    def keep_models(self, models: Mapping[str, bytes]) -> None:
        """Write the models that are not there yet, by the digests of their weights.

        Raises StoreError, once all were tried, with the names of those that could not be written.
        """
        lost: dict[str, StoreError] = {}
        for digest, content in models.items():
            path = self.directory / MODELS / f"{digest}.pt"
            try:
                if not path.exists():
                    write_atomic(path, content, below=self.directory)
            except StoreError as error:
                lost[path.name] = error
        if lost:
            why = next(iter(lost.values())).message
            raise StoreError(
                f"{len(lost)} of {len(models)} models could not be kept, {', '.join(lost)}: {why}",
                remedy="free some space, and go on with the run; the trial is recorded and is not measured again",
            )

    def demand_space(self, size_bytes: int) -> None:
        """Raise StoreError if the disk has less space for the models of the next trial."""
        free_bytes = shutil.disk_usage(self.directory).free
        if free_bytes < size_bytes:
            needed, free = (f"{size / 1e6:,.0f} MB" for size in (size_bytes, free_bytes))
            raise StoreError(
                f"{self.directory}: the models of the next trial need {needed}, and {free} are free",
                remedy="free some space, and go on with the run; what was measured before is kept",
            )

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """Write the manifest when the run ends, by Ctrl-C too; see ``seal``. Raises StoreError.

        Records whose trials will be run again are taken off it before: a kill must not make that look like an edit.
        """
        if (self.directory / MANIFEST).exists():  # else there is nothing to take off, and no record to read for it
            kept = {f"{TRIALS}/{record_file(trial_id)}" for trial_id in self.finished()}
            remaining = {name: file for name, file in self._listed().items() if name in kept or "/" not in name}
            self._list(remaining)
        try:
            yield
        finally:
            self.seal()

    def seal(self) -> None:
        """Write the manifest: list each file that is not listed yet, as it is on the disk.

        Only who holds the whole run may call this: blocks of a sweep on other machines share the manifest, and no lock.
        Raises StoreError.
        """
        if (self.directory / PLAN).exists():
            listed = self._listed()
            paths = [self.directory / PLAN, *self.record_files()]
            names = {path.relative_to(self.directory).as_posix(): path for path in paths}
            self._list(listed | {name: ListedFile.of(path) for name, path in names.items() if name not in listed})

    def list_file(self, name: str) -> None:
        """List a file as it is now, which its writer has just written."""
        listed = self._listed()
        self._list(listed | {name: ListedFile.of(self.directory / name)})

    def unlist(self, name: str) -> None:
        """Take a file off the manifest before it is written anew."""
        remaining = {path: file for path, file in self._listed().items() if path != name}
        self._list(remaining)

    def _listed(self) -> dict[str, ListedFile]:
        manifest = read_manifest(self.directory)
        return manifest.files if manifest else {}

    def _list(self, listed: Mapping[str, ListedFile]) -> None:
        if listed != self._listed():
            in_order = dict(sorted(listed.items()))
            text = Manifest(files=in_order).model_dump_json(indent=1)
            write_atomic(self.directory / MANIFEST, text + "\n")

    def records(self) -> Iterator[TrialRecord]:
        yield from filter(None, map(read_record, self.record_files()))

    def record_files(self) -> list[Path]:
        """Return the files of the records by name: regular ones, without any that is removed meanwhile."""
        paths = sorted((self.directory / TRIALS).glob(RECORD_FILES))
        return [path for path in paths if not path.is_symlink() and path.is_file()]

    def finished(self) -> Iterator[str]:
        """Yield the trials that need not be run again: those with a record, unless failed ones are repeated."""
        for record in self.records():
            if record.outcome.status == "ok" or not self.repeats_failed:
                yield record.trial_id


def read_record(path: Path) -> TrialRecord | None:
    """Return a record; None for a file that is not one, whose trial is run, and whose place the record takes.

    Raises NewerRecordError for a record of a later suite, which must not be overwritten.
    """
    try:
        return TrialRecord.model_validate_json(clean_record(files.read_small(path)))
    except NewerRecordError as error:
        raise NewerRecordError(f"{path}: {error.message}", remedy=error.remedy) from error
    except (ValidationError, files.SpecialFileError):
        return None


def stored_plan(run: Path) -> Plan:
    """Return the plan of a run; fields that its suite did not know have their defaults. Raises RequestError."""
    try:
        plan = Plan.model_validate(parse_object(files.read_small(run / PLAN)))
        if plan.run_id is None:
            raise ValueError("it does not say which run it is of: run_id is missing")
        return plan
    except (OSError, ValueError, RecursionError) as error:
        why = str(error.strerror if isinstance(error, OSError) else error)
        if isinstance(error, ValidationError):
            why = first_problem(error, "the file")
        raise RequestError(
            f"{run / PLAN} is not a plan of this suite, or of a newer one ({why})", remedy="give another directory"
        ) from error


def plan_differences(old: Plan, new: Plan) -> list[str]:
    """Return the keys in which two plans differ, those of their jobs by the names that these have there.

    The request decides nothing: what it came to is in the other keys. Nor does it matter which CPUs a node has chosen.
    """
    new = new.with_cpus_of(old.job.envelope)
    facts = [plan.model_dump(mode="json", exclude={"request", "defaults", *DRAWN}) for plan in (old, new)]
    jobs = [plan.pop("jobs") for plan in facts]
    keys = {fact.path for fact in differ(*facts)}
    if old.models != new.models:
        keys.add("models")
    elif len(old.jobs) != len(new.jobs):
        keys.add("design")
    else:
        pairs = zip(*jobs, strict=True)
        keys.update(fact.path for pair in pairs for fact in differ(*pair))
    return sorted(keys)
