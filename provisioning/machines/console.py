"""The console of a guest: its serial port is QEMU's standard output, of which the end is kept."""

import threading

from suite.errors import BenchError
from suite.interfaces import Process

READY = "virtbench-ready"
LOCKED_UP = "soft lockup"
"""The message of a kernel about a CPU that has done nothing else for twenty seconds."""
KEPT_CHARACTERS = 6000
"""The end of what the guest says; the rest is forgotten. A guest that floods its console is ended: see ``hearing``."""
_HEARD_WITHIN_S = 1.0


class GuestConsole:
    """Listens to the guest in a thread of its own, which sleeps in the kernel while the guest is silent."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._text = ""
        self._changed = threading.Event()
        self.ready = False
        """Whether the guest has said that it takes commands."""
        self.locked_up = False
        """Whether a CPU of it was locked up."""
        self.flood: BenchError | None = None
        """Why it was ended for what it said, if it was."""
        self._listening = threading.Thread(target=self._listen, daemon=True, name="guest console")
        self._listening.start()

    def wait_until_ready(self, within_s: float) -> bool:
        """Wait until the guest is ready, has ended, or the time is over; return whether it is ready."""
        self._changed.wait(within_s)
        return self.ready

    def text(self) -> str:
        """Return the end of what the guest has said."""
        return self._text

    def close(self) -> None:
        """Hear the rest of a QEMU that has ended."""
        self._listening.join(_HEARD_WITHIN_S)

    def _listen(self) -> None:
        try:
            for line in self._process.lines(float("inf")):
                self._text = (self._text + line + "\n")[-KEPT_CHARACTERS:]
                self.locked_up = self.locked_up or LOCKED_UP in line
                if READY in line:
                    self.ready = True
                    self._changed.set()
        except BenchError as error:
            self.flood = error
        finally:
            self._changed.set()
