"""A server's share of the parameters, and a place for each worker's gradients."""

from collections.abc import Iterator, Sequence

import torch
from torch import distributed

from worker.distributed.group import Group
from worker.distributed.partition import cut
from worker.distributed.transport import Peer, gradients_tag, values_tag
from worker.errors import JobError


def hear_all(peers: Sequence[Peer]) -> list[tuple[int, int]]:
    """Return a word of each, in whatever order they come."""
    listening = [peer.listen() for peer in peers]
    return [peer.hear(work) for peer, work in zip(peers, listening, strict=True)]


class Shard:
    """Made by what the workers say of their models; filled with what the first worker sends."""

    def __init__(self, group: Group) -> None:
        self.workers = [Peer(group, rank) for rank in group.cluster.worker_ranks]
        said = hear_all(self.workers)
        if len(set(said)) > 1:
            models = ", ".join(str(elements) for elements, _ in said)
            raise JobError(f"the workers have models of different sizes: {models} elements", kind="request")
        elements, chunk_bytes = said[0]
        chunks = cut(elements, group.cluster.servers, chunk_bytes)
        self.chunks = [chunk for chunk in chunks if chunk.server == group.cluster.rank]
        self.values = [torch.empty(chunk.stop - chunk.start) for chunk in self.chunks]
        self.landings = [[torch.empty_like(values) for values in self.values] for _ in self.workers]
        self._share_first_values()

    def receive_gradients(self, worker: int) -> list[distributed.Work | None]:
        """Begin to receive all of one step."""
        peer, landing = self.workers[worker], self.landings[worker]
        return [peer.receive(landing[at], gradients_tag(chunk.number)) for at, chunk in enumerate(self.chunks)]

    def send_values(self, worker: int, at: int, values: torch.Tensor) -> distributed.Work | None:
        """Begin to send those of one chunk."""
        return self.workers[worker].send(values, values_tag(self.chunks[at].number))

    def _share_first_values(self) -> None:
        first, *others = self.workers
        for work in list(self._receive_values(first)):
            first.wait(work)
        sent = [
            (peer, peer.send(values, values_tag(chunk.number)))
            for peer in others
            for chunk, values in zip(self.chunks, self.values, strict=True)
        ]
        for peer, work in sent:
            peer.wait(work)

    def _receive_values(self, peer: Peer) -> Iterator[distributed.Work | None]:
        for chunk, values in zip(self.chunks, self.values, strict=True):
            yield peer.receive(values, values_tag(chunk.number))
