"""The log of a run: what ``bench run`` prints to standard error, also in ``bench.log`` of the run's directory."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from suite.results import files
from suite.results.store import LOG, PLAN
from suite.untrusted.terminal import CleanStream


class RunLog:
    """Appends text to the log from the time when the run has begun: a request that is refused leaves no directory."""

    def __init__(self, run: Path) -> None:
        self._run, self._pending = run, ""

    def __call__(self, text: str) -> None:
        self._pending += text
        if (self._run / LOG).exists() or (self._run / PLAN).exists():
            self.begin()

    def begin(self) -> None:
        """Write what has been printed so far. A log that cannot be written ends no measurement."""
        with suppress(OSError), files.appending(self._run / LOG, self._run) as file:
            file.write(self._pending.encode())
        self._pending = ""


def keep_log(run: Path) -> RunLog:
    """Copy standard error into the log of a run from now on, unless that is the file which it goes to."""
    log = RunLog(run)
    with suppress(OSError):
        if os.path.samestat(os.fstat(sys.__stderr__.fileno()), (run / LOG).stat()):  # bench web has started this run
            return log
    if isinstance(sys.stderr, CleanStream):
        sys.stderr.copy = log
    return log
