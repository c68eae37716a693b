"""Ctrl-C in the terminal of a bench: a few moments of what ``benchmarks/interruptions.py`` does forty times.

With VIRTBENCH_INTERRUPTIONS=40 each engine gets so many, and a virtual machine, too.
"""

import os
from pathlib import Path

import pytest

from tests.integration.machine import docker_daemon, require, require_root_and_image

pytestmark = pytest.mark.integration
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COUNT = int(os.environ.get("VIRTBENCH_INTERRUPTIONS", "4"))


def pressed(target: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press the key, half of the times while the target is being closed; nothing may be left."""
    require_root_and_image()
    require("target", target)
    monkeypatch.syspath_prepend(BENCHMARKS)
    import interruptions

    found = interruptions.interruptions(interruptions.words_of(target, engine), COUNT, together=4)
    assert [str(each) for each in found if each.findings] == []
    assert sum(each.pressed for each in found) >= COUNT // 2, [str(each) for each in found]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ["runc", "podman"])
def test_ctrl_c_in_a_terminal_leaves_nothing_at_any_moment(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require("engine", engine)
    pressed("container", engine, monkeypatch)


@pytest.mark.timeout(1200)
def test_ctrl_c_in_a_terminal_leaves_nothing_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    if "VIRTBENCH_INTERRUPTIONS" not in os.environ:
        pytest.skip("a docker daemon and its image take minutes, see VIRTBENCH_INTERRUPTIONS")
    with docker_daemon() as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        pressed("container", "docker", monkeypatch)


@pytest.mark.timeout(3600)
def test_ctrl_c_in_a_terminal_leaves_nothing_of_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    if "VIRTBENCH_INTERRUPTIONS" not in os.environ:
        pytest.skip("a guest takes long to boot where it is emulated, see VIRTBENCH_INTERRUPTIONS")
    pressed("vm", "runc", monkeypatch)
