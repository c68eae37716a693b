"""What a control group has used, from trees as both versions have them."""

import os
from pathlib import Path

import pytest

from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.counters import ControlGroup
from suite.job.properties import DISK_LIMITS
from tests.provisioning.conftest import make


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    return make(
        tmp_path,
        {
            "cpuacct/job/cpuacct.usage": "1500000000\n",
            "memory/job/memory.max_usage_in_bytes": "4096\n",
            "memory/job/memory.stat": "pgfault 10\npgmajfault 3\ntotal_pgfault 90\n",
            "blkio/job/blkio.throttle.io_service_bytes": "8:0 Read 100\n8:0 Write 7\n8:16 Read 20\nTotal 127\n",
            "blkio/job/blkio.throttle.read_bps_device": "8:0 100\n8:16 100\n8:32 100\n",
            "blkio/job/blkio.throttle.write_bps_device": "8:0 100\n8:16 100\n8:32 200\n",
            "blkio/job/blkio.throttle.read_iops_device": "8:0 5\n",
            "blkio/job/blkio.throttle.write_iops_device": "8:0 5\n",
            "cpu/job/cpu.stat": "nr_periods 4\nthrottled_time 2000000000\n",
            "cpu/cpu.stat": "nr_periods 4\nthrottled_time 500000000\n",
        },
    )


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    return make(
        tmp_path,
        {
            "cgroup.controllers": "cpu memory io\n",
            "job/cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nthrottled_usec 2000000\n",
            "job/memory.peak": "4096\n",
            "job/memory.stat": "anon 1\npgfault 10\npgmajfault 3\n",
            "job/io.stat": "8:0 rbytes=100 wbytes=7 rios=1 wios=1 dbytes=0 dios=0\n8:16 rbytes=20 wbytes=0\n",
            "job/io.max": "8:0 rbps=100 wbps=100 riops=5 wiops=5\n8:16 rbps=100 wbps=100\n8:32 rbps=max wbps=9\n",
            "cpu.stat": "usage_usec 99\n",
        },
    )


@pytest.mark.parametrize(
    ("version", "written_bytes", "throttled_s"),
    # What goes through the cache is written by nobody's group. The topmost group of version 2 has no quota.
    [("version_1", None, [2.0, 0.5]), ("version_2", 7, [2.0])],
)
def test_both_versions_tell_cpu_memory_faults_and_what_was_read(
    version: str, written_bytes: int | None, throttled_s: list[float], request: pytest.FixtureRequest
) -> None:
    group = ControlGroup(ControlGroup.named("job").paths, request.getfixturevalue(version))
    assert (group.cpu_s(), group.peak_memory_bytes(), group.faults()) == (1.5, 4096, (7, 3))
    assert group.disk_bytes() == (120, written_bytes)
    assert group.throttled_s() == throttled_s


@pytest.mark.parametrize("version", ["version_1", "version_2"])
def test_a_limit_of_disks_is_told_where_it_is_one(version: str, request: pytest.FixtureRequest) -> None:
    group = ControlGroup(ControlGroup.named("job").paths, request.getfixturevalue(version))
    none = dict.fromkeys(DISK_LIMITS.values())
    assert group.disk_limits(["8:0"]) == {"disk_limit_bytes_per_s": 100, "disk_limit_iops": 5}
    assert group.disk_limits(["8:0", "8:16"]) == {**none, "disk_limit_bytes_per_s": 100}
    assert group.disk_limits(["8:0", "8:32"]) == none
    assert group.disk_limits(["8:0", "8:48"]) == none, "not limited at all"
    assert group.disk_limits(["8:48"]) == none
    assert group.disk_limits([]) == none


@pytest.mark.parametrize(
    ("files", "cpu_s", "disk_bytes"),
    [
        ({}, None, (None, None)),
        ({"cgroup.controllers": "cpu"}, None, (None, None)),
        ({"cpu/other/cpu.stat": "throttled_time 1"}, None, (None, None)),
        ({"cgroup.controllers": "cpu", "job/cpu.stat": "usage_usec 1000000\n"}, 1.0, (None, None)),
        ({"blkio/job/blkio.throttle.io_service_bytes": "Total 0\n"}, None, (None, None)),  # a total of no device
        ({"cgroup.controllers": "io", "job/io.stat": ""}, None, (0, 0)),
    ],
)
def test_what_a_group_or_a_controller_does_not_count_is_unknown_and_not_zero(
    tmp_path: Path, files: dict[str, str], cpu_s: float | None, disk_bytes: tuple[int | None, int | None]
) -> None:
    group = ControlGroup(ControlGroup.named("job").paths, make(tmp_path, files))
    assert (group.cpu_s(), group.peak_memory_bytes(), group.faults()) == (cpu_s, None, (None, None))
    assert group.disk_bytes() == disk_bytes
    assert group.throttled_s() == []


def test_the_groups_of_a_process_are_those_of_its_controllers(tmp_path: Path) -> None:
    proc = make(tmp_path, {"7/cgroup": "4:memory:/m\n2:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/two:three\n"})
    paths = ControlGroup.of_process(7, proc).paths
    assert (paths["memory"], paths["cpu"], paths["cpuacct"], paths[""]) == ("/m", "/c", "/c", "/two:three")
    assert ControlGroup.of_process(8, proc).cpu_s() is None, "it is gone"


def test_the_group_of_this_process_can_be_asked_for_real() -> None:
    # Which of it can be seen depends on the machine; that nothing breaks does not.
    group = ControlGroup.of_process(os.getpid())
    assert group.cpu_s() is None or group.cpu_s() != 0
    assert all(seconds >= 0 for seconds in group.throttled_s())


def test_disks_can_be_limited_where_the_controller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert not cgroups.disks_can_be_limited()
    (tmp_path / "blkio").mkdir()
    assert cgroups.disks_can_be_limited()
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert not cgroups.disks_can_be_limited(), "version 2 governs"
    (tmp_path / "cgroup.controllers").write_text("cpu io memory\n")
    assert cgroups.disks_can_be_limited()
