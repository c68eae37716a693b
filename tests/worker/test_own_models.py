"""Models as people write them: each trains, or is refused with file, line, and what the contract wants."""

import json
from typing import Any

import pytest

from tests.worker.conftest import own_workload
from tests.worker.forked import worker

HEAD = """import torch
from torch import nn

from worker.workloads.workload import Workload


class Mine(Workload):
    def __init__(self):
        super().__init__(name="mine", sizes={"smoke": (4, 32)})

    def build(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000))
"""
BUILD = HEAD.index("    def build")
LINE = HEAD.count("\n") + 2
"""The line of the first method after ``HEAD``."""
TRAINS = {
    "lazy": "return nn.Sequential(nn.LazyConv2d(8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1000))",
    "scripted": "return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(3072, 1000)))",
    "spectral": "return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(3072, 1000)))",
}
"""The bodies of ``build``, by name."""
LOSS = """
    def loss(self, network, images, labels):
        return {}
"""
REFUSED = {
    "a tuple": (
        LOSS.format("torch.nn.functional.cross_entropy(network(images), labels), images"),
        f"TypeError: loss (mine.py, line {LINE}) returns a tuple: return one number, as a tensor",
    ),
    "no reduction": (
        LOSS.format("torch.nn.functional.cross_entropy(network(images), labels, reduction='none')"),
        f"TypeError: loss (mine.py, line {LINE}) returns 4 numbers: return one, such as their mean",
    ),
    "a plain number": (
        LOSS.format("float(network(images).mean())"),
        f"TypeError: loss (mine.py, line {LINE}) returns a float: return one number, as a tensor",
    ),
    "without a gradient": (
        LOSS.format("network(images).mean().detach()"),
        f"TypeError: loss (mine.py, line {LINE}) depends on no parameter that is trained",
    ),
    "a step of plain numbers": (
        "\n    def step(self, training, images, labels):\n        return {'loss': 0.5}\n",
        f"TypeError: step (mine.py, line {LINE}) returns a float as loss: return tensors, as loss.detach()",
    ),
    "a closure": (
        "\n    def optimizer(self, network):\n        return torch.optim.LBFGS(network.parameters())\n",
        f"TypeError: optimizer (mine.py, line {LINE}) returns LBFGS, whose step needs a closure",
    ),
    "a dictionary": (
        "\n    def draw(self, batch, shape, generator):\n"
        "        return {'ids': torch.zeros(4, 3, 32, 32)}, torch.zeros(4).long()\n",
        f"TypeError: draw (mine.py, line {LINE}) returns (dict, Tensor): return two tensors, inputs and labels",
    ),
}
"""What follows ``HEAD``, and how the message begins."""


def run(source: str, spec: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    given = own_workload(source, batch=4)
    given["plugin"]["file"] = "mine.py"
    given["workload"] = "own_tokens:Mine"
    status, events, _ = worker(json.dumps({**spec, "image_px": 32, **given}))
    return status, events[-1]


@pytest.mark.parametrize("name", TRAINS)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:Lazy modules:UserWarning")
def test_usual_forms_of_networks_train(name: str, spec: dict[str, Any]) -> None:
    source = f"{HEAD[:BUILD]}    def build(self, shape):\n        {TRAINS[name]}\n"
    status, last = run(source, spec)
    assert (status, last["event"]) == (0, "done"), last


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_step_cannot_use_is_named_with_file_line_and_contract(name: str, spec: dict[str, Any]) -> None:
    methods, message = REFUSED[name]
    status, last = run(HEAD + methods, spec)
    assert status == 1
    assert last["message"].startswith(message)


def test_labels_beyond_the_outputs_are_named_with_the_number_of_classes(spec: dict[str, Any]) -> None:
    status, last = run(HEAD.replace("1000", "10"), spec)
    assert status == 1
    assert "(mine.py, line 11) returns a network with 10 outputs, and labels are drawn from 1000" in last["message"]


def test_a_network_that_is_frozen_whole_names_its_build(spec: dict[str, Any]) -> None:
    frozen = HEAD.replace("nn.Linear(3 * 32 * 32, 1000))", "nn.Linear(3 * 32 * 32, 1000)).requires_grad_(False)")
    status, last = run(frozen, spec)
    assert status == 1
    assert "build (mine.py, line 11) returns a network without a parameter that is trained" in last["message"]
