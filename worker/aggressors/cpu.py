"""The CPU aggressor: matrix products that stay in the caches."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.aggressors.aggressor import Aggressor, Load
from worker.probes import cpu
from worker.probes.request import Request


@contextmanager
def opened(request: Request) -> Iterator[Load]:
    """Multiply square fp32 matrices; one of two n x n matrices counts as 2 n^3 operations."""
    # Here and not above: the host reads the declaration of the aggressor, and has no torch.
    import torch

    from worker.probes.threads import prepare

    facts = prepare(request)
    rows, _, _ = cpu.SIZES[request.size]
    left, right = (torch.rand(rows, rows, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    result = torch.mm(left, right)

    def step() -> float:
        torch.mm(left, right, out=result)
        return 2.0 * rows**3

    yield Load("operations", step, facts)


CPU = Aggressor("cpu", opened)
