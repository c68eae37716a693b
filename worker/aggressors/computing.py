"""Two aggressors that compute: a triad that empties the caches, and matrix products that stay in them."""

import torch

from worker.aggressors.load import Load
from worker.probes import cpu, memory, threads
from worker.probes.request import Request


def triad(request: Request) -> Load:
    """``a = b + s * c`` on arrays far larger than caches; the bytes of the three are counted, as STREAM does."""
    facts = threads.prepare(request)
    array_bytes = memory.ARRAY_MIB[request.size] * memory.MIB
    count = array_bytes // memory.BYTES_OF_DOUBLE
    b, c, a = (torch.full((count,), value, dtype=torch.float64) for value in (1.0, 2.0, 0.0))

    def step() -> float:
        torch.add(b, c, alpha=3.0, out=a)
        return 3 * array_bytes

    return Load("bytes", step, facts)


def products(request: Request) -> Load:
    """Products of square fp32 matrices; one of two n x n matrices counts as 2 n^3 operations."""
    facts = threads.prepare(request)
    rows, _, _ = cpu.SIZES[request.size]
    left, right = (torch.rand(rows, rows, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    result = torch.mm(left, right)

    def step() -> float:
        torch.mm(left, right, out=result)
        return 2.0 * rows**3

    return Load("operations", step, facts)
