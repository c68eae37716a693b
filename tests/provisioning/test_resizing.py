"""Resizing an open instance, by version 1 and version 2 of control groups and by engines."""

from typing import Any

import pytest

from provisioning.cgroup import resizing
from provisioning.engines.base import get_engine


class Recorder:
    cpus = (2, 3, 4, 5)

    def __init__(self) -> None:
        self.ran: list[list[str]] = []

    def run(self, argv: list[str], **_: object) -> None:
        self.ran.append(argv)


@pytest.mark.parametrize(
    ("version", "pinned", "settings"),
    [
        (1, True, ["-r", "cpu.cfs_quota_us=200000", "-r", "cpuset.cpus=2-4"]),
        (2, True, ["-r", "cpu.max=200000 100000", "-r", "cpuset.cpus=2-4"]),
        (2, False, ["-r", "cpu.max=200000 100000"]),
    ],
)
def test_a_group_is_given_a_share_of_all_cpus_and_fewer_of_them(
    monkeypatch: pytest.MonkeyPatch, version: int, pinned: bool, settings: list[str]
) -> None:
    node: Any = Recorder()
    monkeypatch.setattr(resizing, "version", lambda _: version)
    resizing.of_group(node, "virtbench-x", pinned=pinned)((2, 3, 4), 0.5)
    assert node.ran == [["cgset", *settings, "virtbench-x"]]


def test_engines_resize_by_their_own_command_or_not_at_all() -> None:
    commands = {
        name: get_engine(name).update_argv("c", "0-1", 100_000)
        for name in ("docker", "podman", "runc", "gvisor", "charliecloud", "apptainer", "kubernetes")
    }
    words = ["update", "--cpuset-cpus=0-1", "--cpu-quota=100000", "c"]
    assert commands["docker"] == ["docker", *words]
    assert commands["podman"] == ["podman", *words]
    assert commands["runc"][-6:] == ["update", "--cpuset-cpus", "0-1", "--cpu-quota", "100000", "c"]
    assert [name for name, argv in commands.items() if not argv] == [
        "gvisor",
        "charliecloud",
        "apptainer",
        "kubernetes",
    ]
