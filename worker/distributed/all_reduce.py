"""A worker among equals: DistributedDataParallel, as people use it."""

import torch
from torch.nn.parallel import DistributedDataParallel

from worker.data.batches import Batches
from worker.distributed.last_gradient import LastGradient
from worker.distributed.step import Worker
from worker.training.device import Device
from worker.training.numerics import Numerics
from worker.workloads.workload import Workload


class AllReduceWorker(Worker):
    """DistributedDataParallel. What is reduced while the backward pass still computes is not told from it.

    A rank's bytes are those of a ring over all ranks, which is what gloo does; they are reckoned and not counted.
    """

    def __init__(
        self,
        workload: Workload,
        network: torch.nn.Module,
        device: Device,
        batches: Batches,
        numerics: Numerics,
        world: int,
    ) -> None:
        self._last = LastGradient(network.parameters(), device)
        # Statistics of batches stay with each worker, as they do with parameter servers and in tf_cnn_benchmarks.
        parallel = DistributedDataParallel(
            network,
            device_ids=[device.torch] if device.is_cuda else None,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,
        )
        super().__init__(workload, numerics.compile(parallel), device, batches, numerics)
        self._optimizer = workload.optimizer(network)
        self._steps = 0
        gradient_bytes = sum(each.nbytes for each in network.parameters() if each.requires_grad)
        self._step_bytes = 2 * (world - 1) * gradient_bytes // world

    @property
    def bytes_sent(self) -> int:
        return self._steps * self._step_bytes

    @property
    def bytes_received(self) -> int:
        return self._steps * self._step_bytes

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        self.passes(batch)
        self._last.reduced()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.device.synchronize()
        self._steps += 1
        return self._last.exposed_s()
