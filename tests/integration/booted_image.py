"""The suite's own image as the system of a machine that somebody else boots, which makes it one to measure on."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioning.images.image import Image
from provisioning.images.pack import cpio, joined
from provisioning.machines.ssh import SSHD_CONFIG
from provisioning.nodes import local_node, write_file
from provisioning.volumes import MOUNT
from suite.interfaces import Node
from tests.integration.ssh_machines import make_keys

ARGUMENTS = "console=ttyS0 quiet loglevel=4 panic=-1"
THERE = f"{MOUNT}/machine"
"""The directory of the suite; all else of the machine is in memory, or read-only."""
PROGRAMS = ("bwrap", "cgcreate", "cgexec", "cgset")
"""What a machine needs and the image of guests lacks, here of the same distribution."""
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def boot_files(place: Path, image: Image, address: str, data: str = "none") -> None:
    """Write what boots at this address: ``kernel``, and ``ramdisk`` with the host's key and that of ``client_key``.

    ``data``: the disk that is mounted for data.
    """
    make_keys(place)
    root = place / "root"
    keys = root / "virtbench/ssh"
    keys.mkdir(parents=True)
    keys.chmod(0o700)
    (keys / "host_key").write_bytes((place / "host_key").read_bytes())
    (keys / "host_key").chmod(0o600)
    (keys / "authorized_keys").write_bytes((place / "client_key.pub").read_bytes())
    (keys / "sshd_config").write_text(SSHD_CONFIG)
    settings = {"HOSTNAME": "machine", "ADDRESS": f"{address}/24", "DATA": data, "DATA_MODE": "rw", "STORE": "none"}
    (root / "virtbench/guest.env").write_text("".join(f"VIRTBENCH_{key}={value}\n" for key, value in settings.items()))
    with local_node((), None) as node:
        (place / "ramdisk").write_bytes(joined(image.file("initrd.img").read_bytes(), cpio(node, root)))
    (place / "kernel").write_bytes((image.tree / "boot/vmlinuz").read_bytes())


def equip(machine: Node, digest: str) -> None:
    """Give it the programs of a machine, and the image's tree that it holds anyway."""
    tree = f"{THERE}/images/{digest[:12]}/tree"
    machine.run(["mkdir", "-p", tree])
    machine.run(["mount", "--bind", "/run/virtbench/rootfs", tree])
    for where in ("/usr/bin", LIBRARIES):
        over = f"/run/over{where}"
        machine.run(["mkdir", "-p", f"{over}/upper", f"{over}/work"])
        layers = f"lowerdir={where},upperdir={over}/upper,workdir={over}/work"
        machine.run(["mount", "-t", "overlay", "overlay", "-o", layers, where])
    libraries = ("libcgroup.so.2", "libcap.so.2", "libselinux.so.1", "libpcre2-8.so.0")
    for path in (*(Path("/usr/bin", name) for name in PROGRAMS), *(Path(LIBRARIES, name) for name in libraries)):
        write_file(machine, str(path), path.read_bytes())
        machine.run(["chmod", "755", str(path)])


@contextmanager
def client(place: Path) -> Iterator[None]:
    """Let ssh here have the ``client_key`` of ``place`` by an agent, and openstacksdk its ``clouds.yaml``."""
    socket = place / "agent"
    with (
        subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        try:
            while not socket.exists():
                assert process.poll() is None
            patch.setenv("SSH_AUTH_SOCK", str(socket))
            patch.setenv("OS_CLIENT_CONFIG_FILE", str(place / "clouds.yaml"))
            subprocess.run(["ssh-add", "-q", str(place / "client_key")], check=True)
            yield
        finally:
            process.terminate()
