"""The probes that compute with torch: the CPU's arithmetic, the memory's bandwidth, and the copies to and from a GPU.

torch is imported in the functions: the host reads the declarations, and has none.
"""

import os
import time
from pathlib import Path

from worker.environment import read
from worker.probes.probe import Measured, Probe, Reading, median
from worker.spec import Request

# Rows, products a sample, samples. An emulated CPU makes 0.3 GFLOP/s, one core of today's hundreds of times as much.
PRODUCTS = {"smoke": (512, 1, 5), "quick": (1024, 2, 10), "paper": (4096, 1, 10)}
MIB = 1 << 20
ARRAY_MIB = {"smoke": 64, "quick": 128, "paper": 512}
REPEATS = {"smoke": 5, "quick": 15, "paper": 30}
BYTES_OF_DOUBLE = 8


def measure_products(request: Request) -> Measured:
    # Here and not above, as torch below: the host reads the declaration of the probe, and has no torch.
    from worker.training.device import one_and_all

    rows, products, samples = PRODUCTS[request.size]
    names = one_and_all(request.threads)
    metrics = {f"matrix-product-{name}": matrix_products(rows, products, samples) for name in names}
    return Measured(metrics, {"rows": rows, "products_per_sample": products})


def matrix_products(rows: int, products: int, samples: int) -> Reading:
    """Return GFLOP/s; a product of two n x n matrices counts as 2 n^3 operations."""
    import torch

    generator = torch.Generator().manual_seed(0)
    left = torch.rand(rows, rows, generator=generator)
    right = torch.rand(rows, rows, generator=generator)
    result = torch.mm(left, right)  # the first product pays for the libraries' own start
    rates = []
    for _ in range(samples):
        begin_s = time.perf_counter()
        for _ in range(products):
            torch.mm(left, right, out=result)
        spent_s = time.perf_counter() - begin_s
        operations = 2 * rows**3 * products
        rates.append(operations / spent_s / 1e9)
    return median(rates, "GFLOP/s", "more")


def measure_bandwidth(request: Request) -> Measured:
    """Return the rate of the triad on one thread and on all, and on CUDA that of copies."""
    # Here and not above, as torch below: the host reads the declaration of the probe, and has no torch.
    from worker.training.device import one_and_all, open_devices

    array_bytes = ARRAY_MIB[request.size] * MIB
    repeats = REPEATS[request.size]
    metrics: dict[str, Reading] = {}
    for name in one_and_all(request.threads):
        rates = triad(array_bytes, repeats)
        metrics[f"triad-{name}"] = rates
        best = max(rates.samples or [])
        metrics[f"triad-{name}-best"] = Reading(best, rates.unit, rates.better)
    if request.device == "cuda":
        open_devices("cuda", 1)
        metrics |= copies(array_bytes, repeats)
    return Measured(metrics, {"array_bytes": array_bytes, "last_level_cache": last_level_cache()})


def triad(array_bytes: int, repeats: int) -> Reading:
    """Return GB/s (1e9). Every thread touches first what it computes on later: torch fills as it adds."""
    import torch

    size = (array_bytes // BYTES_OF_DOUBLE,)
    b = torch.full(size, 1.0, dtype=torch.float64)
    c = torch.full(size, 2.0, dtype=torch.float64)
    a = torch.full(size, 0.0, dtype=torch.float64)
    rates = []
    for _ in range(repeats + 1):
        begin_s = time.perf_counter()
        torch.add(b, c, alpha=3.0, out=a)  # one pass over the three
        spent_s = time.perf_counter() - begin_s
        rates.append(3 * array_bytes / spent_s / 1e9)
    return median(rates[1:], "GB/s", "more")


def copies(array_bytes: int, repeats: int) -> dict[str, Reading]:
    """Return GB/s from pinned and from pageable memory of the host to the device and back."""
    import torch

    device = torch.empty(array_bytes, dtype=torch.uint8, device="cuda")
    metrics = {}
    for kind in ("pinned", "pageable"):
        host = torch.ones(array_bytes, dtype=torch.uint8, pin_memory=kind == "pinned")
        ways = (("host-to-device", host, device), ("device-to-host", device, host))
        for way, source, target in ways:
            rates = []
            for _ in range(repeats + 1):
                torch.cuda.synchronize()
                begin_s = time.perf_counter()
                target.copy_(source)
                torch.cuda.synchronize()
                spent_s = time.perf_counter() - begin_s
                rates.append(array_bytes / spent_s / 1e9)
            metrics[f"{way}-{kind}"] = median(rates[1:], "GB/s", "more")
    return metrics


def last_level_cache() -> str | None:
    """Return the size of the cache of the job's first CPU, as the kernel writes it: ``36608K``. Arrays must be larger.

    None where the place hides it.
    """
    first_cpu = min(os.sched_getaffinity(0))
    directory = Path(f"/sys/devices/system/cpu/cpu{first_cpu}/cache")
    caches = []
    for index in sorted(directory.glob("index*")):
        level = read(index / "level") or ""
        size = read(index / "size")
        caches.append((level, size))
    _, largest = max(caches, default=("", None))
    return largest


CPU = Probe("cpu", measure_products, computes=True, in_turns=True)
MEMORY = Probe("memory", measure_bandwidth, computes=True, in_turns=True)
