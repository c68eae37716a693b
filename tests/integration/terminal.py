"""A bench on a terminal, where it shows every phase of a trial as it comes."""

import os
import pty
import subprocess
import threading
from pathlib import Path

from tests.integration.machine import wait_for

WIDTH = "200"
"""The columns of the terminal: nothing is cut off."""


class OnTerminal:
    """A program in the background whose standard error is a terminal, and what it has said so far."""

    def __init__(self, log: Path, *argv: str) -> None:
        self.log = log
        self._terminal, other_end = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": WIDTH}
        with log.open("wb", buffering=0) as file:
            self.process = subprocess.Popen(
                argv, stdout=file, stderr=other_end, start_new_session=True, env=environment
            )
        os.close(other_end)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with self.log.open("ab", buffering=0) as file, os.fdopen(self._terminal, "rb", buffering=0) as terminal:
            try:
                while said := terminal.read(1 << 16):
                    file.write(said)
            except OSError:  # the other end is closed
                return

    def wait_until_it_says(self, text: str, within_s: float = 300) -> None:
        def said() -> str:
            return self.log.read_text(errors="replace")

        wait_for(text, lambda: text in said() or self.process.poll() is not None, said, within_s)
        assert text in said(), f"bench ended early: {said()}"
