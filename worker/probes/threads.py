"""The threads that torch computes with: one, or all of the envelope's."""

from collections.abc import Iterator

import torch

from worker.probes.request import Request
from worker.training.device import torch_facts


def prepare(request: Request) -> dict[str, object]:
    """Give torch the envelope's threads; returns the facts of torch as fields of ``records.Environment``."""
    torch.set_num_interop_threads(1)
    torch.set_num_threads(request.threads)
    return torch_facts(request.device)


def one_and_all(threads: int) -> Iterator[str]:
    """Set torch to one thread, then to all; where all are one, only that. Yields the ending of the metric's name."""
    for count, name in ((1, "one-thread"), (threads, "all-threads")):
        if name == "one-thread" or count > 1:
            torch.set_num_threads(count)
            yield name
