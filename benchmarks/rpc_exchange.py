"""The parameter server of torch's own tutorial (``BatchUpdateParameterServer``) over torch.distributed.rpc, for
``parameter_server.py`` to set beside the suite's exchange.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed import rpc

SERVER = "rank0"


class Server:
    """The variables, and the gradients of the step that have come."""

    def __init__(self, elements: int, workers: int, learning_rate: float) -> None:
        self.values = torch.zeros(elements)
        self.workers = workers
        self._rate = learning_rate
        self._sum = torch.zeros(elements)
        self._came = 0
        self._lock = threading.Lock()
        self._future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def update(self, gradients: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        """Every worker's answer is the variables after all of them have come."""
        with self._lock:
            self._sum += gradients
            self._came += 1
            future = self._future
            if self._came == self.workers:
                self.values.add_(self._sum, alpha=-self._rate / self.workers)
                self._sum.zero_()
                self._came = 0
                self._future = torch.futures.Future()
                future.set_result(self.values)
        return future


_SERVERS: list[Server] = []
"""Of this process: a function that is called from afar finds it here."""


@rpc.functions.async_execution  # type: ignore[untyped-decorator, unused-ignore]
def update(gradients: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
    return _SERVERS[0].update(gradients)


def exchange(gradients: torch.Tensor) -> torch.Tensor:
    """One step of a worker: its gradients for the new variables."""
    answer: torch.Tensor = rpc.rpc_sync(SERVER, update, args=(gradients,))
    return answer


@contextmanager
def joined_by_rpc(rank: int, world: int, address: str, interface: str, server: Server | None) -> Iterator[None]:
    """``server``: of the rank that is one. ``address`` is ``HOST:PORT`` of the meeting place."""
    os.environ["TP_SOCKET_IFNAME"] = interface
    if server:
        _SERVERS.append(server)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{address}", rpc_timeout=600)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        rpc.shutdown()
