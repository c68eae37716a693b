"""A worker's side of the parameter servers, and the messages between both: why they cannot deadlock.

Gradients go out when they are made, parameters come when they are updated. A worker begins each step with a word,
``STEP``, and by then waits for all parameters of the step; a server that reads the word waits for all gradients of the
step at once. So whatever is sent has a receiver that waits already, in whatever order it becomes ready, and nobody
waits for a message that another one only sends later. Each chunk has two tags of its own, and is under way once at
most: its gradients leave after its parameters have come.

gloo's nonblocking sends and receives of chunks were the fastest of what torch has between processes, see
``benchmarks/parameter_server.py``.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import distributed

from worker.distributed.group import PATIENCE, RankGroup
from worker.distributed.parameters import Parameters, cut

STEP = 1
END = 2
_WORD_TAG = 0


def gradients_tag(chunk: int) -> int:
    return 1 + 2 * chunk


def values_tag(chunk: int) -> int:
    return 2 + 2 * chunk


class Peer:
    """The other end of a pair of ranks. ``bytes_sent`` and ``bytes_received`` are of chunks, without the words."""

    def __init__(self, group: RankGroup, rank: int) -> None:
        self.rank = rank
        self.bytes_sent = 0
        self.bytes_received = 0
        self._group = group
        self._word = torch.zeros(2, dtype=torch.int64)

    def send(self, chunk: torch.Tensor, tag: int) -> distributed.Work | None:
        """Begin to send. Raises LostError, as every operation does."""
        self.bytes_sent += chunk.nbytes
        with self._or_lost():
            return distributed.isend(chunk, self.rank, tag=tag)

    def receive(self, chunk: torch.Tensor, tag: int) -> distributed.Work | None:
        self.bytes_received += chunk.nbytes
        with self._or_lost():
            return distributed.irecv(chunk, self.rank, tag=tag)

    def wait(self, work: distributed.Work | None) -> None:
        with self._or_lost():
            if work is not None:
                work.wait(PATIENCE)

    def say(self, first: int, second: int = 0) -> distributed.Work | None:
        with self._or_lost():
            pair = torch.tensor([first, second])
            return distributed.isend(pair, self.rank, tag=_WORD_TAG)

    def listen(self) -> distributed.Work | None:
        with self._or_lost():
            return distributed.irecv(self._word, self.rank, tag=_WORD_TAG)

    def hear(self, listening: distributed.Work | None) -> tuple[int, int]:
        self.wait(listening)
        first, second = self._word.tolist()
        return first, second

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._group.lost(self.rank, error) from error


def exchanged(peers: Sequence[Peer]) -> dict[str, int]:
    """Return the bytes of chunks that were sent to all of them, and received."""
    return {
        "bytes_sent": sum(peer.bytes_sent for peer in peers),
        "bytes_received": sum(peer.bytes_received for peer in peers),
    }


class Exchange:
    """One per worker. Between ``begin`` and ``finish`` the backward pass runs, and starts the sending by itself.

    The parameters of a chunk come back as soon as they are updated and not in the order of the forward pass: that order
    could begin only when the last gradient, that of the first layer, has been there.
    """

    def __init__(self, group: RankGroup, parameters: Parameters, chunk_bytes: int) -> None:
        self.busy_s = 0.0
        """How long communication kept the worker from anything else in this step."""
        self._parameters = parameters
        self._servers = [Peer(group, rank) for rank in range(group.membership.servers)]
        self._chunks = cut(parameters.elements, len(self._servers), chunk_bytes)
        self._sends: list[tuple[Peer, distributed.Work | None]] = []
        self._receives: list[distributed.Work | None] = []
        self._fetched: list[tuple[int, torch.cuda.Event]] = []
        self._say(parameters.elements, chunk_bytes)
        first_worker_rank = group.membership.servers
        self._share_first_values(first=group.membership.rank == first_worker_rank)
        parameters.observe(self._chunks, self._made)

    def exchanged(self) -> dict[str, int]:
        return exchanged(self._servers)

    def begin(self) -> None:
        """Announce a step and wait for its parameters, in the background."""
        begin_s = time.monotonic()
        self._parameters.expect()
        self._receives = self._receive_all()
        self._say(STEP)
        self.busy_s = time.monotonic() - begin_s

    def finish(self) -> None:
        """Wait, after the backward pass, until all gradients are sent and all parameters have come."""
        self._parameters.complete()
        computed_s = time.monotonic()
        for number, ready in self._fetched:
            ready.synchronize()
            computed_s = time.monotonic()
            self._send(number)
        self._fetched.clear()
        self._place(self._receives)
        self._wait_for_sends()
        if self._parameters.is_cuda:
            torch.cuda.synchronize()
        self.busy_s += time.monotonic() - computed_s

    def close(self) -> None:
        """Tell the servers that this worker makes no more steps."""
        self._say(END)
        self._wait_for_sends()

    def _made(self, number: int) -> None:
        """Send the gradients of a chunk; on CUDA, begin to fetch them from the device."""
        if self._parameters.is_cuda:
            self._parameters.fetch(self._chunks[number])
            # torch annotates no part of its CUDA events.
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
            self._fetched.append((number, ready))
            return
        begin_s = time.monotonic()
        self._send(number)
        self.busy_s += time.monotonic() - begin_s

    def _say(self, first: int, second: int = 0) -> None:
        self._sends += [(server, server.say(first, second)) for server in self._servers]

    def _send(self, number: int) -> None:
        chunk = self._chunks[number]
        server = self._servers[chunk.server]
        part = self._parameters.host_gradients[chunk.start : chunk.stop]
        work = server.send(part, gradients_tag(number))
        self._sends.append((server, work))

    def _receive_all(self) -> list[distributed.Work | None]:
        values = self._parameters.host_values
        receives = []
        for chunk in self._chunks:
            server = self._servers[chunk.server]
            part = values[chunk.start : chunk.stop]
            work = server.receive(part, values_tag(chunk.number))
            receives.append(work)
        return receives

    def _place(self, receives: list[distributed.Work | None]) -> None:
        for chunk, work in zip(self._chunks, receives, strict=True):
            self._servers[chunk.server].wait(work)
            self._parameters.place(chunk)

    def _wait_for_sends(self) -> None:
        for server, work in self._sends:
            server.wait(work)
        self._sends.clear()

    def _share_first_values(self, *, first: bool) -> None:
        """All workers begin with the first one's parameters, which the servers learn from it."""
        values = self._parameters.host_values
        if first:
            values.copy_(self._parameters.values)
            for chunk in self._chunks:
                server = self._servers[chunk.server]
                part = values[chunk.start : chunk.stop]
                work = server.send(part, values_tag(chunk.number))
                self._sends.append((server, work))
        else:
            self._place(self._receive_all())
        self._wait_for_sends()
