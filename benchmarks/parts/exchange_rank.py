"""One rank of ``parameter_server.py``, which sends it this file on standard input, and a request as its only word.

It is one file so that it runs wherever the image does: what torch.distributed.rpc calls from afar is ``update`` of the
main module on both sides.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed
from torch.distributed import rpc

from worker.distributed.exchange import Exchange
from worker.distributed.group import RankGroup, joined
from worker.distributed.parameters import Parameters
from worker.distributed.serve import serve
from worker.spec import Membership
from worker.training.build import build_network
from worker.workloads.classifier import RESNET50
from worker.workloads.workload import Shape

ELEMENTS = 25_557_040  # ResNet-50's 25,557,032 in whole lines
LEARNING_RATE = 0.01
Way = Callable[[RankGroup, int], list[float]]
"""A way to exchange: takes so many steps and returns the seconds of each; none on a server."""


class Server:
    """The server of torch's own tutorial (``BatchUpdateParameterServer``): parameters, and the gradients so far."""

    def __init__(self, elements: int, workers: int) -> None:
        self.values = torch.zeros(elements)
        self.workers = workers
        self._sum = torch.zeros(elements)
        self._came = 0
        self._lock = threading.Lock()
        self._future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def update(self, gradients: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        """Answer every worker with the parameters once all gradients have come."""
        with self._lock:
            self._sum += gradients
            self._came += 1
            future = self._future
            if self._came == self.workers:
                self.values.add_(self._sum, alpha=-LEARNING_RATE / self.workers)
                self._sum.zero_()
                self._came = 0
                self._future = torch.futures.Future()
                future.set_result(self.values)
        return future


SERVERS: list[Server] = []
"""The server of this process, where a function that is called from afar finds it."""


@rpc.functions.async_execution  # type: ignore[untyped-decorator, unused-ignore]
def update(gradients: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
    return SERVERS[0].update(gradients)


def rpc_exchange(gradients: torch.Tensor) -> torch.Tensor:
    answer: torch.Tensor = rpc.rpc_sync("rank0", update, args=(gradients,))
    return answer


@contextmanager
def joined_by_rpc(membership: Membership) -> Iterator[None]:
    os.environ["TP_SOCKET_IFNAME"] = membership.interface
    if membership.is_server:
        SERVERS.append(Server(ELEMENTS, membership.workers))
    place = f"tcp://{membership.master}:{membership.port + 1}"
    # By TCP only: the nodes stand for machines, and TensorPipe sees that they are one and goes around their links.
    by_tcp: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(init_method=place, rpc_timeout=600, **by_tcp)
    name = f"rank{membership.rank}"
    rpc.init_rpc(name, rank=membership.rank, world_size=membership.world, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    failed = True
    try:
        yield
        failed = False
    finally:
        rpc.shutdown(graceful=not failed)  # type: ignore[no-untyped-call, unused-ignore]


class Ready(Parameters):
    """Parameters whose gradients are all there at once: nothing but the exchange is left of a step."""

    def __init__(self) -> None:
        super().__init__(torch.nn.ParameterList([torch.zeros(ELEMENTS)]))

    def expect(self) -> None: ...

    def complete(self) -> None:
        for number in range(len(self._pending)):
            self._on_chunk(number)


class Training:
    """ResNet-50 on one batch of noise: the passes of a step without the exchange."""

    def __init__(self, batch: int, image_px: int) -> None:
        self.model = build_network(RESNET50, Shape(image_px, 3), seed=0)
        self._images = torch.randn(batch, 3, image_px, image_px)
        self._labels = torch.randint(0, 1000, (batch,))
        self._criterion = torch.nn.CrossEntropyLoss()

    def passes(self) -> None:
        self._criterion(self.model(self._images), self._labels).backward()


MakeTraining = Callable[[], Training | None]
"""A new model for every turn: what the suite hangs on the parameters of one stays there. None: no training."""


def timed(steps: int, step: Callable[[], object]) -> list[float]:
    taken_s = []
    for _ in range(steps):
        begin_s = time.monotonic()
        step()
        taken_s.append(time.monotonic() - begin_s)
    return taken_s


def suite(group: RankGroup, steps: int, chunk_bytes: int, train: MakeTraining) -> list[float]:
    """Exchange in the suite's own way. What is needed only once (the first parameters) is in no step's time."""
    if group.membership.is_server:
        serve(group, learning_rate=LEARNING_RATE, threads=torch.get_num_threads())
        return []
    training = train()
    exchange = Exchange(group, Parameters(training.model) if training else Ready(), chunk_bytes)

    def step() -> None:
        exchange.begin()
        if training:
            training.passes()
        exchange.finish()

    taken_s = timed(steps, step)
    exchange.close()
    return taken_s


def by_rpc(group: RankGroup, steps: int, train: MakeTraining) -> list[float]:
    """torch.distributed.rpc's own pattern; its server answers beside the main thread."""
    if group.membership.is_server:
        return []
    training = train()
    gradients = torch.zeros(ELEMENTS)
    parameters = list(training.model.parameters()) if training else []
    sizes = [each.numel() for each in parameters]

    def step() -> None:
        if training is None:
            rpc_exchange(gradients)
            return
        training.passes()
        flat = torch.cat([each.grad.flatten() for each in parameters if each.grad is not None])
        gradients[: len(flat)].copy_(flat)
        values = rpc_exchange(gradients)
        with torch.no_grad():
            for each, part in zip(parameters, torch.split(values[: len(flat)], sizes), strict=True):
                each.copy_(part.view_as(each))
                each.grad = None

    return timed(steps, step)


def reduce_and_broadcast(group: RankGroup, steps: int) -> list[float]:
    values, gradients = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)

    def step() -> None:
        distributed.reduce(gradients, dst=0)
        if group.membership.is_server:
            values.add_(gradients, alpha=-LEARNING_RATE / group.membership.workers)
        distributed.broadcast(values, src=0)

    return timed(steps, step)


def send_and_receive(group: RankGroup, steps: int) -> list[float]:
    values, gradients = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)

    def step() -> None:
        if not group.membership.is_server:
            distributed.send(gradients, 0)
            distributed.recv(values, 0)
            return
        for rank in group.membership.worker_ranks:
            distributed.recv(gradients, rank)
            values.add_(gradients, alpha=-LEARNING_RATE / group.membership.workers)
        for rank in group.membership.worker_ranks:
            distributed.send(values, rank)

    return timed(steps, step)


def all_reduce(_: RankGroup, steps: int) -> list[float]:
    """Reduce the gradients of all ranks, the server's too."""
    gradients = torch.zeros(ELEMENTS)
    return timed(steps, lambda: distributed.all_reduce(gradients) and None)


def ways_of(request: Mapping[str, Any]) -> dict[str, Way]:
    def train() -> Training | None:
        return Training(request["batch"], request["image_px"]) if request["batch"] else None

    ways: dict[str, Way] = {
        f"suite, chunks of {size / 2**20:g} MiB": lambda group, steps, size=size: suite(group, steps, size, train)  # type: ignore[misc]
        for size in request["chunk_bytes"]
    }
    ways["rpc"] = lambda group, steps: by_rpc(group, steps, train)
    if request["plain"]:
        ways |= {"reduce, broadcast": reduce_and_broadcast, "send, receive": send_and_receive, "all-reduce": all_reduce}
    return ways


def main() -> None:
    """Print the seconds of every step, by way and round. The ways take turns, every other time in opposite order."""
    request = json.loads(sys.argv[1])
    membership = Membership(**request["distributed"])
    torch.set_num_threads(1)
    taken_s: dict[str, list[list[float]]] = {}
    with joined(membership) as group, joined_by_rpc(membership):
        ways = list(ways_of(request).items())
        for number in range(request["rounds"] + 1):
            for name, way in ways[:: -1 if number % 2 else 1]:
                distributed.barrier()
                each_s = way(group, request["steps"])
                if number:  # the first round warms up
                    taken_s.setdefault(name, []).append(each_s)
    sys.stdout.write(json.dumps(taken_s) + "\n")


if __name__ == "__main__":
    main()
