"""What the plan and a specification hold of another package's member."""

import hashlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from scenarios.members import plugin_of, source_sha256
from suite.errors import MeasurementError
from suite.registries import WORKLOADS
from suite.registry import Registry
from worker.members import Plugin

SOURCE = "TOY = 'toy'\n"
DIGEST = hashlib.sha256(SOURCE.encode()).hexdigest()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Registry:
    """A registry to which another package has added ``toy``."""
    (tmp_path / "their_toy.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_toy", raising=False)
    monkeypatch.setattr("suite.registry.entry_points", lambda group: [EntryPoint("toy", "their_toy:TOY", group)])
    return Registry("virtbench.workloads", "workload", {"own": "worker.workloads.classifier:ALEXNET"})


def test_the_suites_own_members_are_in_the_image() -> None:
    assert source_sha256(WORKLOADS, "alexnet") is None
    assert plugin_of(WORKLOADS, "alexnet") is None


def test_what_is_sent_has_the_digest_that_the_plan_holds(registry: Registry) -> None:
    assert source_sha256(registry, "toy") == DIGEST
    assert plugin_of(registry, "toy", DIGEST) == Plugin("their_toy", SOURCE, DIGEST, "their_toy.py")


def test_a_source_that_has_changed_since_the_plan_is_not_sent(registry: Registry, tmp_path: Path) -> None:
    planned = source_sha256(registry, "toy")
    (tmp_path / "their_toy.py").write_text("TOY = 'another'\n")
    with pytest.raises(
        MeasurementError, match="the workload 'toy' in their_toy is not the one that was planned"
    ) as told:
        plugin_of(registry, "toy", planned)
    assert told.value.kind == "plan"
