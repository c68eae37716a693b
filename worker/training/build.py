"""Builds what trains from a specification: network, data, numerics and the use of the devices."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from worker.data.batches import Batches, SyntheticBatches
from worker.spec import Spec
from worker.training.device import Device, numerics_of
from worker.training.parameter_cpu import ParameterCpu, Replicas
from worker.training.trainer import Messages, Single, Trainer, set_learning_rate
from worker.workloads.workload import Shape, Workload


def build_network(workload: Workload, shape: Shape, seed: int) -> torch.nn.Module:
    """Return the workload's network in training mode, with weights drawn from the seed; so is all that comes later."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    return workload.build(shape).train()


@contextmanager
def opened_batches(spec: Spec, rank: int = 0, epoch: int = 0) -> Iterator[list[Batches]]:
    """Open the batches of this process: of all devices, or for ``ddp`` of the one of its rank. Closed at the end.

    Open them before the network is built: the loader's processes are copies of this one. The first is that of an epoch.
    """
    parts = [rank] if spec.parallel == "ddp" else list(range(spec.devices))
    numerics = numerics_of(spec.recipe, spec.device, channels_last=spec.channels_last)
    batches: list[Batches] = []
    try:
        if spec.data:
            # Here and not above: a synthetic job has no use for what they import.
            from worker.data.loader import Loader, check_size, open_images

            images = open_images(spec.data)
            check_size(images, spec)
            for part in parts:
                reader = Loader(
                    spec,
                    spec.data,
                    images,
                    part,
                    numerics,
                    epoch,
                )
                batches.append(reader)
        else:
            batches += [SyntheticBatches(spec, part, numerics) for part in parts]
        yield batches
    finally:
        for loader in batches:
            loader.close()


def build_trainer(spec: Spec, devices: list[Device], batches: Sequence[Batches], rank: int = 0) -> Trainer:
    """Return the trainer of this process; for ``ddp`` that of one rank, inside an initialised process group."""
    trainer = _trainer(spec, devices, batches, rank)
    set_learning_rate(trainer, spec.learning_rate)
    return trainer


def _trainer(spec: Spec, devices: list[Device], batches: Sequence[Batches], rank: int) -> Trainer:
    numerics = numerics_of(spec.recipe, spec.device, channels_last=spec.channels_last)
    workload = spec.load_workload()
    network = build_network(workload, spec.shape, spec.seed)
    if spec.parallel == "parameter-cpu":
        replicas = Replicas.place(network, devices, numerics)
        return ParameterCpu(
            workload,
            network,
            devices,
            batches,
            numerics,
            replicas,
        )
    device = devices[rank]
    placed = numerics.place(network, device)
    if workload.compiles:
        placed = numerics.compile(placed)
    if workload.communicates:
        return Messages(workload, placed, device, batches[0], numerics)
    if spec.parallel == "ddp":
        device_ids = [device.torch] if device.is_cuda else None
        placed = DistributedDataParallel(placed, device_ids=device_ids)
    return Single(workload, placed, device, batches[0], numerics)
