"""The virtual machine layer: the image's kernel and disk under QEMU, reached by SSH when it is ready."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from provisioning.images.docker_store import NAME as DOCKER_STORE
from provisioning.images.docker_store import docker_store
from provisioning.images.image import Image
from provisioning.images.pack import cpio, joined
from provisioning.lab.connectivity import free_port
from provisioning.lab.tap import Tap, qemu_words
from provisioning.layers.place import made_here, private, said
from provisioning.layers.userland import OwnEnvironmentLayer
from provisioning.machines import qemu, ssh, virtiofs
from provisioning.machines.accelerator import Accelerator
from provisioning.nodes import WrappedNode
from provisioning.volumes import MOUNT, Volume
from suite.errors import BenchError, MeasurementError, RequestError
from suite.interfaces import Node, Process
from suite.job.envelope import Envelope

READY_WITHIN_S = {"kvm": 60.0, "tcg": 240.0}
ENDS_WITHIN_S = 30.0
READY = "virtbench-ready"
LOCKED_UP = "soft lockup"
"""What a kernel says of a CPU that has done nothing else for twenty seconds."""
LOCKED_UP_REMEDY = (
    "run it again with the same --out; emulated CPUs can lock each other up while others want the host's CPUs"
)
CONSOLE_TAIL_BYTES = 6000
ADDRESS = "10.0.2.15/24"  # what QEMU's user-mode network forwards to


@dataclass(frozen=True)
class VmLayer:
    """A guest with the envelope's CPUs, pinned, and its memory."""

    image: Image
    accelerator: Accelerator
    envelope: Envelope
    vfio: tuple[str, ...] = ()
    with_docker: bool = False
    """Whether the guest gets the disk with docker's store: for a container layer that will need it."""
    volume: Volume | None = None
    """Its disk becomes one of the guest's; without a disk its directory is shared by virtiofs."""
    plugged: Tap | None = None
    """What a second network card of the guest is plugged into; the node must be in the namespace that has it."""
    pinned: bool = True
    direct: bool = True
    """Whether its disks bypass the page cache of this machine, where their file system allows it."""
    disks_limited: bool = False
    """Whether QEMU throttles them."""
    name: str = "vm"

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        if node.userland is None:
            raise RequestError("no image on this node", remedy="run: bench image build")
        with ExitStack() as stack:
            directory = stack.enter_context(private(node))
            port = ssh.free_port() if node.local else free_port(node, "127.0.0.1")
            access = ssh.SshAccess(str(directory), port)
            spec = self._spec(node, directory, access)
            if shared := self._shared:
                cpus = self.envelope.cpus if self.pinned else None
                virtiofs.serve(node, str(shared), _socket(directory), cpus)
            process = node.start(qemu.qemu_argv(spec, os.uname().machine))
            stack.callback(process.kill)
            try:
                _wait_until_ready(node, process, spec, READY_WITHIN_S[self.accelerator])
                if self.pinned:
                    _pin(node, spec)
                stack.enter_context(ssh.connection(node, access, READY_WITHIN_S[self.accelerator]))
                backing = stack.enter_context(OwnEnvironmentLayer(self.envelope).opened(node)) if shared else None
                guest = self._node(node, spec, access, backing)
                if shared:
                    virtiofs.mount(guest)
                yield guest
                _end(node, guest, process, spec)
            except BenchError as error:
                raise _with_console(node, error, process, spec) from error

    @property
    def _shared(self) -> Path | None:
        return self.volume.directory if self.volume and not self.volume.disk else None

    def _spec(self, node: Node, directory: PurePath, access: ssh.SshAccess) -> qemu.VmSpec:
        with made_here(node, directory) as making:
            here, place = making
            ssh.make_keys(here, str(place))
            archive = self._run_files(here, place)
            (place / "initrd").write_bytes(joined(self.image.file("initrd.img").read_bytes(), archive))
        packed = PurePath(str(node.userland)).parent
        disks = [self._disk(node, packed / "disk.img")]
        words = qemu_words(self.plugged) if self.plugged else []
        if self._shared:
            words += virtiofs.qemu_words(_socket(directory), self.envelope.memory_bytes)
        if self.volume and self.volume.disk:
            qemu.forget(node, str(self.volume.disk))
            disks.append(self._disk(node, self.volume.disk, writable=self.volume.writable))
        if self.with_docker:
            if node.local:
                docker_store(self.image, lambda _: None)
            store = str(packed / DOCKER_STORE)
            disks.append(qemu.Disk(store, direct=False, discard_writes=True, limited=self.disks_limited))
        return qemu.VmSpec(
            name=directory.name,
            accelerator=self.accelerator,
            cpus=self.envelope.cpus,
            memory_bytes=self.envelope.memory_bytes,
            kernel=f"{node.userland}/boot/vmlinuz",
            initrd=str(directory / "initrd"),
            directory=str(directory),
            disks=tuple(disks),
            ssh_port=access.port,
            pinned=self.pinned,
            words=tuple(words),
            vfio=self.vfio,
        )

    def _run_files(self, node: Node, directory: Path) -> bytes:
        """What belongs to this run, as a second archive of the initramfs: the guest's key is then on no disk of it."""
        root = directory / "root"
        keys = root / "virtbench/ssh"
        keys.mkdir(parents=True)
        keys.chmod(0o700)
        (directory / "host_key").rename(keys / "host_key")
        (keys / "authorized_keys").write_text((directory / "client_key.pub").read_text())
        (keys / "sshd_config").write_text(ssh.SSHD_CONFIG)
        (root / "virtbench/guest.env").write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()))
        archive = cpio(node, root)
        (keys / "host_key").unlink()
        return archive

    def _settings(self) -> dict[str, str]:
        """What the guest's set-up reads: its disks are vda and those after it, in the order of ``_spec``."""
        others = iter(("vdb", "vdc"))
        return {
            "VIRTBENCH_HOSTNAME": "virtbench-vm",
            "VIRTBENCH_ADDRESS": ADDRESS,
            "VIRTBENCH_DATA": next(others) if self.volume and self.volume.disk else "none",
            "VIRTBENCH_DATA_MODE": "rw" if self.volume and self.volume.writable else "ro",
            "VIRTBENCH_STORE": next(others) if self.with_docker else "none",
        }

    def _disk(self, node: Node, path: PurePath, *, writable: bool = False) -> qemu.Disk:
        direct = self.direct and qemu.takes_direct_io(node, str(path))
        return qemu.Disk(str(path), direct=direct, readonly=not writable, limited=self.disks_limited)

    def _node(self, node: Node, spec: qemu.VmSpec, access: ssh.SshAccess, backing: Node | None) -> Node:
        direct = spec.disks[0].direct
        substitutes = ["accelerator:tcg"] if self.accelerator == "tcg" else []
        if self.direct and not direct:
            substitutes.append("disk:host-page-cache")
        if self.volume and not self.volume.same_device:
            substitutes.append("disk:other-device")
        return WrappedNode(
            parent=node,
            wrap=access.wrap,
            name="vm" if node.local else f"{node.name}/vm",
            userland="/run/virtbench/rootfs",
            cpus=tuple(range(len(spec.cpus))),
            local=False,
            facts={
                "accelerator": self.accelerator,
                "host_cpus": list(spec.cpus) if self.pinned else None,
                "disk_limit_bytes_per_s": qemu.disk_limit_bytes_per_s(node, spec.qmp),
                "disk": f"virtio-blk raw {'cache=none aio=native' if direct else 'cache=writeback aio=threads'}",
            },
            data=MOUNT if self.volume else None,
            backing=backing,
            substitutes=tuple(substitutes),
        )


def _socket(directory: PurePath) -> str:
    return f"{directory}/data.socket"


def _wait_until_ready(node: Node, process: Process, spec: qemu.VmSpec, within_s: float) -> None:
    """Follow the console's log until the guest says that it is ready. Nothing is measured yet: polling harms nobody."""
    deadline = time.monotonic() + within_s
    while READY not in said(node, spec.console):
        if time.monotonic() > deadline:
            raise MeasurementError(
                f"the guest was not ready within {within_s:.0f} s",
                kind="boot",
                command=qemu.qemu_argv(spec),
                remedy="see what its console says; on a slow host try --accel tcg or fewer CPUs",
            )
        if not process.running():
            raise MeasurementError("QEMU ended before its guest was ready", kind="boot", command=qemu.qemu_argv(spec))
        time.sleep(0.05 if node.local else 0.2)


def _pin(node: Node, spec: qemu.VmSpec) -> None:
    """Each virtual CPU on a host CPU of its own; QEMU's other threads stay anywhere in the envelope."""
    for cpu, thread in zip(spec.cpus, qemu.vcpu_threads(node, spec.qmp), strict=True):
        node.run(["taskset", "--pid", "--cpu-list", str(cpu), str(thread)])


def _end(node: Node, guest: Node, process: Process, spec: qemu.VmSpec) -> None:
    """Shut the guest down in order; QEMU is told to quit when the guest does not end by itself."""
    guest.run(["busybox", "poweroff"], check=False)
    deadline = time.monotonic() + ENDS_WITHIN_S
    while process.running():
        if time.monotonic() > deadline:
            qemu.end(node, spec.qmp)
            return
        time.sleep(0.02)


def _with_console(node: Node, error: BenchError, process: Process, spec: qemu.VmSpec) -> MeasurementError:
    """The error with what the guest and QEMU said last; a kernel that locked up explains every other failure."""
    console = said(node, spec.console)
    parts = [getattr(error, "output_tail", "")]
    if console:
        parts.append("--- the guest's console ---\n" + console[-CONSOLE_TAIL_BYTES:])
    if tail := process.output_tail():
        parts.append("--- QEMU ---\n" + tail)
    locked_up = LOCKED_UP in console
    return MeasurementError(
        f"the guest's kernel locked up: {error.message}" if locked_up else error.message,
        kind="guest-locked-up" if locked_up else error.kind,
        command=getattr(error, "command", ()),
        output_tail="\n".join(part for part in parts if part),
        remedy=LOCKED_UP_REMEDY if locked_up else error.remedy,
    )
