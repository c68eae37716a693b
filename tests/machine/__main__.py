"""The lane's command line: ``python -m tests.machine [--suite bookworm|trixie]``. Needs root and 35 GB of disk.

The machine is emulated: nothing here measures, and steps take minutes.
"""

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from provisioning.engines.docker import docker_store
from provisioning.images.image import Image, current
from provisioning.machines.ssh import SSH_FAILED, free_port, option_words
from suite.errors import BenchError
from tests.machine import disks
from tests.machine.disks import REPOSITORY, run
from tests.machine.steps import STEPS, Step

CPUS, MEMORY_MIB = 2, 6144
BOOTED_WITHIN_S = 900.0


@dataclass(frozen=True)
class Guest:
    """The machine: QEMU on throw-away overlays of the disks, and commands in it by SSH."""

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

    def answers(self) -> bool:
        try:
            return self.run("root", "true", 120.0).returncode == 0
        except subprocess.TimeoutExpired:  # on a busy host the exchange of keys takes minutes while it boots
            return False

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
        while not guest.answers():
            if qemu.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it does not answer: {guest.last_words() or argv}")
            time.sleep(2)
        yield guest
    finally:
        qemu.kill()
        qemu.wait()


def note(text: str) -> None:
    print(f"== {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.machine", description=__doc__)
    parser.add_argument("--suite", choices=disks.FURTHER, action="append", help="Debian's release; default: all")
    parser.add_argument("--keep", type=Path, help="directory in which the disks are kept for the next time")
    parser.add_argument("--only", default="", help="regular expression of the steps to try")
    words = parser.parse_args()
    steps = [step for step in STEPS if step.name == "prepare" or re.search(words.only, step.name)]
    try:
        image = current()
        with tempfile.TemporaryDirectory(prefix="virtbench-machine-", dir="/var/tmp") as place:
            keep = words.keep or Path(place)
            failed = [suite for suite in words.suite or disks.FURTHER if not try_all(suite, image, keep, steps)]
    except (BenchError, RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}")
    sys.exit(1 if failed else 0)


def try_all(suite: str, image: Image, keep: Path, steps: list[Step]) -> bool:
    """Boot one machine and try the steps in it; returns whether all of them succeeded."""
    keep.mkdir(parents=True, exist_ok=True)
    name = image.directory.name  # under which the system mounts the image
    system = disks.once(keep / f"{suite}-{name}.img", partial(disks.of_system, suite, image), note)
    packed = disks.once(keep / f"image-{name}.img", partial(disks.of_image, image), note)
    with tempfile.TemporaryDirectory(prefix="virtbench-machine-", dir=keep) as place:
        began = time.monotonic()
        with booted((system, packed, docker_store(image, note)), Path(place)) as guest:
            guest.put_checkout()
            note(f"{suite}: booted in {time.monotonic() - began:.0f} s")
            rows = [(step.name, *row) for step in steps for row in attempts(guest, step)]
    note(f"{suite}: {time.monotonic() - began:.0f} s")
    print("| step | s | result |\n| --- | ---: | --- |")
    for name, took_s, fault in rows:
        print(f"| {name} | {took_s:.0f} | {fault or 'ok'} |")
    return not any({name: fault for name, _, fault in rows}.values())


def attempts(guest: Guest, step: Step) -> Iterator[tuple[float, str]]:
    """Try one step, and once more where not the step but the connection has ended; yields the row of each time."""
    yield (row := attempt(guest, step))
    if row[1].startswith(f"exit {SSH_FAILED}:"):
        note(f"{step.name}: SSH has ended; once more. The console: {guest.last_words()}")
        yield attempt(guest, step)


def attempt(guest: Guest, step: Step) -> tuple[float, str]:
    """Try one step and print its output; returns the seconds, and the reason if it failed."""
    began = time.monotonic()
    try:
        ended = guest.run(step.user, step.script, step.within_s)
        output, fault = ended.stdout, f"exit {ended.returncode}" if ended.returncode else ""
    except subprocess.TimeoutExpired as error:
        output, fault = (error.stdout or b"").decode(errors="replace"), f"not ended within {step.within_s:.0f} s"
    took_s = time.monotonic() - began
    last = output.strip().rpartition("\n")[2] if fault else ""
    note(f"{step.name}: {took_s:.0f} s, {f'failed: {fault}' if fault else 'ok'}")
    print(output[-3000:], flush=True)
    return took_s, f"{fault}: {last[:200]}" if fault else ""


if __name__ == "__main__":
    main()
