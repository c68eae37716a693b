"""The identity of a process: its number is used again, its number with its start and the boot is not."""

import os
import socket
from pathlib import Path

from suite.part import Part


def boot_id() -> str:
    """Return a value that changes with each boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started_ticks(pid: int) -> float | None:
    """Return when the process started, in the kernel's ticks since boot; None if it does not run.

    A time of day would move when the clock is set. A zombie, which its parent has not collected, does not run.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): the name, in parentheses, can hold anything; the state is field 3, the start field 22.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else float(fields[18])


class ProcessIdentity(Part):
    """A process on a machine."""

    host: str
    boot_id: str
    pid: int
    started_ticks: float

    @classmethod
    def own(cls) -> "ProcessIdentity":
        pid = os.getpid()
        return cls(host=socket.gethostname(), boot_id=boot_id(), pid=pid, started_ticks=started_ticks(pid) or 0.0)

    @property
    def here(self) -> bool:
        """Whether it is, or was, on this machine. Liveness can be checked only for such a process."""
        return self.host == socket.gethostname()

    def lives_here(self) -> bool:
        """Return whether it still runs on this machine: in this boot, and as the same process."""
        return self.here and self.boot_id == boot_id() and started_ticks(self.pid) == self.started_ticks

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"
