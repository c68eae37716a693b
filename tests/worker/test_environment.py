"""What a place hides (``tests.parsed`` has what it shows), what a worker used, and the surroundings of a command."""

import os
import resource
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from suite import userland
from suite.records.environment import Environment
from suite.records.fields import checked_part
from tests.scenarios.conftest import fill
from worker import environment, surroundings
from worker.environment import attest, collect, usage, whole_usage
from worker.surroundings import level, writable_copy


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with nothing in it."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_what_a_place_hides_is_null() -> None:
    told = {name for name, value in asdict(checked_part(Environment, collect())).items() if value is not None}
    assert told == {"cpus", "python", "libc", "allocator"}


def test_the_caches_and_the_settings_of_kvm_are_those_of_the_kernel(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    caches = {
        "index0": ("1", "Data", "48K"),
        "index1": ("1", "Instruction", "32K"),
        "index3": ("3", "Unified", "36864K"),
    }
    files = {
        f"sys/devices/system/cpu/cpu2/cache/{index}/{name}": text
        for index, texts in caches.items()
        for name, text in zip(("level", "type", "size"), texts, strict=True)
    }
    files |= {"sys/module/kvm/parameters/halt_poll_ns": "200000", "sys/module/kvm_intel/parameters/ept": "Y"}
    files |= {"sys/kernel/mm/ksm/run": "0", "proc/stat": "cpu  1 2 3 4 5 6 7 800 0 0\ncpu0 1"}
    for name, text in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"{text}\n")
    seen = checked_part(Environment, collect())
    assert seen.cpu_caches == {"L1d": 48 << 10, "L1i": 32 << 10, "L3": 36 << 20}
    assert seen.kvm == {"halt_poll_ns": "200000", "ept": "Y", "ksm": "0"}
    assert usage()["steal_s"] == 800 / os.sysconf("SC_CLK_TCK")


def test_a_tree_of_the_image_attests_its_digest_and_what_departs_from_it(here: Path) -> None:
    attested = attest()
    assert attested["userland_sha256"] is attested["userland_differences"] is None, "it is no tree of the image"
    fill(here, "opt/virtbench/suite.py", "usr/bin/tool")
    digest = userland.write_manifest(str(here))
    assert attest()["userland_sha256"] == digest
    assert attest()["userland_differences"] == []
    (here / "usr/bin/other").write_text("2")
    assert attest()["userland_differences"] == ["/usr/bin/other is not in the manifest"]


FILTER = """
import ctypes, struct, sys
from worker.filters import CALLS, refused_calls

numbers = CALLS[__import__("platform").machine()]
ERRNO_EPERM, KILL, ALLOW = 0x00050001, 0x80000000, 0x7FFF0000
actions = {"kcmp": ERRNO_EPERM, "keyctl": KILL} if sys.argv[1] == "some" else {}
load, equal, give = 0x20, 0x15, 0x06  # instructions of BPF: load the number of the call, jump if equal, return
program = [(load, 0, 0, 0)]
for name, action in actions.items():
    program += [(equal, 0, 1, numbers[name]), (give, 0, 0, action)]
program.append((give, 0, 0, ALLOW))
packed = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
held = ctypes.create_string_buffer(packed)
described = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(held)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(described)), 0, 0) == 0  # seccomp, by a filter
print(",".join(refused_calls()))
"""


@pytest.mark.parametrize(("profile", "refused"), [("some", "kcmp,keyctl"), ("all", "")])
def test_what_a_filter_refuses_is_tried_where_it_may_kill(profile: str, refused: str) -> None:
    ended = subprocess.run([sys.executable, "-c", FILTER, profile], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == refused


@pytest.mark.parametrize(("refused", "seccomp"), [([], "open"), (["kcmp"], "filter"), (None, "filter")])
def test_a_filter_that_refuses_nothing_is_open(
    here: Path, monkeypatch: pytest.MonkeyPatch, refused: list[str] | None, seccomp: str
) -> None:
    fill(here, "proc/self/status", content=b"Name:\tpython3\nSeccomp:\t2\n")
    monkeypatch.setattr(environment, "refused_calls", lambda: refused)
    attested = checked_part(Environment, attest())
    assert (attested.seccomp, attested.seccomp_refuses) == (seccomp, refused)


def test_memory_and_disk_are_read_where_the_place_tells_them(here: Path) -> None:
    used = whole_usage()
    assert used["peak_memory_bytes"] is used["disk_read_bytes"] is used["disk_written_bytes"] is None
    assert used["cpu_s"] is not None
    fill(here, "proc/self/status", content=b"Name:\tpython3\nVmPeak:\t   9 kB\nVmHWM:\t    2048 kB\n")
    fill(here, "proc/self/io", content=b"rchar: 1\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 5\n")
    used = whole_usage()
    assert used["peak_memory_bytes"] == 2 << 20
    assert (used["disk_read_bytes"], used["disk_written_bytes"]) == (4096, 0)


@pytest.mark.parametrize(
    ("managed_gib", "seen_gib"),
    [(7.8, 8.0), (7.0, 7.0), (2.0, 2.0)],
    ids=["a kernel that keeps its part", "a balloon of 1 GiB", "a balloon of 6 GiB"],
)
def test_a_guest_has_the_memory_that_its_balloon_leaves(managed_gib: float, seen_gib: float, here: Path) -> None:
    fill(here, "proc/iomem", content=f"00000000-{(8 << 30) - 1:x} : System RAM\n".encode())
    fill(here, "proc/meminfo", content=f"MemTotal: {int(managed_gib * (1 << 20))} kB\n".encode())
    seen_bytes, kept_bytes = environment.memory()
    assert seen_bytes == pytest.approx(seen_gib * (1 << 30), abs=1 << 10)
    assert (kept_bytes is None) is (seen_gib == managed_gib)


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


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    for name, size in (("train.py", 5), ("data/large", 90), ("data/small", 10), ("lib/net.py", 20), ("frames/1", 1)):
        fill(place, name, content=b"x" * size)
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


def test_a_copy_keeps_times_and_modes(mine: Path, tmp_path: Path) -> None:
    times = {"train.py": 1_000_000_007, "data/small": 2_000_000_008, "data": 3_000_000_009, "frames/1": 4_000_000_010}
    for name, time_ns in times.items():
        os.utime(mine / name, ns=(time_ns, time_ns))
    (mine / "frames").chmod(0o500)
    with writable_copy(str(mine), str(tmp_path)) as copy:
        directory = Path(copy.directory)
        assert {name: (directory / name).stat().st_mtime_ns for name in times} == times
        assert (directory / "frames").stat().st_mode & 0o777 == 0o700, "what is copied can be written to"


def test_a_limit_that_cannot_be_had_is_named_with_the_most_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    granted: dict[int, tuple[int, int]] = {}

    def refuse(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_NOFILE and limits[1] > 4096:
            raise ValueError("not allowed to raise maximum limit")
        granted[kind] = limits

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(sys, "version_info", (3, 11))
    mask = os.umask(0o077)  # as some sessions have it
    try:
        lacks = dict(level(1 << 30))
    finally:
        left = os.umask(mask)
    assert left == 0o022
    assert (lacks["open-files"], lacks["host-name"]) == ("4096", "unresolved")
    assert lacks["cpu-count"] == "64", "scripts start as many loaders"
    assert granted[resource.RLIMIT_NOFILE] == (4096, 4096)
    assert granted[resource.RLIMIT_MEMLOCK] == (8 << 20, 8 << 20)
