"""The probes of GPUs: what the host pays to give them work, and copies between those of one instance.

Virtual machines, sandboxes and IOMMUs change these costs, not the arithmetic. On the CPU the same code runs, all but
the graph of CUDA. torch is imported in the functions: the host reads the declarations, and has none.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from worker.probes.probe import Measured, Probe, ProbeError, Reading, median
from worker.spec import Request

if TYPE_CHECKING:
    import torch

LAUNCHES = 1000
"""The operations that are launched for one sample: their one wait is then a thousandth of it."""
SAMPLES = {"smoke": 5, "quick": 20, "paper": 50}
COPIED_BYTES = {"smoke": 1 << 24, "quick": 1 << 26, "paper": 1 << 28}


def measure_latency(request: Request) -> Measured:
    """Return microseconds for a launch, a launch that is waited for, a read of 4 bytes, and a launch from a graph."""
    # Here and not above, as torch below: the host reads the declaration of the probe, and has no torch.
    import torch

    from worker.training.device import open_devices

    (device,) = open_devices(request.device, 1)
    samples = SAMPLES[request.size]
    number = torch.zeros(1, device=device.torch)

    def launch() -> None:
        number.add_(1.0)

    def launch_and_wait() -> None:
        launch()
        device.synchronize()

    metrics = {
        "launch": mean_us(launch, device.synchronize, samples),
        "launch-and-wait": mean_us(launch_and_wait, device.synchronize, samples),
        "read-4-bytes": mean_us(lambda: number.item(), device.synchronize, samples),
    }
    if device.is_cuda:
        metrics["launch-in-graph"] = _graph_us(launch, device.synchronize, samples)
    return Measured(metrics, {"launches_per_sample": LAUNCHES})


def mean_us(call: Callable[[], object], wait: Callable[[], None], samples: int) -> Reading:
    """Return the median over samples of the mean microseconds of a call, of which the last is waited for."""
    means_us = []
    for _ in range(samples + 1):
        wait()
        begin_s = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        wait()
        means_us.append((time.perf_counter() - begin_s) / LAUNCHES * 1e6)
    return median(means_us[1:], "us", "less")


def _graph_us(launch: Callable[[], None], wait: Callable[[], None], samples: int) -> Reading:
    """Return the microseconds of a launch that is one of as many in a CUDA graph, which is launched as a whole."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    means_us = []
    for _ in range(samples + 1):
        wait()
        begin_s = time.perf_counter()
        graph.replay()
        wait()
        means_us.append((time.perf_counter() - begin_s) / LAUNCHES * 1e6)
    return median(means_us[1:], "us", "less")


def measure_peer_copies(request: Request) -> Measured:
    """Return GB/s from each device of the instance to each other. Raises ProbeError where there is but one."""
    import torch

    from worker.training.device import open_devices

    count = torch.cuda.device_count() if request.device == "cuda" else 2
    if count < 2:
        raise ProbeError(f"{count} GPU is no pair", remedy="name several: --gpus 0,1")
    devices = [device.torch for device in open_devices(request.device, count)]
    metrics = peer_copies(devices, COPIED_BYTES[request.size], SAMPLES[request.size])
    direct = [
        f"{one}-{other}"
        for one, other in itertools.permutations(range(count), 2)
        if request.device == "cuda" and torch.cuda.can_device_access_peer(one, other)
    ]
    return Measured(metrics, {"copied_bytes": COPIED_BYTES[request.size], "direct": direct})


def peer_copies(devices: "Sequence[torch.device]", copied_bytes: int, samples: int) -> dict[str, Reading]:
    """Return the GB/s (1e9) of copies between devices, by their numbers: ``copy-0-1``."""
    import torch

    arrays = [torch.ones(copied_bytes, dtype=torch.uint8, device=device) for device in devices]

    def wait() -> None:
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    metrics: dict[str, Reading] = {}
    for source, target in itertools.permutations(range(len(devices)), 2):
        rates = []
        for _ in range(samples + 1):
            wait()
            begin_s = time.perf_counter()
            arrays[target].copy_(arrays[source])
            wait()
            rates.append(copied_bytes / (time.perf_counter() - begin_s) / 1e9)
        metrics[f"copy-{source}-{target}"] = median(rates[1:], "GB/s", "more")
    return metrics


LATENCY = Probe("gpu-latency", measure_latency, computes=True, in_turns=True, only_named=True)
PEER_COPIES = Probe("gpu-copies", measure_peer_copies, computes=True, in_turns=True, only_named=True)
