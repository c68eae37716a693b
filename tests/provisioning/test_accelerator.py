"""KVM and vector instructions: what a host and its guests have, and what a run takes."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning import isa
from provisioning.machines import accelerator
from provisioning.machines.accelerator import KvmProbe, choose, probe_kvm
from provisioning.machines.base import GuestSpec
from provisioning.machines.qemu import QEMU
from suite.errors import RequestError
from suite.job.envelope import GIB, Envelope
from tests.provisioning.conftest import MakeImage, Program

Qemu = Callable[[str], Path]


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host that lacks nothing: ``reason`` is why its guests do not boot, ``kernels`` are those that were tried."""
    guests = SimpleNamespace(reason=None, kernels=[])

    def tried(kernel: tuple[str, str] | None) -> Any:
        guests.kernels.append(kernel)
        return guests.reason

    monkeypatch.setattr(accelerator, "_missing", lambda: None)
    monkeypatch.setattr(accelerator, "_boot", tried)
    return guests


def test_where_no_guest_boots_auto_falls_to_tcg_and_kvm_is_refused_with_the_reason(boot: Any) -> None:
    assert choose("tcg") == ("tcg", "asked for")
    assert boot.kernels == [], "nothing was tried"
    boot.reason = "/dev/kvm opens, but a guest did not boot"
    assert choose("auto") == ("tcg", f"KVM is not usable: {boot.reason}")
    with pytest.raises(RequestError, match=f"KVM is not usable: {boot.reason}") as caught:
        choose("kvm")
    assert "--accel tcg" in str(caught.value.remedy)


@pytest.mark.parametrize("reason", [None, "it hangs"])
def test_the_answer_is_kept_until_a_reboot(boot: Any, monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
    boot.reason = reason
    first = probe_kvm()
    assert first.usable is (reason is None)
    assert probe_kvm() == first
    assert len(boot.kernels) == 1
    monkeypatch.setattr(accelerator, "boot_id", lambda: "another")
    assert probe_kvm().boot_id == "another"
    assert len(boot.kernels) == 2


def test_a_boot_sector_that_ran_is_not_enough_once_an_image_has_a_kernel(boot: Any, make_image: MakeImage) -> None:
    assert probe_kvm().evidence == "a boot sector"
    image = make_image()
    boot.reason = "the kernel hangs"
    probe = probe_kvm()
    assert (probe.usable, probe.evidence) == (False, "the image's kernel")
    assert boot.kernels == [None, (str(image.tree / "boot/vmlinuz"), str(image.file("initrd.img")))]
    assert probe_kvm() == probe
    assert len(boot.kernels) == 2


def test_a_boot_sector_that_hung_settles_it(boot: Any, make_image: MakeImage) -> None:
    boot.reason = "it hangs"
    probe = probe_kvm()
    make_image()
    assert probe_kvm() == probe
    assert boot.kernels == [None]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"usable": true}'])
def test_a_damaged_cache_is_asked_again(boot: Any, home: Path, content: str) -> None:
    probe_kvm()
    cache = home / "cache/kvm.json"
    cache.write_text(content)
    assert probe_kvm().usable
    assert len(boot.kernels) == 2
    assert KvmProbe.model_validate_json(cache.read_bytes()).usable


# ---- what is missing, and scripts in the place of QEMU


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program) -> Callable[[str], Path]:
    """``qemu(script)``: what the test's QEMU does; a /dev/kvm opens."""
    (tmp_path / "kvm").touch()
    monkeypatch.setattr(accelerator, "KVM", tmp_path / "kvm")
    monkeypatch.setattr(accelerator, "PROGRAM", "qemu-of-the-test")
    monkeypatch.setattr(accelerator, "PROBE_WITHIN_S", 60.0)  # a script answers at once, but on a busy machine
    return partial(program, accelerator.PROGRAM)


def test_a_guest_that_runs_the_boot_sector_proves_kvm(qemu: Qemu, home: Path) -> None:
    program = qemu('for word in "$@"; do echo "$word"; done > "$(dirname "$0")/said"; exit 33')
    assert choose("auto") == choose("kvm") == ("kvm", "a guest (a boot sector) boots under it")
    words = (program.parent / "said").read_text().splitlines()
    assert words[:2] == ["-accel", "kvm"]
    sector = (home / "cache/boot-sector.img").read_bytes()
    assert (len(sector), sector[510:]) == (512, b"\x55\xaa")
    assert any(str(home / "cache/boot-sector.img") in word for word in words)


def test_a_guest_that_hangs_is_given_up_in_time_and_nothing_of_it_is_left(
    qemu: Qemu, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "PROBE_WITHIN_S", 0.3)
    qemu("exec sleep 600")
    probe = probe_kvm()
    assert not probe.usable
    assert probe.reason.startswith("/dev/kvm opens, but a guest did not boot under it within")
    assert probe.took_s < 60
    assert list((home / "ledger").glob("*")) == []


def test_a_qemu_that_fails_is_told_by_its_last_words(qemu: Qemu) -> None:
    qemu("echo first >&2; echo 'Could not access KVM' >&2; exit 1")
    assert probe_kvm().reason == "/dev/kvm opens, but QEMU ended with status 1: Could not access KVM"


def test_the_kernel_of_the_image_ends_in_order_where_the_sector_has_a_status_of_its_own(
    qemu: Qemu, home: Path, make_image: MakeImage
) -> None:
    make_image()
    qemu("exit 33")
    assert not probe_kvm().usable, "33 is the sector's, not the kernel's"
    qemu("exit 0")
    (home / "cache/kvm.json").unlink()
    assert probe_kvm().reason == "a guest (the image's kernel) boots under it"


def test_what_a_host_lacks_is_told_and_asked_again(qemu: Qemu, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert "group kvm" in probe_kvm().reason
    assert probe_kvm().reason == "qemu-of-the-test is not installed"
    accelerator.KVM.unlink()
    assert "there is no " in probe_kvm().reason
    assert not (home / "cache/kvm.json").exists()
    accelerator.KVM.touch()
    qemu("exit 33")
    assert probe_kvm().usable


ENVELOPE = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)
AVX2 = "flags\t\t: fpu sse2 avx avx2 fma"
AVX512 = AVX2 + " avx512f avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    ("cpuinfo", "level"),
    [
        ("", "default"),
        ("flags\t: fpu sse2", "default"),
        (AVX2, "avx2"),
        (AVX2.replace(" fma", ""), "default"),
        (AVX512, "avx512"),
        (AVX512.replace(" avx512vl", ""), "avx2"),
        (f"{AVX512}\n\n{AVX2}", "avx2"),
    ],
)
def test_a_level_is_told_by_all_the_flags_that_it_needs(cpuinfo: str, level: str) -> None:
    assert isa.capability(f"model name\t: x\n{cpuinfo}\nbugs\t: none\n") == level


@pytest.mark.parametrize(
    ("targets", "level", "always", "cap"),
    [
        # Targets of one kind: no guest is asked.
        (("bare-metal", "container"), None, False, None),
        (("vm",), None, False, None),
        (("vm", "container-vm"), None, False, None),
        (("bare-metal", "vm"), "avx2", False, "avx2"),
        (("bare-metal", "vm"), "avx512", False, None),
        (("bare-metal", "container"), "avx2", True, "avx512"),
        (("vm",), "avx2", True, "avx2"),
        (("bare-metal", "container-vm"), "avx2", True, "avx2"),
    ],
)
def test_a_host_is_capped_to_a_guest_that_has_less_and_what_is_to_be_lowered_is_known(
    *, targets: tuple[str, ...], level: str | None, always: bool, cap: str | None, make_image: MakeImage, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(AVX512 + "\n")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isa, "CPUINFO", tmp_path / "cpuinfo")
        patch.setattr(isa, "_of_guests", lambda *_: level or pytest.fail("a guest was asked"))
        assert isa.shared(targets, QEMU, GuestSpec(make_image(), "tcg", ENVELOPE), said.append, always=always) == cap
    assert always or ["avx2" in line for line in said] == ([True] if cap else [])
