"""Processes of this machine, told apart for good: numbers are used again, a number with its start is not."""

import os
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict


def boot_id() -> str:
    """A value that changes with each boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started_ticks(pid: int) -> float | None:
    """When the process started, in the kernel's ticks since boot: a time of day would move when the clock is set.

    None when there is none, or only what its parent has not collected (a zombie).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): the name, in parentheses, can hold anything; the state is field 3, the start field 22.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else float(fields[18])


class Owner(BaseModel):
    """A process on a machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    boot_id: str
    pid: int
    started_ticks: float

    @classmethod
    def me(cls) -> "Owner":
        pid = os.getpid()
        return cls(host=socket.gethostname(), boot_id=boot_id(), pid=pid, started_ticks=started_ticks(pid) or 0.0)

    @property
    def here(self) -> bool:
        """Whether it is, or was, on this machine. Only of such a one can it be known whether it lives."""
        return self.host == socket.gethostname()

    def lives_here(self) -> bool:
        """Whether it still runs on this machine: on this boot, and as the same process."""
        return self.here and self.boot_id == boot_id() and started_ticks(self.pid) == self.started_ticks

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"
