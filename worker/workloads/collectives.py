"""Collective operations as a workload: the latency and the bus bandwidth of messages between workers, by their size.

Bus bandwidth is that of nccl-tests (doc/PERFORMANCE.md): the bytes of the message over its time, times 2(n-1)/n for
all-reduce, and 1 for broadcast and send/receive. So it can be held against the rate of a link for any n.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from worker.workloads.workload import Shape, Workload, WorkloadMetric

if TYPE_CHECKING:
    import torch

MESSAGES = {f"{size}KiB": size << 10 for size in (4, 32, 256)} | {f"{size}MiB": size << 20 for size in (2, 16, 64)}
CALLS = 20
"""The calls that are timed together on a GPU, where launching a small one, and waiting for it, takes as long as it."""
EXCHANGES = tuple(product(("all-reduce", "broadcast", "point-to-point"), MESSAGES))


@dataclass(frozen=True, kw_only=True)
class Collectives(Workload):
    """Exchanges every message in each round of a batch, one at a time: each begins at a barrier.

    Its time is that of the slowest worker. Point to point, each worker sends to the next one and receives from the one
    before, as in sendrecv_perf of nccl-tests.
    """

    def draw(self, batch: int, shape: Shape, generator: "torch.Generator") -> "tuple[torch.Tensor, torch.Tensor]":
        del shape, generator
        import torch

        return torch.zeros(batch), torch.zeros(batch)

    def build(self, shape: Shape) -> "torch.nn.Module":
        """Return what is sent, and where it is received: no parameters."""
        del shape
        import torch

        network = torch.nn.Module()
        for name in ("message", "landing"):
            longest = max(MESSAGES.values())
            network.register_buffer(name, torch.zeros(longest // 4), persistent=False)
        return network

    def loss(self, network: "torch.nn.Module", images: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        """Exchange all messages. Returns their median seconds, which ``after_step`` reads from the network."""
        del labels
        import torch
        from torch import distributed

        rank = distributed.get_rank()
        world = distributed.get_world_size()
        after = (rank + 1) % world
        before = (rank - 1) % world

        def exchanged_s(operation: str, size: str) -> float:
            names = ("message", "landing")
            message, landing = (network.get_buffer(name)[: MESSAGES[size] // 4] for name in names)
            distributed.barrier()
            if message.is_cuda:
                return _seconds_on_gpu(lambda: exchange(operation, message, landing))
            begin_s = time.monotonic()
            exchange(operation, message, landing)
            return time.monotonic() - begin_s

        def exchange(operation: str, message: "torch.Tensor", landing: "torch.Tensor") -> None:
            if operation == "all-reduce":
                distributed.all_reduce(message)
            elif operation == "broadcast":
                distributed.broadcast(message, src=0)
            else:
                # The receiver first: gloo carries large messages one way at a time where it comes last.
                ends = [(distributed.irecv, landing, before), (distributed.isend, message, after)]
                operations = [distributed.P2POp(*end) for end in ends]
                for work in distributed.batch_isend_irecv(operations):
                    work.wait()

        rows = []
        for _ in images:
            rows.append([exchanged_s(*exchange) for exchange in EXCHANGES])
        seconds = torch.tensor(rows)
        seconds = seconds.to(images.device)
        distributed.all_reduce(seconds, distributed.ReduceOp.MAX)
        medians = seconds.median(dim=0).values
        network.register_buffer("seconds", medians, persistent=False)
        return network.get_buffer("seconds")

    def after_step(self, network: "torch.nn.Module", loss: float) -> Mapping[str, float]:
        """Return latency and bus bandwidth of every message."""
        del loss
        from torch.distributed import get_world_size

        shares = {"all-reduce": 2 * (get_world_size() - 1) / get_world_size()}
        metrics = {}
        latencies_s = network.get_buffer("seconds").tolist()
        for (operation, size), latency_s in zip(EXCHANGES, latencies_s, strict=True):
            metrics[f"{operation}-{size}-latency"] = latency_s * 1e6
            moved = MESSAGES[size] * shares.get(operation, 1)
            metrics[f"{operation}-{size}-bandwidth"] = moved / latency_s / 1e6
        return metrics


def _seconds_on_gpu(call: Callable[[], None]) -> float:
    """Return the seconds of a call on a GPU, of which several follow one another, as in nccl-tests."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    events[0].record()
    for _ in range(CALLS):
        call()
    events[1].record()
    events[1].synchronize()
    elapsed_ms = events[0].elapsed_time(events[1])
    return float(elapsed_ms) / 1e3 / CALLS


COLLECTIVES = Collectives(
    name="collectives",
    sizes={"paper": 1, "quick": 1, "smoke": 1},
    unit="rounds",
    scenarios=("distributed",),
    losses=(),
    communicates=True,
    metrics=(
        *(WorkloadMetric(f"{each}-{size}-latency", "us", "less", per="step") for each, size in EXCHANGES),
        *(WorkloadMetric(f"{each}-{size}-bandwidth", "MB/s", "more", per="step") for each, size in EXCHANGES),
    ),
)
