"""virtiofs: a directory of this machine shared with a guest, in place of a virtual disk that holds it."""

import os
import shutil
import time
from pathlib import Path

from provisioning.volumes import MOUNT
from suite.errors import MeasurementError
from suite.interfaces import Node
from suite.job.envelope import format_cpu_list

TAG = "virtbench-data"
NOT_ON_PATH = ("/usr/libexec", "/usr/lib/qemu", "/usr/lib/virtiofsd")
"""The places where distributions put the daemon, which is for other programs to start."""
MODULE = "virtiofs"
SOURCE = "/run/data"
"""The directory as the daemon sees it: an option of it ends at a comma, and paths may have some."""
SOCKET = "data.socket"
"""The daemon's socket, in the private directory of the guest."""
READY_WITHIN_S = 60.0


def daemon() -> str | None:
    """virtiofsd, the C program of QEMU up to 7.2 or the Rust program after it; None where there is none."""
    directories = (os.environ.get("PATH", os.defpath), *NOT_ON_PATH)
    return shutil.which("virtiofsd", path=os.pathsep.join(directories))


def hindrance(tree: Path) -> tuple[str, str] | None:
    """Return why no guest of the tree can be given a directory, and the remedy; None if one can."""
    if os.geteuid():
        return "virtiofsd needs root to confine itself", "run bench as root"
    if daemon() is None:
        return "virtiofsd is not installed", "install it: package virtiofsd, or qemu-system-common before Debian 13"
    if not has_module(tree, MODULE):
        return "the guest's kernel has no virtiofs", "build the image anew, of a kernel that has it: bench image build"
    return None


def has_module(tree: Path, name: str) -> bool:
    """Return whether the kernel of the tree has the module, as a file or built in."""
    lists = (path for each in ("modules.dep", "modules.builtin") for path in tree.glob(f"usr/lib/modules/*/{each}"))
    return any(f"/{name}.ko" in path.read_text() for path in lists)


def daemon_argv(program: str, directory: str, socket: str, cpus: tuple[int, ...] | None) -> list[str]:
    """Return the daemon's command, on the given CPUs. It can write to its socket's directory and nowhere else.

    It sees the shared directory read-only. The options are those that both programs know.
    """
    directory_of_socket = str(Path(socket).parent)
    return [
        *(("taskset", "--cpu-list", format_cpu_list(cpus)) if cpus else ()),
        *("bwrap", "--die-with-parent", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/run", "--bind", directory_of_socket, directory_of_socket, "--ro-bind", directory, SOURCE, "--"),
        *(program, "-f", f"--socket-path={socket}", "-o", f"source={SOURCE}", "-o", "cache=auto"),
        "--rlimit-nofile=0",
    ]


def serve(node: Node, directory: str, socket: str, cpus: tuple[int, ...] | None) -> None:
    """Start the daemon, which ends with the guest that it serves. Raises MeasurementError when it does not come up."""
    argv = daemon_argv(daemon() or "virtiofsd", directory, socket, cpus)
    process = node.start(argv)
    deadline = time.monotonic() + READY_WITHIN_S
    while not Path(socket).is_socket():
        if time.monotonic() > deadline or not process.running():
            process.kill()
            raise MeasurementError(
                "virtiofsd did not come up", kind="virtiofs", command=argv, output_tail=process.output_tail()
            )
        time.sleep(0.02)


def qemu_words(socket: str) -> list[str]:
    """Return QEMU's options. The daemon reads and writes the guest's memory, which must be shared with it."""
    return ["-chardev", f"socket,id=data,path={socket}", "-device", f"vhost-user-fs-pci,chardev=data,tag={TAG}"]


def mount(guest: Node) -> None:
    guest.run(["modprobe", MODULE])
    guest.run(["mount", "-t", "virtiofs", "-o", "ro,noatime", TAG, MOUNT])
