"""The messages between a worker and a server, and why they cannot deadlock.

A worker begins each step with a word, ``STEP``, and by then waits for all parameters of the step; a server that reads
the word waits for all gradients of the step at once. So whatever is sent has a receiver that waits already, in whatever
order it becomes ready, and nobody waits for a message that another one only sends later. Each chunk has two tags of its
own, and is under way once at most: its gradients leave after its parameters have come.

gloo's nonblocking sends and receives of chunks were the fastest of what torch has between processes, see
``benchmarks/parameter_server.py``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import distributed

from worker.distributed.group import PATIENCE, RankGroup

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
        self.bytes_sent = self.bytes_received = 0
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
