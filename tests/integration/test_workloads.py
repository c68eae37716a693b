"""Every workload in every scenario that it declares, on bare metal or in a container: what comes back, and holds."""

import json
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from suite.records.record import TrialRecord
from suite.registries import WORKLOADS
from tests.integration.machine import docker_daemon, require, require_fast_guests, require_image, require_root
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
CASES = (
    *((*case, 2) for case in zip(WORDS, TARGETS * 2, strict=True)),
    *(pytest.param(*case, 1, marks=pytest.mark.thorough) for case in product(WORDS, TARGETS)),
)
"""Every second workload of each scenario on one target; all on all of them take 12 minutes."""


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


@pytest.mark.parametrize(("scenario", "target", "one_in"), CASES)
def test_workloads_of_a_scenario_run(
    scenario: str, target: str, one_in: int, data: tuple[str, ...], tmp_path: Path
) -> None:
    require_root()
    require_image()
    require("engine", "runc")
    run, chosen = tmp_path / "run", declaring(scenario)
    models = chosen[TARGETS.index(target) % one_in :: one_in]
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
        assert record.weights_sha256
        if record.steps:
            assert tuple(record.steps.phases) == workload.phases
            assert tuple(record.steps.losses) == workload.losses
    audited = bench("audit", str(run))
    assert audited.returncode == 0, audited.stdout


def agreements(run: Path, *words: str, env: dict[str, str] | None = None) -> dict[tuple[str, str], str]:
    """Return how each model on each arm of a new run agrees with bare metal in what it computed."""
    done = bench("run", *words, "--profile", "smoke", "--out", str(run), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    compared = json.loads(bench("compare", str(run), "--json").stdout)
    return {(one["model"], one["arm"]): one["kind"] for one in compared["same_work"]}


@pytest.mark.parametrize("design", ["sequential", "alternating"])
def test_bare_metal_and_a_container_compute_the_same_weights(design: str, tmp_path: Path) -> None:
    require_root()
    require_image()
    require("engine", "runc")
    length = {"sequential": ("--steps", "4"), "alternating": ("--rounds", "2", "--burst-steps", "2")}[design]
    words = (*on("bare-metal"), *on("container"), "--model", "alexnet", "--model", "vae", "--design", design, *length)
    found = agreements(tmp_path / "run", *words)
    assert found == {("alexnet", "container"): "weights", ("vae", "container"): "weights"}


@pytest.mark.thorough
@pytest.mark.parametrize("model", WORKLOADS.own)
def test_three_engines_compute_the_weights_of_bare_metal_and_a_vm_those_or_near_losses(
    model: str, tmp_path: Path
) -> None:
    require_fast_guests()
    require_image()
    for engine in ("podman", "runc"):
        require("engine", engine)
    with tempfile.TemporaryDirectory() as place, docker_daemon(Path(place)) as host:
        engines = ("--engine", "docker", "--ablate", "podman", "--ablate", "runc")
        targets = [word for target in ("bare-metal", "container", "vm") for word in ("--target", target)]
        words = (*targets, *engines, "--model", model, "--steps", "4")
        found = agreements(tmp_path / "run", *words, env={"DOCKER_HOST": host})
    # Libraries choose their code by the CPU model, and an emulated CPU is a model of its own.
    assert found.pop((model, "vm")) in ("weights", "near")
    assert found == {(model, arm): "weights" for arm in ("container", "container+podman", "container+runc")}
