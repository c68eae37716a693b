"""What trains on a worker's rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from worker.data.batches import Batches
from worker.distributed.all_reduce import AllReduceWorker
from worker.distributed.exchange import Exchange
from worker.distributed.group import Group
from worker.distributed.parameter_server import ParameterServerWorker
from worker.distributed.parameters import Parameters
from worker.distributed.partition import CHUNK_BYTES
from worker.training.device import Device
from worker.training.numerics import Numerics
from worker.training.trainer import Trainer
from worker.workloads.workload import Workload


class DistributedTrainer(Trainer, Protocol):
    """A trainer that counts what it exchanges: the payload of gradients and parameters since its beginning."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...


@contextmanager
def opened_trainer(
    group: Group,
    workload: Workload,
    network: torch.nn.Module,
    device: Device,
    batches: Batches,
    numerics: Numerics,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[DistributedTrainer]:
    """Open the trainer of a worker's rank. Its servers are told of the end, unless the body failed."""
    placed = numerics.place(network, device)
    if group.cluster.strategy == "all-reduce":
        yield AllReduceWorker(workload, placed, device, batches, numerics, group.cluster.world)
        return
    exchange = Exchange(group, Parameters(placed), chunk_bytes)
    yield ParameterServerWorker(workload, numerics.compile(placed), device, batches, numerics, exchange)
    exchange.close()
