"""Trains every built-in workload for a few steps, and prints the digests of what it has drawn and of its weights.

A program of its own: the instruction set of torch is chosen by the environment, when it starts.
"""

import json
import sys
from typing import Any

import torch

from suite.registries import WORKLOADS
from worker.spec import Spec, parse_spec
from worker.training.build import build_network, build_trainer, opened_batches
from worker.training.device import Device
from worker.training.step import Samples
from worker.weights import drawn_sha256, weights_sha256

STEPS = 2


def spec_of(model: str, **changes: Any) -> Spec:
    """Return a small job of a workload."""
    workload = WORKLOADS.get(model)
    size = workload.sizes["smoke"]
    batch, extent = (size, None) if isinstance(size, int) else size
    values = {
        "workload": WORKLOADS.place(model),
        "batch": batch,
        workload.extent: extent,
        "depth": workload.depth.get("smoke"),
        "channels": workload.channels,
        "warmup_steps": 0,
        "steps": STEPS,
        "threads": 1,
        "recipe": "reference",
        "seed": 3,
        "device": "cpu",
        "devices": 1,
        "parallel": "none",
    }
    if workload.communicates and "distributed" not in changes:
        values |= {"threads": 2, "devices": 2, "parallel": "ddp"}
    values |= changes
    return parse_spec(json.dumps({name: value for name, value in values.items() if value is not None}))


def digests(model: str, steps: int = STEPS, **changes: Any) -> tuple[str, str | None]:
    """Return the digest of what a training has drawn and, where it can train alone, of its weights."""
    torch.set_num_threads(1)
    spec = spec_of(model, **changes)
    with opened_batches(spec) as batches:
        workload = spec.load_workload()
        if workload.communicates:  # what its ranks exchange is not drawn
            network = build_network(workload, spec.shape, spec.seed)
            for _ in range(steps):
                batches[0].next()
        else:
            trainer = build_trainer(spec, [Device("cpu")], batches)
            network, samples = trainer.network, Samples.allocate(steps, trainer.phases, trainer.parts)
            for index in range(steps):
                trainer.step(samples, index)
        drawn = drawn_sha256([each.taken_sha256() for each in batches], network, torch.device("cpu"))
        return drawn, weights_sha256(network)


if __name__ == "__main__":
    json.dump({model: digests(model) for model in sys.argv[1:]}, sys.stdout)
