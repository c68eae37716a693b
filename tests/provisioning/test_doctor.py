"""The doctor and what other packages add."""

from types import SimpleNamespace
from typing import Any

import pytest

from provisioning import doctor
from provisioning.engines.podman import PODMAN
from provisioning.nodes import LocalNode
from suite.errors import BenchError
from suite.registries import ENGINES


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
