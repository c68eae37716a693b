"""The needs of the suite in an image: declared here, looked for by programs that run in its tree without privilege."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.engines.base import PATH
from provisioning.images import trial_imports
from provisioning.layers.userland import FIRST_USER, OPEN_TO_ALL
from provisioning.nodes import IMAGE_PYTHON
from suite.errors import RequestError
from suite.interfaces import Node

LEAST_PYTHON = (3, 11)
BUSYBOX = "/bin/busybox"
"""The suite adds it to every image: it needs no library."""
WITHIN = "/mnt"
"""The place of a tree in another one."""
PROGRAMS = {
    "coreutils": ("/usr/bin/env", "cat", "dd", "mkdir", "sleep", "stat", "sync", "true"),
    "dash": ("/bin/sh",),
    "docker.io": ("docker", "dockerd"),
    "fio": ("fio",),
    "hostname": ("hostname",),
    "iperf3": ("iperf3",),
    "iproute2": ("ip",),
    "iptables": ("iptables",),
    "kmod": ("modprobe",),
    "openssh-server": ("/usr/sbin/sshd",),
    "podman": ("podman",),
    "procps": ("sysctl",),
    "python3": (IMAGE_PYTHON[0],),
    "runc": ("runc",),
    "util-linux": ("/usr/bin/setpriv", "mount", "prlimit", "umount", "unshare"),
}
"""The programs that jobs, probes, guests and the engines in guests call, by the Debian package that has them."""
MODULES = {
    "msgspec": "msgspec",
    "numpy": "numpy",
    "pillow": "PIL",
    "simplejpeg": "simplejpeg",
    "torch": "torch",
    "torchvision": "worker.training.device:torchvision_version",
    "waitress": "waitress",
}
"""What is imported, by the name of the Python package that has it; torchvision as the worker does it."""
ARCHITECTURES = "import torch; print(getattr(torch._C, '_cuda_getArchFlags', str)())"
"""Prints what torch.cuda.get_arch_list returns, which is nothing where no GPU is: images are built anywhere."""
ANSWER_WITHIN_S = 600.0


@dataclass(frozen=True)
class Lack:
    name: str
    package: str = ""
    module: str = ""
    line: str = ""
    """The line of a Dockerfile, where it is no package."""


def check(node: Node, tree: Path, suite_tree: Path, name: str) -> None:
    """Raise RequestError, with all that the tree lacks and the lines of a Dockerfile that bring it.

    The tree of the suite's own image has the programs that give up root before anything of the other image runs.
    """
    lacks = [*_programs(node, tree), *_python(node, tree, suite_tree)]
    if lacks:
        lacking = "; ".join(lack.name for lack in lacks)
        raise RequestError(f"{name} cannot be the image of the targets, it lacks: {lacking}", remedy=remedy(lacks))


def remedy(lacks: list[Lack]) -> str:
    """Return the lines of a Dockerfile that bring what is lacking, in the names of Debian's packages."""
    packages = " ".join(sorted({lack.package for lack in lacks} - {""}))
    modules = " ".join(sorted({lack.module for lack in lacks} - {""}))
    lines = []
    if packages:
        lines = [f"RUN apt-get update && apt-get install -y --no-install-recommends {packages}"]
    lines += dict.fromkeys(lack.line for lack in lacks if lack.line)
    if modules:
        lines.append(f"RUN {IMAGE_PYTHON[0]} -m pip install {modules}")
    return "add to its Dockerfile (packages as Debian names them): " + "; ".join(lines)


def without_capabilities(tree: Path, *mounts: str) -> list[str]:
    """Return the words that run a command in the tree alone: read-only, without network, capabilities, environment."""
    return [
        *("bwrap", "--die-with-parent", "--unshare-all", "--cap-drop", "ALL", "--ro-bind", str(tree), "/", *mounts),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/", "--"),  # noqa: S108 (inside)
        *(BUSYBOX, "env", "-i", PATH),
    ]


def as_a_job(tree: Path, suite_tree: Path) -> list[str]:
    """Return the words that run a command in the tree as jobs on bare metal do: as a user who is not root.

    Without root, which becoming another user needs, it runs as this user, without capabilities.
    """
    if os.geteuid():
        return without_capabilities(tree)
    places = ["--proc", f"{WITHIN}/proc", "--dev", f"{WITHIN}/dev", *OPEN_TO_ALL, f"{WITHIN}/tmp"]  # noqa: S108
    return [
        *("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SYS_CHROOT"),
        *("--ro-bind", str(suite_tree), "/", "--ro-bind", str(tree), WITHIN, *places, "--chdir", "/", "--"),
        *("/usr/sbin/chroot", f"--userspec={FIRST_USER}:{FIRST_USER}", "--groups=", WITHIN, BUSYBOX, "env", "-i", PATH),
    ]


def _paths(node: Node, tree: Path, programs: list[str]) -> list[str]:
    argv = [*without_capabilities(tree), BUSYBOX, "which", *programs]
    return node.run(argv, check=False).stdout.split()


def _programs(node: Node, tree: Path) -> list[Lack]:
    wanted: dict[str, str] = {}
    for package, programs in PROGRAMS.items():
        wanted |= dict.fromkeys(programs, package)
    paths = _paths(node, tree, list(wanted))
    present = {path if path in wanted else path.rpartition("/")[2] for path in paths}
    missing = [program for program in wanted if program not in present]
    lacks = {program: Lack(program, wanted[program]) for program in missing}
    interpreter = IMAGE_PYTHON[0]
    if interpreter in lacks:
        link = _link(node, tree)
        if link:
            del lacks[interpreter]
            lacks[interpreter] = Lack(interpreter, line=link)
    return list(lacks.values())


def _link(node: Node, tree: Path) -> str:
    """Return the line that makes another Python, which PATH finds first, the one of the jobs; "" if there is none."""
    first = _paths(node, tree, ["python3"])[:1]
    if first not in ([], [IMAGE_PYTHON[0]]):
        return f"RUN ln -sf {first[0]} {IMAGE_PYTHON[0]}"
    return ""


def _python(node: Node, tree: Path, suite_tree: Path) -> list[Lack]:
    """Import as jobs do, which cannot read files of root alone."""
    interpreter, python_path = IMAGE_PYTHON
    if not _paths(node, tree, [interpreter]):
        return []
    variables = ["HOME=/tmp", f"PYTHONPATH={python_path}", "PYTHONDONTWRITEBYTECODE=1"]
    argv = [*as_a_job(tree, suite_tree), *variables, interpreter]
    version, failed = import_inside(node, argv, list(MODULES.values()))
    if version is None:
        return [Lack(f"a working {interpreter} ({failed[interpreter][:200]})", "python3")]
    if version < LEAST_PYTHON:
        least = "{}.{}".format(*LEAST_PYTHON)
        newer = f"Python {least} or newer ({interpreter} is {version[0]}.{version[1]})"
        return [Lack(newer, line=_link(node, tree) or f"FROM an image with Python {least} or newer")]
    link = _link(node, tree) if failed else ""
    lacks = []
    for package, imported in MODULES.items():
        if imported in failed:
            reason = str(failed[imported])[:200]
            module = "" if link else package
            lacks.append(Lack(f"{package} for {interpreter} ({reason})", module=module, line=link))
    return lacks


def import_inside(
    node: Node,
    argv: Sequence[str],
    modules: Sequence[str],
) -> tuple[tuple[int, int] | None, dict[str, str]]:
    """Import these modules by the Python at the end of a command; return its version, and why those fail that do.

    Of a Python that does not work there is no version, and the reason is that of its own name.
    """
    program = Path(trial_imports.__file__).read_bytes()
    answer = node.run([*argv, "-", *modules], stdin=program, timeout_s=ANSWER_WITHIN_S, check=False)
    try:
        report = json.loads(answer.stdout.splitlines()[-1])
        version = report["version"]
        return (int(version[0]), int(version[1])), dict(report["failed"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None, {argv[-1]: answer.complaint()}


def gpu_architectures(node: Node, argv: Sequence[str]) -> tuple[str, ...]:
    """Return what the torch of a tree has code for, as ``sm_90`` and ``compute_120``; empty for a build for CPUs.

    The command ends with the Python of the tree.
    """
    answer = node.run([*argv, "-c", ARCHITECTURES], timeout_s=ANSWER_WITHIN_S, check=False)
    return tuple(answer.stdout.split())
