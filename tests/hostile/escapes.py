"""A hostile member: a probe that tries to get out of its target, and says in its details what it has reached.

The test writes into the text who the victims on the host are, and hands it to the suite as another package's probe.
"""

import ctypes
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from worker.probes.probe import Measured, Probe, Reading
from worker.spec import Request

VICTIM_FILE = "VICTIM-FILE"
"""A file of the host's root."""
VICTIM_ARGUMENT = "VICTIM-ARGUMENT"
"""A word of the command line of a process of the host."""
FORKS = """
import errno, os, signal
children = []
try:
    while len(children) < 4000:
        if not (child := os.fork()):
            signal.pause()
            os._exit(0)
        children.append(child)
except OSError as error:
    if error.errno not in (errno.EAGAIN, errno.ENOMEM):
        raise
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
print(len(children))
"""
MS_REMOUNT_BIND = 32 | 4096
USUAL_DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"}


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def victims() -> list[int]:
    """Return the processes of the host that are seen."""
    found = []
    for pid in pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found += [pid] if VICTIM_ARGUMENT.encode() in words else []
    return found


def write_through_proc() -> list[str]:
    reached = []
    for pid in pids():
        with suppress(OSError):
            with Path(f"/proc/{pid}/root{VICTIM_FILE}").open("a") as file:
                file.write("reached")
            reached.append(f"/proc/{pid}/root{VICTIM_FILE}")
    return reached


def remount_the_tree() -> list[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(None, b"/", None, MS_REMOUNT_BIND, None):
        return []
    try:
        Path("/opt/virtbench/reached").touch()
        Path("/opt/virtbench/reached").unlink()
    except OSError:
        return ["/ is remounted"]
    return ["/ is writable"]


def set_the_kernel() -> list[str]:
    """Open what sets the kernel. Nothing is written: in the guest it would be its own, and elsewhere the host's."""
    reached = []
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/mm/ksm/run"):
        with suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            reached.append(path)
    return reached


def make_a_device() -> list[str]:
    for place in ("/tmp", "/dev/shm"):
        try:
            os.mknod(f"{place}/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
        except OSError:
            continue
        Path(place, "disk").unlink()
        return [place]
    return []


def find_devices() -> list[str]:
    """Return what is in /dev beside what every container has: disks, memory, logs, hypervisors."""
    found = [path for path in Path("/dev").rglob("*") if "pts" not in path.parts]
    nodes = [path for path in found if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFBLK, stat.S_IFCHR)]
    return [str(path) for path in nodes if path.name not in USUAL_DEVICES]


def become_root() -> list[str]:
    was_root = os.geteuid() == 0
    try:
        os.setuid(0)
    except OSError:
        return []
    return [] if was_root else ["root"]


def see_processes() -> list[str]:
    return [f"process {pid}" for pid in victims()]


def end_processes() -> list[str]:
    reached = []
    for pid in victims():
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
            reached.append(f"process {pid}")
    return reached


def forks() -> int:
    """Return how many processes can be had at once."""
    # By a small program: copies of this one would fill the memory of an emulated guest, minutes long.
    said = subprocess.run([sys.executable, "-I", "-S", "-c", FORKS], check=True, capture_output=True).stdout
    return int(said)


ATTEMPTS: tuple[Callable[[], list[str]], ...] = (
    write_through_proc, remount_the_tree, set_the_kernel, make_a_device, find_devices, become_root, see_processes,
    end_processes,
)  # fmt: skip


def attempted() -> dict[str, object]:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    reached = {attempt.__name__: found for attempt in ATTEMPTS if (found := attempt())}
    capabilities = {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    return {
        "reached": reached,
        "forks": forks(),
        "user": os.getuid(),
        "groups": os.getgroups(),
        "capabilities": capabilities,
        "no_new_privileges": status["NoNewPrivs"],
        "seccomp": status["Seccomp"],
    }


def measure(request: Request) -> Measured:
    del request
    return Measured({"attempts": Reading(float(len(ATTEMPTS)), "1", "more")}, attempted())


ESCAPE = Probe("escape", measure)
