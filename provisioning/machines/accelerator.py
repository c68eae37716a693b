"""The accelerator of VMs. That /dev/kvm opens proves nothing: only a guest that has booted under it does."""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from provisioning import ledger
from provisioning.images.image import Image, images
from provisioning.nodes import local_node, undone, write_file
from provisioning.paths import state
from suite.errors import BenchError, CommandError, RequestError, option
from suite.interfaces import Node, Note
from suite.part import Part
from suite.process_identity import boot_id
from suite.results.store import StoreError, write_atomic

Accelerator = Literal["kvm", "tcg"]
KVM = Path("/dev/kvm")
PROGRAM = "qemu-system-x86_64"
PROBE_WITHIN_S = 8.0
"""How long a guest may take to boot where emulation would do."""
GUEST_WITHIN_S = 60.0
"""How long it may take where KVM is demanded, and in a trial."""
TIME_OUT_KEPT_S = 300.0
"""A host that was busy for some seconds must not be without KVM until it boots again."""
# A boot sector that writes 16 to the exit port of isa-debug-exit, which ends QEMU with status 2 * 16 + 1:
#   mov dx, 0xf4; mov al, 16; out dx, al; hlt
_SECTOR = bytes.fromhex("baf400b010eef4").ljust(510, b"\0") + b"\x55\xaa"
_SECTOR_STATUS = 33


class KvmProbe(Part):
    """The answer to whether a guest boots under KVM here, with its evidence."""

    usable: bool
    reason: str
    evidence: str
    boot_id: str
    took_s: float
    timed_out: bool = False
    at_s: float = 0.0
    """Seconds since the epoch."""

    def holds(self, evidence: str) -> bool:
        """Return whether the answer is still that of this boot, and not a time-out of some minutes ago.

        That a boot sector hangs settles it; that it runs does not prove that a kernel would.
        """
        if self.boot_id != boot_id():
            return False
        if self.usable:
            return self.evidence == evidence
        age_s = time.time() - self.at_s
        return not self.timed_out or 0 <= age_s < TIME_OUT_KEPT_S


def choose(requested: str) -> tuple[Accelerator, str]:
    """Return the accelerator and one line on why. Raises RequestError for ``kvm`` if no guest boots under it."""
    if requested == "tcg":
        return "tcg", "asked for"
    probe = probe_kvm() if requested == "auto" else probe_kvm(anew=True, within_s=GUEST_WITHIN_S)
    if probe.usable:
        return "kvm", probe.reason
    cause = f"KVM is not usable: {probe.reason}"
    if requested == "kvm":
        raise RequestError(cause, remedy=f"use {option('accel')} tcg (emulation), or a host with KVM")
    return "tcg", cause


def probe_kvm(*, anew: bool = False, within_s: float | None = None) -> KvmProbe:
    """Boot a tiny guest under KVM; the answer is kept until this host boots again, or an image brings a better guest.

    That a guest did not boot in time is kept for minutes, and with ``anew`` only a guest that has booted counts. Never
    raises for what the host lacks: that is the answer. ``within_s`` is by default ``PROBE_WITHIN_S``.
    """
    kernels = ((str(image.tree / "boot/vmlinuz"), str(image.file("initrd.img"))) for image in images())
    kernel = next(kernels, None)
    evidence = "the image's kernel" if kernel else "a boot sector"
    cache = state("cache") / "kvm.json"
    try:
        kept = KvmProbe.model_validate_json(cache.read_bytes())
    except (OSError, ValidationError):
        kept = None
    if kept and kept.holds(evidence):
        is_wanted = kept.usable or not anew
        if is_wanted:
            return kept
    begin = time.monotonic()
    tried = _try_to_boot(kernel, within_s or PROBE_WITHIN_S)
    probe = KvmProbe(
        usable=not tried.reason,
        reason=tried.reason or f"a guest ({evidence}) boots under it",
        evidence=evidence,
        boot_id=boot_id(),
        took_s=round(time.monotonic() - begin, 2),
        timed_out=tried.timed_out,
        at_s=time.time(),
    )
    if tried.is_kept:
        with suppress(StoreError):  # a full disk: the next command asks again
            write_atomic(cache, probe.model_dump_json())
    return probe


class _Tried(NamedTuple):
    """The result of booting a guest: the reason if it does not boot, and whether the answer can be kept."""

    reason: str | None
    is_kept: bool = True
    timed_out: bool = False


def _try_to_boot(kernel: tuple[str, str] | None, within_s: float) -> _Tried:
    if missing := _missing():
        return _Tried(missing, is_kept=False)  # it can be installed, or granted, at any time
    sector = state("cache") / "boot-sector.img"
    sector.write_bytes(_SECTOR)
    try:
        with local_node((), None) as node:
            return _Tried(boot(node, kernel, str(sector), within_s))
    except GuestTimeoutError as error:
        return _Tried(error.message, timed_out=True)
    except BenchError as error:  # no guest was tried
        return _Tried(error.message, is_kept=False)


def _missing() -> str | None:
    if not KVM.exists():
        return "there is no /dev/kvm (no hardware virtualisation, or its module is not loaded)"
    if not os.access(KVM, os.R_OK | os.W_OK):
        return "/dev/kvm may not be opened (become a member of the group kvm, or root)"
    if not shutil.which(PROGRAM):
        return f"{PROGRAM} is not installed"
    return None


class GuestTimeoutError(BenchError):
    """A guest did not boot in time."""


def boot(node: Node, kernel: tuple[str, str] | None, sector: str = "", within_s: float = GUEST_WITHIN_S) -> str | None:
    """Return why a guest (a kernel and its initrd, else a boot sector) does not boot under KVM; None if it does.

    Raises GuestTimeoutError if it takes too long.
    """
    argv = [PROGRAM, "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-no-user-config", "-display", "none"]
    argv += ["-no-reboot", "-nic", "none", "-sandbox", "on"]
    if kernel:
        argv += ["-kernel", kernel[0], "-initrd", kernel[1], "-append", "virtbench.probe quiet panic=-1"]
    else:
        argv += ["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-drive", f"file={sector},format=raw,if=floppy"]
    try:
        status = node.run(argv, timeout_s=within_s, check=False)
    except CommandError as error:
        message = f"/dev/kvm opens, but a guest did not boot under it within {within_s:.0f} s"
        raise GuestTimeoutError(message) from error
    if status.returncode != (0 if kernel else _SECTOR_STATUS):
        last = status.complaint("no message")
        return f"/dev/kvm opens, but QEMU ended with status {status.returncode}: {last[:200]}"
    return None


def choose_common(machines: Sequence[Node], requested: str, image: Image, note: Note) -> Accelerator:
    """Return one accelerator for all machines: KVM if a guest boots under it on every one.

    Raises RequestError for ``kvm`` if one boots no guest, and for a machine of another architecture.
    """
    architecture = os.uname().machine
    for machine in machines:
        reported = machine.run(["uname", "-m"]).stdout.strip()
        if reported != architecture:
            message = f"{machine.name} is {reported}, and the image is for {architecture}"
            raise RequestError(message, remedy="use machines of one kind")
    if requested == "tcg":
        return "tcg"
    for machine in machines:
        reason = _remote_hindrance(machine, image)
        if reason:
            cause = f"on {machine.name} KVM is not usable: {reason}"
            if requested == "kvm":
                raise RequestError(
                    f"{option('accel')} kvm: {cause}",
                    remedy=f"use {option('accel')} tcg (emulation), or machines with KVM",
                )
            note(f"VMs run under tcg on all machines: {cause}")
            return "tcg"
    note("VMs run under kvm: a guest boots under it on every machine")
    return "kvm"


def _remote_hindrance(machine: Node, image: Image) -> str | None:
    """Return why the image's own kernel does not boot under KVM there; None if it does."""
    device = str(KVM)
    opened = machine.run(["test", "-r", device, "-a", "-w", device], check=False)
    if opened.returncode:
        return "there is no /dev/kvm that root may open"
    directory = f"/run/virtbench/{ledger.fresh('probe')}"
    try:
        with undone(machine, ["rm", "-r", "-f", "--", directory]):
            write_file(machine, f"{directory}/kernel", (image.tree / "boot/vmlinuz").read_bytes())
            write_file(machine, f"{directory}/initrd", image.file("initrd.img").read_bytes())
            return boot(machine, (f"{directory}/kernel", f"{directory}/initrd"))
    except BenchError as error:
        return error.message
