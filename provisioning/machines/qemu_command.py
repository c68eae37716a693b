"""QEMU's command line, the topology of a guest's virtual CPUs in it, and its control socket."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.lab.tap import Tap, qemu_words
from provisioning.machines import qmp, virtiofs
from provisioning.machines.accelerator import PROGRAM, Accelerator
from suite.interfaces import Node
from suite.job.envelope import format_cpu_list, most_processes, parse_cpu_list
from suite.job.properties import DISK_LIMITS, DISK_STAND_INS, DiskLimit

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
PACKAGE = "physical_package_id"
CORE = "core_id"
LAST_APIC_ID = 254
"""The greatest of 8 bits, of which 255 is for all; with more bits interrupts must be remapped."""


@dataclass(frozen=True)
class Topology:
    """The virtual CPUs of a guest: QEMU numbers the threads of a core first, then cores, then sockets."""

    cpus: tuple[int, ...]
    """The host CPU of each virtual one."""
    sockets: int = 1
    threads: int = 1
    nodes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """The NUMA nodes of the host with the virtual CPUs on them; empty on a host that has one."""

    @property
    def cores(self) -> int:
        """Return the cores of each socket."""
        return len(self.cpus) // (self.sockets * self.threads)

    @property
    def last_apic_id(self) -> int:
        """Return the greatest APIC ID: threads, cores and sockets have bits of their own."""
        thread_bits = (self.threads - 1).bit_length()
        core_bits = (self.cores - 1).bit_length()
        in_socket = (self.cores - 1 << thread_bits) + self.threads - 1
        return (self.sockets - 1 << core_bits + thread_bits) + in_socket


def topology_on(node: Node, cpus: Sequence[int]) -> Topology:
    """Return the topology of CPUs of a node; that of one socket without hardware threads where it tells nothing."""
    files = [f"{CPUS}/cpu{cpu}/topology/{name}" for cpu in cpus for name in (PACKAGE, CORE)]
    numa = node.run(["find", NODES, "-maxdepth", "2", "-name", "cpulist"], check=False).stdout.split()
    answer = node.run(["grep", "-s", "-H", "", "--", *files, *numa], check=False)
    return topology_of(answer.stdout.splitlines(), cpus)


def topology_of(lines: Iterable[str], cpus: Sequence[int]) -> Topology:
    """Return the topology by lines ``FILE:TEXT`` of /sys.

    All are cores of one socket where cores or sockets have unlike numbers of these CPUs, which no guest can have, and
    where the bits of its APIC IDs would not suffice.
    """
    texts: dict[str, str] = {}
    for line in lines:
        path, _, text = line.partition(":")
        texts[path] = text
    places: dict[int, tuple[int, int]] = {}
    for cpu in cpus:
        package = texts.get(f"{CPUS}/cpu{cpu}/topology/{PACKAGE}", "")
        core = texts.get(f"{CPUS}/cpu{cpu}/topology/{CORE}", "")
        if package.isdigit() and core.isdigit():
            places[cpu] = int(package), int(core)
    ordered = tuple(sorted(cpus, key=lambda cpu: (*places.get(cpu, (0, 0)), cpu)))
    of_cores = Counter(places.values())
    of_sockets = Counter(package for package, _ in places.values())
    is_known = len(places) == len(cpus)
    if not is_known or _differ(of_cores) or _differ(of_sockets):
        return Topology(tuple(cpus))
    topology = Topology(
        ordered,
        sockets=len(of_sockets),
        threads=len(cpus) // len(of_cores),
        nodes=_numa(texts, ordered),
    )
    if topology.last_apic_id > LAST_APIC_ID:
        return Topology(ordered, nodes=topology.nodes)
    return topology


def _differ(counts: Counter[Any]) -> bool:
    return len(set(counts.values())) > 1


def _numa(texts: dict[str, str], cpus: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the NUMA nodes of the host that have some of these CPUs, with the positions of these."""
    nodes: list[tuple[int, tuple[int, ...]]] = []
    count = 0
    for path, text in texts.items():
        node = re.fullmatch(rf"{NODES}/node(\d+)/cpulist", path)
        if not node or not text:
            continue
        count += 1
        of_node = parse_cpu_list(text)
        positions = tuple(position for position, cpu in enumerate(cpus) if cpu in of_node)
        if positions:
            nodes.append((int(node[1]), positions))
    if count < 2:
        return ()
    return tuple(sorted(nodes))


QMP_WITHIN_S = 60.0
WRITTEN_WITHIN_S = 600.0
PROBED_BYTES = 64 << 20
COMMON_DEVICES = ("-object", "iothread,id=disks", "-device", "virtio-rng-pci")


@dataclass(frozen=True)
class Disk:
    """A virtio disk. ``direct`` bypasses the host's page cache (``cache=none``) and uses native AIO."""

    path: str
    direct: bool = True
    readonly: bool = True
    discard_writes: bool = False
    """Writes go to a temporary file that is gone with QEMU."""
    limits: tuple[DiskLimit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QemuSpec(Topology):
    """A virtual machine to start. Paths are those of the node that runs QEMU."""

    name: str
    accelerator: Accelerator
    memory_bytes: int
    kernel: str
    initrd: str
    directory: str
    """A private directory, with the control socket."""
    disks: tuple[Disk, ...]
    ssh_port: int
    pinned: bool = True
    """Whether QEMU stays on ``cpus``; otherwise it has as many virtual CPUs, on any."""
    microvm: bool = False
    """Whether it has QEMU's machine type ``microvm``, and virtio over MMIO."""
    tsc_khz: int = 0
    """The rate of the TSC of an emulated microvm, which has no clock to find it by: on a busy host it would hang."""
    data_socket: str | None = None
    """The socket of the virtiofs daemon that shares a directory with it."""
    tap: Tap | None = None
    kernel_settings: tuple[str, ...] = ()
    """Words of the kernel's command line that give it settings of the node's kernel."""
    incoming: bool = False
    """Whether it waits for the state of a guest in place of booting one."""

    @property
    def preallocated(self) -> bool:
        """Return whether its memory is there when it boots: under KVM, faults of the host would slow its steps."""
        return self.accelerator == "kvm"

    @property
    def qmp(self) -> str:
        return f"{self.directory}/qmp"


def qemu_argv(spec: QemuSpec) -> list[str]:
    """Return the command that runs the machine. Memory is in whole MiB; QEMU is confined by its seccomp sandbox."""
    argv = [
        *(("taskset", "--cpu-list", format_cpu_list(spec.cpus)) if spec.pinned else ()),
        *(PROGRAM, "-name", f"{spec.name},debug-threads=on"),
        *_board(spec.accelerator, spec.memory_bytes, "microvm" if spec.microvm else "q35"),
        *("-smp", f"{len(spec.cpus)},sockets={spec.sockets},cores={spec.cores},threads={spec.threads}"),
        *_memory(spec),
        *("-kernel", spec.kernel, "-initrd", spec.initrd, "-append", kernel_words(spec)),
        # The suite keeps the end of what it says: a file would grow for as long as the guest likes.
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
        *("-qmp", f"unix:{_escaped(spec.qmp)},server=on,wait=off"),
        *COMMON_DEVICES,
        *(word for number, disk in enumerate(spec.disks) for word in _disk(number, disk)),
        *_network(spec.ssh_port),
        *(qemu_words(spec.tap) if spec.tap else ()),
        *(virtiofs.qemu_words(spec.data_socket) if spec.data_socket else ()),
        *(("-incoming", "defer") if spec.incoming else ()),
    ]
    if spec.microvm:
        return _over_mmio(argv, spec.accelerator)
    return argv


def machine_argv() -> list[str]:
    """Return the command that makes the machine of a guest without disks, and ends at ``quit`` on standard input."""
    board = _board("tcg", PROBED_BYTES, "q35")
    # Port 0 is any that is free.
    return [PROGRAM, *board, *COMMON_DEVICES, *_network(0), "-S", "-monitor", "stdio"]


def _board(accelerator: Accelerator, memory_bytes: int, machine: str) -> list[str]:
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *("-machine", machine),
        *("-accel", "kvm" if accelerator == "kvm" else "tcg,thread=multi"),
        # Without these words QEMU invents caches, and libraries choose the blocks of their sums by them.
        *("-cpu", "host,host-cache-info=on,l3-cache=off" if accelerator == "kvm" else "max"),
        *("-m", f"{memory_bytes >> 20}M"),
    ]


def _memory(spec: QemuSpec) -> list[str]:
    """Return the memory: QEMU's own, shared with a daemon, there from the start, or on nodes of the host."""
    several = len(spec.nodes) > 1 and not spec.microvm
    if several:
        words: list[str] = []
        for cell in range(len(spec.nodes)):
            words += _cell(spec, cell)
        return words
    options = _backing(spec)
    if spec.nodes:
        node, _ = spec.nodes[0]
        options += [f"host-nodes={node}", "policy=preferred"]
    if not options:
        return []
    backend = [_kind(spec), "id=memory", f"size={spec.memory_bytes >> 20}M", *options]
    return ["-object", ",".join(backend), "-machine", "memory-backend=memory"]


def _cell(spec: QemuSpec, cell: int) -> list[str]:
    """Return a NUMA node of the guest, whose memory is near that of the host."""
    node, cpus = spec.nodes[cell]
    name = f"memory{cell}"
    backend = [_kind(spec), f"id={name}", f"size={cell_mib(spec, cell)}M", *_backing(spec)]
    backend += [f"host-nodes={node}", "policy=preferred"]
    numa = ["node", f"nodeid={cell}"]
    for cpu in cpus:
        numa.append(f"cpus={cpu}")
    numa.append(f"memdev={name}")
    return ["-object", ",".join(backend), "-numa", ",".join(numa)]


def _kind(spec: QemuSpec) -> str:
    if spec.data_socket:
        return "memory-backend-memfd"
    return "memory-backend-ram"


def _backing(spec: QemuSpec) -> list[str]:
    options: list[str] = []
    if spec.data_socket:  # virtiofsd reads and writes the guest's memory
        options.append("share=on")
    if spec.preallocated:
        options.append("prealloc=on")
    return options


def cell_mib(spec: QemuSpec, cell: int) -> int:
    """Return the memory of a NUMA node of the guest: an equal share, and the rest on the first."""
    whole_mib = spec.memory_bytes >> 20
    share_mib = whole_mib // len(spec.nodes)
    if cell == 0:
        return whole_mib - share_mib * (len(spec.nodes) - 1)
    return share_mib


def _network(port: int) -> list[str]:
    return ["-netdev", way_in(port), "-device", "virtio-net-pci,netdev=net,romfile="]


def _over_mmio(argv: list[str], accelerator: Accelerator) -> list[str]:
    """Return the command with virtio devices over MMIO (version 1). Only under KVM they have threads of their own."""
    pci = r"^(virtio-\w+)-pci(?=,|$)"
    thread = "" if accelerator == "kvm" else ",iothread=disks"
    words = (word.removesuffix(",romfile=").removesuffix(thread) for word in argv)
    return [*(re.sub(pci, r"\1-device", word) for word in words), "-global", "virtio-mmio.force-legacy=false"]


def way_in(port: int) -> str:
    """Return the guest's network, which is nothing but that: it reaches neither this host nor what lies behind it."""
    return f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"


def kernel_words(spec: QemuSpec) -> str:
    """Return the command line of the kernel. Its own threads count as processes, too."""
    threads = f"sysctl.kernel.threads-max={2 * most_processes(len(spec.cpus))}"
    clock = f" tsc=reliable tsc_early_khz={spec.tsc_khz}" if spec.tsc_khz else ""
    return " ".join([f"console=ttyS0 quiet loglevel=4 panic=-1 {threads}{clock}", *spec.kernel_settings])


def _disk(number: int, disk: Disk) -> list[str]:
    options = [f"file={_escaped(disk.path)}", "if=none", f"id=disk{number}", "format=raw"]
    options += ["cache=none", "aio=native"] if disk.direct else ["cache=writeback", "aio=threads"]
    if disk.limits:
        # One group: a machine's disks lie on one of the host's, and share its limit.
        options += [f"throttling.{unit}-{way}={limit}" for way, unit, limit in disk.limits]
        options += ["throttling.group=disks"]
    options += ["snapshot=on"] if disk.discard_writes else [f"readonly={'on' if disk.readonly else 'off'}"]
    return ["-drive", ",".join(options), "-device", f"virtio-blk-pci,drive=disk{number},iothread=disks"]


def _escaped(path: str) -> str:
    # A comma in a path would begin a new option: QEMU takes two for one.
    return path.replace(",", ",,")


def execute(node: Node, socket: str, command: str) -> Any:  # noqa: ANN401 (an answer is whatever the command defines)
    """Send one command to a QEMU that runs on the node. Raises CommandError when it does not answer."""
    argv = ["python3", "-I", "-", socket, command]
    program = Path(qmp.__file__).read_bytes()
    return json.loads(node.run(argv, stdin=program, timeout_s=QMP_WITHIN_S).stdout)


def vcpu_threads(cpus: Any) -> list[int]:  # noqa: ANN401
    """Return the thread id of each virtual CPU, in order, from the answer to ``query-cpus-fast``."""
    by_index = sorted(cpus, key=lambda cpu: cpu["cpu-index"])
    return [cpu["thread-id"] for cpu in by_index]


def disk_limits(devices: Any) -> dict[str, int | None]:  # noqa: ANN401
    """Return the throttle of every disk from the answer to ``query-block``, as ``ControlGroup.disk_limits`` does."""
    inserted = [device["inserted"] for device in devices if "inserted" in device]
    found = {}
    for unit, name in DISK_LIMITS.items():
        found[name] = {disk[f"{unit}_{way}"] for disk in inserted for way in ("rd", "wr")}
    # QEMU says 0 where there is no limit.
    return {name: (limits.pop() or None) if len(limits) == 1 else None for name, limits in found.items()}


def forget(node: Node, path: str) -> None:
    """Leave nothing of a file in the node's page cache: of what its writing has left there, a guest would read."""
    node.run(["sync", "--", path], timeout_s=WRITTEN_WITHIN_S)  # a page that waits to be written is not dropped
    node.run(["dd", f"if={path}", "iflag=nocache", "count=0", "status=none"])


def takes_direct_io(node: Node, path: str) -> bool:
    """Return whether direct I/O to the file or device of the node reaches a disk; see ``DISK_STAND_INS``."""
    if node.run(["test", "-b", path], check=False).returncode:
        answer = node.run(["stat", "--file-system", "--format=%T", "--", path], check=False)
        kind = answer.stdout.strip()
        if kind in DISK_STAND_INS:
            return False
    words = ["of=/dev/null", "bs=4096", "count=1", "iflag=direct", "status=none"]
    return node.run(["dd", f"if={path}", *words], check=False).returncode == 0
