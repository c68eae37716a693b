"""The machine: QEMU on throw-away overlays of the disks, and commands in it by SSH."""

import io
import os
import shlex
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.machines.ssh import free_port, option_words
from tests.machine.disks import REPOSITORY, run

CPUS, MEMORY_MIB = 2, 6144
BOOTED_WITHIN_S = 900.0


@dataclass(frozen=True)
class Guest:
    system: Path
    port: int
    console: Path
    """What the kernel and systemd write to the serial line."""

    def ssh(self, user: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs another one in the machine, in a session of the user as login makes it."""
        files = {
            "IdentityFile": self.system.with_suffix(".key"),
            "UserKnownHostsFile": self.system.with_suffix(".known"),
        }
        settings = {"BatchMode": "yes", "LogLevel": "ERROR", "HostKeyAlias": "machine", "ConnectTimeout": "60"}
        alive = {"ServerAliveInterval": "60", "ServerAliveCountMax": "20"}
        words = option_words({**{name: str(path) for name, path in files.items()}, **settings, **alive})
        return ["ssh", "-F", "none", *words, "-p", str(self.port), f"{user}@127.0.0.1", "--", shlex.join(argv)]

    def run(self, user: str, script: str, within_s: float) -> "subprocess.CompletedProcess[str]":
        """Run a script of the shell; raises TimeoutExpired."""
        argv = self.ssh(user, ["bash", "-eu", "-o", "pipefail", "-s"])
        both = subprocess.STDOUT
        return subprocess.run(
            argv, check=False, input=script, text=True, timeout=within_s, stdout=subprocess.PIPE, stderr=both
        )

    def last_words(self) -> str:
        return self.console.read_text(errors="replace")[-2000:] if self.console.exists() else ""

    def put_checkout(self) -> None:
        """Copy the files of this checkout that git lists or would add, as they are now."""
        names = run("git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for name in filter(None, names.split("\0")):
                if (REPOSITORY / name).exists() and not name.startswith("tests/samples/"):
                    archive.add(REPOSITORY / name, name, recursive=False, filter=_as_root)
        place = "/opt/virtbench"
        unpack = f"rm -rf {place} && mkdir {place} && tar -x -C {place}"
        subprocess.run(self.ssh("root", ["sh", "-c", unpack]), check=True, input=content.getvalue(), timeout=600)


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry


@contextmanager
def booted(disks: Sequence[Path], place: Path) -> Iterator[Guest]:
    """Boot from the first disk and wait for SSH; at the end QEMU is killed, and what was written is gone."""
    port = free_port()
    drives = []
    for disk in disks:
        drives += ["-drive", f"file={disk},format=raw,if=virtio,snapshot=on,cache=unsafe"]
    stem = disks[0].with_suffix("")
    kernel = ["-kernel", f"{stem}.vmlinuz", "-initrd", f"{stem}.initrd.img"]
    append = ["-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 systemd.show_status=0"]
    network = ["-netdev", f"user,id=n0,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=n0"]
    cpus = ["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(CPUS), "-m", str(MEMORY_MIB)]
    screen = ["-nographic", "-no-reboot", "-serial", f"file:{place / 'console.log'}", "-monitor", "none"]
    argv = ["qemu-system-x86_64", *cpus, *kernel, *append, *drives, *network, *screen]
    # What is written goes to a file without a name in this directory.
    qemu = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(place)})
    try:
        guest = Guest(disks[0], port, place / "console.log")
        deadline = time.monotonic() + BOOTED_WITHIN_S
        while subprocess.run(guest.ssh("root", ["true"]), check=False, capture_output=True, timeout=120).returncode:
            if qemu.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it does not answer: {guest.last_words() or argv}")
            time.sleep(2)
        yield guest
    finally:
        qemu.kill()
        qemu.wait()
