"""The aggressors that compute with torch: on the CPU's caches, and past them on its memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.aggressors.aggressor import Aggressor, AggressorLoad
from worker.probes import cpu, memory
from worker.spec import Request

# torch is imported in the functions: the host reads the declarations, and has none.


@contextmanager
def multiplied(request: Request) -> Iterator[AggressorLoad]:
    """Multiply square fp32 matrices; one of two n x n matrices counts as 2 n^3 operations."""
    import torch

    from worker.training.device import prepare

    facts = prepare(request.threads, request.device)
    rows, _, _ = cpu.SIZES[request.size]
    left, right = (torch.rand(rows, rows, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    result = torch.mm(left, right)

    def step() -> float:
        torch.mm(left, right, out=result)
        return 2.0 * rows**3

    yield AggressorLoad("operations", step, facts)


@contextmanager
def added(request: Request) -> Iterator[AggressorLoad]:
    """Compute ``a = b + s * c`` on arrays far larger than caches; the bytes of all three count, as in STREAM."""
    import torch

    from worker.training.device import prepare

    facts = prepare(request.threads, request.device)
    array_bytes = memory.ARRAY_MIB[request.size] * memory.MIB
    count = array_bytes // memory.BYTES_OF_DOUBLE
    b, c, a = (torch.full((count,), value, dtype=torch.float64) for value in (1.0, 2.0, 0.0))

    def step() -> float:
        torch.add(b, c, alpha=3.0, out=a)
        return 3 * array_bytes

    yield AggressorLoad("bytes", step, facts)


CPU = Aggressor("cpu", multiplied)
MEMORY = Aggressor("memory", added)
