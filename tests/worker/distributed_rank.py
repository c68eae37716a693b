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
from worker.distributed.rank import opened_trainer
from worker.distributed.serve import serve
from worker.protocol import JobError
from worker.spec import Membership
from worker.training.device import Device, Numerics
from worker.training.measure import OwnMetrics
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


def tiny_model(seed: int = 5) -> torch.nn.Module:
    """Nothing in it makes a batch differ from its parts: no statistics of batches, no dropout."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 50)
    )


def global_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(GLOBAL_BATCH, 3, 8, 8, generator=generator), torch.randint(
        50, (GLOBAL_BATCH,), generator=generator
    )


def part_of(worker: int, workers: int) -> Given:
    images, labels = (tensor.chunk(workers)[worker] for tensor in global_batch())
    return Given((images, labels))


def fault(order: dict[str, Any], step: int) -> None:
    """What the test wants to go wrong with this rank at this step."""
    if order.get("at_step") == step:
        happen(order)


def happen(order: dict[str, Any]) -> None:
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


def large_model() -> torch.nn.Module:
    """Of 15 MB in few chunks: whatever happens to a rank that trains it, happens in the middle of a transfer."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 20_000))


WORKLOAD = Workload(name="tiny", sizes={})


def work(group: RankGroup, order: dict[str, Any]) -> dict[str, Any]:
    number, workers = group.membership.rank - group.membership.servers, group.membership.workers
    # Workers begin from different weights: it is the first one's that all of them must train.
    model = large_model() if order.get("large") else tiny_model(5 + number)
    devices, numerics = [Device("cpu")] * order.get("devices", 1), Numerics(**order.get("numerics", {}))
    batches = [part_of(number * len(devices) + part, workers * len(devices)) for part in range(len(devices))]
    losses = []
    parameters.CHUNK_BYTES = 8 << 20 if order.get("large") else 1024
    replicas = "devices" in order
    opened = opened_trainer(group, WORKLOAD, model, devices, batches, numerics, Shape(8, 3), replicas=replicas)
    with opened as trainer:
        samples = Samples.allocate(order["steps"], trainer.phases)
        for step in range(order["steps"]):
            fault(order, step)
            trainer.step(samples, step)
            losses.append(trainer.loss())
    torch.save([parameter.detach().clone() for parameter in model.parameters()], order["weights"])
    return {
        "losses": losses,
        "steps": samples.columns(),
        **trainer.exchanged(),
    }


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
    "gan": GAN,
    "gan-published": GAN_PUBLISHED,
    "dcgan": DCGAN,
    "vae": VAE,
    "own": TwoOptimizers(name="own", sizes={}, unit="images"),
    "never updates": TwoOptimizers(name="never updates", sizes={}, losses=()),
}
OF_IMAGES = Shape(28, 1)


def of_images(workload: Workload) -> torch.nn.Module:
    """Return its network without statistics of batches, so that a batch does not differ from its parts."""
    torch.manual_seed(5)
    network = workload.build(OF_IMAGES)
    for name, module in list(network.named_modules()):
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, torch.nn.Identity())
    return network


def images_of(rank: int, ranks: int) -> Given:
    generator = torch.Generator().manual_seed(11)
    images = torch.rand(GLOBAL_BATCH, 1, 28, 28, generator=generator)
    return Given((images.chunk(ranks)[rank], torch.zeros(GLOBAL_BATCH // ranks)))


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


def train_images(group: RankGroup, order: dict[str, Any]) -> dict[str, Any]:
    """Train a workload with a step of its own, on this rank's part of the batch; of a split GAN, on all of it."""
    workload, membership = WORKLOADS[order["workload"]], group.membership
    part = (0, 1) if membership.strategy == "split" else (membership.rank, membership.world)
    network, batches = of_images(workload), images_of(*part)
    with drawing_part(*part):
        opened = opened_trainer(group, workload, network, [Device("cpu")], [batches], Numerics(), OF_IMAGES)
        with opened as trainer:
            samples = Samples.allocate(order["steps"], trainer.phases, trainer.parts)
            for step in range(order["steps"]):
                fault(order, step)
                trainer.step(samples, step)
    torch.save(network.state_dict(), order["weights"])
    return {"losses": samples.lost(), "steps": samples.columns(), **trainer.exchanged()}


def exchange_messages(group: RankGroup, order: dict[str, Any]) -> dict[str, Any]:
    """Take steps of the workload ``collectives``, a round each."""
    network = COLLECTIVES.build(Shape(0, 3))
    batches = Given((torch.zeros(1), torch.zeros(1)))
    with opened_trainer(group, COLLECTIVES, network, [Device("cpu")], [batches], Numerics(), Shape(0, 3)) as trainer:
        own, samples = OwnMetrics(COLLECTIVES, trainer), Samples.allocate(order["steps"], trainer.phases)
        network.get_buffer("message").fill_(group.membership.rank + 1)
        for step in range(order["steps"]):
            trainer.step(samples, step)
            own.after_step()
    buffers = {name: torch.unique(network.get_buffer(name)).tolist() for name in ("message", "landing")}
    return {"steps": samples.columns(), "metrics": own.columns(samples), **buffers, **trainer.exchanged()}


def take_part(order: dict[str, Any], report: Report) -> dict[str, Any]:
    membership = Membership(**order["distributed"])
    with joined(membership, report=report) as group:
        if "after_s" in order:
            Timer(order["after_s"], happen, [order]).start()
        if order.get("collectives"):
            return exchange_messages(group, order)
        if order.get("workload"):
            return train_images(group, order)
        if not membership.is_server:
            return {**work(group, order), "addresses": group.addresses}
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
