"""What a place says of itself, on made-up /proc and /sys trees; what a worker used; the surroundings of a command."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from suite import userland
from suite.records.environment import Environment
from worker import environment, surroundings
from worker.environment import attest, collect, usage, whole_usage
from worker.surroundings import level, writable_copy

GIB = 1 << 30
UNLIMITED_V1 = 9223372036854771712
IOMEM = """00000000-00000fff : Reserved
00001000-0009fbff : System RAM
00100000-7fffffff : System RAM
  01000000-01dfffff : Kernel code
100000000-17fffffff : System RAM
"""
PHYSICAL = (0x9FBFF - 0x1000 + 1) + (0x7FFFFFFF - 0x100000 + 1) + 2 * GIB
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "30 24 0:26 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"

Collect = Callable[..., dict[str, object]]


def write(root: Path, files: dict[str, str | int]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n" if isinstance(content, int) else content)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with nothing in it."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def seen(here: Path) -> Collect:
    """``seen({path: content})``: what is collected where these files are the whole of /proc and /sys."""

    def collect_from(files: dict[str, str | int]) -> dict[str, object]:
        write(here, files)
        return collect()

    return collect_from


def test_what_a_place_hides_is_null(seen: Collect) -> None:
    hidden = Environment.model_validate(seen({}))
    told = {name for name, value in hidden.model_dump().items() if value is not None}
    assert told == {"cpus", "python", "libc", "allocator"}


KMEM = """00001000-0009fbff : System RAM
00100000-bffd9fff : System RAM
100000000-13fffffff : System RAM
140000000-33fffffff : Persistent Memory
  140000000-1481fffff : namespace0.0
  150000000-33fffffff : dax0.0
    150000000-33fffffff : System RAM (kmem)
"""
KMEM_BYTES = (0x9FBFF - 0xFFF) + (0xBFFD9FFF - 0xFFFFF) + GIB + (0x33FFFFFFF - 0x14FFFFFFF)


KMEM_TOTAL = 12_100_000 * 1024


WITHOUT_ROOT = {"proc/iomem": "00000000-00000000 : System RAM\n"}
AT_THE_TOP: dict[str, str | int] = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2.format(root="/")}
ADDED_LATER: dict[str, str | int] = {**AT_THE_TOP, "proc/meminfo": f"MemTotal:       {KMEM_TOTAL // 1024} kB\n"}
VIRTIO_MEM = KMEM.replace("dax0.0", "virtio0").replace("kmem", "virtio_mem")
V1_LIMITS: dict[str, str | int] = {
    "proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/bench/trial\n0::/\n",
    "proc/self/mountinfo": V2.format(root="/") + V1.format(root="/"),
    "sys/fs/cgroup/memory/bench/trial/memory.limit_in_bytes": 2 * GIB,
    "sys/fs/cgroup/memory/bench/memory.limit_in_bytes": 1 * GIB,
    "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
}
V1_CONTAINER: dict[str, str | int] = {
    "proc/self/cgroup": "3:memory:/docker/abc\n",
    "proc/self/mountinfo": V1.format(root="/docker/abc"),
    "sys/fs/cgroup/memory/memory.limit_in_bytes": 1 * GIB,
}


def total(size_bytes: int) -> dict[str, str | int]:
    return {"proc/meminfo": f"MemTotal: {size_bytes // 1024} kB\n"}


def limited(to: str | int) -> dict[str, str | int]:
    return {**AT_THE_TOP, "sys/fs/cgroup/memory.max": to}


ROOT = {"proc/iomem": IOMEM}
MEMORY: dict[str, tuple[dict[str, str | int], dict[str, object]]] = {
    "root sees the physical memory and what the kernel kept": (
        {**ROOT, **total(3 * GIB)},
        {"memory_bytes": PHYSICAL, "kernel_memory_bytes": PHYSICAL - 3 * GIB},
    ),
    "without root the addresses are zero and MemTotal counts": (
        {**WITHOUT_ROOT, **total(2 * GIB)},
        {"memory_bytes": 2 * GIB, "kernel_memory_bytes": None},
    ),
    "a container in a guest sees its limit and what the kernel keeps of it": (
        {**WITHOUT_ROOT, **total(2 * GIB - 70_000 * 1024), **limited(2 * GIB)},
        {"memory_bytes": 2 * GIB, "kernel_memory_bytes": 70_000 * 1024},
    ),
    "a limit far above the machine is not what was given": (
        {**total(2 * GIB), **limited(64 * GIB)},
        {"memory_bytes": 2 * GIB, "kernel_memory_bytes": None},
    ),
    "memory of a dax device is counted": (
        {**ADDED_LATER, "proc/iomem": KMEM},
        {"memory_bytes": KMEM_BYTES, "kernel_memory_bytes": KMEM_BYTES - KMEM_TOTAL},
    ),
    "memory of virtio-mem is counted": (
        {**ADDED_LATER, "proc/iomem": VIRTIO_MEM},
        {"memory_bytes": KMEM_BYTES, "kernel_memory_bytes": KMEM_BYTES - KMEM_TOTAL},
    ),
    "a list that lacks a part": (
        {**ADDED_LATER, "proc/iomem": IOMEM},
        {"memory_bytes": KMEM_TOTAL, "kernel_memory_bytes": None},
    ),
    "a version 1 limit is read with those above it": (
        {**ROOT, **V1_LIMITS},
        {"memory_bytes": 1 * GIB, "cgroup_version": 1},
    ),
    "a version 1 container with the host's namespace sees its own group only": (
        {**ROOT, **V1_CONTAINER},
        {"memory_bytes": 1 * GIB},
    ),
    "a version 2 container with a private namespace is at the top": (
        {**ROOT, **limited(1 * GIB)},
        {"memory_bytes": 1 * GIB, "cgroup_version": 2},
    ),
    "a group outside of the namespace is limited by what can be seen": (
        {**ROOT, **limited("max\n"), "proc/self/cgroup": "0::/../other\n"},
        {"memory_bytes": PHYSICAL},
    ),
    "a limit that is hidden is not taken for none": (
        {**ROOT, "proc/self/cgroup": "0::/bench/trial\n"},
        {"memory_bytes": None, "cgroup_version": 2},
    ),
    "a guest without control groups mounted has its whole memory": (
        {**ROOT, "proc/self/cgroup": "0::/\n"},
        {"memory_bytes": PHYSICAL},
    ),
}


@pytest.mark.parametrize("place", MEMORY)
def test_the_memory_of_a_place_is_what_it_was_given(place: str, seen: Collect) -> None:
    files, expected = MEMORY[place]
    assert expected.items() <= seen(files).items()


def test_a_tree_of_the_image_attests_its_digest_and_what_departs_from_it(here: Path) -> None:
    attested = attest()
    assert attested["userland_sha256"] is attested["userland_differences"] is None, "it is no tree of the image"
    write(here, {"opt/virtbench/suite.py": "1", "usr/bin/tool": "1"})
    digest = userland.write_manifest(str(here))
    assert attest()["userland_sha256"] == digest
    assert attest()["userland_differences"] == []
    (here / "usr/bin/other").write_text("2")
    assert attest()["userland_differences"] == ["/usr/bin/other is not in the manifest"]


def test_memory_and_disk_are_read_where_the_place_tells_them(here: Path) -> None:
    used = whole_usage()
    assert used["peak_memory_bytes"] is used["disk_read_bytes"] is used["disk_written_bytes"] is None
    assert used["cpu_s"] is not None
    io = "rchar: 1\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 5\n"
    write(here, {"proc/self/status": "Name:\tpython3\nVmPeak:\t   9 kB\nVmHWM:\t    2048 kB\n", "proc/self/io": io})
    used = whole_usage()
    assert used["peak_memory_bytes"] == 2 << 20
    assert (used["disk_read_bytes"], used["disk_written_bytes"]) == (4096, 0)


def children_cpu_s() -> float:
    """As the kernel counts it by the tick, and not by the nanosecond."""
    now = os.times()
    return now.children_user + now.children_system


def test_children_that_have_ended_are_counted() -> None:
    before, by_step_before, children_before = whole_usage()["cpu_s"], usage(), children_cpu_s()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after, by_step_after, children_after = whole_usage()["cpu_s"], usage(), children_cpu_s()
    assert before is not None
    assert after is not None
    by_step = sum(by_step_after[name] - by_step_before[name] for name in ("user_s", "system_s"))
    assert by_step == pytest.approx(after - before, abs=0.1)
    assert after - before == pytest.approx(children_after - children_before, abs=0.1)
    assert after - before > 0.25


SHARED_BYTES = 1 << 30


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    for name, size in (("train.py", 5), ("data/large", 90), ("data/small", 10), ("lib/net.py", 20), ("frames/1", 1)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"x" * size)
    (place / "train.py").chmod(0o555)
    (place / "lost+found").mkdir()
    return place


def test_programs_are_copied_and_data_that_fill_no_memory_are_linked(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "COPIED_BYTES", 40)
    with writable_copy(str(mine), str(tmp_path)) as copy:
        directory = Path(copy.directory)
        assert directory.parent == tmp_path
        links = {
            str(path.relative_to(directory)): path.readlink() for path in directory.rglob("*") if path.is_symlink()
        }
        assert links == {"data/large": mine / "data/large"}
        assert {path.name for path in directory.iterdir()} == {"train.py", "data", "lib", "frames"}
        assert (copy.copied_bytes, copy.linked) == (36, 1)
        assert (directory / "train.py").stat().st_mode & 0o777 == 0o755
        (directory / "data/cache").touch()
    assert not directory.exists()
    assert not (mine / "data/cache").exists()


def test_a_directory_of_too_many_files_is_linked_as_a_whole(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "MOST_ENTRIES", 5)
    with writable_copy(str(mine), str(tmp_path)) as copy:
        directory = Path(copy.directory)
        assert (directory / "train.py").read_bytes() == b"xxxxx"
        assert sorted(path.name for path in directory.iterdir() if path.is_symlink()) == ["data", "lib"]
        assert (directory / "lib").readlink() == mine / "lib"


def test_virtual_environments_and_runs_are_linked(mine: Path, tmp_path: Path) -> None:
    for name in ("venv/pyvenv.cfg", "results/one/plan.json", "results/one/trials/a.json", "conf/plan.json"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).touch()
    with writable_copy(str(mine), str(tmp_path)) as copy:
        directory = Path(copy.directory)
        links = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_symlink()}
    assert links == {"venv", "results/one"}


def test_a_limit_that_cannot_be_had_is_named_with_the_most_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    granted: dict[int, tuple[int, int]] = {}

    def refuse(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_NOFILE and limits[1] > 4096:
            raise ValueError("not allowed to raise maximum limit")
        granted[kind] = limits

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")
    mask = os.umask(0o077)  # as some sessions have it
    try:
        lacks = dict(level(SHARED_BYTES))
    finally:
        left = os.umask(mask)
    assert left == 0o022
    assert (lacks["open-files"], lacks["host-name"]) == ("4096", "unresolved")
    assert granted[resource.RLIMIT_NOFILE] == (4096, 4096)
    assert granted[resource.RLIMIT_MEMLOCK] == (8 << 20, 8 << 20)
