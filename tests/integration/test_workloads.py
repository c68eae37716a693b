"""Every workload in every scenario that it declares, on bare metal or in a container: what comes back, and holds."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from suite.registries import WORKLOADS
from tests.integration.bench import SMALL, bench, measured, on, records_in, some
from tests.integration.machine import require, require_fast_guests, require_image, require_root_and_image

pytestmark = pytest.mark.integration
TARGETS = ("bare-metal", "container")
WORDS: Mapping[str, tuple[str, ...]] = {
    "synthetic": (),
    "real": (),
    "shared": ("--aggressor", "memory"),
    "distributed": ("--workers", "2", "--strategy", "all-reduce"),
}
"""Each scenario that trains, and what it is asked for besides."""
SOME = {"synthetic": ("vae",), "real": ("dcgan",), "shared": ("gan",), "distributed": ("dcgan",)}
"""The workloads that make test trains in each scenario, on both targets; make test-all trains all of them."""


def declaring(scenario: str) -> list[str]:
    """Return the workloads that can be trained in the scenario."""
    own = {name: WORKLOADS.get(name) for name in WORKLOADS.own}
    known = [name for name, one in own.items() if not one.scenarios or scenario in one.scenarios]
    return [name for name in known if own[name].has_images] if scenario == "real" else known


@pytest.fixture
def data(scenario: str, tmp_path: Path) -> tuple[str, ...]:
    """Return the words that name a data set, where the scenario reads one."""
    if scenario != "real":
        return ()
    directory = tmp_path / "set"
    bench("data", "make", "--format", "cifar10", "--images", "256", "--out", str(directory))
    return ("--data", f"cifar10:{directory}")


def trained(run: Path, scenario: str, models: Sequence[str], targets: Sequence[str], data: Sequence[str]) -> None:
    """Train the workloads on the targets, and check what the records hold."""
    require_root_and_image()
    require("engine", "runc")
    words = [word for name in models for word in ("--model", name)]
    words += [*on(*targets), *WORDS[scenario]]
    found = measured(run, "--scenario", scenario, *words, *data, *SMALL)
    assert {(record.job.model, record.target) for record in found} == set(product(models, targets))
    for record in found:
        workload = WORKLOADS.get(record.job.model)
        assert record.job.unit == workload.unit
        assert record.throughput_per_s
        assert record.weights_sha256 or workload.communicates
        if scenario == "real":
            assert some(record.epochs).scaled_share
            assert "epoch-scaled" in record.metrics
        if record.steps:
            assert tuple(record.steps.phases) == workload.phases
            assert tuple(record.steps.losses) == workload.losses
    bench("audit", str(run))


@pytest.mark.parametrize(
    "scenario",
    ["synthetic", "real", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("shared", "distributed"))],
)
def test_bare_metal_and_a_container_compute_the_same_weights(
    scenario: str, data: tuple[str, ...], tmp_path: Path
) -> None:
    generate = ("--generate", "16") if scenario == "real" else ()
    trained(tmp_path / "run", scenario, SOME[scenario], TARGETS, (*data, *generate))
    found = agreements(tmp_path / "run")
    assert set(found.values()) == {"weights"}
    # On bare metal a victim may use all CPUs: each is held against its target alone.
    arms = [f"{target}-beside-memory" for target in TARGETS] if scenario == "shared" else ["container"]
    assert set(product(SOME[scenario], arms)) <= set(found)
    images = {record.generated for record in records_in(tmp_path / "run")}
    assert len(images) == 1, "the same weights, and the same image"
    assert bool(*images) == bool(generate)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("scenario", "target"), list(product(WORDS, TARGETS)))
def test_every_workload_of_a_scenario_runs(scenario: str, target: str, data: tuple[str, ...], tmp_path: Path) -> None:
    trained(tmp_path / "run", scenario, declaring(scenario), (target,), data)


def agreements(run: Path) -> dict[tuple[str, str], str]:
    """Return how each model on each arm of a run agrees with bare metal, or a victim with its target alone."""
    compared = json.loads(bench("compare", str(run), "--json").stdout)
    return {(of["model"], one["arm"]): one["kind"] for of in compared["groups"] for one in of["same_work"]}


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("model", declaring("synthetic"))
def test_three_engines_compute_the_weights_of_bare_metal_and_a_vm_those_or_near_losses(
    model: str, tmp_path: Path
) -> None:
    require_fast_guests()
    require_image()
    for engine in ("podman", "runc"):
        require("engine", engine)
    words = ["--target", "bare-metal", "--target", "container", "--target", "vm", "--engine", "docker"]
    words += ["--ablate", "podman", "--ablate", "runc", "--model", model]
    # An emulated progressive GAN takes more than the profile's ten minutes.
    few = ("--steps", "4", "--profile", "smoke", "--trial-timeout", "1500")
    measured(tmp_path / "run", *words, *few, timeout_s=1700)
    found = agreements(tmp_path / "run")
    # Libraries choose their code by the CPU model, and an emulated CPU is a model of its own.
    assert found.pop((model, "vm")) in ("weights", "near")
    assert found == {(model, arm): "weights" for arm in ("container", "container+podman", "container+runc")}
