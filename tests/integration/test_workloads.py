"""Every workload in every scenario that it declares, on bare metal or in a container: what comes back, and holds."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from suite.records.record import TrialRecord
from suite.registries import WORKLOADS
from tests.integration.machine import require, require_image, require_root
from tests.integration.test_run import SMALL, bench, on

pytestmark = pytest.mark.integration
TARGETS = ("bare-metal", "container")
WORDS: Mapping[str, tuple[str, ...]] = {
    "synthetic": (),
    "real": (),
    "shared": ("--aggressor", "memory"),
    "distributed": ("--workers", "2", "--strategy", "all-reduce"),
}
"""Each scenario that trains, and what it is asked for besides."""
EVERY = bool(os.environ.get("VIRTBENCH_EVERY_WORKLOAD"))
"""Each workload on each target takes 12 minutes; else every second one is run here, and the others there."""


def declaring(scenario: str) -> list[str]:
    """Return the workloads that can be trained in the scenario."""
    own = {name: WORKLOADS.get(name) for name in WORKLOADS.own}
    declared = [name for name, one in own.items() if not one.scenarios or scenario in one.scenarios]
    return [name for name in declared if scenario != "distributed" or own[name].divisible]


@pytest.fixture
def data(scenario: str, tmp_path: Path) -> tuple[str, ...]:
    """Return the words that name a data set, where the scenario reads one."""
    if scenario != "real":
        return ()
    directory = tmp_path / "set"
    made = bench("data", "make", "--format", "cifar10", "--images", "256", "--out", str(directory))
    assert made.returncode == 0, made.stderr
    return ("--data", f"cifar10:{directory}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scenario", WORDS)
def test_the_workloads_of_a_scenario_run(scenario: str, target: str, data: tuple[str, ...], tmp_path: Path) -> None:
    require_root()
    require_image()
    require("engine", "runc")
    run, chosen = tmp_path / "run", declaring(scenario)
    models = chosen if EVERY else chosen[TARGETS.index(target) :: len(TARGETS)]
    words = [word for name in models for word in ("--model", name)]
    done = bench("run", "--scenario", scenario, *words, *data, *WORDS[scenario], *SMALL, *on(target), "--out", str(run))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [TrialRecord.model_validate_json(path.read_bytes()) for path in (run / "trials").glob("*.json")]
    assert {record.job.model for record in found} == set(models)
    for record in found:
        workload = WORKLOADS.get(record.job.model)
        assert record.target == target
        assert record.job.unit == workload.unit
        assert record.throughput_per_s
        if record.steps:
            assert tuple(record.steps.phases) == workload.phases
            assert tuple(record.steps.losses) == workload.losses
    audited = bench("audit", str(run))
    assert audited.returncode == 0, audited.stdout
