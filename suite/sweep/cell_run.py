"""A cell of a sweep as a run: failed trials are tried again, and every failed attempt is kept."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from suite.records.record import TrialRecord
from suite.results.files import read
from suite.results.store import ATTEMPTS, TRIALS, Run, read_record, write_atomic
from suite.trial_names import RECORD_FILES, attempt_file, record_file, trial_of_attempt


class CellRun(Run):
    """The run of a cell. A failed trial is tried again until it has failed once more than ``retries``."""

    growing = Run.growing | {"warmup_blocks"}

    def __init__(self, directory: Path, retries: int) -> None:
        super().__init__(directory)
        self.retries = retries
        self._ok: set[str] = set()

    @property
    def run_id(self) -> str:
        """The names of sweep and cell: equal cells of two sweeps are two runs."""
        return f"{self.directory.resolve().parent.name}/{self.directory.name}"

    def save(self, record: TrialRecord) -> Path:
        """Write the record. A failed one is kept as an attempt as well, which the next attempt does not replace."""
        if record.outcome.status == "failed":
            self.keep_attempt(record)
        return super().save(record)

    def keep_attempt(self, record: TrialRecord) -> None:
        """Write a failed attempt under its number."""
        number = self.attempts()[record.trial_id] + 1
        path = self.directory / ATTEMPTS / attempt_file(record.trial_id, number)
        write_atomic(path, record.model_dump_json(indent=1) + "\n", below=self.directory)

    def attempts(self) -> Counter[str]:
        """Return how often each trial has failed."""
        return Counter(trial_of_attempt(path.name) for path in (self.directory / ATTEMPTS).glob(RECORD_FILES))

    def finished(self) -> Iterator[str]:
        """Yield the trials that are ok, and those that have failed more often than ``retries``."""
        for path in self.record_files():
            # A record that is ok stays as it is: it is read once, however many blocks there are.
            if path.stem not in self._ok and (record := read_record(path)) and record.outcome.status == "ok":
                self._ok.add(path.stem)
            if path.stem in self._ok:
                yield path.stem
        for trial_id, failed in self.attempts().items():
            if failed > self.retries:
                self._restore(trial_id, failed)
                yield trial_id

    def _restore(self, trial_id: str, failed: int) -> None:
        """Write the record that a kill between writing the attempt and writing the trial has left out."""
        path = self.directory / TRIALS / record_file(trial_id)
        if not path.exists():
            attempt = read(self.directory / ATTEMPTS / attempt_file(trial_id, failed))
            write_atomic(path, attempt.decode(), below=self.directory)


StopRule = Callable[[CellRun], str | None]
"""Returns why a cell needs no further block; None if it does."""
