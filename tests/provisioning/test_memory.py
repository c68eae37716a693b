"""A guest whose memory grows while it is used, as machines that are lent do: its numbers are played."""

import mmap
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from provisioning.sites import memory

GIB = 1 << 30


class Lent:
    """A guest that has 2 GiB, and is given ``step_bytes`` whenever its free memory is used up, to ``most_bytes``."""

    def __init__(self, step_bytes: int, most_bytes: int) -> None:
        self.step_bytes = step_bytes
        self.most_bytes = most_bytes
        self.total = 2 * GIB
        self.used = 0
        self.touched = 0

    def virtual_memory(self) -> SimpleNamespace:
        free = self.total - self.used
        if free < memory.CHUNK_BYTES + memory.SPARE_BYTES:
            self.total = min(self.most_bytes, self.total + self.step_bytes)
        return SimpleNamespace(total=self.total, free=free)

    def mmap(self, _: int, size: int) -> "Chunk":
        self.used += size
        assert self.used < self.total, "it must not run out of memory"
        return Chunk(self, size)


class Chunk:
    def __init__(self, lent: Lent, size: int) -> None:
        self.lent = lent
        self.size = size

    def __enter__(self) -> "Chunk":
        return self

    def __exit__(self, *_: object) -> None:
        self.lent.used -= self.size

    def __setitem__(self, offset: int, value: int) -> None:
        assert 0 <= offset < self.size
        self.lent.touched += mmap.PAGESIZE


@pytest.fixture
def lend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "type[Lent]":
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/iomem").write_text("00000000-1ffffffff : System RAM\n  00000000-00ffffff : Kernel code\n")

    class Made(Lent):
        def __init__(self, step_bytes: int, most_bytes: int) -> None:
            super().__init__(step_bytes, most_bytes)
            monkeypatch.setattr(psutil, "virtual_memory", self.virtual_memory)
            monkeypatch.setattr(memory, "mmap", SimpleNamespace(mmap=self.mmap, PAGESIZE=mmap.PAGESIZE))
            monkeypatch.setattr(memory, "GROWS_WITHIN_S", 0.01)
            monkeypatch.setattr(memory, "ASKED_EVERY_S", 0.001)

    return Made


@pytest.mark.parametrize(("most_gib", "wanted_gib", "given_gib"), [(8, 6, 6), (4, 6, 4), (2, 6, 2), (8, 2, 2)])
def test_a_guest_that_grows_is_used_until_it_has_what_is_wanted_or_grows_no_more(
    most_gib: int, wanted_gib: int, given_gib: int, lend: type[Lent], tmp_path: Path
) -> None:
    lent = lend(GIB, most_gib * GIB)
    assert memory.total_bytes(wanted_gib * GIB, tmp_path) == given_gib * GIB
    assert lent.used == 0, "all is given back"
    assert (lent.touched > 0) is (wanted_gib > 2)


def test_only_a_guest_that_may_grow_is_touched(lend: type[Lent], tmp_path: Path) -> None:
    lent = lend(GIB, 8 * GIB)
    (tmp_path / "proc/iomem").write_text("00000000-85ffffff : System RAM\n")
    assert memory.total_bytes(6 * GIB, tmp_path) == 2 * GIB
    (tmp_path / "proc/iomem").write_text("00000000-00000000 : System RAM\n")
    assert memory.total_bytes(6 * GIB, tmp_path) == 2 * GIB, "hidden from who is not root"
    assert lent.touched == 0
    driver = tmp_path / memory.DRIVERS[0]
    driver.mkdir(parents=True)
    (driver / "virtio3").symlink_to(tmp_path)
    assert memory.total_bytes(6 * GIB, tmp_path) == 6 * GIB
    (tmp_path / "proc/iomem").unlink()
    (driver / "virtio3").unlink()
    assert not memory.may_grow(GIB, tmp_path)
