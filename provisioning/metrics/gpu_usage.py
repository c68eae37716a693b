"""The use of this host's GPUs while a job runs, by NVML; nothing where no NVIDIA driver answers.

Energy is a counter. How busy a GPU is, and its memory, must be sampled: by a thread that wakes twice a second, and that
runs only where there is a GPU.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pynvml

from suite.records.usage import GpuUsage

EVERY_S = 0.5


@dataclass
class _Gpu:
    handle: Any
    pci_address: str
    energy_mj: int | None
    busy: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)


class GpuSampler:
    """Samples from before the job until after it, once."""

    def __init__(self) -> None:
        self._gpus: list[_Gpu] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.cpu_s = 0.0
        """The CPU time that the thread has used, in seconds."""

    def start(self) -> None:
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError:
            return
        for number in range(count):
            with suppress(pynvml.NVMLError):  # a lost GPU; the others answer
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
                address = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).lower()
                # The kernel writes four digits for the domain, and NVML eight.
                self._gpus.append(_Gpu(handle, address[-len("0000:00:00.0") :], self._energy_mj(handle)))
        if self._gpus:
            self._thread.start()
        else:
            pynvml.nvmlShutdown()

    def stop(self) -> tuple[dict[str, float] | None, list[GpuUsage] | None]:
        """Return the joules by counter (``gpu-0``) and the use of each GPU; None if there is no GPU."""
        if not self._gpus:
            return None, None
        ends_mj = [self._energy_mj(gpu.handle) for gpu in self._gpus]
        self._ended.set()
        self._thread.join()
        pynvml.nvmlShutdown()
        joules = {
            f"gpu-{number}": (end_mj - gpu.energy_mj) / 1000
            for number, (gpu, end_mj) in enumerate(zip(self._gpus, ends_mj, strict=True))
            if end_mj is not None and gpu.energy_mj is not None
        }
        return joules or None, [
            GpuUsage(
                pci_address=gpu.pci_address,
                utilisation=fmean(gpu.busy) if gpu.busy else None,
                peak_memory_bytes=max(gpu.memory_bytes, default=None),
            )
            for gpu in self._gpus
        ]

    def _sample(self) -> None:
        while not self._ended.wait(EVERY_S):
            for gpu in self._gpus:
                rates = self._asked(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
                memory = self._asked(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle)
                gpu.busy += [] if rates is None else [rates.gpu / 100]
                gpu.memory_bytes += [] if memory is None else [memory.used]
        self.cpu_s = time.thread_time()

    def _energy_mj(self, handle: Any) -> int | None:  # noqa: ANN401
        spent: int | None = self._asked(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return spent

    def _asked(self, question: Callable[[Any], Any], handle: Any) -> Any:  # noqa: ANN401
        """Return the GPU's answer; None if it does not answer this question."""
        try:
            return question(handle)
        except pynvml.NVMLError:
            return None
