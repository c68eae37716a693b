"""What a control group has used, from trees as both versions have them."""

import os
from pathlib import Path

import pytest

from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.counters import ControlGroup
from suite.job.properties import DISK_LIMITS


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


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


def test_version_1_tells_cpu_memory_faults_and_what_was_read(version_1: Path) -> None:
    group = ControlGroup(ControlGroup.named("job").paths, version_1)
    assert group.cpu_s() == 1.5
    assert group.peak_memory_bytes() == 4096
    assert group.faults() == (7, 3)
    assert group.disk_bytes() == (120, None), "what goes through the cache is written by nobody's group"
    assert group.throttled_s() == [2.0, 0.5], "its own, and that of the group above it"


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


def test_version_2_tells_the_same_and_what_was_written(version_2: Path) -> None:
    group = ControlGroup(ControlGroup.named("job").paths, version_2)
    assert group.cpu_s() == 1.5
    assert group.peak_memory_bytes() == 4096
    assert group.faults() == (7, 3)
    assert group.disk_bytes() == (120, 7)
    assert group.throttled_s() == [2.0], "the topmost group has no quota"


@pytest.mark.parametrize("files", [{}, {"cgroup.controllers": "cpu"}, {"cpu/other/cpu.stat": "throttled_time 1"}])
def test_a_group_that_is_not_there_tells_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    group = ControlGroup(ControlGroup.named("job").paths, make(tmp_path, files))
    assert group.cpu_s() is None
    assert group.peak_memory_bytes() is None
    assert group.faults() == (None, None)
    assert group.disk_bytes() == (None, None)
    assert group.throttled_s() == []


def test_a_controller_that_a_group_lacks_tells_nothing(tmp_path: Path) -> None:
    root = make(tmp_path, {"cgroup.controllers": "cpu", "job/cpu.stat": "usage_usec 1000000\n"})
    group = ControlGroup(ControlGroup.named("job").paths, root)
    assert (group.cpu_s(), group.peak_memory_bytes(), group.disk_bytes()) == (1.0, None, (None, None))


def test_a_total_of_no_device_is_not_a_zero(tmp_path: Path) -> None:
    root = make(tmp_path, {"blkio/job/blkio.throttle.io_service_bytes": "Total 0\n"})
    assert ControlGroup(ControlGroup.named("job").paths, root).disk_bytes() == (None, None)


def test_a_group_without_a_file_of_its_disk_traffic_yet_has_had_none(tmp_path: Path) -> None:
    root = make(tmp_path, {"cgroup.controllers": "io", "job/io.stat": ""})
    assert ControlGroup(ControlGroup.named("job").paths, root).disk_bytes() == (0, 0)


def test_the_groups_of_a_process_are_those_of_its_controllers(tmp_path: Path) -> None:
    proc = make(tmp_path, {"7/cgroup": "4:memory:/m\n2:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/two:three\n"})
    paths = ControlGroup.of_process(7, proc).paths
    assert (paths["memory"], paths["cpu"], paths["cpuacct"], paths[""]) == ("/m", "/c", "/c", "/two:three")


def test_a_process_that_is_gone_is_in_no_group(tmp_path: Path) -> None:
    assert ControlGroup.of_process(7, tmp_path).cpu_s() is None


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
