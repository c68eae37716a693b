"""Virtual machines on the machines of an inventory: under which accelerator, with which vector instructions."""

import os
import re
import secrets
from collections.abc import Callable, Sequence

from provisioning.images.image import Image
from provisioning.lab.containers import undone
from provisioning.machines.accelerator import KVM, QEMU, REQUESTS, Accelerator, boot
from provisioning.nodes import write_file
from provisioning.remote.machine import Machine
from suite.errors import BenchError, RequestError
from suite.job.job import CpuCapability

PROGRAMS = {QEMU: "qemu-system-x86", "ssh": "openssh-client", "taskset": "util-linux"}
EMULATES_AVX2 = (7, 2)
"""The first QEMU whose emulation has AVX2 and FMA (its change log, "TCG: x86")."""


def accelerator_of(
    machines: Sequence[Machine], requested: str, image: Image, note: Callable[[str], None]
) -> Accelerator:
    """One for all of them: KVM where a guest boots under it on every machine.

    Raises RequestError for ``kvm`` where on one none does, and for a machine of another architecture.
    """
    if requested not in REQUESTS:
        raise RequestError(f"no accelerator {requested!r}", remedy=f"choose one of {', '.join(REQUESTS)}")
    for machine in machines:
        _check_architecture(machine)
    if requested == "tcg":
        return "tcg"
    for machine in machines:
        if reason := _why_not(machine, image):
            said = f"on {machine.name} KVM is not usable: {reason}"
            if requested == "kvm":
                raise RequestError(f"--accel kvm: {said}", remedy="use --accel tcg (emulation), or machines with KVM")
            note(f"VMs run under tcg on all machines: {said}")
            return "tcg"
    note("VMs run under kvm: a guest boots under it on every machine")
    return "kvm"


def _check_architecture(machine: Machine) -> None:
    found, own = machine.run(["uname", "-m"]).stdout.strip(), os.uname().machine
    if found != own:
        raise RequestError(f"{machine.name} is {found}, and the image is for {own}", remedy="use machines of one kind")


def _why_not(machine: Machine, image: Image) -> str | None:
    """Boots the image's own kernel there: that /dev/kvm opens proves nothing."""
    if machine.run(["test", "-r", str(KVM), "-a", "-w", str(KVM)], check=False).returncode:
        return "there is no /dev/kvm that root may open"
    place = f"/run/virtbench/probe-{secrets.token_hex(6)}"
    try:
        with undone(machine, ["rm", "-r", "-f", "--", place]):
            write_file(machine, f"{place}/kernel", (image.tree / "boot/vmlinuz").read_bytes())
            write_file(machine, f"{place}/initrd", image.file("initrd.img").read_bytes())
            return boot(machine, (f"{place}/kernel", f"{place}/initrd"))
    except BenchError as error:
        return error.message


def guest_capability(machine: Machine, accelerator: Accelerator, own: CpuCapability) -> CpuCapability:
    """Of a guest there. Under KVM it is the machine's ``own``; of emulation the version of QEMU tells."""
    if accelerator == "kvm":
        return own
    return emulated_capability(machine.run([QEMU, "--version"]).stdout)


def emulated_capability(version: str) -> CpuCapability:
    """Of what ``--version`` prints."""
    found = re.search(r"version (\d+)\.(\d+)", version)
    return "avx2" if found and (int(found[1]), int(found[2])) >= EMULATES_AVX2 else "default"
