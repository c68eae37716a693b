"""runc on a bundle of our own: no daemon, no store. The default where neither docker nor podman works. Needs root."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from provisioning.cgroup.limits import PERIOD_US
from provisioning.engines.base import SLEEPER, TMPFS, ContainerEngine, ContainerSpec
from provisioning.engines.command_line import COPIED_WITHIN_S
from provisioning.engines.seccomp import PROFILE, bundle_profile
from provisioning.nodes import Host, write_file
from provisioning.paths import state
from suite.errors import BenchError, CommandError, MeasurementError
from suite.interfaces import Node

ROOT = "/run/virtbench/runc"
BUNDLES = "/run/virtbench/bundles"
PROGRAM = ("runc", "--root", ROOT)
NAMESPACES = ("pid", "ipc", "uts", "mount", "network", "cgroup")
# What Docker hides of /proc and /sys (its documentation, "runtime privilege").
MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
)
READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
READY_S = 60.0


class Runc(ContainerEngine):
    """See ``base.ContainerEngine``."""

    name = "runc"
    rootfs = "directory"
    commands_are_children = True
    gpus_by_edits = True

    def version(self, node: Node) -> str:
        answer = node.run(["runc", "--version"], check=False)
        if answer.returncode:
            raise BenchError(f"runc does not work on {node.name}", remedy="install runc")
        if node.local and node.run(["id", "-u"]).stdout.strip() != "0":
            raise BenchError("runc needs root", remedy="use --engine podman, which has a rootless mode, or sudo")
        return answer.stdout.split()[2]

    def load(self, host: Host, digest: str, archive: Path) -> None:
        """Do nothing: a bundle takes the tree where it is."""

    def check(self, node: Node, digest: str) -> None:
        """Do nothing: the tree is the image."""

    def layers_at(self, node: Node) -> str:  # noqa: ARG002 (other engines are asked)
        """Return a directory of the suite's own: runc keeps no layers."""
        return str(state("scratch"))

    def host_network(self, namespace: str | None) -> str:
        return namespace or "/proc/1/ns/net"

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        if spec.layer:
            source, _, place = spec.layer
            node.run(["mkdir", f"{place}/upper", f"{place}/work"])
            node.run(["cp", "--recursive", f"{source}/.", f"{place}/upper"], timeout_s=COPIED_WITHIN_S)
        profile = node.run(["cat", f"{spec.tree}/{PROFILE}"]).stdout
        config = bundle_config(spec, bundle_profile(profile))
        write_file(node, f"{BUNDLES}/{spec.name}/config.json", json.dumps(config).encode())
        # In the foreground: the container's standard streams are runc's, and its first line says that it runs.
        process = node.start([*PROGRAM, "run", "--bundle", f"{BUNDLES}/{spec.name}", spec.name])
        if next(process.lines(READY_S), None) != "ready":
            process.kill()
            raise MeasurementError(
                "runc did not start the container", kind="engine", command=PROGRAM, output_tail=process.output_tail()
            )

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        return [*PROGRAM, "exec", spec.name]

    def main_pid(self, node: Node, name: str) -> int:
        pid: int = json.loads(node.run([*PROGRAM, "state", name]).stdout)["pid"]
        return pid

    def removal(self, name: str) -> list[list[str]]:
        return [[*PROGRAM, "delete", "--force", name], ["rm", "-r", "-f", "--", f"{BUNDLES}/{name}"]]

    def remove(self, node: Node, name: str) -> None:
        for argv in self.removal(name):
            node.run(argv)

    def remove_local(self, name: str) -> None:
        argv = self.removal(name)[0]
        answer = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
        if answer.returncode:
            raise CommandError(argv, answer.returncode, answer.stderr)
        shutil.rmtree(Path(BUNDLES) / name, ignore_errors=True)


RUNC = Runc()


def bundle_config(spec: ContainerSpec, seccomp: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config.json`` (OCI runtime specification 1.0.2) of the container that docker would make."""
    none: dict[str, list[str]] = {k: [] for k in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.name,
        "root": {"path": spec.tree, "readonly": True},
        "mounts": [*_mounts(), *({"type": "bind", **_bind(*pair)} for pair in spec.edits.mounts), *_data(spec)],
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(SLEEPER),
            "env": [PATH, *(f"{key}={value}" for key, value in spec.edits.env.items())],
            "cwd": "/",
            "capabilities": none,
            "noNewPrivileges": True,
            "rlimits": [{"type": f"RLIMIT_{name.upper()}", "hard": v, "soft": v} for name, v in spec.limits],
        },
        "linux": {
            "namespaces": _namespaces(spec),
            "cgroupsPath": f"/{spec.name}",
            "resources": {"cpu": _cpu(spec), **_limits(spec), "devices": _device_rules(spec)},
            "devices": _devices(spec),
            **({"seccomp": seccomp} if spec.seccomp else {}),
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READONLY),
        },
    }


def _mounts() -> list[dict[str, Any]]:
    fixed = ["nosuid", "noexec", "nodev"]
    temporary = [(place, "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777"]) for place in TMPFS]
    table = [
        ("/proc", "proc", "proc", fixed),
        ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        ("/dev/shm", "tmpfs", "shm", [*fixed, "mode=1777"]),  # noqa: S108 (inside the container)
        ("/dev/mqueue", "mqueue", "mqueue", fixed),
        ("/sys", "sysfs", "sysfs", [*fixed, "ro"]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", [*fixed, "ro"]),
        *temporary,
    ]
    return [{"destination": to, "type": kind, "source": source, "options": how} for to, kind, source, how in table]


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"source": source, "destination": target, "options": ["rbind", "ro", "nosuid", "nodev"]}


def _data(spec: ContainerSpec) -> list[dict[str, Any]]:
    if spec.layer:
        _, target, place = spec.layer
        options = [f"lowerdir={spec.tree}{target}", f"upperdir={place}/upper", f"workdir={place}/work"]
        return [
            {"type": "overlay", "source": "overlay", "destination": target, "options": [*options, "nosuid", "nodev"]}
        ]
    if not spec.data:
        return []
    source, target, writable = spec.data
    options = ["rbind", "rw" if writable else "ro", "nosuid", "nodev"]
    return [{"type": "bind", "source": source, "destination": target, "options": options}]


def _namespaces(spec: ContainerSpec) -> list[dict[str, str]]:
    """Return the namespaces; one with a path is joined and not made."""
    joined = {"path": spec.network} if spec.network else {}
    return [{"type": kind, **(joined if kind == "network" else {})} for kind in NAMESPACES]


def _cpu(spec: ContainerSpec) -> dict[str, Any]:
    return {"quota": spec.cpu_count * PERIOD_US, "period": PERIOD_US} if spec.by_count else {"cpus": spec.cpus}


def _limits(spec: ContainerSpec) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if spec.memory_bytes is not None:
        limits["memory"] = {"limit": spec.memory_bytes, "swap": spec.memory_bytes}
    if spec.limited_disks:
        numbers = [disk.major_minor for disk in spec.limited_disks]
        rates = [{"major": major, "minor": minor, "rate": spec.disk_limit_bytes_per_s} for major, minor in numbers]
        limits["blockIO"] = {f"throttle{way}BpsDevice": rates for way in ("Read", "Write")}
    return limits


def _devices(spec: ContainerSpec) -> list[dict[str, Any]]:
    return [
        {"path": d.path, "type": "c", "major": d.major, "minor": d.minor, "fileMode": 0o666, "uid": 0, "gid": 0}
        for d in spec.edits.devices
    ]


def _device_rules(spec: ContainerSpec) -> list[dict[str, Any]]:
    """Return the rules that allow the GPUs and nothing else; runc adds the usual devices."""
    allowed = [
        {"allow": True, "type": "c", "major": d.major, "minor": d.minor, "access": "rw"} for d in spec.edits.devices
    ]
    return [{"allow": False, "access": "rwm"}, *allowed]
