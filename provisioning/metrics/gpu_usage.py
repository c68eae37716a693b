"""The use and the state of a job's GPUs on this host while it runs, by NVML.

Energy and the times of running slower are counters. What else changes is sampled by a thread that wakes twice a second,
and that runs only if the job has GPUs. NVIDIA's NVML API reference defines the functions and the counters.
"""

import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from itertools import chain
from statistics import fmean
from typing import Any

import psutil
import pynvml

from provisioning.gpu_driver import asked, pci_address
from suite.records.fields import checked_part
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
OF_CARD: Mapping[str, Callable[[Any], float]] = {
    "energy_j": lambda handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    "utilisation": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
}
"""What NVML counts for a whole card alone: that of an instance by MIG is unknown, for its neighbours are in it."""
SAMPLED: Mapping[str, Callable[[Any], float]] = {
    "sm_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    "temperature_c": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    "reasons": lambda handle: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    "pcie_generation": lambda handle: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
    "pcie_width": lambda handle: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
}
STATE: Mapping[str, Callable[[Any], object]] = {
    "pci_address": pci_address,
    "power_limit_w": lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "persistence": lambda handle: bool(pynvml.nvmlDeviceGetPersistenceMode(handle)),
    "ecc": lambda handle: bool(pynvml.nvmlDeviceGetEccMode(handle)[0]),
    "mig": lambda handle: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]),
    "confidential": lambda _: bool(pynvml.nvmlSystemGetConfComputeState().ccFeature),
}
_PEAKS = {
    "memory_bytes": "peak_memory_bytes",
    "temperature_c": "peak_temperature_c",
    # An idle link is slower: that of the job is the fastest of all samples.
    "pcie_generation": "pcie_generation",
    "pcie_width": "pcie_width",
}
PROCESSES = (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses)
UNSEEN_SAMPLES = 2
"""The samples in which a process is not visible before it counts as hidden: one that has just ended shows in one."""


@dataclass
class _Gpu:
    card: Any
    """NVML's handle of the card, of which clocks, temperature and limits are known."""
    part: Any
    """That of the instance by MIG, whose memory and processes are its own; the card again for a whole one."""
    state: Mapping[str, object]
    slower_ns: Mapping[str, int | None]
    samples: list[dict[str, Any]] = field(default_factory=list)
    strangers: dict[int, str] = field(default_factory=dict)
    unseen: Counter[int] = field(default_factory=Counter)
    """In how many samples a process was not visible here."""
    strangers_utilisation: list[float] = field(default_factory=list)
    lists_processes: bool = False
    seen_us: int = 0

    @property
    def whole(self) -> bool:
        return self.part is self.card

    def sample(self) -> None:
        """Ask the GPU all that changes, except for its processes."""
        sample: dict[str, Any] = {"at_s": time.monotonic()}
        memory = asked(pynvml.nvmlDeviceGetMemoryInfo, self.part)
        sample["memory_bytes"] = memory and memory.used
        for name, question in SAMPLED.items():
            sample[name] = asked(question, self.card)
        for name, question in OF_CARD.items():
            sample[name] = asked(question, self.card) if self.whole else None
        self.samples.append(sample)

    def look_for_strangers(self, owns: Callable[[int], bool | None]) -> None:
        """Note the processes of others, and those that are not visible."""
        listed = [asked(question, self.part) for question in PROCESSES]
        self.lists_processes |= any(processes is not None for processes in listed)
        running = chain.from_iterable(processes or () for processes in listed)
        for pid in {process.pid for process in running}:
            owned = owns(pid)
            if owned is None:
                self.unseen[pid] += 1
            elif not owned and pid not in self.strangers:
                self.strangers[pid] = _called(pid)
        shares = _process_shares(self.card, self.seen_us) if self.whole else None
        if shares is not None:
            self._add_shares(shares, owns)

    def _add_shares(self, shares: Sequence[Any], owns: Callable[[int], bool | None]) -> None:
        """Note the share of the time that strangers took since the last look."""
        of_strangers: defaultdict[int, list[float]] = defaultdict(list)
        for sample in shares:
            self.seen_us = max(self.seen_us, sample.timeStamp)
            if owns(sample.pid) is False:
                of_strangers[sample.pid].append(sample.smUtil / 100)
        taken = math.fsum(map(fmean, of_strangers.values()))
        self.strangers_utilisation.append(min(1.0, taken))

    def usage(self) -> GpuUsage:
        columns = {}
        for name in self.samples[0]:
            columns[name] = [sample[name] for sample in self.samples]
        begun_s = columns["at_s"][0]
        columns["at_s"] = [at_s - begun_s for at_s in columns["at_s"]]
        sampled_s = columns["at_s"][-1]
        samples = GpuSamples(**{column.name: columns[column.name] for column in fields_of(GpuSamples)})
        fields = {**self.state, **self._strangers()}
        for name in SLOWER:
            fields[f"{name}_s"] = self._slower_s(name, columns["reasons"], sampled_s)
        for name, peak in _PEAKS.items():
            fields[peak] = max(filter(None, columns[name]), default=None)
        for name in ("memory_bytes", "utilisation"):
            fields[f"{name}_before"] = columns[name][0]
        fields["samples"] = samples
        fields["job"] = samples.span(0, sampled_s)
        return checked_part(GpuUsage, fields)

    def _strangers(self) -> dict[str, object]:
        """Return the fields about processes of others; their names are null where processes are hidden."""
        hidden = not self.lists_processes or max(self.unseen.values(), default=0) >= UNSEEN_SAMPLES
        names = sorted(self.strangers.values())[:MOST_STRANGERS]
        shares = self.strangers_utilisation
        return {
            "strangers": None if hidden and not names else names,
            "strangers_utilisation": fmean(shares) if shares else None,
        }

    def _slower_s(self, name: str, reasons: Sequence[int | None], whole_s: float) -> float | None:
        """Return the seconds for which the GPU ran slower, by its counter or by the share of the samples."""
        before_ns = self.slower_ns[name]
        after_ns = _violation_ns(self.card, name)
        if before_ns is not None and after_ns is not None:
            return max(0, after_ns - before_ns) / 1e9
        slowed = []
        for bits in reasons:
            if bits is not None:
                slowed.append(bool(bits & SLOWER[name][1]))
        if slowed:
            return whole_s * fmean(slowed)
        return None


class GpuSampler:
    """Samples the named GPUs from before the job until after it, once.

    ``gpus`` are UUIDs, of cards or of their instances by MIG. ``owns`` returns whether a process is the job's or the
    suite's; None for one that is not visible here.
    """

    def __init__(self, gpus: Sequence[str], owns: Callable[[int], bool | None]) -> None:
        self._named = gpus
        self._owns = owns
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
        handles = {uuid: asked(_handles, uuid) for uuid in self._named}
        self._lost = [uuid for uuid, pair in handles.items() if not pair]
        for card, part in filter(None, handles.values()):
            state = {name: asked(question, card) for name, question in STATE.items()}
            state["uuid"] = asked(_uuid, part)
            slower_ns = {name: _violation_ns(card, name) for name in SLOWER}
            self._gpus.append(_Gpu(card, part, state, slower_ns))
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
        spent: dict[str, float | None] = {}
        for number, gpu in enumerate(self._gpus):
            name = f"gpu-{number}"
            if not gpu.whole:
                name = f"the instance {name} of a card"
            job = usages[number].job
            spent[name] = job.energy_j if job else None
        return {**spent, **lost}, usages

    def _sample_all(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._sample()
        self.cpu_s = time.thread_time()

    def _sample(self) -> None:
        for gpu in self._gpus:
            gpu.sample()
            gpu.look_for_strangers(self._is_owned)

    def _is_owned(self, pid: int) -> bool | None:
        if self._owned.get(pid) is None:
            self._owned[pid] = self._owns(pid)
        return self._owned[pid]


def _uuid(handle: Any) -> str:  # noqa: ANN401 (NVML's own)
    return os.fsdecode(pynvml.nvmlDeviceGetUUID(handle))


def _handles(uuid: str) -> tuple[Any, Any]:
    """Return the handle of a card by its UUID, twice; for an instance by MIG that of its card, and its own."""
    part = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    if uuid.startswith("MIG-"):
        card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    else:
        card = part
    return card, part


def _process_shares(handle: Any, since_us: int) -> list[Any] | None:  # noqa: ANN401
    """Return NVML's samples of what each process used since then; None from a GPU that takes none."""
    try:
        samples: list[Any] = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:
            return []
        return None
    return samples


def _violation_ns(handle: Any, name: str) -> int | None:  # noqa: ANN401
    status = asked(pynvml.nvmlDeviceGetViolationStatus, handle, SLOWER[name][0])
    return None if status is None else status.violationTime


def _called(pid: int) -> str:
    try:
        return f"{clean(psutil.Process(pid).name())} (process {pid})"
    except psutil.Error:
        return f"process {pid}"
