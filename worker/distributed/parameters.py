"""The parameters of a model in one vector, and its partition among the servers.

All parameters lie in the order in which the backward pass makes their gradients. The vector is cut into chunks of equal
size, whatever parameters they cut through, and the chunks are dealt to the servers in turn. So the servers' shares
differ by a few elements, a parameter of any size is spread over all of them, every server has work from the beginning
of the backward pass to its end, and what is sent at once is also what is updated at once.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from worker.protocol import JobError

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
    starts = []
    end = 0
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
    fewest_chunks = math.ceil(lines / limit)
    # Whole rounds of dealing, so that no server has a chunk more than another one.
    chunks_each = math.ceil(fewest_chunks / servers)
    count = min(chunks_each * servers, lines)
    bounds = [lines * number // count * ALIGNMENT for number in range(count + 1)]
    chunks = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        server = number % servers
        chunk = Chunk(number, server, start, stop)
        chunks.append(chunk)
    return chunks


def overlapping(chunks: Iterable[Chunk], start: int, size: int) -> list[int]:
    """Return the numbers of the chunks that hold an element of the parameter."""
    return [chunk.number for chunk in chunks if chunk.start < start + size and start < chunk.stop]


class Parameters:
    """Moves a model's parameters into one vector, of which they are views from then on.

    On the CPU what is received lands in the very memory that the model computes with. That is safe within a step: a
    server sends a chunk only after it has its gradients, and when a parameter's gradient is there the backward pass has
    used the parameter for the last time. On CUDA the vectors have pinned copies in host memory, which is what is sent.
    Vectors on the CPU are pinned if the parameters are, which several devices then copy from.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # The gradients of the last layers are made first.
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._parameters = trained[::-1]
        types = {parameter.dtype for parameter in self._parameters}
        wrong = types - {torch.float32}
        if wrong:
            raise JobError(f"parameters are sent as float32, and the model has {wrong}", kind="request")
        sizes = [parameter.numel() for parameter in self._parameters]
        self._starts, self.elements = starts_of(sizes)
        first = self._parameters[0]
        self.is_cuda = first.is_cuda
        pinned = first.is_pinned()
        self.values = torch.zeros(self.elements, device=first.device, pin_memory=pinned)
        self.gradients = torch.zeros(self.elements, device=first.device, pin_memory=pinned)
        self.host_values = self._host(self.values)
        self.host_gradients = self._host(self.gradients)
        pairs = zip(self._parameters, self._starts, strict=True)
        self._views = [self._move(*pair) for pair in pairs]
        self._pending: list[set[int]] = []
        self._chunks_of: list[list[int]] = []
        self._on_chunk: Callable[[int], None] = lambda _: None

    def observe(self, chunks: Sequence[Chunk], on_chunk: Callable[[int], None]) -> None:
        """Call ``on_chunk`` with a chunk's number whenever the backward pass has made all of its gradients."""
        sizes = [parameter.numel() for parameter in self._parameters]
        spans = zip(self._starts, sizes, strict=True)
        self._chunks_of = [overlapping(chunks, *pair) for pair in spans]
        self._pending = [set() for _ in chunks]
        self._on_chunk = on_chunk
        for number, parameter in enumerate(self._parameters):
            hook = partial(self._made, number)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def keep_gradients(self) -> None:
        """Make ``grad`` a view of the vector, for gradients that no backward pass of this model makes."""
        pairs = zip(self._parameters, self._views, strict=True)
        for parameter, view in pairs:
            parameter.grad = view

    def expect(self) -> None:
        for number, chunks in enumerate(self._chunks_of):
            for chunk in chunks:
                self._pending[chunk].add(number)

    def complete(self) -> None:
        """Zero the gradients that nothing has made: an optimizer would leave such parameters alone."""
        numbers = set().union(*self._pending)
        for number in sorted(numbers):
            if self._parameters[number].grad is None:
                self._views[number].zero_()
            self._tick(number)

    def fetch(self, chunk: Chunk) -> None:
        """Begin to copy the chunk's gradients to host memory, on CUDA."""
        if self.is_cuda:
            part = slice(chunk.start, chunk.stop)
            self.host_gradients[part].copy_(self.gradients[part], non_blocking=True)

    def place(self, chunk: Chunk) -> None:
        """Begin to copy the chunk's parameters to the device, on CUDA."""
        if self.is_cuda:
            part = slice(chunk.start, chunk.stop)
            self.values[part].copy_(self.host_values[part], non_blocking=True)

    def _made(self, number: int, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._views[number].copy_(parameter.grad)
            parameter.grad = None
        self._tick(number)

    def _tick(self, number: int) -> None:
        for chunk in self._chunks_of[number]:
            self._pending[chunk].discard(number)
            if not self._pending[chunk]:
                self._on_chunk(chunk)

    def _host(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.is_cuda:
            return torch.zeros(self.elements, pin_memory=True)
        return tensor

    def _move(self, parameter: torch.nn.Parameter, start: int) -> torch.Tensor:
        """Move the parameter into the vector. Returns its gradient's view, in the same memory format."""
        size = parameter.size()
        strides = parameter.stride()
        values = torch.as_strided(self.values, size, strides, start)
        gradients = torch.as_strided(self.gradients, size, strides, start)
        with torch.no_grad():
            values.copy_(parameter)
        parameter.data = values
        return gradients
