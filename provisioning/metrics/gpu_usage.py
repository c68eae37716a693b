"""The use and the state of a job's GPUs on this host while it runs, by NVML.

Energy and the times of running slower are counters. What else changes is sampled by a thread that wakes twice a second,
and that runs only if the job has GPUs. NVIDIA's NVML API reference defines the functions and the counters.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import psutil
import pynvml

from provisioning.gpu_driver import asked, pci_address
from suite.records.usage import GpuSamples, GpuUsage
from suite.untrusted.terminal import clean

EVERY_S = 0.5
MOST_STRANGERS = 10
SLOWER = {
    "power_capped": (pynvml.NVML_PERF_POLICY_POWER, 0x4 | 0x80),
    "throttled": (pynvml.NVML_PERF_POLICY_THERMAL, 0x8 | 0x20 | 0x40),
}
"""Why a GPU runs below the clocks of its load: the counter of violations, and the bits of the clock event reasons
(nvmlClocksEventReasons), which stand in for a counter that the GPU does not have."""
SAMPLED: Mapping[str, Callable[[Any], float]] = {
    "energy_j": lambda handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    "utilisation": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "memory_bytes": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
    "sm_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    "temperature_c": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    "reasons": lambda handle: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
}
STATE: Mapping[str, Callable[[Any], object]] = {
    "uuid": lambda handle: os.fsdecode(pynvml.nvmlDeviceGetUUID(handle)),
    "pci_address": pci_address,
    "power_limit_w": lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "persistence": lambda handle: bool(pynvml.nvmlDeviceGetPersistenceMode(handle)),
    "ecc": lambda handle: bool(pynvml.nvmlDeviceGetEccMode(handle)[0]),
    "mig": lambda handle: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]),
}
_PEAKS = ("memory_bytes", "temperature_c")
PROCESSES = (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses)


@dataclass
class _Gpu:
    handle: Any
    state: Mapping[str, object]
    slower_ns: Mapping[str, int | None]
    samples: list[dict[str, Any]] = field(default_factory=list)
    strangers: dict[int, str] = field(default_factory=dict)

    def usage(self) -> GpuUsage:
        columns = {name: [sample[name] for sample in self.samples] for name in self.samples[0]}
        begun_s, ended_s = columns["at_s"][0], columns["at_s"][-1]
        columns["at_s"] = [at_s - begun_s for at_s in columns["at_s"]]
        samples = GpuSamples.model_validate({name: columns[name] for name in GpuSamples.model_fields})
        slower_s = {f"{name}_s": self._slower_s(name, columns["reasons"], ended_s - begun_s) for name in SLOWER}
        peaks = {f"peak_{name}": max(filter(None, columns[name]), default=None) for name in _PEAKS}
        names = sorted(self.strangers.values())[:MOST_STRANGERS]
        span = samples.span(0, ended_s - begun_s)
        state = {**self.state, **slower_s, **peaks, "samples": samples, "job": span, "strangers": names}
        return GpuUsage.model_validate(state)

    def _slower_s(self, name: str, reasons: Sequence[int | None], whole_s: float) -> float | None:
        """Return the seconds for which the GPU ran slower, by its counter or by the share of the samples."""
        before_ns, after_ns = self.slower_ns[name], _violation_ns(self.handle, name)
        if before_ns is not None and after_ns is not None:
            return max(0, after_ns - before_ns) / 1e9
        slowed = [bool(bits & SLOWER[name][1]) for bits in reasons if bits is not None]
        return whole_s * fmean(slowed) if slowed else None


class GpuSampler:
    """Samples the named GPUs from before the job until after it, once.

    ``gpus`` are UUIDs; MIG devices stand for their card, which is counted once. ``owns`` returns whether a process is
    the job's or the suite's; None for one that is not visible here.
    """

    def __init__(self, gpus: Sequence[str], owns: Callable[[int], bool | None]) -> None:
        self._named, self._owns = gpus, owns
        self._owned: dict[int, bool | None] = {}
        self._gpus: list[_Gpu] = []
        self._lost = [*dict.fromkeys(gpus)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_all, daemon=True)
        self.cpu_s = 0.0
        """The CPU time that the thread has used, in seconds."""

    def start(self) -> None:
        if not self._named:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        cards = dict[Any, _Gpu]()
        handles = {uuid: asked(_handle, uuid) for uuid in self._named}
        self._lost = [uuid for uuid, handle in handles.items() if not handle]
        for handle in filter(None, handles.values()):
            state = {name: asked(question, handle) for name, question in STATE.items()}
            gpu = _Gpu(handle, state, {name: _violation_ns(handle, name) for name in SLOWER})
            cards.setdefault(state["uuid"] or len(cards), gpu)
        self._gpus = [*cards.values()]
        if self._gpus:
            self._sample()
            self._thread.start()
        else:
            pynvml.nvmlShutdown()

    def stop(self) -> tuple[dict[str, float | None], list[GpuUsage] | None]:
        """Return the joules by counter (``gpu-0``), and the use of each GPU: None if the job has no GPU that answers.

        None stands for the joules of a GPU without a counter, and of one that does not answer.
        """
        lost = dict[str, float | None].fromkeys(self._lost)
        if not self._gpus:
            return lost, None
        self._ended.set()
        self._thread.join()
        self._sample()
        usages = [gpu.usage() for gpu in self._gpus]
        pynvml.nvmlShutdown()
        spans = {f"gpu-{number}": usage.job for number, usage in enumerate(usages)}
        spent = {name: span.energy_j if span else None for name, span in spans.items()}
        return {**spent, **lost}, usages

    def _sample_all(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._sample()
        self.cpu_s = time.thread_time()

    def _sample(self) -> None:
        for gpu in self._gpus:
            answers = {name: asked(question, gpu.handle) for name, question in SAMPLED.items()}
            gpu.samples.append({"at_s": time.monotonic(), **answers})
            for pid in {process.pid for question in PROCESSES for process in asked(question, gpu.handle) or ()}:
                if pid not in self._owned:
                    self._owned[pid] = self._owns(pid)
                if self._owned[pid] is False:
                    gpu.strangers.setdefault(pid, _called(pid))


def _handle(uuid: str) -> Any:  # noqa: ANN401 (NVML's own)
    """Return the handle of a card by its UUID, and that of its card for a MIG device."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle


def _violation_ns(handle: Any, name: str) -> int | None:  # noqa: ANN401
    status = asked(pynvml.nvmlDeviceGetViolationStatus, handle, SLOWER[name][0])
    return None if status is None else status.violationTime


def _called(pid: int) -> str:
    try:
        return f"{clean(psutil.Process(pid).name())} (process {pid})"
    except psutil.Error:
        return f"process {pid}"
