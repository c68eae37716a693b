"""The partition of the parameters among the servers. Plain arithmetic: no torch.

All parameters of the model lie in one vector, in the order in which the backward pass makes their gradients. The vector
is cut into chunks of equal size, whatever parameters they cut through, and the chunks are dealt to the servers in turn.
So the servers' shares differ by a few elements, a parameter of any size is spread over all of them, every server has
work from the beginning of the backward pass to its end, and what is sent at once is also what is updated at once.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

ALIGNMENT = 16
"""Elements of 4 bytes in a cache line. Every parameter and every chunk begins at one, as torch allocates them."""
CHUNK_BYTES = 2 << 20
ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Chunk:
    """Elements ``start`` to ``stop`` of the vector. ``number`` is its place in the order of sending."""

    number: int
    server: int
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return (self.stop - self.start) * ELEMENT_BYTES


def starts_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each parameter begins in the vector, in the order given, and the vector's length."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, end


def cut(elements: int, servers: int, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """Return the vector's chunks in the order of sending, none larger than ``chunk_bytes`` (of one line at least)."""
    lines = elements // ALIGNMENT
    if lines < servers:
        raise ValueError(f"a model of {elements} elements cannot be shared among {servers} servers")
    limit = max(1, chunk_bytes // ELEMENT_BYTES // ALIGNMENT)
    # Whole rounds of dealing, so that no server has a chunk more than another one.
    count = min(math.ceil(math.ceil(lines / limit) / servers) * servers, lines)
    bounds = [lines * number // count * ALIGNMENT for number in range(count + 1)]
    return [Chunk(number, number % servers, start, stop) for number, (start, stop) in enumerate(pairwise(bounds))]


def overlapping(chunks: Iterable[Chunk], start: int, size: int) -> list[int]:
    """Return the numbers of the chunks that hold an element of the parameter."""
    return [chunk.number for chunk in chunks if chunk.start < start + size and start < chunk.stop]
