"""The identity of a process: its number is used again, its number with its start, the namespace and the boot is not.

A machine is known by its machine-id(5) and its kernel by its boot ID. Names are for people: machines are renamed, and
those that share a file system may have equal names.
"""

import hmac
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suite.part import Part

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID = Path("/etc/machine-id")
FIRST_NAMESPACE = 0xEFFFFFFC
"""The number of the process namespace that sees every process of the machine (PROC_PID_INIT_INO of the kernel)."""


def boot_id() -> str:
    return BOOT_ID.read_text().strip()


def known_boot_id() -> str | None:
    """Return the boot ID; None where it cannot be read."""
    try:
        return boot_id() or None
    except OSError:
        return None


def machine_id() -> str | None:
    """Return a digest of this machine's machine-id(5), which itself must not leave the machine; None if it is unknown.

    In a container it is: the file there is the image's, and equal in all containers that are made from the image.
    """
    try:
        content = MACHINE_ID.read_text().strip()
        if pid_namespace() != FIRST_NAMESPACE or not re.fullmatch("[0-9a-f]{32}", content):
            return None
    except (OSError, UnicodeDecodeError):
        return None
    return hmac.new(content.encode(), b"virtbench", "sha256").hexdigest()[:16]


def pid_namespace(pid: int | str = "self") -> int:
    """Return the number of the namespace in which the numbers of processes mean something. Raises OSError."""
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


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
    if state in "ZX":
        return None
    return float(fields[18])


class ProcessIdentity(Part):
    host: str
    """The name of its machine, which decides nothing."""
    machine_id: str | None = None
    """The digest of its machine's ID; None if that is unknown."""
    boot_id: str | None
    """None if it is unknown."""
    pid: int
    started_ticks: float
    pid_namespace: int | None = None
    """None if it is unknown."""

    @classmethod
    def own(cls) -> "ProcessIdentity":
        return cls(
            host=socket.gethostname(),
            machine_id=machine_id(),
            boot_id=known_boot_id(),
            pid=os.getpid(),
            started_ticks=started_ticks(os.getpid()) or 0.0,
            pid_namespace=pid_namespace(),
        )

    @property
    def in_this_boot(self) -> bool:
        """Return whether it is, or was, a process of the kernel that runs now."""
        return self.boot_id is not None and self.boot_id == known_boot_id()

    @property
    def here(self) -> bool:
        """Return whether it is, or was, on this machine. Liveness can be checked only for such a process."""
        on_this_machine = self.machine_id is not None and self.machine_id == machine_id()
        return self.in_this_boot or on_this_machine

    @property
    def visible(self) -> bool:
        """Return whether its number means, in this process, the process that it meant in its own."""
        return self.in_this_boot and self.pid_namespace == pid_namespace()

    def lives_here(self) -> bool:
        """Return whether it is seen to run on this machine: in this boot and namespace, and as the same process."""
        return self.visible and started_ticks(self.pid) == self.started_ticks

    def has_ended(self) -> bool:
        """Return whether it is known to have ended: seen not to run, or of an earlier boot of this machine.

        Of a process of another machine, of one that is unknown, or of a foreign namespace, it is not known.
        """
        if self.visible:
            return not self.lives_here()
        if self.in_this_boot:
            return self.pid_namespace is not None and _is_gone(self.pid_namespace)
        return self.here and None not in (self.boot_id, known_boot_id())

    @contextmanager
    def opened(self) -> Iterator[int | None]:
        """Yield a descriptor of the process that cannot become another's (pidfd_open(2)); None if it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            # Looked at while the descriptor holds the process: its number cannot have become another's in between.
            yield descriptor if self.lives_here() else None
        finally:
            os.close(descriptor)

    def terminate(self) -> bool:
        """Send SIGTERM to the process; return False if it has ended. Raises PermissionError for another user's."""
        with self.opened() as descriptor:
            if descriptor is not None:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            return descriptor is not None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _is_gone(namespace: int) -> bool:
    """Return whether no process is left in the namespace; False where that cannot be seen."""
    if pid_namespace() != FIRST_NAMESPACE:
        return False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if pid_namespace(process.name) == namespace:
                return False
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            if _is_below(process):
                return False
    return True


def _is_below(process: Path) -> bool:
    """Return whether the process has a number in a namespace below this one, too (proc(5): NSpid)."""
    try:
        lines = (process / "status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in lines)
