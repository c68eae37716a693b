"""Energy by RAPL, GPUs by a stand-in for NVML, and cache misses by perf."""

import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from provisioning.cgroup.counters import read
from provisioning.metrics import accounting, cache_counters, conditions, gpu_usage
from provisioning.metrics.accounting import EnergyMeter, whole_energy
from provisioning.metrics.cache_counters import Counting, events_of
from provisioning.metrics.conditions import read_energy
from provisioning.metrics.gpu_usage import GpuSampler
from suite.records.usage import GpuSamples, GpuSpan
from tests.provisioning.conftest import Program, make
from tests.stand_ins.nvml_state import Nvml


@pytest.fixture(autouse=True)
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "POWERCAP", tmp_path)


def zone(powercap: Path, directory: str, name: str, uj: int, range_uj: int = 262_143_000_000) -> None:
    make(powercap / directory, {"name": f"{name}\n", "energy_uj": f"{uj}\n", "max_energy_range_uj": f"{range_uj}\n"})


def test_the_idle_power_is_measured_once_and_only_by_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        zone(tmp_path, "intel-rapl:0", "package-0", 401_000_000)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: 110.0 if slept else 100.0)
    assert accounting.accounts().keywords == {"idle_w": None}  # type: ignore[attr-defined]
    assert slept == []
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    assert accounting.accounts().keywords == {"idle_w": 40.0}  # type: ignore[attr-defined]
    assert slept == [accounting.IDLE_S]


class Meter:
    """A package of so many watts whose counter turns, as readings of an ``EnergyMeter`` at moments of a clock."""

    def __init__(self, powercap: Path, watts: float, patch: pytest.MonkeyPatch, range_uj: int = 65_532_610_987) -> None:
        self._powercap, self._watts, self._range_uj = powercap, watts, range_uj
        self._now_s = 0.0
        self.waits = itertools.repeat(False)
        self._move(0.0)
        patch.setattr(time, "monotonic", lambda: self._now_s)

    def _move(self, seconds: float) -> None:
        self._now_s += seconds
        uj = 12_000_000_000 + round(self._now_s * self._watts * 1e6)
        zone(self._powercap, "intel-rapl:0", "package-0", uj % self._range_uj, self._range_uj)

    def counted(self, job_s: float, late_s: float = 0.0) -> tuple[dict[str, float], str | None]:
        """Return what is counted of a job by a thread that wakes ``late_s`` too late."""
        meter, remaining_s = EnergyMeter(), job_s
        done = threading.Event()

        def wait(every_s: float) -> bool:
            nonlocal remaining_s
            slept_s = min(every_s + late_s, remaining_s)
            self._move(slept_s)
            remaining_s -= slept_s
            if remaining_s <= 0:
                done.set()
            return remaining_s <= 0

        meter._ended = SimpleNamespace(wait=wait, set=lambda: done.wait(10))  # type: ignore[assignment]
        assert meter.start()
        return meter.stop()


@pytest.mark.parametrize("minutes", [0.1, 4, 10, 60])
def test_energy_is_counted_over_all_turns_of_the_counter(
    minutes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent, missed = Meter(tmp_path, 250, monkeypatch).counted(minutes * 60)
    assert spent == {"package-0": pytest.approx(minutes * 60 * 250)}
    assert missed is None


def test_a_counter_that_may_have_turned_unseen_gives_no_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent, missed = Meter(tmp_path, 250, monkeypatch).counted(600, late_s=300)
    assert (spent, missed) == ({}, "package-0 was not read for 322 s, in which it may turn")


@pytest.mark.parametrize(
    ("of_gpus", "missed", "expected"),
    [
        ({}, None, ({"package-0": 5.0}, None)),
        ({"gpu-0": 2.0}, None, ({"package-0": 5.0, "gpu-0": 2.0}, None)),
        ({"gpu-0": 2.0, "gpu-1": None}, None, (None, "gpu-1 does not count its energy")),
        ({}, "package-1 could not be read all the time", (None, "package-1 could not be read all the time")),
    ],
)
def test_a_sum_without_one_of_its_counters_is_none(of_gpus: Any, missed: str | None, expected: object) -> None:
    assert whole_energy({"package-0": 5.0}, of_gpus, missed) == expected


def test_a_counter_that_moves_between_readings_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("package-0-die-0", "package-0-die-1", "package-1-die-0")):
        zone(tmp_path, f"intel-rapl:{number}", name, 0, range_uj=1000)
    moving = itertools.count(990)
    monkeypatch.setattr(
        conditions, "read", lambda file: str(next(moving) % 1000) if file.name == "energy_uj" else read(file)
    )
    assert list(read_energy()) == ["package-0-die-0", "package-1-die-0"], "other packages are other meters"


CARD = {"uuid": "GPU-a", "pci": "00000000:AF:00.0", "energy": 1000, "utilisation": 50, "memory": 1 << 34, "used": 1000}
OTHER = {"uuid": "GPU-b", "pci": "00000000:01:00.0", "energy": 90_000}
_PART: dict[str, object] = {"card": 0, "memory": 1 << 33, "used": 500, "compute": ""}
INSTANCES: dict[int, dict[str, object]] = {
    2: {"uuid": "MIG-a", **_PART},
    3: {"uuid": "MIG-b", **_PART},
    -1: {"confidential": 1},
}


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvml]:
    with pytest.MonkeyPatch.context() as patch:
        stand_in = Nvml(tmp_path_factory.mktemp("nvml"))
        stand_in.load()
        patch.setenv("NVML_ANSWERS", str(stand_in.answers))
        patch.setattr(gpu_usage, "EVERY_S", 0.001)
        yield stand_in


def sampled(nvml: Nvml, *answers: dict[str, object], gpus: Sequence[str] = ("GPU-a",), **owned: bool | None) -> Any:
    """Return what is counted while the card answers so, one after the other; ``owned`` says whose processes are."""
    looked = threading.Event()

    def owns(pid: int) -> bool | None:
        looked.set()
        return owned.get(f"pid_{pid}", False)

    nvml.answer({0: {**CARD, **answers[0]}, 1: OTHER, **INSTANCES})
    sampler = GpuSampler(gpus, owns)
    sampler.start()
    for answer in answers[1:]:
        nvml.answer({0: {**CARD, "compute": 1, **answer}, 1: {**OTHER, "energy": 180_000}, **INSTANCES})
        assert looked.wait(60)
    return sampler.stop()


def test_the_gpus_of_a_job_are_counted_and_those_of_others_are_not(nvml: Nvml) -> None:
    state = {"sm_mhz": 1980, "temperature": 61, "power_limit": 700_000, "persistence": 1, "ecc": 1, "mig": 0}
    spent, (gpu,) = sampled(nvml, {**state, "energy": 1000}, {**state, "energy": 3500}, pid_1=True)
    assert spent == {"gpu-0": 2.5}, "the second card worked for somebody else"
    assert (gpu.uuid, gpu.pci_address) == ("GPU-a", "0000:af:00.0")
    assert (gpu.job.utilisation, gpu.job.sm_mhz) == (0.5, 1980)
    assert (gpu.peak_memory_bytes, gpu.peak_temperature_c) == (1000, 61)
    assert (gpu.power_limit_w, gpu.persistence, gpu.ecc, gpu.mig) == (700, True, True, False)
    assert (gpu.power_capped_s, gpu.throttled_s) == (None, None), "what a GPU does not answer is absent"
    assert gpu.strangers == []


def test_an_instance_by_mig_is_not_charged_with_its_whole_card(nvml: Nvml) -> None:
    card = {"energy": 1000, "sm_mhz": 1980, "graphics": "7", "process_utilisation": "7 90"}
    spent, gpus = sampled(nvml, card, gpus=("MIG-a", "MIG-b"), pid_7=False)
    assert spent == dict.fromkeys(("the instance gpu-0 of a card", "the instance gpu-1 of a card"))
    assert whole_energy({}, spent, None)[1] == (
        "the instance gpu-0 of a card does not count its energy; the instance gpu-1 of a card does not count its energy"
    )
    assert [gpu.uuid for gpu in gpus] == ["MIG-a", "MIG-b"]
    for gpu in gpus:
        assert (gpu.job.energy_j, gpu.job.utilisation, gpu.utilisation_before) == (None, None, None)
        assert (gpu.strangers, gpu.strangers_utilisation) == ([], None), "those of its neighbours are not its own"
        assert (gpu.job.sm_mhz, gpu.peak_memory_bytes) == (1980, 500), "the clock is the card's, the memory its own"


def test_a_process_that_is_not_visible_is_unknown_and_the_use_before_the_launch_is_recorded(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_usage, "EVERY_S", 60)
    before: dict[str, object] = {"compute": "7", "used": 3 << 30, "utilisation": 40}
    _, (gpu,) = sampled(nvml, before, {"utilisation": 90}, pid_1=True, pid_7=None)
    assert gpu.strangers == [], "one sample: it has just ended"
    _, (gpu,) = sampled(nvml, before, {**before, "compute": "1,7"}, pid_1=True, pid_7=None)
    assert gpu.strangers is None
    assert (gpu.memory_bytes_before, gpu.utilisation_before) == (3 << 30, 0.4)
    _, (gpu,) = sampled(nvml, {})
    assert gpu.strangers is None, "a GPU that lists no processes"


def test_what_strangers_take_of_a_gpu_is_their_share_of_its_time(nvml: Nvml) -> None:
    own = os.getpid()
    shares: dict[str, object] = {"compute": f"{own}", "process_utilisation": f"1 80,{own} 10,{own} 30"}
    _, (gpu,) = sampled(nvml, shares, pid_1=True)
    assert gpu.strangers_utilisation == pytest.approx(0.2)
    _, (gpu,) = sampled(nvml, {**shares, "process_utilisation": ""}, pid_1=True)
    assert gpu.strangers_utilisation == 0, "nobody computed since"


def test_the_state_of_a_card_has_its_link_and_its_confidentiality(nvml: Nvml) -> None:
    idle: dict[str, object] = {"pcie_generation": 1, "pcie_width": 16}
    busy: dict[str, object] = {"pcie_generation": 5, "pcie_width": 16}
    _, (gpu,) = sampled(nvml, idle, busy, pid_1=True)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.confidential) == (5, 16, True)


@pytest.mark.parametrize(
    ("answer", "name"), [({"energy": "lost", "memory": "lost"}, "gpu-0"), ({"uuid": "lost"}, "GPU-a")]
)
def test_a_card_that_is_lost_ends_no_job(answer: dict[str, object], name: str, nvml: Nvml) -> None:
    spent, gpus = sampled(nvml, answer)
    assert spent == {name: None}, "unknown is not absent"
    assert gpus is None or gpus[0].peak_memory_bytes is None


def test_processes_of_others_are_named_and_those_of_the_job_are_not(nvml: Nvml) -> None:
    _, (gpu,) = sampled(nvml, {"compute": f"2,{os.getpid()}", "graphics": "3"}, pid_2=True, pid_3=None)
    assert gpu.strangers == [f"{psutil.Process().name()} (process {os.getpid()})"]


@pytest.mark.parametrize(
    ("before", "after", "name", "least_s", "most_s"),
    [
        ({"power_ns": 0}, {"power_ns": 3_000_000_000}, "power_capped", 3, 3),
        ({"thermal_ns": 5}, {"thermal_ns": 2_000_000_005}, "throttled", 2, 2),
        ({"reasons": 0x4}, {"reasons": 0x4}, "power_capped", 1e-6, 60),
        ({"reasons": 0x40}, {"reasons": 0x40}, "throttled", 1e-6, 60),
        ({"reasons": 0x1}, {"reasons": 0x1}, "throttled", 0, 0),
    ],
)
def test_the_time_of_a_slowed_gpu_is_counted_or_sampled(
    before: dict[str, object], after: dict[str, object], name: str, least_s: float, most_s: float, nvml: Nvml
) -> None:
    _, (gpu,) = sampled(nvml, before, after, pid_1=True)
    assert least_s <= getattr(gpu, f"{name}_s") <= most_s


@pytest.mark.parametrize("gpus", [(), ("GPU-c",)])
def test_a_job_without_gpus_of_this_host_asks_and_counts_nothing(gpus: Sequence[str], nvml: Nvml) -> None:
    assert sampled(nvml, {}, gpus=gpus) == (dict.fromkeys(gpus), None)


def test_the_use_of_the_measured_steps_is_that_between_two_times() -> None:
    samples = GpuSamples(at_s=[0, 1, 3], energy_j=[10, 20, 60], utilisation=[0, 1, None], sm_mhz=[300, 1980, 1980])
    assert samples.span(0.5, 2) == GpuSpan(energy_j=25, utilisation=1, sm_mhz=1980)
    assert samples.span(-1, 9) == GpuSpan(energy_j=50, utilisation=0.5, sm_mhz=1420)
    assert samples.span(1.5, 2) == GpuSpan(energy_j=10), "no sample lies between them"


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    """What this host has is asked once in a process; a test's answer must not stay."""
    asked = cache_counters.absent
    asked.cache_clear()
    yield
    asked.cache_clear()


def test_memory_is_asked_for_where_the_kernel_has_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_counters, "CONTROLLERS", tmp_path)
    assert events_of() == ["LLC-loads", "LLC-load-misses"]
    for number in (0, 1):
        events = ("cas_count_read", "cas_count_read.unit", "cas_count_write")
        make(tmp_path / f"uncore_imc_{number}/events", dict.fromkeys(events, ""))
    assert events_of()[2:] == ["uncore_imc/cas_count_read/", "uncore_imc/cas_count_write/"]


# What Ubuntu's and Debian's wrappers answer where the package of the running kernel is missing.
WRAPPER = """WARNING: perf not found for kernel 5.15.0-1019

  You may need to install the following packages for this specific kernel:
    linux-tools-5.15.0-1019-aws
    linux-cloud-tools-5.15.0-1019-aws

  You may also want to install one of the following packages to keep up to date:
    linux-tools-aws
    linux-cloud-tools-aws
"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"cat >&2 <<'END'\n{WRAPPER}END\nexit 2", " ".join(WRAPPER.split())),
        (None, "perf is not installed"),
        ("echo 'Error:\nAccess to performance monitoring is limited.' >&2; exit 255", "Access to performance"),
        ("echo 'CPU0,<not supported>,,LLC-load-misses,0,100.00,,' >&2", "<not supported>"),
        ("echo 'CPU0,10,,LLC-load-misses,2216345,100.00,1.00,of all LL-cache accesses' >&2", None),
    ],
)
def test_why_nothing_is_counted_is_told(
    program: Program, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str | None
) -> None:
    monkeypatch.setattr(cache_counters, "PERF", str(program("perf", script)) if script else "no-perf-here")
    absent = cache_counters.absent()
    assert absent is None if reason is None else reason in (absent or "")
    if reason:
        counting = Counting([0])
        counting.start()
        assert counting.stop().absent == absent


def test_a_real_perf_counts_from_start_to_stop_and_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an event of the kernel's own, which every host has: what is tested is the flow."""
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    monkeypatch.setattr(cache_counters, "absent", lambda: None)
    monkeypatch.setattr(cache_counters, "events_of", lambda: ["context-switches"])
    monkeypatch.setattr(cache_counters, "MISSES", "context-switches")
    counting = Counting([0])
    counting.start()
    used = counting.stop()
    if used.llc_load_misses is None:
        pytest.skip("perf may not count here: see /proc/sys/kernel/perf_event_paranoid")
    perf: Any = counting._perf
    assert (used.llc_load_misses > 0, used.llc_loads, perf.returncode) == (True, None, 0)
