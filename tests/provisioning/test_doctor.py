"""The doctor and what other packages add."""

from types import SimpleNamespace
from typing import Any

import pytest

from provisioning import doctor
from provisioning.doctor import diagnose
from provisioning.engines.podman import PODMAN
from provisioning.nodes import LocalNode
from suite.errors import BenchError
from suite.registries import ENGINES
from suite.targets import TARGETS


def _broken(node: LocalNode) -> str:
    raise AttributeError(f"no daemon on {node.name}")


def test_an_engine_of_another_package_that_breaks_is_told_and_stops_no_run(node: LocalNode) -> None:
    toy: Any = SimpleNamespace(name="toy", version=_broken)
    with pytest.raises(BenchError, match="AttributeError: no daemon on localhost") as caught:
        doctor._version(ENGINES, toy, node)
    assert caught.value.remedy == doctor.EXTENSION_REMEDY


def test_an_error_in_the_suites_own_engine_is_not_hidden(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(PODMAN), "version", lambda _, node: _broken(node))
    with pytest.raises(AttributeError):
        doctor._version(ENGINES, PODMAN, node)


def test_the_doctor_answers_where_the_suites_folder_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTBENCH_HOME", "/proc/virtbench")  # nobody can make a folder there
    checks = doctor.examine_as_far_as_possible()
    home = next(check for check in checks if check.name == "home")
    assert not home.usable
    assert "/proc/virtbench" in str(home.reason)
    assert "VIRTBENCH_HOME" in str(home.remedy)
    assert any(check.kind == "tool" for check in checks)
    found = diagnose(checks)
    assert found.absent == TARGETS
    assert "VIRTBENCH_HOME" in found.next_step
