"""Which vector instructions the targets of a run share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning import isa
from provisioning.images.image import Image
from provisioning.machines.base import GuestSpec
from provisioning.machines.qemu import QEMU
from suite.job.envelope import GIB, Envelope

ENVELOPE = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)
AVX2 = "flags\t\t: fpu sse2 avx avx2 fma"
AVX512 = AVX2 + " avx512f avx512bw avx512dq avx512vl"


@pytest.fixture
def image() -> Image:
    return Image(digest="0" * 64, variant="cpu", recipe_sha256="", created_at="", base="", files={})


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


@pytest.mark.parametrize("targets", [("bare-metal", "container"), ("vm",), ("vm", "container-vm")])
def test_targets_of_one_kind_need_no_cap_and_no_guest_is_asked(
    targets: tuple[str, ...], image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "_of_guests", _asked)
    assert isa.shared(targets, QEMU, GuestSpec(image, "tcg", ENVELOPE), _asked, always=False) is None


@pytest.mark.parametrize(("level", "cap"), [("avx2", "avx2"), ("avx512", None)])
def test_a_host_is_capped_to_a_guest_that_has_less_and_it_is_told(
    level: str,
    cap: str | None,
    image: Image,
    monkeypatch: pytest.MonkeyPatch,
    host_cpu: Callable[[str], None],
) -> None:
    host_cpu(AVX512)
    monkeypatch.setattr(isa, "_of_guests", lambda *_: level)
    said: list[str] = []
    guest = GuestSpec(image, "tcg", ENVELOPE)
    assert isa.shared(("bare-metal", "vm"), QEMU, guest, said.append, always=False) == cap
    assert ["avx2" in line for line in said] == ([True] if cap else [])


@pytest.mark.parametrize(
    ("targets", "level"),
    [(("bare-metal", "container"), "avx512"), (("vm",), "avx2"), (("bare-metal", "container-vm"), "avx2")],
)
def test_what_is_to_be_lowered_is_known_of_targets_of_one_kind_too(
    targets: tuple[str, ...],
    level: str,
    image: Image,
    monkeypatch: pytest.MonkeyPatch,
    host_cpu: Callable[[str], None],
) -> None:
    host_cpu(AVX512)
    monkeypatch.setattr(isa, "_of_guests", lambda *_: "avx2")
    assert isa.shared(targets, QEMU, GuestSpec(image, "tcg", ENVELOPE), lambda _: None, always=True) == level


@pytest.fixture
def host_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes this host's /proc/cpuinfo say so."""

    def say(flags: str) -> None:
        (tmp_path / "cpuinfo").write_text(flags + "\n")
        monkeypatch.setattr(isa, "CPUINFO", tmp_path / "cpuinfo")

    return say


def _asked(*_: object) -> None:
    pytest.fail("nobody should have been asked")
