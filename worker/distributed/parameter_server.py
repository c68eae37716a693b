"""A worker of parameter servers."""

import torch

from worker.data.batches import Batches
from worker.distributed.exchange import Exchange
from worker.distributed.step import Worker
from worker.training.device import Device
from worker.training.numerics import Numerics
from worker.workloads.workload import Workload


class ParameterServerWorker(Worker):
    """A step has ended when the updated parameters are there."""

    def __init__(
        self,
        workload: Workload,
        network: torch.nn.Module,
        device: Device,
        batches: Batches,
        numerics: Numerics,
        exchange: Exchange,
    ) -> None:
        super().__init__(workload, network, device, batches, numerics)
        self._exchange = exchange

    @property
    def bytes_sent(self) -> int:
        return self._exchange.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._exchange.bytes_received

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        self._exchange.begin()
        self.passes(batch)
        self._exchange.finish()
        return self._exchange.busy_s
