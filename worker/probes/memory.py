"""The memory probe: the triad of STREAM (McCalpin 1995), and on CUDA the copies between the host and the device.

As STREAM does, the triad ``a = b + s * c`` on doubles counts the bytes of three arrays; that most CPUs read a line of
``a`` before they overwrite it is not counted.
"""

import time
from pathlib import Path

from worker.environment import read
from worker.probes.probe import Probe
from worker.probes.reading import Measured, Reading, median
from worker.spec import Request

MIB = 1 << 20
ARRAY_MIB = {"smoke": 64, "quick": 128, "paper": 512}
REPEATS = {"smoke": 5, "quick": 15, "paper": 30}
BYTES_OF_DOUBLE = 8


def measure(request: Request) -> Measured:
    """Return the rate of the triad on one thread and on all, and on CUDA that of copies."""
    # Here and not above, as torch below: the host reads the declaration of the probe, and has no torch.
    from worker.training.device import one_and_all, open_devices

    array_bytes, repeats = ARRAY_MIB[request.size] * MIB, REPEATS[request.size]
    metrics: dict[str, Reading] = {}
    for name in one_and_all(request.threads):
        rates = triad(array_bytes, repeats)
        metrics[f"triad-{name}"] = rates
        metrics[f"triad-{name}-best"] = Reading(max(rates.samples or []), rates.unit, rates.better)
    if request.device == "cuda":
        open_devices("cuda", 1)
        metrics |= copies(array_bytes, repeats)
    return Measured(metrics, {"array_bytes": array_bytes, "last_level_cache": last_level_cache()})


def triad(array_bytes: int, repeats: int) -> Reading:
    """Return GB/s (1e9). Every thread touches first what it computes on later: torch fills as it adds."""
    import torch

    count = array_bytes // BYTES_OF_DOUBLE
    b, c, a = (torch.full((count,), value, dtype=torch.float64) for value in (1.0, 2.0, 0.0))
    rates = []
    for _ in range(repeats + 1):
        begin_s = time.perf_counter()
        torch.add(b, c, alpha=3.0, out=a)  # one pass over the three
        rates.append(3 * array_bytes / (time.perf_counter() - begin_s) / 1e9)
    return median(rates[1:], "GB/s", "more")


def copies(array_bytes: int, repeats: int) -> dict[str, Reading]:
    """Return GB/s from pinned and from pageable memory of the host to the device and back."""
    import torch

    device = torch.empty(array_bytes, dtype=torch.uint8, device="cuda")
    metrics = {}
    for kind in ("pinned", "pageable"):
        host = torch.ones(array_bytes, dtype=torch.uint8, pin_memory=kind == "pinned")
        for way, source, target in (("host-to-device", host, device), ("device-to-host", device, host)):
            rates = []
            for _ in range(repeats + 1):
                torch.cuda.synchronize()
                begin_s = time.perf_counter()
                target.copy_(source)
                torch.cuda.synchronize()
                rates.append(array_bytes / (time.perf_counter() - begin_s) / 1e9)
            metrics[f"{way}-{kind}"] = median(rates[1:], "GB/s", "more")
    return metrics


def last_level_cache() -> str | None:
    """Return the cache's size in the kernel's words, such as ``36608K``: an array must be larger.

    None where the place hides it.
    """
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    return max(((read(index / "level") or "", read(index / "size")) for index in caches), default=("", None))[1]


MEMORY = Probe("memory", measure, computes=True, in_turns=True)
