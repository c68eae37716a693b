"""Resizing an open instance, by version 1 and version 2 of control groups and by engines."""

import pytest

from provisioning.cgroup.limits import Opened, of_group
from provisioning.engines.base import get_engine
from suite.errors import RequestError
from suite.interfaces import Completed, Shares
from tests.provisioning.conftest import fake_node

FEWER, ALL = Shares((2, 3, 4), 0.5, 0.5), Shares((2, 3, 4, 5))
LIMITED, PINNED = Opened(4, 512), Opened(4, None)


@pytest.mark.parametrize(
    ("kind", "opened", "cpuset", "shares", "settings"),
    [
        ("tmpfs", LIMITED, True, FEWER, "cpu.cfs_quota_us=200000;cpuset.cpus=2-4;memory.limit_in_bytes=256"),
        ("cgroup2fs", LIMITED, True, FEWER, "cpu.max=200000 100000;cpuset.cpus=2-4;memory.max=256"),
        ("cgroup2fs", LIMITED, False, FEWER, "cpu.max=200000 100000;memory.max=256"),
        # One that had no quota has none again.
        ("tmpfs", PINNED, True, ALL, "cpu.cfs_quota_us=-1;cpuset.cpus=2-5"),
        ("cgroup2fs", PINNED, True, ALL, "cpu.max=max 100000;cpuset.cpus=2-5"),
    ],
)
def test_a_group_is_given_a_share_of_all_cpus_and_fewer_of_them(
    kind: str, opened: Opened, cpuset: bool, shares: Shares, settings: str
) -> None:
    node = fake_node({("stat",): Completed(0, f"{kind}\n", "")})
    of_group(node, "virtbench-x", opened, cpuset=cpuset)(shares)
    (_, argv) = node.ran
    assert argv == ["cgset", *(word for setting in settings.split(";") for word in ("-r", setting)), "virtbench-x"]


def test_shares_are_of_what_it_was_opened_with() -> None:
    assert Opened(4, 512, 0.5).quota_us(Shares((0,))) == 200_000
    assert Opened(4, 512, 0.5).quota_us(Shares((0,), 0.5)) == 100_000
    assert Opened(4, 512, pinned=False).quota_us(Shares((0,))) == 400_000
    assert Opened(4, None).memory(Shares((0,))) is None
    with pytest.raises(RequestError, match="no limit of memory"):
        Opened(4, None).memory(Shares((0,), 1, 0.5))


def test_engines_resize_by_their_own_command_or_not_at_all() -> None:
    commands = {
        name: get_engine(name).update_argv("c", "0-1", 100_000, 512)
        for name in ("docker", "podman", "runc", "gvisor", "charliecloud", "apptainer", "kubernetes")
    }
    words = ["update", "--cpuset-cpus=0-1", "--cpu-quota=100000", "--memory=512", "--memory-swap=512", "c"]
    assert commands["docker"] == ["docker", *words]
    assert commands["podman"] == ["podman", *words]
    assert "--cpu-quota=200000" in get_engine("podman").update_argv("c", "0-1", -1, None)
    assert "--cpu-quota=-1" in get_engine("docker").update_argv("c", "0-1", -1, None)
    words = ["update", "--cpuset-cpus", "0-1", "--cpu-quota", "100000", "--memory", "512", "--memory-swap", "512", "c"]
    assert commands["runc"][-10:] == words
    unable = ["gvisor", "charliecloud", "apptainer", "kubernetes"]
    assert [name for name, argv in commands.items() if not argv] == unable
