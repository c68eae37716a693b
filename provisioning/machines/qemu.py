"""QEMU: boots the image's kernel and disk on the node itself; the guest is reached by SSH when it is ready."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from provisioning.images.image import Image
from provisioning.images.pack import FIRST_MODULES, add_modules, cpio, joined
from provisioning.lab.connectivity import free_port
from provisioning.machines import accelerator, ssh, virtiofs
from provisioning.machines import qemu_command as qemu
from provisioning.machines.accelerator import Accelerator
from provisioning.machines.base import Guest, GuestSpec, MachineProvider
from provisioning.machines.qemu_command import Topology, topology_on
from provisioning.machines.running import GuestConsole, RunningQemu, explained
from provisioning.machines.snapshot import GuestSnapshot
from provisioning.nodes import local_node
from provisioning.processes import build_of, check_answer, installing, packages_of
from suite.errors import BenchError, MeasurementError, option
from suite.interfaces import Node, Process
from suite.job.job import CpuCapability
from suite.job.properties import Properties
from suite.measurable import EMULATED_CPU

READY_WITHIN_S = {"kvm": accelerator.GUEST_WITHIN_S, "tcg": 240.0}
ENDS_WITHIN_S = 30.0
EMULATES_AVX2 = (7, 2)
"""The first QEMU whose emulation has AVX2 and FMA (its change log, "TCG: x86")."""
ADDRESS = "10.0.2.15/24"  # what QEMU's user-mode network forwards to

HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
NUMA_BALANCING = "/proc/sys/kernel/numa_balancing"
MADE_WITHIN_S = 30.0


class Qemu(MachineProvider):
    name = "qemu"
    tools: Mapping[str, str] = MappingProxyType(packages_of(accelerator.PROGRAM, "ssh", "taskset"))
    local_tools: Mapping[str, str] = MappingProxyType(packages_of("ssh-keygen", "cpio"))
    no_snapshot: str = ""
    most_cpus = 255  # APIC IDs have 8 bits; more need an IOMMU that remaps interrupts, which no guest of the suite has

    def version(self, node: Node) -> str:
        answer = node.run([accelerator.PROGRAM, "--version"], check=False)
        if answer.returncode:
            raise BenchError(f"QEMU does not work on {node.name}", remedy=installing(accelerator.PROGRAM))
        name, _, version = answer.stdout.partition("\n")[0].partition(" emulator version ")
        check_answer("qemu", name, node.name)
        return version or build_of(accelerator.PROGRAM, node)

    def check_machine(self, node: Node) -> None:
        tried = node.run(qemu.machine_argv(), stdin=b"quit\n", timeout_s=MADE_WITHIN_S, check=False)
        if not tried.returncode:
            return
        last = tried.complaint("no message")
        remedy = "see why, and install your distribution's full QEMU"
        if "backend 'user'" in last:
            remedy = "install a QEMU that was built with libslirp: without it nothing reaches a guest"
        raise BenchError(f"QEMU on {node.name} cannot make the machine of a guest: {last[:300]}", remedy=remedy)

    def guest_capability(self, node: Node, accelerator: Accelerator, level: CpuCapability) -> CpuCapability:
        if accelerator == "kvm":
            return level
        match = re.search(r"(\d+)\.(\d+)", self.version(node))
        if match and (int(match[1]), int(match[2])) >= EMULATES_AVX2:
            return "avx2"
        return "default"

    def hindrance(self, properties: Properties, image: Image) -> tuple[str, str] | None:
        if properties.virtiofs and (reason := virtiofs.hindrance(image.tree)):
            return reason
        if properties.microvm and not virtiofs.has_module(image.tree, "virtio_mmio"):
            return "the guest's kernel has no virtio_mmio", "use an image of a kernel that has it"
        if not properties.direct_io:
            with local_node((), None) as node:
                if not qemu.takes_direct_io(node, str(image.file("disk.img"))):
                    why = "direct I/O to the file system of the images reaches no disk"
                    return why, "leave it out, or change the other option"
        return None

    def command(self, spec: qemu.QemuSpec) -> Sequence[str]:
        return qemu.qemu_argv(spec)

    @contextmanager
    def running(self, node: Node, spec: qemu.QemuSpec) -> Iterator[Process]:
        """Run QEMU. Yields a process that lives as long as it does, and whose output is the guest's console."""
        yield node.start(self.command(spec))

    def ask(self, node: Node, spec: qemu.QemuSpec, command: str) -> Any:  # noqa: ANN401 (whatever the command defines)
        """Send a command of QMP to the running QEMU; return its answer. Raises CommandError if there is none."""
        return qemu.execute(node, spec.qmp, command)

    @contextmanager
    def booted(self, node: Node, spec: GuestSpec) -> Iterator[Guest]:
        within_s = READY_WITHIN_S[spec.accelerator]
        with ExitStack() as stack:
            with node.opening.paused():
                directory = stack.enter_context(ssh.private_directory(node))
                access = ssh.SshAccess(str(directory), ssh.free_port() if node.local else free_port(node, "127.0.0.1"))
                started = _qemu_spec(node, spec, directory, access)
            if spec.shared_directory:
                cpus = spec.envelope.cpus if spec.properties.pinned else None
                virtiofs.serve(node, str(spec.shared_directory), f"{directory}/{virtiofs.SOCKET}", cpus)
            machine = RunningQemu(started, partial(self.running, node), stack)
            machine.start(started)
            try:
                _wait_until_ready(machine.console, machine.process, self.command(started), within_s)
                with node.opening.paused():
                    threads = qemu.vcpu_threads(self.ask(node, started, "query-cpus-fast"))
                    if spec.properties.pinned:
                        # Each virtual CPU has a host CPU of its own; other threads stay anywhere in the envelope.
                        for cpu, thread in zip(started.cpus, threads, strict=True):
                            node.run(["taskset", "--pid", "--cpu-list", str(cpu), str(thread)])
                    limits = qemu.disk_limits(self.ask(node, started, "query-block"))
                    guest = replace(_guest(spec, started, access, limits), threads=tuple(threads))
                stack.enter_context(ssh.connection(node, access, within_s))
                if node.local and not self.no_snapshot and not spec.shared_directory:
                    snapshot = GuestSnapshot(machine, node, access, spec.image.python[0], stack)
                    guest = replace(guest, snapshot=snapshot)
                yield guest
                if machine.console.flood:
                    raise machine.console.flood
                node.run(access.wrap(["busybox", "poweroff"]), check=False)
                machine.wait_for_end(ENDS_WITHIN_S)  # one that does not end in order is killed
            except BenchError as error:
                raise explained(error, machine) from error


QEMU = Qemu()


def _qemu_spec(node: Node, spec: GuestSpec, directory: PurePath, access: ssh.SshAccess) -> qemu.QemuSpec:
    with ssh.written_here(node, directory) as (machine, files):
        ssh.make_keys(machine, str(files))
        archive = _run_files(machine, files, spec)
        (files / "initrd").write_bytes(joined(spec.image.file("initrd.img").read_bytes(), archive))
    topology = Topology(spec.envelope.cpus)
    if spec.properties.pinned:
        topology = topology_on(node, spec.envelope.cpus)
    return qemu.QemuSpec(
        **vars(topology),
        name=directory.name,
        accelerator=spec.accelerator,
        kernel_settings=tuple(_kernel_settings(node, spec.properties)),
        memory_bytes=spec.envelope.memory_bytes,
        kernel=f"{node.userland}/boot/vmlinuz",
        initrd=str(directory / "initrd"),
        directory=str(directory),
        disks=tuple(_disks(node, spec)),
        ssh_port=access.port,
        pinned=spec.properties.pinned,
        data_socket=f"{directory}/{virtiofs.SOCKET}" if spec.shared_directory else None,
        tap=spec.tap,
        microvm=spec.properties.microvm,
        tsc_khz=_tsc_khz(node) if spec.properties.microvm and spec.accelerator == "tcg" else 0,
    )


def _kernel_settings(node: Node, properties: Properties) -> Iterator[str]:
    """Yield words that give the guest's kernel the node's huge pages and NUMA balancing, as far as it has them."""
    answer = node.run(["cat", HUGE_PAGES], check=False).stdout
    chosen = re.search(r"\[(\w+)\]", answer)
    word = properties.guest_huge_pages or (chosen and chosen[1])
    if word:
        yield f"transparent_hugepage={word}"
    balancing = node.run(["cat", NUMA_BALANCING], check=False).stdout.strip()
    if balancing.isdigit():
        yield f"numa_balancing={'enable' if int(balancing) else 'disable'}"


def _tsc_khz(node: Node) -> int:
    """Return the rate of the node's TSC, by which an emulated one counts; bogomips are twice its MHz. 0 if unknown."""
    bogomips = re.search(r"bogomips\s*:\s*([\d.]+)", node.run(["cat", "/proc/cpuinfo"]).stdout)
    if bogomips:
        return int(float(bogomips[1]) * 500)
    return 0


def _disks(node: Node, spec: GuestSpec) -> Iterator[qemu.Disk]:
    limits = spec.properties.disk_limits
    direct = spec.properties.direct_io

    def disk(path: PurePath, *, writable: bool = False) -> qemu.Disk:
        return qemu.Disk(
            str(path), direct=direct and qemu.takes_direct_io(node, str(path)), readonly=not writable, limits=limits
        )

    packed = PurePath(str(node.userland)).parent
    yield disk(packed / "disk.img")
    if spec.volume and spec.volume.disk:
        qemu.forget(node, str(spec.volume.disk))
        yield disk(spec.volume.disk, writable=spec.volume.writable)
    if spec.store:
        yield qemu.Disk(str(packed / spec.store), direct=False, discard_writes=True, limits=limits)


def _run_files(node: Node, directory: Path, spec: GuestSpec) -> bytes:
    """Return what belongs to this run as a second archive of the initramfs: the guest's key is then on no disk."""
    root = directory / "root"
    keys = root / "virtbench/ssh"
    keys.mkdir(parents=True)
    keys.chmod(0o700)
    (directory / "host_key").rename(keys / "host_key")
    (keys / "authorized_keys").write_text((directory / "client_key.pub").read_text())
    (keys / "sshd_config").write_text(ssh.SSHD_CONFIG)
    further = iter(("vdb", "vdc"))  # the disks after the first, in the order of ``_disks``
    settings = {
        "VIRTBENCH_HOSTNAME": "virtbench-vm",
        "VIRTBENCH_ADDRESS": ADDRESS,
        "VIRTBENCH_DATA": next(further) if spec.volume and spec.volume.disk else "none",
        "VIRTBENCH_DATA_MODE": "rw" if spec.volume and spec.volume.writable else "ro",
        "VIRTBENCH_STORE": next(further) if spec.store else "none",
        "VIRTBENCH_TMPFS": str(spec.envelope.tmpfs_bytes),
    }
    lines = (f"{key}={value}\n" for key, value in settings.items())
    (root / "virtbench/guest.env").write_text("".join(lines))
    if spec.properties.microvm:
        add_modules(spec.image.tree, root, ("virtio_mmio", *FIRST_MODULES))
    archive = cpio(node, root)
    (keys / "host_key").unlink()
    return archive


def _guest(
    spec: GuestSpec, started: qemu.QemuSpec, access: ssh.SshAccess, disk_limits: Mapping[str, int | None]
) -> Guest:
    direct = all(disk.direct or disk.discard_writes for disk in started.disks)
    bus = " over MMIO" if started.microvm else ""
    substitutes = [EMULATED_CPU] if spec.accelerator == "tcg" else []
    if spec.properties.direct_io and not direct:
        substitutes.append("disk:host-page-cache")
    if started.tap and not started.tap.vhost and spec.accelerator == "kvm":
        substitutes.append("network:user-space")
    facts = {
        "accelerator": spec.accelerator,
        "host_cpus": sorted(started.cpus) if spec.properties.pinned else None,
        **disk_limits,
        "disk": f"virtio-blk{bus} raw {'cache=none aio=native' if direct else 'cache=writeback aio=threads'}",
    }
    return Guest(access.wrap, facts, tuple(substitutes))


def _wait_until_ready(console: GuestConsole, process: Process, command: Sequence[str], within_s: float) -> None:
    if console.wait_until_ready(within_s):
        return
    if not process.running():
        raise MeasurementError("QEMU ended before its guest was ready", kind="boot", command=command)
    raise MeasurementError(
        f"the guest was not ready within {within_s:.0f} s",
        kind="boot",
        command=command,
        remedy=f"see what its console says; on a slow host try {option('accel')} tcg or fewer CPUs",
    )
