"""A worker's parameters in one vector, and the gradients that the backward pass makes, chunk by chunk."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from worker.distributed.partition import Chunk, overlapping, starts_of
from worker.errors import JobError


class Parameters:
    """Moves a model's parameters into one vector, of which they are views from then on.

    On the CPU what is received lands in the very memory that the model computes with. That is safe within a step: a
    server sends a chunk only after it has its gradients, and when a parameter's gradient is there the backward pass has
    used the parameter for the last time. On CUDA the vectors have pinned copies in host memory, which is what is sent.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # The gradients of the last layers are made first.
        self._parameters = [each for each in model.parameters() if each.requires_grad][::-1]
        if wrong := {each.dtype for each in self._parameters} - {torch.float32}:
            raise JobError(f"parameters are sent as float32, and the model has {wrong}", kind="request")
        self._starts, self.elements = starts_of([each.numel() for each in self._parameters])
        device = self._parameters[0].device
        self.is_cuda = device.type == "cuda"
        self.values = torch.zeros(self.elements, device=device)
        self.gradients = torch.zeros(self.elements, device=device)
        self.host_values = self._host(self.values)
        self.host_gradients = self._host(self.gradients)
        self._views = [self._move(*pair) for pair in zip(self._parameters, self._starts, strict=True)]
        self._pending: list[set[int]] = []
        self._chunks_of: list[list[int]] = []
        self._on_chunk: Callable[[int], None] = lambda _: None

    def observe(self, chunks: Sequence[Chunk], on_chunk: Callable[[int], None]) -> None:
        """Call ``on_chunk`` with a chunk's number whenever the backward pass has made all of its gradients."""
        sizes = [each.numel() for each in self._parameters]
        self._chunks_of = [overlapping(chunks, *pair) for pair in zip(self._starts, sizes, strict=True)]
        self._pending = [set() for _ in chunks]
        self._on_chunk = on_chunk
        for number, parameter in enumerate(self._parameters):
            hook = partial(self._made, number)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def expect(self) -> None:
        """Prepare for a step: no gradient is there yet."""
        for number, chunks in enumerate(self._chunks_of):
            for chunk in chunks:
                self._pending[chunk].add(number)

    def complete(self) -> None:
        """Zero the gradients that the backward pass has not made: an optimizer would leave such parameters alone."""
        for number in sorted(set().union(*self._pending)):
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
        return torch.zeros(self.elements, pin_memory=True) if self.is_cuda else tensor

    def _move(self, parameter: torch.nn.Parameter, start: int) -> torch.Tensor:
        """Move the parameter into the vector. Returns its gradient's view, in the same memory format."""
        values, gradients = (
            torch.as_strided(vector, parameter.size(), parameter.stride(), start)
            for vector in (self.values, self.gradients)
        )
        with torch.no_grad():
            values.copy_(parameter)
        parameter.data = values
        return gradients
