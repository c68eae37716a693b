"""The CPU probe: products of square fp32 matrices, which hardly leave the caches: what the CPU itself gives."""

import time

from worker.probes.probe import Probe
from worker.probes.reading import Measured, Reading, median
from worker.spec import Request

# Rows, products a sample, samples. An emulated CPU makes 0.3 GFLOP/s, one core of today's hundreds of times as much.
SIZES = {"smoke": (512, 1, 5), "quick": (1024, 2, 10), "paper": (4096, 1, 10)}


def measure(request: Request) -> Measured:
    """Return the rate of matrix products on one thread and on all."""
    # Here and not above, as torch below: the host reads the declaration of the probe, and has no torch.
    from worker.training.device import one_and_all

    rows, products, samples = SIZES[request.size]
    names = one_and_all(request.threads)
    metrics = {f"matrix-product-{name}": matrix_products(rows, products, samples) for name in names}
    return Measured(metrics, {"rows": rows, "products_per_sample": products})


def matrix_products(rows: int, products: int, samples: int) -> Reading:
    """Return GFLOP/s; a product of two n x n matrices counts as 2 n^3 operations."""
    import torch

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(rows, rows, generator=generator) for _ in range(2))
    result = torch.mm(left, right)  # the first product pays for the libraries' own start
    rates = []
    for _ in range(samples):
        begin_s = time.perf_counter()
        for _ in range(products):
            torch.mm(left, right, out=result)
        rates.append(2 * rows**3 * products / (time.perf_counter() - begin_s) / 1e9)
    return median(rates, "GFLOP/s", "more")


CPU = Probe("cpu", measure, computes=True, in_turns=True)
