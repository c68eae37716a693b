"""The environment as a process sees it from inside, without torch. The host is asked the same questions.

Everything that the place hides is null.
"""

import os
import platform
import re
from pathlib import Path

from suite import userland
from worker.memory import cgroup_version, memory, read

_SECCOMP = {"0": "disabled", "1": "strict", "2": "filter"}


def collect(proc: str = "/proc", sys: str = "/sys") -> dict[str, object]:
    """Return fields of ``records.Environment``. ``proc`` and ``sys`` are where those trees are."""
    proc_path, sys_path = Path(proc), Path(sys)
    status = _colon_pairs(read(proc_path / "self/status"))
    cpu = _colon_pairs((read(proc_path / "cpuinfo") or "").split("\n\n")[0])
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    memory_bytes, kernel_memory_bytes = memory(proc_path)
    return {
        "kernel": read(proc_path / "sys/kernel/osrelease"),
        "hostname": read(proc_path / "sys/kernel/hostname"),
        "pid1": _command_line(proc_path / "1/cmdline"),
        "cpus": sorted(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "kernel_memory_bytes": kernel_memory_bytes,
        "cgroup_version": cgroup_version(proc_path),
        "seccomp": _SECCOMP.get(status.get("Seccomp", "")),
        "no_new_privileges": status["NoNewPrivs"] == "1" if "NoNewPrivs" in status else None,
        "effective_capabilities": status.get("CapEff"),
        "cpu_model": cpu.get("model name"),
        "cpu_flags": sorted(flags) or None,
        "hypervisor": _hypervisor(sys_path, flags),
        "mitigations": _mitigations(sys_path / "devices/system/cpu/vulnerabilities"),
        "transparent_hugepages": _chosen(read(sys_path / "kernel/mm/transparent_hugepage/enabled")),
        "clocksource": read(sys_path / "devices/system/clocksource/clocksource0/current_clocksource"),
        "python": platform.python_version(),
        "libc": _libc(),
        "allocator": os.environ.get("GLIBC_TUNABLES", "default"),
    }


def attest(root: str = "/") -> dict[str, object]:
    """Return the environment, with the userland's digest and its differences from the manifest.

    Both are null where the tree is not one of the image.
    """
    digest = userland.manifest_digest(root)
    differences = None if digest is None else userland.differences(root, everything=False)
    return {**collect(), "userland_sha256": digest, "userland_differences": differences}


def _colon_pairs(text: str | None) -> dict[str, str]:
    """Return the pairs of lines such as ``key: value``, as /proc/cpuinfo has them."""
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _command_line(path: Path) -> str | None:
    text = read(path)
    return " ".join(text.split("\0")).strip() or None if text is not None else None


def _hypervisor(sys: Path, flags: list[str]) -> str | None:
    """Return the hypervisor's name: Xen gives its own, others appear in the firmware, and some only as a CPU flag."""
    if found := read(sys / "hypervisor/type"):
        return found
    if "hypervisor" not in flags:
        return None
    names = [read(sys / "class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    return " ".join(name for name in names if name) or "unnamed"


def _mitigations(directory: Path) -> dict[str, str] | None:
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return None
    return {path.name: text for path in paths if (text := read(path)) is not None}


def _chosen(text: str | None) -> str | None:
    """Return the word in brackets: ``madvise`` of ``always [madvise] never``."""
    found = re.search(r"\[(.+?)\]", text or "")
    return found[1] if found else None


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # not glibc
        return None
