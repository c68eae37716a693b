"""One rank of a small distributed job, as a program of its own: what the tests of distributed training start."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch

from worker.distributed import parameters
from worker.distributed.group import RankGroup, Report, joined
from worker.distributed.rank import MessagesWorker, ReplicasWorker, Worker, trainer_of
from worker.distributed.serve import serve
from worker.protocol import JobError
from worker.spec import Membership
from worker.training.device import Device, Numerics
from worker.training.measure import OwnMetrics
from worker.training.parameter_cpu import Replicas
from worker.training.step import Samples, Training
from worker.workloads.adversarial import GAN, GAN_PUBLISHED
from worker.workloads.collectives import COLLECTIVES
from worker.workloads.dcgan import DCGAN
from worker.workloads.vae import VAE
from worker.workloads.workload import LEARNING_RATE, Losses, Shape, Workload

GLOBAL_BATCH = 12


@dataclass(frozen=True)
class Given:
    """A batch that the test made."""

    batch: tuple[torch.Tensor, torch.Tensor]

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batch

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def taken_sha256(self) -> str:
        return ""

    def close(self) -> None: ...


class Tiny(Workload):
    """Nothing in it makes a batch differ from its parts: no statistics of batches, no dropout."""

    def build(self, shape: Shape) -> torch.nn.Module:
        del shape
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 50)
        )


class Large(Tiny):
    """Of 15 MB in few chunks: whatever happens to a rank that trains it, happens in the middle of a transfer."""

    def build(self, shape: Shape) -> torch.nn.Module:
        del shape
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 20_000))


class TwoOptimizers(Workload):
    """A user's workload: two layers, an optimizer for each, and a step that updates one after the other."""

    def build(self, shape: Shape) -> torch.nn.Module:
        del shape
        return torch.nn.ModuleDict({"one": torch.nn.Linear(28 * 28, 8), "two": torch.nn.Linear(8, 1)})

    def optimizers(self, network: torch.nn.Module) -> dict[str, torch.optim.Optimizer]:
        return {name: torch.optim.Adam(each.parameters(), lr=1e-3) for name, each in network.named_children()}

    def step(self, training: Training, images: torch.Tensor, labels: torch.Tensor) -> Losses:
        del labels
        one, two = (training.network.get_submodule(name) for name in ("one", "two"))
        loss = two(one(images.flatten(1)).tanh()).square().mean()
        loss.backward()
        for name in training.optimizers if self.losses else ():
            training.update(name)
        return {"loss": loss}


WORKLOADS = {
    "tiny": Tiny(name="tiny", sizes={}),
    "large": Large(name="large", sizes={}),
    "collectives": COLLECTIVES,
    "gan": GAN,
    "gan-published": GAN_PUBLISHED,
    "dcgan": DCGAN,
    "vae": VAE,
    "own": TwoOptimizers(name="own", sizes={}, unit="images"),
    "never updates": TwoOptimizers(name="never updates", sizes={}, losses=()),
}
SHAPE = Shape(28, 1)


def network_of(name: str, seed: int = 5) -> torch.nn.Module:
    """Return its network without statistics of batches, so that a batch does not differ from its parts."""
    torch.manual_seed(seed)
    network = WORKLOADS[name].build(SHAPE)
    for path, module in list(network.named_modules()):
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            parent, _, child = path.rpartition(".")
            setattr(network.get_submodule(parent), child, torch.nn.Identity())
    return network


def tiny_model() -> torch.nn.Module:
    return network_of("tiny")


def batch_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of all ranks together; of messages, a round for each of three."""
    if name == "collectives":
        return torch.zeros(3), torch.zeros(3)
    generator = torch.Generator().manual_seed(11)
    if isinstance(WORKLOADS[name], Tiny):
        images = torch.randn(GLOBAL_BATCH, 3, 8, 8, generator=generator)
        return images, torch.randint(50, (GLOBAL_BATCH,), generator=generator)
    return torch.rand(GLOBAL_BATCH, 1, 28, 28, generator=generator), torch.zeros(GLOBAL_BATCH)


@contextmanager
def drawing_part(rank: int, ranks: int) -> Iterator[None]:
    """Let ranks draw the parts of what one process would draw."""
    generator = torch.Generator().manual_seed(7)

    def randn(count: int, *sizes: int, **_: Any) -> torch.Tensor:
        return drawn(count * ranks, *sizes, generator=generator).chunk(ranks)[rank]

    drawn = torch.randn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", randn)
        patch.setattr(torch, "randn_like", lambda tensor: randn(*tensor.shape))
        yield


def happen(order: dict[str, Any]) -> None:
    """What the test wants to go wrong with this rank."""
    Path(order["weights"]).with_suffix(".fault").write_text(str(time.monotonic()))
    match order["fault"]:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "slow":
            time.sleep(order["fault_s"])
        case "out-of-memory":
            raise MemoryError("no more memory in the test")


def train(group: RankGroup, order: dict[str, Any]) -> dict[str, Any]:
    """Train on this worker's part of the batch; of a split GAN, on all of it."""
    membership, name = group.membership, order.get("workload", "tiny")
    workload, device, numerics = WORKLOADS[name], Device("cpu"), Numerics(**order.get("numerics", {}))
    is_split, rank = membership.strategy == "split", membership.rank - membership.servers
    number, of = (0, 1) if is_split else (rank, membership.workers)
    # Workers begin from different weights: it is the first one's that all of them must train.
    network, devices = network_of(name, 5 + number), order.get("devices", 1)
    parts = zip(*(tensor.chunk(of * devices) for tensor in batch_of(name)), strict=True)
    batches = [Given(part) for part in parts][number * devices : (number + 1) * devices]
    parameters.CHUNK_BYTES = 8 << 20 if name == "large" else 1024
    trainer: Worker | MessagesWorker | ReplicasWorker
    if devices > 1:
        replicas = Replicas.place(network, [device] * devices, numerics)
        trainer = ReplicasWorker(workload, network, [device] * devices, batches, numerics, replicas, group)
    else:
        trainer = trainer_of(group, workload, network, device, batches[0], numerics, SHAPE)
    own, samples = OwnMetrics(workload, trainer), Samples.allocate(order["steps"], trainer.phases, trainer.parts)
    buffers = dict(network.named_buffers())
    if workload.communicates:
        buffers["message"].fill_(membership.rank + 1)
    with drawing_part(number, of):
        for step in range(order["steps"]):
            if order.get("at_step") == step:
                happen(order)
            trainer.step(samples, step)
            if own.per_step:
                own.after_step()
    trainer.close()
    torch.save(network.state_dict(), order["weights"])
    return {
        "addresses": group.addresses,
        "losses": samples.lost(),
        "steps": samples.columns(),
        "metrics": own.columns(samples),
        **{key: torch.unique(buffer).tolist() for key, buffer in buffers.items()},
        **trainer.exchanged(),
    }


def take_part(order: dict[str, Any], report: Report) -> dict[str, Any]:
    membership = Membership(**order["distributed"])
    with joined(membership, report=report) as group:
        if "after_s" in order:
            Timer(order["after_s"], happen, [order]).start()
        if not membership.is_server:
            return train(group, order)
        return {**serve(group, learning_rate=LEARNING_RATE, threads=1)}


def main(order: dict[str, Any], pipe: Connection) -> None:
    """The process: what it says in the end is what it did, or why it could not and when it saw that."""
    torch.set_num_threads(1)
    begin_s = time.monotonic()

    def report(error: JobError | MemoryError) -> None:
        kind = error.kind if isinstance(error, JobError) else "out-of-memory"
        pipe.send({"kind": kind, "message": str(error), "began_s": begin_s, "failed_s": time.monotonic()})

    try:
        pipe.send(take_part(order, report))
    except (JobError, MemoryError) as error:
        report(error)
    pipe.close()
