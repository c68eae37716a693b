"""runc on a bundle of our own: no daemon, no store. The default where neither docker nor podman works. Needs root."""

import json
import os
from itertools import chain
from typing import Any

from provisioning.cgroup.limits import PERIOD_US, quota_us, remove_argv
from provisioning.engines.base import PATH, SLEEPER, TMPFS, ContainerEngine, ContainerSpec, end_starting, is_root
from provisioning.engines.command_line import COPIED_WITHIN_S
from provisioning.gpus import DeviceNode
from provisioning.nodes import write_file
from provisioning.processes import build_of, check_answer, installing, version_in
from suite.errors import BenchError, MeasurementError, option
from suite.interfaces import Node

RUN = "/run/virtbench"
BUNDLES = f"{RUN}/bundles"
NAMESPACES = ("pid", "ipc", "uts", "mount", "cgroup")
# What Docker hides of /proc and /sys (its documentation, "runtime privilege").
MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
)
READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
UNITS = {"bps": "Bps", "iops": "IOPS"}
"""The units of disk limits as a bundle writes them."""
READY_S = 60.0
PROFILE = "usr/share/containers/seccomp.json"
"""Docker's seccomp profile in the tree: that of ``containers/common``, which Debian's packages of engines share."""
ARCHITECTURE = "amd64"
LONG_ARCHITECTURE = "SCMP_ARCH_X86_64"


class Runc(ContainerEngine):
    name = "runc"
    rootfs = "directory"
    commands_are_children = True
    program = "runc"
    """The runtime: the name of its program, and of its Debian package."""

    def command(self, *words: str) -> list[str]:
        """Return the words of a command of the runtime, which keeps the state of the suite's containers apart."""
        return [self.program, "--root", f"{RUN}/{self.program}", *words]

    def names_here(self) -> list[str]:
        try:
            return os.listdir(f"{RUN}/{self.program}")
        except OSError:
            return []

    def starting(self, node: Node, spec: ContainerSpec) -> list[str]:  # noqa: ARG002 (other runtimes are asked)
        """Return the words of the command that starts a container, but for its bundle and name."""
        return self.command("run")

    def version(self, node: Node) -> str:
        answer = self.answer(node, [self.program, "--version"], installing(self.program))
        check_answer(self.program, answer, node.name)
        if node.local and not is_root(node):
            remedy = f"use {option('engine')} podman, which has a rootless mode, or sudo"
            raise BenchError(f"{self.program} needs root", remedy=remedy)
        return version_in(answer) or build_of(self.program, node)

    def host_network(self, namespace: str | None) -> str:
        return namespace or "/proc/1/ns/net"

    def seccomp_sha256(self, node: Node, tree: str) -> str | None:
        return node.run(["sha256sum", "--", f"{tree}/{PROFILE}"]).stdout.split()[0]

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        with node.opening.paused():
            if spec.layer:
                source, _, scratch = spec.layer
                node.run(["mkdir", f"{scratch}/upper", f"{scratch}/work"])
                node.run(["cp", "--recursive", f"{source}/.", f"{scratch}/upper"], timeout_s=COPIED_WITHIN_S)
            profile = node.run(["cat", f"{spec.tree}/{PROFILE}"])
            config = bundle_config(spec, bundle_profile(profile.stdout))
            bundle = f"{BUNDLES}/{spec.name}"
            write_file(node, f"{bundle}/config.json", json.dumps(config).encode())
            argv = [*self.starting(node, spec), "--bundle", bundle, spec.name]
        # In the foreground: the container's standard streams are the runtime's; its first line reports that it runs.
        process = node.start(argv)
        if next(process.lines(READY_S), None) != "ready":
            process.kill()
            message = f"{self.program} did not start the container"
            raise MeasurementError(message, kind="engine", command=argv, output_tail=process.output_tail())

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        return self.command("exec", spec.name)

    def main_pid(self, node: Node, name: str) -> int:
        answer = node.run(self.command("state", "--", name))
        return int(json.loads(answer.stdout)["pid"])

    def update_argv(self, name: str, cpus: str, quota_us: int, memory_bytes: int | None) -> list[str]:
        memory = []
        if memory_bytes:
            memory = ["--memory", str(memory_bytes), "--memory-swap", str(memory_bytes)]
        return self.command("update", "--cpuset-cpus", cpus, "--cpu-quota", str(quota_us), *memory, name)

    def removal(self, name: str) -> list[list[str]]:
        delete = self.command("delete", "--force", "--", name)
        # runc does not delete the group of a container that it has not yet recorded.
        end = end_starting(name, self.program, "--bundle", stays=True)
        return [end, delete, remove_argv(name), ["rm", "-r", "-f", "--", f"{BUNDLES}/{name}"]]


RUNC = Runc()


def bundle_config(spec: ContainerSpec, seccomp: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config.json`` (OCI runtime specification 1.0.2) of the container that docker would make."""
    sets = ("bounding", "effective", "inheritable", "permitted", "ambient")
    none: dict[str, list[str]] = {name: [] for name in sets}
    of_gpus = [_bind(source, target) for source, target in spec.edits.mounts]
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.name,
        "root": {"path": spec.tree, "readonly": True},
        "mounts": [*_mounts(f"size={spec.tmpfs_bytes}"), *of_gpus, *_data(spec)],
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(SLEEPER),
            "env": [PATH],
            "cwd": "/",
            "capabilities": none,
            "noNewPrivileges": True,
            "rlimits": [_rlimit(name, limit) for name, limit in spec.limits],
        },
        "linux": {
            "namespaces": _namespaces(spec.network),
            "cgroupsPath": f"/{spec.name}",
            "resources": {**_limits(spec), "devices": _allowed_devices(spec)},
            "devices": [_device(device) for device in spec.edits.devices],
            **({"seccomp": seccomp} if spec.seccomp else {}),
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READONLY),
        },
    }


def _rlimit(name: str, limit: int) -> dict[str, Any]:
    return {"type": f"RLIMIT_{name.upper()}", "hard": limit, "soft": limit}


def _namespaces(network: str | None) -> list[dict[str, Any]]:
    """Return the namespaces of a container; one with a path is joined and not made."""
    of_network = {"type": "network"}
    if network:
        of_network["path"] = network
    return [*({"type": kind} for kind in NAMESPACES), of_network]


def _allowed_devices(spec: ContainerSpec) -> list[dict[str, Any]]:
    """Return the rules that allow the GPUs and nothing else; runc adds the usual devices."""
    rules: list[dict[str, Any]] = [{"allow": False, "access": "rwm"}]
    for device in spec.edits.devices:
        rules.append({**_numbers(device), "allow": True, "access": "rw"})
    return rules


def _mounts(size: str) -> list[dict[str, Any]]:
    fixed = ["nosuid", "noexec", "nodev"]
    table = [
        ("/proc", "proc", "proc", fixed),
        ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        ("/dev/shm", "tmpfs", "shm", [*fixed, "mode=1777", size]),  # noqa: S108 (inside the container)
        ("/dev/mqueue", "mqueue", "mqueue", fixed),
        ("/sys", "sysfs", "sysfs", [*fixed, "ro"]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", [*fixed, "ro"]),
        *((path, "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777", size]) for path in TMPFS),
    ]
    return [
        {
            "destination": to,
            "type": kind,
            "source": source,
            "options": how,
        }
        for to, kind, source, how in table
    ]


def _bind(source: str, target: str, writable: bool = False) -> dict[str, Any]:
    options = ["bind", "rw" if writable else "ro", "nosuid", "nodev"]
    return {
        "type": "bind",
        "source": source,
        "destination": target,
        "options": options,
    }


def _data(spec: ContainerSpec) -> list[dict[str, Any]]:
    binds = [_bind(*bind) for bind in spec.binds]
    if not spec.layer:
        return binds
    _, target, scratch = spec.layer
    layers = [f"lowerdir={spec.tree}{target}", f"upperdir={scratch}/upper", f"workdir={scratch}/work"]
    options = [*layers, "nosuid", "nodev"]
    return [
        *binds,
        {
            "type": "overlay",
            "source": "overlay",
            "destination": target,
            "options": options,
        },
    ]


def _limits(spec: ContainerSpec) -> dict[str, Any]:
    cpu: dict[str, Any] = {}
    if not spec.by_count:
        cpu["cpus"] = spec.cpus
    if spec.by_count or spec.cpu_share < 1:
        cpu["quota"] = quota_us(spec.cpu_count, spec.cpu_share)
        cpu["period"] = PERIOD_US
    limits: dict[str, Any] = {
        "cpu": cpu,
        "pids": {"limit": spec.most_processes},
    }
    if spec.memory_limited:
        limits["memory"] = {"limit": spec.memory_bytes, "swap": spec.memory_bytes}
    if spec.limited_disks:
        numbers = []
        for disk in spec.limited_disks:
            numbers.append([int(part) for part in disk.number.split(":")])
        limits["blockIO"] = {}
        for way, unit, limit in spec.disk_limits:
            throttled = [{"major": major, "minor": minor, "rate": limit} for major, minor in numbers]
            limits["blockIO"][f"throttle{way.capitalize()}{UNITS[unit]}Device"] = throttled
    return limits


def _numbers(device: DeviceNode) -> dict[str, Any]:
    return {"type": "c", "major": device.major, "minor": device.minor}


def _device(device: DeviceNode) -> dict[str, Any]:
    return {**_numbers(device), "path": device.path, "fileMode": 0o666, "uid": 0, "gid": 0}


def bundle_profile(text: str) -> dict[str, Any]:
    """Return ``linux.seccomp`` of a bundle: docker's default profile for a container without capabilities.

    The profile's rules are conditional on architecture, capabilities and kernel; a bundle has no conditions, so they
    are decided here. Raises ValueError for a profile that is not JSON.
    """
    profile = json.loads(text)
    architectures = profile.get("archMap", [])
    below = [a["subArchitectures"] or [] for a in architectures if a["architecture"] == LONG_ARCHITECTURE]
    rules = filter(_applies, profile["syscalls"])
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": [LONG_ARCHITECTURE, *chain.from_iterable(below)],
        "syscalls": list(map(_rule, rules)),
    }


def _applies(rule: dict[str, Any]) -> bool:
    includes = rule.get("includes") or {}
    excludes = rule.get("excludes") or {}
    wanted = includes.get("arches")
    if wanted and ARCHITECTURE not in wanted:
        return False
    # Rules for a capability are for containers that have it.
    return ARCHITECTURE not in (excludes.get("arches") or ()) and not includes.get("caps")


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {"names": rule["names"], "action": rule["action"]}
    if rule.get("errnoRet") is not None and rule["action"] == "SCMP_ACT_ERRNO":
        plain["errnoRet"] = rule["errnoRet"]
    if rule.get("args"):
        plain["args"] = []
        for arg in rule["args"]:
            plain["args"].append({key: value for key, value in arg.items() if value is not None})
    return plain
