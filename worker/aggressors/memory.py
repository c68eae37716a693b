"""The memory aggressor: a triad that empties the caches."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.aggressors.aggressor import Aggressor, Load
from worker.probes import memory
from worker.probes.request import Request


@contextmanager
def opened(request: Request) -> Iterator[Load]:
    """Compute ``a = b + s * c`` on arrays far larger than caches; the bytes of all three count, as in STREAM."""
    # Here and not above: the host reads the declaration of the aggressor, and has no torch.
    import torch

    from worker.probes.threads import prepare

    facts = prepare(request)
    array_bytes = memory.ARRAY_MIB[request.size] * memory.MIB
    count = array_bytes // memory.BYTES_OF_DOUBLE
    b, c, a = (torch.full((count,), value, dtype=torch.float64) for value in (1.0, 2.0, 0.0))

    def step() -> float:
        torch.add(b, c, alpha=3.0, out=a)
        return 3 * array_bytes

    yield Load("bytes", step, facts)


MEMORY = Aggressor("memory", opened)
