"""The nodes and trials of the scenarios' tests: the worker's tests run it on the same ones. And small trainings."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from provisioning.machines.ssh import free_port
from suite.registries import DATA_KINDS, WORKLOADS
from tests.scenarios.conftest import fails, here, observer, scripted, spec, trial
from tests.worker.forked import worker
from worker.data.sets import steps_of_epoch
from worker.protocol import Events

__all__ = ["fails", "here", "observer", "scripted", "spec", "trial"]
IMAGES, BATCH, EPOCHS = 42, 4, 3
STEPS = steps_of_epoch(IMAGES, BATCH)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Train on one thread in this process: two that wait for each other on busy CPUs spin in vain."""
    torch.set_num_threads(1)


@contextmanager
def saying() -> Iterator[tuple[Events, list[dict[str, Any]]]]:
    """What a worker writes its events with, and what it wrote once the block has ended."""
    reading, writing = os.pipe()
    said: list[dict[str, Any]] = []
    try:
        yield Events(writing), said
    finally:
        os.close(writing)
        with os.fdopen(reading) as lines:
            said.extend(json.loads(line) for line in lines)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST in its true format, of a few images."""
    place = tmp_path_factory.mktemp("data")
    raw = place / "MNIST/raw"
    raw.mkdir(parents=True)
    pixels = torch.randint(0, 256, (IMAGES, 28, 28), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    for part in ("train", "t10k"):
        header = bytes((0, 0, 8, 3)) + b"".join(side.to_bytes(4, "big") for side in (IMAGES, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.numpy().tobytes())
        labels = bytes((0, 0, 8, 1)) + IMAGES.to_bytes(4, "big") + bytes(number % 10 for number in range(IMAGES))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return place


@pytest.fixture
def epochs(spec: dict[str, Any], directory: Path) -> dict[str, Any]:
    data = {"kind": DATA_KINDS.place("mnist"), "directory": str(directory), "loader_workers": 1, "decoder": "auto"}
    sizes = {"batch": BATCH, "image_px": 28, "channels": 1, "warmup_steps": 0, "steps": EPOCHS * STEPS}
    return {**spec, **sizes, "workload": WORKLOADS.place("gan"), "data": data, "epochs": EPOCHS}


@pytest.fixture
def last(spec: dict[str, Any]) -> dict[str, Any]:
    sizes = {"batch": 2, "image_px": 28, "channels": 1}
    return {**spec, **sizes, "workload": WORKLOADS.place("gan"), "keep_model": "last"}


@pytest.fixture
def double() -> Iterator[None]:
    """Compute in doubles but for losses: Adam makes whole steps of gradients that are nothing but rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


SMALL = """
import sys
from worker.workloads.workload import Workload

class Small(Workload):
    def draw(self, batch, shape, generator):
        print("draws from", generator.initial_seed(), file=sys.stderr)
        return super().draw(batch, shape, generator)

    def build(self, shape):
        from torch import nn
        side = shape.px - 2
        return nn.Sequential(nn.Conv2d(shape.channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * side**2, 1000))

TOKENS = Small(name="small", unit="images", sizes={"smoke": (2, 16)})
"""
"""A user's classifier of few parameters, which shows from which seed each device draws its images."""


def own_workload(source: str = SMALL, **change: object) -> dict[str, Any]:
    """Return the changes by which a specification has a workload of the user's own."""
    digest = hashlib.sha256(source.encode()).hexdigest()
    plugin = {"module": "own_tokens", "source": source, "sha256": digest, "file": "tokens.py"}
    return {"workload": "own_tokens:TOKENS", "plugin": plugin, **change}


class Code:
    """What a file would run, if it were loaded as Python objects are: it makes a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.directory,)


def ranks(given: dict[str, Any], strategy: str, workers: int, servers: int, **of_workers: Any) -> list[Any]:
    """Run all ranks of a distributed job to their good ends; return the events and the standard error of each."""
    place = {"strategy": strategy, "workers": workers, "servers": servers, "master": "127.0.0.1", "port": free_port()}
    orders = [
        {**given, **(of_workers if rank >= servers else {}), "distributed": {**place, "rank": rank, "interface": "lo"}}
        for rank in range(workers + servers)
    ]
    with ThreadPoolExecutor(len(orders)) as pool:
        said = [*pool.map(worker, map(json.dumps, orders))]
    assert not any(status for status, *_ in said), said
    return [rest for _, *rest in said]
