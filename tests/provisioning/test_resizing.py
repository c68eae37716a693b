"""Resizing an open instance, by version 1 and version 2 of control groups and by engines."""

from typing import Any

import pytest

from provisioning.cgroup import resizing
from provisioning.cgroup.resizing import Opened
from provisioning.engines.base import get_engine
from suite.errors import RequestError
from suite.interfaces import Shares


class Recorder:
    cpus = (2, 3, 4, 5)

    def __init__(self) -> None:
        self.ran: list[list[str]] = []

    def run(self, argv: list[str], **_: object) -> None:
        self.ran.append(argv)


@pytest.mark.parametrize(
    ("version", "cpuset", "settings"),
    [
        (1, True, ["-r", "cpu.cfs_quota_us=200000", "-r", "cpuset.cpus=2-4", "-r", "memory.limit_in_bytes=256"]),
        (2, True, ["-r", "cpu.max=200000 100000", "-r", "cpuset.cpus=2-4", "-r", "memory.max=256"]),
        (2, False, ["-r", "cpu.max=200000 100000", "-r", "memory.max=256"]),
    ],
)
def test_a_group_is_given_a_share_of_all_cpus_and_fewer_of_them(
    monkeypatch: pytest.MonkeyPatch, version: int, cpuset: bool, settings: list[str]
) -> None:
    node: Any = Recorder()
    monkeypatch.setattr(resizing, "version", lambda _: version)
    resizing.of_group(node, "virtbench-x", Opened(4, 512), cpuset=cpuset)(Shares((2, 3, 4), 0.5, 0.5))
    assert node.ran == [["cgset", *settings, "virtbench-x"]]


@pytest.mark.parametrize(("version", "setting"), [(1, "cpu.cfs_quota_us=-1"), (2, "cpu.max=max 100000")])
def test_a_group_that_had_no_quota_has_none_again(monkeypatch: pytest.MonkeyPatch, version: int, setting: str) -> None:
    node: Any = Recorder()
    monkeypatch.setattr(resizing, "version", lambda _: version)
    resizing.of_group(node, "virtbench-x", Opened(4, None))(Shares(node.cpus))
    assert node.ran == [["cgset", "-r", setting, "-r", "cpuset.cpus=2-5", "virtbench-x"]]


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
    assert [name for name, argv in commands.items() if not argv] == [
        "gvisor",
        "charliecloud",
        "apptainer",
        "kubernetes",
    ]
