"""The environment as a process sees it from inside, and the resources that it has used; without torch.

The host is asked the same questions. Everything that the target hides is null. Its memory is the machine's, or the
least limit of the control groups it is in.
"""

import os
import platform
import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from suite import userland
from worker.filters import refused_calls

ROOT = Path("/")
"""The directory of this place's /proc and /sys, and of its userland."""
KERNEL_KEEPS_AT_MOST = 0.1
"""The most memory that a kernel keeps for itself, as a share of the machine's."""
SMALL_KERNEL_KEEPS = 256 << 20
"""The bytes that a kernel may keep of a small machine."""
_SECCOMP = {"0": "disabled", "1": "strict", "2": "filter"}
_LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def read(path: str | Path) -> str | None:
    """Return the text of a file below the root, stripped, or None: a place may hide any part of /proc and /sys."""
    try:
        return (ROOT / path).read_text(errors="replace").strip()
    except OSError:
        return None


def named(path: str, name: str) -> str | None:
    """Return the word after ``name:`` in a file of /proc; None where the place hides it."""
    match = re.search(rf"^{name}:[ \t]*(\w+)", read(path) or "", re.MULTILINE)
    return match[1] if match else None


def number(path: str, name: str) -> int | None:
    word = named(path, name)
    if word and word.isdigit():
        return int(word)
    return None


def collect() -> dict[str, object]:
    """Return fields of ``records.Environment``."""
    unprivileged = named("proc/self/status", "NoNewPrivs")
    cpu_model, flags = _processors()
    memory_bytes, kernel_memory_bytes = memory()
    # Its name alone: what stands behind it may be a password.
    first_process = (read("proc/1/cmdline") or "").partition("\0")[0].strip()
    vulnerabilities = sorted((ROOT / "sys/devices/system/cpu/vulnerabilities").glob("*"))
    # The word in brackets: ``madvise`` of ``always [madvise] never``.
    hugepages = re.search(r"\[(.+?)\]", read("sys/kernel/mm/transparent_hugepage/enabled") or "")
    return {
        "kernel": read("proc/sys/kernel/osrelease"),
        "hostname": read("proc/sys/kernel/hostname"),
        "pid1": first_process or None,
        "cpus": sorted(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "kernel_memory_bytes": kernel_memory_bytes,
        "cgroup_version": cgroup_version(),
        "seccomp": _SECCOMP.get(named("proc/self/status", "Seccomp") or ""),
        "no_new_privileges": unprivileged and unprivileged == "1",
        "effective_capabilities": named("proc/self/status", "CapEff"),
        "cpu_model": cpu_model,
        "cpu_flags": flags or None,
        "hypervisor": _hypervisor(flags),
        "mitigations": {path.name: text for path in vulnerabilities if (text := read(path)) is not None} or None,
        "transparent_hugepages": hugepages[1] if hugepages else None,
        **_cpu_settings(),
        "cpu_caches": _cpu_caches(),
        "kvm": _kvm(),
        "clocksource": read("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "python": platform.python_version(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "allocator": os.environ.get("GLIBC_TUNABLES", "default"),
    }


def attest() -> dict[str, object]:
    """Return the environment, with the userland's digest and its differences from the manifest.

    Both are null where the tree is not one of the image.
    """
    digest = userland.manifest_digest(str(ROOT))
    if digest is None:
        differences = None
    else:
        differences = userland.differences(str(ROOT), everything=False)
    seen = collect()
    if seen["seccomp"] == "filter":
        seen["seccomp_refuses"] = refused_calls()
        seen["seccomp"] = "open" if seen["seccomp_refuses"] == [] else "filter"
    return {**seen, "userland_sha256": digest, "userland_differences": differences}


def _processors() -> tuple[str | None, list[str]]:
    """Return the models of all CPUs, and the flags that all have: those of unlike cores differ."""
    cpuinfo = read("proc/cpuinfo") or ""
    models = dict.fromkeys(re.findall(r"^model name[ \t]*: *(.*)$", cpuinfo, re.MULTILINE))
    lines = re.findall(r"^(?:flags|Features)[ \t]*:(.*)$", cpuinfo, re.MULTILINE)
    listed = [set(words.split()) for words in lines]
    return " + ".join(models) or None, sorted(set.intersection(*listed)) if listed else []


def _cpu_settings() -> dict[str, object]:
    """Return the settings that decide how fast CPUs run: of the CPUs of this process, and of the whole machine."""
    cpus = sorted(os.sched_getaffinity(0))
    limits_khz = _of_all(cpus, "cpufreq/scaling_max_freq")
    governors = _of_all(cpus, "cpufreq/scaling_governor")
    preferences = _of_all(cpus, "cpufreq/energy_performance_preference")
    return {
        "cpu_governor": "+".join(governors) or None,
        "cpu_preference": "+".join(preferences) or None,
        "cpu_limit_mhz": min(map(int, limits_khz)) // 1000 if limits_khz else None,
        "turbo": _turbo(),
        "smt": {"on": True, "off": False, "forceoff": False}.get(read("sys/devices/system/cpu/smt/control") or ""),
    }


def _cpu_caches() -> dict[str, int] | None:
    """Return the bytes of each cache of this process's first CPU, by its name: ``L1d``, ``L2``; None if hidden."""
    kinds = {"Data": "d", "Instruction": "i", "Unified": ""}
    caches: dict[str, int] = {}
    first = min(os.sched_getaffinity(0))
    for index in sorted((ROOT / f"sys/devices/system/cpu/cpu{first}/cache").glob("index*")):
        level, kind, size = (read(index / name) for name in ("level", "type", "size"))
        if level and kind in kinds and size and re.fullmatch(r"\d+K", size):
            caches[f"L{level}{kinds[kind]}"] = int(size[:-1]) << 10
    return caches or None


def _kvm() -> dict[str, str] | None:
    """Return the settings of this kernel that decide how fast guests run; None where no module of KVM is loaded."""
    files = {
        "halt_poll_ns": "sys/module/kvm/parameters/halt_poll_ns",
        "nx_huge_pages": "sys/module/kvm/parameters/nx_huge_pages",
        "ept": "sys/module/kvm_intel/parameters/ept",
        "npt": "sys/module/kvm_amd/parameters/npt",
    }
    settings = {name: text for name, path in files.items() if (text := read(path)) is not None}
    if not settings:
        return None
    shared = read("sys/kernel/mm/ksm/run")
    if shared is not None:
        settings["ksm"] = shared
    return settings


def _of_all(cpus: Sequence[int], name: str) -> list[str]:
    """Return the different texts of a file of each CPU; none unless all of the CPUs have it."""
    texts = [read(f"sys/devices/system/cpu/cpu{cpu}/{name}") or "" for cpu in cpus]
    if all(texts):
        return sorted(set(texts))
    return []


def _turbo() -> bool | None:
    """Return whether CPUs may exceed their base frequency: Intel's driver has its own file, all others the kernel's."""
    disabled = read("sys/devices/system/cpu/intel_pstate/no_turbo")
    if disabled is not None:
        return disabled == "0"
    boost = read("sys/devices/system/cpu/cpufreq/boost")
    if boost is None:
        return None
    return boost == "1"


def _hypervisor(flags: list[str]) -> str | None:
    """Return the hypervisor's name: Xen gives its own, others appear in the firmware, and some only as a CPU flag."""
    kind = read("sys/hypervisor/type")
    if kind:
        return kind
    if "hypervisor" not in flags:
        return None
    names = [read(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    return " ".join(name for name in names if name) or "unnamed"


def memory() -> tuple[int | None, int | None]:
    """Return how much memory this place has, and how much of it the kernel kept; None for what is not known.

    The first is the least of the limits and of the machine's physical memory. A place that does not see the latter
    (a container in a guest) sees a limit of just the guest's memory as slightly more than the kernel manages.
    """
    total_kib = number("proc/meminfo", "MemTotal")
    physical = _physical_bytes()
    total = total_kib and total_kib * 1024
    limit = _limit_bytes(physical, physical or total)
    if physical or limit is None or total is None:
        return limit, physical - total if physical and total else None
    if total < limit <= total / (1 - KERNEL_KEEPS_AT_MOST):
        return limit, limit - total
    return min(limit, total), None


def _physical_bytes() -> int | None:
    """Return how much memory the firmware gave to the kernel; None where /proc/iomem hides it (no root), or a part.

    Memory that was added later (dax, CXL, virtio-mem) is nested in its device: ``System RAM (kmem)``. A balloon, which
    gives the guest's memory back to its host, takes more of it from MemTotal than any kernel keeps.
    """
    lines = re.findall(r"^ *([0-9a-f]+)-([0-9a-f]+) : System RAM\b", read("proc/iomem") or "", re.MULTILINE)
    physical = sum(int(last, 16) - int(first, 16) + 1 for first, last in lines if int(last, 16))
    total = (number("proc/meminfo", "MemTotal") or 0) * 1024
    kept = physical - total
    ballooned = total > 0 and kept > max(KERNEL_KEEPS_AT_MOST * physical, SMALL_KERNEL_KEEPS)
    if kept >= 0 and not ballooned:
        return physical
    return None


def cgroup_version() -> int | None:
    """Return the version of the hierarchy that limits memory. Version 2 may be there too and limit other things."""
    groups = _groups()
    if "memory" in groups:
        return 1
    return 2 if "" in groups else None


def _limit_bytes(physical: int | None, machine: int | None) -> int | None:
    """Return the least of the limits, or the machine's memory without any; None where a limit is hidden."""
    version = cgroup_version()
    if version is None:
        return machine
    group = _groups()["memory" if version == 1 else ""]
    directories = _directories(version, group)
    if directories is None:
        # In the root group nothing is limited. Elsewhere there may be a limit, and it is hidden.
        return machine if group == "/" else None
    texts = [read(directory / _LIMIT_FILES[version]) for directory in directories]
    limits = []
    for text in texts:
        if text and text.isdigit():
            limits.append(int(text))
    return min([*limits, *([physical] if physical else [])], default=machine)


def _groups() -> dict[str, str]:
    """Return the group of each controller; that of version 2 under the empty name."""
    groups = {}
    for line in (read("proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), group))
    return groups


def _directories(version: int, group: str) -> list[Path] | None:
    """Return the directories of the group and of all groups above it that can be seen, or None where none can.

    The group and the one that is mounted differ in a container: with the host's control group namespace the mount shows
    the container's own group only, and with a private one both are ``/``. A group outside of the mount is not seen; its
    top is then the best there is.
    """
    for line in (read("proc/self/mountinfo") or "").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = [*rest.split(), "", "", ""][:3]
        if version == 2:
            wanted = kind == "cgroup2"
        else:
            wanted = kind == "cgroup" and "memory" in options.split(",")
        root, mounted_at = fields.split()[3:5]
        top = ROOT / mounted_at.lstrip("/")
        if wanted and top.is_dir():
            path = PurePosixPath(group)
            is_seen = path.is_relative_to(root) and ".." not in path.parts
            if is_seen:
                inside = path.relative_to(root)
            else:
                inside = PurePosixPath()
            return [top / inside, *(top / parent for parent in inside.parents)]
    return None


def usage() -> dict[str, float]:
    """Return counters that explain a slow step: faults cost more in virtual machines, switches mean others ran.

    They are of this process and of its children that have ended.
    """
    both = _self_and_children()
    return {
        "user_s": sum(each.ru_utime for each in both),
        "system_s": sum(each.ru_stime for each in both),
        "minor_faults": sum(each.ru_minflt for each in both),
        "major_faults": sum(each.ru_majflt for each in both),
        "voluntary_switches": sum(each.ru_nvcsw for each in both),
        "involuntary_switches": sum(each.ru_nivcsw for each in both),
        "steal_s": _steal_s(),
        **_migrations(),
    }


def _migrations() -> dict[str, float]:
    """Return how often the kernel moved the threads of this process to another CPU; nothing where it does not say."""
    counts = []
    for task in (ROOT / "proc/self/task").glob("[0-9]*"):
        count = number(f"proc/self/task/{task.name}/sched", r"se\.nr_migrations *")
        if count is not None:
            counts.append(count)
    return {"migrations": sum(counts)} if counts else {}


def _steal_s() -> float:
    """Return the seconds that a hypervisor took from this kernel's CPUs, by /proc/stat; 0 where it hides them."""
    fields = (read("proc/stat") or "").partition("\n")[0].split()
    if len(fields) > 8:
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after if name in before}


def whole_usage() -> dict[str, float | int | None]:
    """Return fields of ``records.Usage`` since the start of the job, for this process and its children that have ended.

    Memory is of this process alone, and by the kernel's VmHWM: ``ru_maxrss`` remembers what the launching process held.
    """
    both = _self_and_children()
    peak_kib = number("proc/self/status", "VmHWM")
    return {
        "cpu_s": sum(part.ru_utime + part.ru_stime for part in both),
        "peak_memory_bytes": peak_kib * 1024 if peak_kib is not None else None,
        "disk_read_bytes": number("proc/self/io", "read_bytes"),
        "disk_written_bytes": number("proc/self/io", "write_bytes"),
        "minor_faults": sum(part.ru_minflt for part in both),
        "major_faults": sum(part.ru_majflt for part in both),
    }


def _self_and_children() -> list[resource.struct_rusage]:
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
