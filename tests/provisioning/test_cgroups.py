"""What a control group of bare metal is told, on both versions; and what an ablation leaves out or adds."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.limits import BlockDevice
from suite.interfaces import Completed
from suite.job.envelope import GIB, Envelope
from suite.job.properties import Properties

ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=GIB, threads=2)
DISK = BlockDevice("/dev/sda", "8:0")
LIMIT = 32 << 20


def settings(fake_node: Callable[..., Any], kind: str, **options: Any) -> tuple[str, Mapping[str, str]]:
    """The controllers, and what each file is set to."""
    system = {"cpu/online": "0-3", "node/online": "0-1", "node/has_memory": "0"}  # node 1 has CPUs alone
    files = {("cat", f"/sys/devices/system/{name}"): Completed(0, f"{text}\n", "") for name, text in system.items()}
    node = fake_node({("stat",): Completed(0, f"{kind}\n", ""), **files})
    words = cgroups.create(node, "job", ENVELOPE, **options)
    controllers = words[-1].partition(":")[0]
    assert ["cgcreate", "-g", words[-1]] in node.ran
    said = [argv[2].partition("=") for argv in node.ran if argv[0] == "cgset"]
    return controllers, {key: value for key, _, value in said}


@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("tmpfs", {"memory.limit_in_bytes": str(GIB)}),
        ("cgroup2fs", {"memory.max": str(GIB), "memory.swap.max": "0"}),
    ],
)
def test_memory_is_limited_unless_that_is_switched_off(
    fake_node: Callable[..., Any], kind: str, memory: dict[str, str]
) -> None:
    _, usual = settings(fake_node, kind)
    _, lifted = settings(fake_node, kind, properties=Properties(memory_limited=False))
    always = {"cpuset.cpus": "0-1", "cpuset.mems": "0", "pids.max": "1152"}
    assert usual == {**always, **memory}
    assert lifted == always


@pytest.mark.parametrize(
    ("kind", "quota"),
    [
        ("tmpfs", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "180000"}),
        ("cgroup2fs", {"cpu.max": "180000 100000"}),
    ],
)
def test_a_share_of_the_cpus_is_a_quota_on_the_same_cpus(
    fake_node: Callable[..., Any], kind: str, quota: dict[str, str]
) -> None:
    _, usual = settings(fake_node, kind)
    _, held_back = settings(fake_node, kind, properties=Properties(cpu_share=0.9))
    assert held_back == {**usual, **quota}


@pytest.mark.parametrize(
    ("kind", "controller", "files"),
    [
        (
            "tmpfs",
            "blkio",
            {
                f"blkio.throttle.{way}_{unit}_device": f"8:0 {limit}"
                for unit, limit in (("bps", LIMIT), ("iops", 9))
                for way in ("read", "write")
            },
        ),
        ("cgroup2fs", "io", {"io.max": f"8:0 rbps={LIMIT} wbps={LIMIT} riops=9 wiops=9"}),
    ],
)
def test_disks_are_limited_by_the_controller_of_the_version(
    fake_node: Callable[..., Any], kind: str, controller: str, files: dict[str, str]
) -> None:
    usual_controllers, usual = settings(fake_node, kind)
    properties = Properties(disk_limit_bytes_per_s=LIMIT, disk_limit_iops=9)
    controllers, limited = settings(fake_node, kind, properties=properties, limited_disks=(DISK,))
    assert controllers.split(",") == [*usual_controllers.split(","), controller]
    assert limited == {**usual, **files}


def test_disks_can_be_limited_where_the_controller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert not cgroups.disks_can_be_limited()
    (tmp_path / "blkio").mkdir()
    assert cgroups.disks_can_be_limited()
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert not cgroups.disks_can_be_limited(), "version 2 governs"
    (tmp_path / "cgroup.controllers").write_text("cpu io memory\n")
    assert cgroups.disks_can_be_limited()
