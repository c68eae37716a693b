"""Kept models: said after the training, in the format of a served model, and no larger than a line may be."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import torch

from suite.registries import WORKLOADS
from tests.worker.forked import worker
from tests.worker.test_distributed import free_port
from tests.worker.test_epochs import EPOCHS, directory, epochs
from worker.protocol import JobError
from worker.serving.generator import read_model
from worker.spec import parse_spec
from worker.training.build import build_network
from worker.training.keeping import ModelKeeper
from worker.weights import weights_sha256
from worker.workloads.workload import Shape

__all__ = ["directory", "epochs"]


def models_of(given: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    status, events, said = worker(json.dumps(given))
    assert status == 0, (events[-1], said)
    return [event for event in events if event["event"] == "model"], [event["event"] for event in events]


@pytest.fixture
def last(spec: dict[str, Any]) -> dict[str, Any]:
    sizes = {"batch": 2, "image_px": 28, "channels": 1}
    return {**spec, **sizes, "workload": WORKLOADS.place("gan"), "keep_model": "last"}


def test_the_last_model_is_that_of_the_trained_generator(last: dict[str, Any], tmp_path: Path) -> None:
    (model,), names = models_of({**last, "generate": 1})
    assert names[-5:] == ["steps", "model", "generating", "generated", "done"]
    assert model["epoch"] is None
    file = tmp_path / "model.pt"
    file.write_bytes(b64decode(model["text"], validate=True))
    network = build_network(WORKLOADS.get("gan"), Shape(28, 1), 5).get_submodule("generator")
    assert weights_sha256(network) != model["weights_sha256"]
    read_model(network, file, Shape(28, 1))
    assert weights_sha256(network) == model["weights_sha256"]


def test_keeping_changes_no_weights(last: dict[str, Any]) -> None:
    def weights(given: dict[str, Any]) -> object:
        return next(event for event in worker(json.dumps(given))[1] if event["event"] == "steps")["weights_sha256"]

    assert weights(last) == weights({**last, "keep_model": None})


def test_each_epoch_has_a_model_of_its_own(epochs: dict[str, Any]) -> None:
    models, names = models_of({**epochs, "keep_model": "each"})
    assert [model["epoch"] for model in models] == [*range(1, EPOCHS + 1)]
    assert len({model["weights_sha256"] for model in models}) == EPOCHS
    training_s = [model["training_s"] for model in models]
    assert training_s == sorted(training_s)
    assert names.index("measured") < names.index("model"), "while steps are measured nothing is said"


@pytest.mark.parametrize("name", ["gan", "vae"])
def test_a_distributed_job_keeps_a_generator_too(name: str, last: dict[str, Any], tmp_path: Path) -> None:
    place = {"master": "127.0.0.1", "port": free_port(), "interface": "lo", "timeout_s": 10.0}
    membership = {"strategy": "all-reduce", "rank": 0, "workers": 1, "servers": 0, **place}
    (model,), _ = models_of({**last, "workload": WORKLOADS.place(name), "distributed": membership})
    file = tmp_path / "model.pt"
    file.write_bytes(b64decode(model["text"]))
    workload = WORKLOADS.get(name)
    generator = build_network(workload, Shape(28, 1), 5).get_submodule(workload.image_network)
    read_model(generator, file, Shape(28, 1))
    assert weights_sha256(generator) == model["weights_sha256"]
    served = build_network(workload, Shape(28, 1), 6)
    read_model(served, file, Shape(28, 1), workload.image_network)
    assert weights_sha256(served.get_submodule(workload.image_network)) == model["weights_sha256"], "a service takes it"


def keeper(last: dict[str, Any], network: torch.nn.Module, **changes: Any) -> ModelKeeper:
    return ModelKeeper(parse_spec(json.dumps({**last, **changes})), network)


def test_a_model_that_no_line_holds_is_refused_before_the_first_step_with_the_arithmetic(last: dict[str, Any]) -> None:
    large = torch.nn.ModuleDict({"generator": torch.nn.Linear(1 << 13, 1 << 10)})
    with pytest.raises(JobError, match=r"1 models of 42\.7 MiB are 42\.7 MiB as text; one may have 31 MiB") as refused:
        keeper(last, large)
    assert refused.value.kind == "model"


def test_more_models_than_a_job_may_say_are_refused(epochs: dict[str, Any]) -> None:
    network = torch.nn.ModuleDict({"generator": torch.nn.Linear(1 << 11, 1 << 11)})
    keeper(epochs, network, keep_model="last")
    with pytest.raises(JobError, match=r"3 models of 21\.3 MiB are 64\.0 MiB as text"):
        keeper(epochs, network, keep_model="each")


@pytest.mark.parametrize(
    "change", [{"keep_model": "each"}, {"workload": WORKLOADS.place("alexnet"), "image_px": 64, "channels": None}]
)
def test_what_has_no_such_model_is_refused(change: dict[str, Any], last: dict[str, Any]) -> None:
    status, events, _ = worker(json.dumps({**last, **change}))
    assert status != 0
    assert "keep_model" in events[-1]["message"]
