"""libvirt: boots the guest of ``qemu`` as a transient domain of a libvirt daemon on the node, by ``virsh``.

The domain is as like QEMU's own command as libvirt allows. libvirt adds control groups below ``/machine``, one for each
virtual CPU, for the I/O thread and for the rest; PCI root ports; and it starts the guest paused (``-S``).
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

from provisioning import ledger, processes
from provisioning.cgroup import removal
from provisioning.images.image import Image
from provisioning.machines import qemu, qemu_command, virtiofs
from provisioning.machines.accelerator import Accelerator
from provisioning.nodes import LocalNode, local_node, undone_when_lost, write_file
from provisioning.paths import home
from suite.errors import BenchError, RequestError, option
from suite.interfaces import COMMAND_WITHIN_S, Node, Process
from suite.interruption import uninterrupted
from suite.job.envelope import format_cpu_list
from suite.job.properties import Properties

URI_VARIABLE = "LIBVIRT_DEFAULT_URI"
URI = r"qemu(\+unix)?:///system(\?socket=/[\w./-]+)?"
"""The connections that are used: a daemon of the machine itself, whose control groups and namespaces are that one's."""
_HYPERVISOR = re.compile(r"^Running hypervisor: QEMU (\S+)", re.MULTILINE)
_DAEMON = re.compile(r"^Running against daemon: (\S+)", re.MULTILINE)
"""The versions of what does the work: those of virsh and of its library, before them, may be others."""
_QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
_DOMAIN = """
<domain><name/><memory unit="MiB"/><vcpu placement="static"/><iothreads>1</iothreads>
<os><type machine="q35">hvm</type><kernel/><initrd/><cmdline/></os><features><acpi/><apic/></features>
<cpu check="none" migratable="on"><topology/></cpu>
<on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
<devices><controller type="usb" model="none"/><serial type="pipe"><source/><target port="0"/></serial>
<rng model="virtio"><backend model="builtin"/></rng><memballoon model="none"/><video><model type="none"/></video>
</devices><seclabel type="static" model="dac" relabel="no"><label>+0:+0</label></seclabel></domain>"""
_PINS = '<cputune><emulatorpin/><iothreadpin iothread="1"/></cputune>'
_DISK = '<disk device="disk"><driver name="qemu" type="raw" iothread="1"/><source/><target bus="virtio"/></disk>'
_DISKS = ("vda", "vdb", "vdc")
_LIMIT_UNITS = {"bps": "bytes", "iops": "iops"}
"""libvirt's names of the units in ``suite.job.properties.DISK_LIMITS``."""
_SHARED_MEMORY = '<memoryBacking><source type="memfd"/><access mode="shared"/></memoryBacking>'
_DIRECTORY = '<filesystem type="mount"><driver type="virtiofs"/><source/><target/></filesystem>'
_TAP = '<interface type="ethernet"><mac/><target managed="no"/><model type="virtio"/><rom enabled="no"/></interface>'
_CARD = "virtio-net-pci,netdev=net,romfile=,addr=0x10"
"""The card that is the way in, in a slot far from those of libvirt's devices, which it counts from the lowest."""


class Libvirt(qemu.Qemu):
    """See ``base.MachineProvider``. Whatever is not about starting QEMU is inherited."""

    name = "libvirt"
    no_snapshot: str = "its daemon starts QEMU, and the suite has no hold of that QEMU's monitor"
    tools: Mapping[str, str] = MappingProxyType({**qemu.Qemu.tools, **processes.packages_of("virsh")})

    def version(self, node: Node) -> str:
        answer = node.run([*virsh(), "version", "--daemon"], check=False)
        hypervisor = _HYPERVISOR.search(answer.stdout)
        daemon = _DAEMON.search(answer.stdout)
        if answer.returncode or not hypervisor or not daemon:
            words = answer.complaint("no message").removeprefix("error: ")
            remedy = f"start it (package libvirt-daemon-system; systemctl start libvirtd), or set {URI_VARIABLE}"
            if re.search("permission denied|authentication (unavailable|failed)", words.lower()):
                remedy = "add the user to the group libvirt and sign in again, or use root"
            raise BenchError(f"libvirt does not answer on {node.name} at {uri()}: {words}", remedy=remedy)
        printed = node.run(["virsh", "--version=long"], check=False)
        processes.check_answer("virsh", printed.stdout, node.name)
        return f"{hypervisor[1]}, libvirt {daemon[1]}"

    def check_machine(self, node: Node) -> None:
        """Check nothing: libvirt chooses which QEMU makes a machine."""

    def choose_accelerator(self, requested: str) -> tuple[Accelerator, str]:
        with local_node((), None) as node:
            self.version(node)
        return super().choose_accelerator(requested)

    def hindrance(self, properties: Properties, image: Image) -> tuple[str, str] | None:
        if properties.microvm:
            return "libvirt has no machine type microvm", f"leave it out, or use {option('provider')} qemu"
        return super().hindrance(properties, image)

    def check_lab(self) -> None:
        raise RequestError(
            "libvirt's daemon starts QEMU in its own network namespace, and not in that of a node of the lab",
            remedy=f"use {option('provider')} qemu, or other machines: {option('inventory')}",
        )

    def command(self, spec: qemu_command.QemuSpec) -> Sequence[str]:
        return [*virsh(), "create", "--validate", f"{spec.directory}/domain.xml"]

    def ask(self, node: Node, spec: qemu_command.QemuSpec, command: str) -> Any:  # noqa: ANN401 (as there)
        words = ["qemu-monitor-command", f"virtbench-{spec.name}", json.dumps({"execute": command})]
        answer = node.run([*virsh(), *words])
        return json.loads(answer.stdout)["return"]

    @contextmanager
    def running(self, node: Node, spec: qemu_command.QemuSpec) -> Iterator[Process]:
        """Run the domain. The process is the reader of its console, which ends when QEMU does."""
        name = f"virtbench-{spec.name}"
        token = node.token if isinstance(node, LocalNode) else None
        write_file(node, f"{spec.directory}/domain.xml", domain_xml(spec, name, token))
        node.run(["mkfifo", f"{spec.directory}/console.in", f"{spec.directory}/console.out"])
        destroy = [*virsh(), "destroy", name]
        held = f"{self.name}:{name}@{uri()}"
        with ledger.holding("machine", held) if node.local else undone_when_lost(node, destroy):
            console = node.start(["cat", f"{spec.directory}/console.out"])
            try:
                node.run(self.command(spec))
                # As part of the domain, limits would come before the disks that forget: libvirt plugs those in last.
                for called, disk in zip(_DISKS, spec.disks, strict=False):
                    limits = [f"--{way}-{_LIMIT_UNITS[unit]}-sec={limit}" for way, unit, limit in disk.limits]
                    if limits:
                        node.run([*virsh(), "blkdeviotune", name, called, "--live", "--group-name=disks", *limits])
                yield console
            finally:
                console.kill()
                if not node.local:
                    with uninterrupted():
                        node.run(destroy, check=False)  # it has mostly ended by itself

    def remove_local(self, name: str) -> None:
        """Destroy a domain of this machine, named ``NAME@URI``, and what a daemon that is gone has left of it."""
        domain, _, where = name.partition("@")
        if not re.fullmatch(URI, where):
            raise RequestError(f"{where} is no connection of the suite's to libvirt", remedy="remove the entry")
        processes.run_apart([*virsh(where), "destroy", domain], COMMAND_WITHIN_S)
        # systemd writes a dash in the name of a group as \x2d: the number of the domain has none, and is unique.
        number = domain.rpartition("-")[2]
        for hierarchy in (removal.ROOT, *removal.ROOT.glob("*/")):
            for group in hierarchy.glob(f"machine*/*qemu*{number}*"):
                removal.remove(f"{group.parent.name}/{group.name}")
        for written in home().glob(f"images/*/*.TRANSIENT-{domain}"):
            written.unlink(missing_ok=True)


LIBVIRT = Libvirt()


def uri() -> str:
    """Return the connection, of the environment or the usual one. Raises RequestError for one to another machine."""
    asked = os.environ.get(URI_VARIABLE) or "qemu:///system"
    if not re.fullmatch(URI, asked):
        raise RequestError(
            f"{URI_VARIABLE}={asked} is no connection to the system daemon of this machine",
            remedy="write qemu:///system, or qemu+unix:///system?socket=/PATH",
        )
    return asked


def virsh(where: str | None = None) -> list[str]:
    return ["virsh", "--quiet", "--connect", where or uri()]


def domain_xml(spec: qemu_command.QemuSpec, name: str, token: str | None) -> bytes:
    """Return the domain. QEMU carries the token; it runs as root, so that no file must change its owner."""
    kvm = spec.accelerator == "kvm"
    count = str(len(spec.cpus))
    every = format_cpu_list(spec.cpus)
    values = {
        "@type": "kvm" if kvm else "qemu",
        "name": name,
        "memory": str(spec.memory_bytes >> 20),
        "vcpu": count,
        "os/kernel": spec.kernel,
        "os/initrd": spec.initrd,
        "os/cmdline": qemu_command.kernel_words(spec),
        "cpu@mode": "host-passthrough" if kvm else "maximum",
        "cpu/topology@sockets": str(spec.sockets),
        "cpu/topology@cores": str(spec.cores),
        "cpu/topology@threads": str(spec.threads),
        "devices/serial/source@path": f"{spec.directory}/console",
    }
    domain = _filled(_DOMAIN, values)
    if spec.pinned:
        pins = _filled(_PINS, {"emulatorpin@cpuset": every, "iothreadpin@cpuset": every})
        domain.append(pins)
        for number, cpu in enumerate(spec.cpus):
            pins.append(ElementTree.Element("vcpupin", vcpu=str(number), cpuset=str(cpu)))
    processor = next(domain.iterfind("cpu"))
    if kvm:
        ElementTree.SubElement(processor, "cache", mode="passthrough")
    if len(spec.nodes) > 1:
        processor.append(_cells(spec))
    domain.extend(_memory(spec))
    next(domain.iterfind("devices")).extend(_devices(spec))
    way_in = ("-netdev", qemu_command.way_in(spec.ssh_port), "-device", _CARD)
    line = ElementTree.SubElement(domain, f"{_QEMU}commandline")
    line.extend(ElementTree.Element(f"{_QEMU}arg", value=word) for word in way_in)
    if token:
        ElementTree.SubElement(line, f"{_QEMU}env", name=processes.TOKEN, value=token)
    return ElementTree.tostring(domain)


def _cells(spec: qemu_command.QemuSpec) -> ElementTree.Element:
    """Return the NUMA nodes of the guest."""
    cells = ElementTree.Element("numa")
    for cell, (_, cpus) in enumerate(spec.nodes):
        size_mib = str(qemu_command.cell_mib(spec, cell))
        ElementTree.SubElement(cells, "cell", id=str(cell), cpus=format_cpu_list(cpus), memory=size_mib, unit="MiB")
    return cells


def _memory(spec: qemu_command.QemuSpec) -> Iterator[ElementTree.Element]:
    """Yield what the memory is of, and the nodes of the host that it lies on."""
    backing = ElementTree.Element("memoryBacking")
    if spec.data_socket:  # virtiofsd reads and writes the guest's memory
        backing.extend(ElementTree.fromstring(_SHARED_MEMORY))  # noqa: S314 (of this file)
    if spec.preallocated:
        ElementTree.SubElement(backing, "allocation", mode="immediate")
    if len(backing):
        yield backing
    tuned = ElementTree.Element("numatune")
    for cell, (number, _) in enumerate(spec.nodes):
        part = {"cellid": str(cell)} if len(spec.nodes) > 1 else {}
        near = {**part, "mode": "preferred", "nodeset": str(number)}
        ElementTree.SubElement(tuned, "memnode" if part else "memory", near)
    if len(tuned):
        yield tuned


def _devices(spec: qemu_command.QemuSpec) -> Iterator[ElementTree.Element]:
    for name, disk in zip(_DISKS, spec.disks, strict=False):
        kind, source = ("block", "dev") if disk.path.startswith("/dev/") else ("file", "file")
        cache, io = ("none", "native") if disk.direct else ("writeback", "threads")
        values = {
            "@type": kind,
            "driver@cache": cache,
            "driver@io": io,
            f"source@{source}": disk.path,
        }
        element = _filled(_DISK, {**values, "target@dev": name})
        if disk.discard_writes:
            ElementTree.SubElement(element, "transient", shareBacking="yes")
        elif disk.readonly:
            ElementTree.SubElement(element, "readonly")
        yield element
    if spec.data_socket:
        yield _filled(_DIRECTORY, {"source@socket": spec.data_socket, "target@dir": virtiofs.TAG})
    if spec.tap:
        yield _filled(_TAP, {"mac@address": spec.tap.mac, "target@dev": spec.tap.ifname})


def _filled(template: str, values: Mapping[str, str]) -> ElementTree.Element:
    """Return the template with each value as the text of the element at a path, or as its attribute after an @."""
    root = ElementTree.fromstring(template)  # noqa: S314 (of this file)
    for place, value in values.items():
        path, _, attribute = place.partition("@")
        element = next(root.iterfind(path or "."))
        if attribute:
            element.set(attribute, value)
        else:
            element.text = value
    return root
