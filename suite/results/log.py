"""The log of a run: what ``bench run`` prints to standard error, also in ``bench.log`` of the run's directory."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from suite.results import files
from suite.results.store import LOG, PLAN
from suite.untrusted.terminal import CleanStream


class RunLog:
    """Copies standard error into the log of a run from the time when that has begun: a refused request leaves none."""

    def __init__(self, run: Path) -> None:
        self._run, self._pending = run, ""
        with suppress(OSError):
            if os.path.samestat(os.fstat(2), (run / LOG).stat()):  # as bench web starts runs
                return
        if isinstance(sys.stderr, CleanStream):
            sys.stderr.copy = self.write

    def write(self, text: str, *, begun: bool = False) -> None:
        """Append text, unless no run has begun. A log that cannot be written ends no measurement."""
        self._pending += text
        if begun or (self._run / LOG).exists() or (self._run / PLAN).exists():
            with suppress(OSError), files.appending(self._run / LOG, self._run) as file:
                file.write(self._pending.encode())
            self._pending = ""
