"""A parameter server's program: from what the workers say of their model until all have said that they end."""

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Lock

import torch
from torch import distributed

from worker.distributed.exchange import END, STEP, Peer, exchanged, gradients_tag, values_tag
from worker.distributed.group import RankGroup
from worker.distributed.parameters import cut
from worker.protocol import JobError


def hear_all(peers: Sequence[Peer]) -> list[tuple[int, int]]:
    """Return a word of each, in whatever order they come."""
    listening = [peer.listen() for peer in peers]
    pairs = zip(peers, listening, strict=True)
    return [peer.hear(work) for peer, work in pairs]


class Shard:
    """A server's share of the parameters, and a place for each worker's gradients.

    It is made by what the workers say of their models, and filled with what the first worker sends.
    """

    def __init__(self, group: RankGroup) -> None:
        self.workers = [Peer(group, rank) for rank in group.membership.worker_ranks]
        words = hear_all(self.workers)
        if len(set(words)) > 1:
            sizes = [str(elements) for elements, _ in words]
            models = ", ".join(sizes)
            raise JobError(f"the workers have models of different sizes: {models} elements", kind="request")
        elements, chunk_bytes = words[0]
        chunks = cut(elements, group.membership.servers, chunk_bytes)
        self.chunks = [chunk for chunk in chunks if chunk.server == group.membership.rank]
        self.values = [torch.empty(chunk.stop - chunk.start) for chunk in self.chunks]
        self.landings: list[list[torch.Tensor]] = []
        for _ in self.workers:
            landing = [torch.empty_like(values) for values in self.values]
            self.landings.append(landing)
        self._share_first_values()

    def receive_gradients(self, worker: int) -> list[distributed.Work | None]:
        """Begin to receive all of one step."""
        peer = self.workers[worker]
        landing = self.landings[worker]
        receives = []
        for chunk, gradients in zip(self.chunks, landing, strict=True):
            tag = gradients_tag(chunk.number)
            work = peer.receive(gradients, tag)
            receives.append(work)
        return receives

    def send_values(self, worker: int, at: int, values: torch.Tensor) -> distributed.Work | None:
        tag = values_tag(self.chunks[at].number)
        return self.workers[worker].send(values, tag)

    def _share_first_values(self) -> None:
        first, *others = self.workers
        chunks = list(zip(self.chunks, self.values, strict=True))
        receives = []
        for chunk, values in chunks:
            tag = values_tag(chunk.number)
            work = first.receive(values, tag)
            receives.append(work)
        for work in receives:
            first.wait(work)
        sends = []
        for peer in others:
            for chunk, values in chunks:
                tag = values_tag(chunk.number)
                work = peer.send(values, tag)
                sends.append((peer, work))
        for peer, work in sends:
            peer.wait(work)


def serve(group: RankGroup, *, learning_rate: float, threads: int) -> dict[str, int]:
    """Apply plain SGD to this server's share of the parameters. Raises JobError.

    Returns when all workers have ended: ``bytes_sent``, ``bytes_received``, and ``updates``, which counts whole steps:
    of all workers together, or of each by itself. The model is the workers' own affair: a server needs not to build it.
    """
    synchronous = group.membership.strategy == "parameter-server"
    if not synchronous:
        # Each worker has a thread of the server's, and torch's own threads are counted per such thread.
        threads = max(1, threads // group.membership.workers)
    torch.set_num_threads(threads)
    shard = Shard(group)
    if synchronous:
        updates = _synchronously(group, shard, learning_rate)
    else:
        updates = _asynchronously(group, shard, learning_rate)
    return {"updates": updates, **exchanged(shard.workers)}


def _synchronously(group: RankGroup, shard: Shard, learning_rate: float) -> int:
    updates = 0
    while _all_go_on(group, shard):
        workers = range(len(shard.workers))
        receives = [shard.receive_gradients(worker) for worker in workers]
        sends = []
        for at, values in enumerate(shard.values):
            pairs = zip(shard.workers, receives, strict=True)
            for peer, works in pairs:
                peer.wait(works[at])
            total, *others = (landing[at] for landing in shard.landings)
            for gradients in others:
                total.add_(gradients)
            # The mean over the workers, each of which has averaged over its own batch.
            step = -learning_rate / len(shard.workers)
            values.add_(total, alpha=step)
            for worker, peer in enumerate(shard.workers):
                work = shard.send_values(worker, at, values)
                sends.append((peer, work))
        for peer, work in sends:
            peer.wait(work)
        updates += 1
    return updates


def _all_go_on(group: RankGroup, shard: Shard) -> bool:
    words = [word for word, _ in hear_all(shard.workers)]
    if len(set(words)) > 1:
        answers = zip(shard.workers, words, strict=True)
        ended = [peer.rank for peer, word in answers if word == END]
        names = group.membership.names(ended)
        raise JobError(f"{names} made fewer steps than the other workers", kind="request")
    return words[0] == STEP


def _asynchronously(group: RankGroup, shard: Shard, learning_rate: float) -> int:
    locks = [Lock() for _ in shard.chunks]
    count = len(shard.workers)
    with ThreadPoolExecutor(count) as pool:
        futures = []
        for worker in range(count):
            future = pool.submit(
                _attend,
                shard,
                worker,
                locks,
                learning_rate,
            )
            futures.append(future)
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        try:
            updates = sum(future.result() for future in done)
        except Exception as error:
            # The other threads wait for workers that live, and would for ever.
            group.tell(error)
            raise
    return updates


def _attend(
    shard: Shard,
    worker: int,
    locks: list[Lock],
    learning_rate: float,
) -> int:
    """Serve one worker alone; each chunk is locked while it is updated, and leaves as it then is."""
    peer = shard.workers[worker]
    steps = 0
    while peer.hear(peer.listen())[0] == STEP:
        sends = []
        for at, work in enumerate(shard.receive_gradients(worker)):
            peer.wait(work)
            gradients = shard.landings[worker][at]
            with locks[at]:
                shard.values[at].add_(gradients, alpha=-learning_rate)
                # The gradients have done their duty, and what another worker changes must not change under way.
                gradients.copy_(shard.values[at])
            sends.append(shard.send_values(worker, at, gradients))
        for work in sends:
            peer.wait(work)
        steps += 1
    return steps
