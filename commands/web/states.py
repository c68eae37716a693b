"""The state of a run in words, from its plan, its records, its log and the ledger."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from time import time
from typing import NamedTuple

from provisioning import ledger
from suite.process_identity import ProcessIdentity
from suite.results.files import open_regular
from suite.results.runs import is_run
from suite.results.store import LOG, PLAN, TRIALS, stop_requested
from suite.results.summary import RunSummary, with_plan

WORDS = ("waiting", "running", "finished", "stopped", "cancelled", "refused", "failed")
LOG_BYTES = 8 << 10
BUSY_FLAGS = {"wait": "--wait", "share": "--concurrent"}
"""The options of a run that finds another one on its CPUs, by the values of the form."""
COMMAND_LINE = "$ "
"""Stands before the command in the first line of the log of a run that a page has started."""
STARTS_WITHIN_S = 60.0
"""How long a run that a page has started may take until its log or the ledger has it."""
_PROGRESS = re.compile(r"^\[(\d{1,6})/(\d{1,6})\].*?(?:, (about [^,\n]+ to go))?$", re.MULTILINE)
_ENDED = {"interrupted: ": "cancelled", "stopped, as it was asked to": "stopped", "bench: ": "failed"}
"""The states of a run by how the last such line of its log begins."""
_END = re.compile(f"^({'|'.join(_ENDED)})", re.MULTILINE)
_UNREADABLE = f"{LOG}: "
"""How the text begins that stands for a log that cannot be read."""


class RunFacts(NamedTuple):
    """The facts of a run that its files give, whether it runs or not."""

    summary: RunSummary | None
    planned: int
    """The trials of its plan, which grows with a run that goes on until its records decide."""
    log: str | None
    """The end of its log."""
    command: str
    """The command with which a page has started it, from the first line of its log; empty for any other run."""

    @property
    def done(self) -> int:
        if self.summary:
            return self.summary.ok + self.summary.failed
        return 0

    @property
    def complete(self) -> bool:
        return 0 < self.planned <= self.done

    @property
    def readable(self) -> bool:
        """Return whether all of its files could be read."""
        if self.summary and (self.summary.unreadable or self.summary.problem):
            return False
        return not (self.log or "").startswith(_UNREADABLE)

    @property
    def end(self) -> str:
        """Return the state with which its log ends; empty for a log without an end."""
        lines = _END.findall(self.log or "")
        line = lines[-1] if lines else ""
        if line == "bench: " and not self.done:
            return "refused"
        return _ENDED.get(line, "")

    @property
    def progress(self) -> tuple[int, int, str]:
        """Return the trials that have ended, all that are expected, and the time to go, as the terminal shows them."""
        lines = _PROGRESS.findall(self.log or "")
        if lines:
            number, total, left = lines[-1]
            if int(total):
                return (int(number), max(int(number), int(total)), left)
        return (self.done, self.planned, "")


class RunState(NamedTuple):
    """A state: one of ``WORDS``, the text with its numbers, and the directory by which a running run is stopped."""

    word: str
    text: str
    directory: Path | None = None


def written(run: Path) -> tuple[int, ...]:
    """Return when records, plan and log of a run were last written, in ns; 0 for what is not there."""
    paths = [run / TRIALS, run / PLAN, run / LOG]
    return tuple(path.lstat().st_mtime_ns if path.exists() else 0 for path in paths)


def facts(run: Path, written: tuple[int, ...]) -> RunFacts:
    """Return the facts of a run whose files were written at these times."""
    kept = _kept_facts(run, written)
    if kept.readable:
        return kept
    # It may have been an accident, such as too many open files.
    return _read_facts(run)


@lru_cache(maxsize=4096)
def _kept_facts(run: Path, _written: tuple[int, ...]) -> RunFacts:
    return _read_facts(run)


def _read_facts(run: Path) -> RunFacts:
    summary = None
    planned = 0
    if is_run(run):
        summary, plan = with_plan(run)
        if plan:
            planned = len(list(plan.trials()))
    log: str | None
    command = ""
    try:
        with open(run / LOG, "rb", opener=open_regular) as file:
            first = file.readline(LOG_BYTES).decode(errors="replace")
            if first.startswith(COMMAND_LINE):
                command = first.removeprefix(COMMAND_LINE).strip()
            output_begins = file.tell() if command else 0
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(output_begins, size_bytes - LOG_BYTES))
            log = file.read(LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        log = None
    except OSError as error:
        log = f"{_UNREADABLE}{error.strerror}"
    return RunFacts(summary, planned, log, command)


def processes() -> Mapping[Path, ProcessIdentity]:
    """Return the processes that write runs and sweeps of this machine, by their directories, from the ledger."""
    entries = [entry for entry in ledger.living() if entry.kind == "run-directory"]
    return {Path(entry.what).resolve(): entry.owner for entry in entries}


def state_of(run: Path, running: Mapping[Path, ProcessIdentity]) -> RunState:
    """Return the state of a run, given the processes that write runs now."""
    about = facts(run, written(run))
    directory = next((path for path in (run, run.parent) if path in running), None)
    if directory is None or (directory != run and about.complete):
        return _ended(run, about)
    number, total, _ = about.progress
    if stop_requested(directory):
        return RunState("running", "stopping after this trial", directory)
    last_line = (about.log or "").rstrip().rpartition("\n")[2]
    if last_line.startswith("waiting: "):
        return RunState("waiting", "waiting for another bench", directory)
    if not total:
        return RunState("waiting", "starting", directory)
    current = min(number + 1, total)
    return RunState("running", f"running {current} of {total}", directory)


def _ended(run: Path, about: RunFacts) -> RunState:
    if about.complete and about.summary:
        failed = about.summary.failed
        if failed:
            return RunState("failed", f"failed: {failed} of {about.done}")
        return RunState("finished", "finished")
    if about.log == "":
        silent_s = time() - (run / LOG).lstat().st_mtime
        if silent_s < STARTS_WITHIN_S:
            return RunState("waiting", "starting")
    word = about.end
    if not word:
        # A log without an end is that of a run which was killed.
        word = "stopped" if about.log is None or stop_requested(run) else "failed"
    text = word
    if about.planned:
        text += f" at {about.done} of {about.planned}"
    return RunState(word, text)
