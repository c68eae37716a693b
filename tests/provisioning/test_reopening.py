"""What of an instance is killed at once, on real processes."""

import subprocess

import pytest

from provisioning.cgroup.counters import ControlGroup
from provisioning.nodes import HostProcesses, LocalNode, WrappedNode
from provisioning.sites import reopening


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_first_process_of_a_container_is_killed_while_it_is_in_its_group(node: LocalNode, elsewhere: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as first:
        group = ControlGroup({"cpu": "/another"}) if elsewhere else ControlGroup.of_process(first.pid)
        inside = WrappedNode(node, list, "container", "/", host_processes=HostProcesses(group, first.pid))
        reopening._kill(inside)
        if elsewhere:
            assert first.poll() is None
            first.kill()
        else:
            assert first.wait(10) == -9
