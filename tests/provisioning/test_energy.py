"""Energy by RAPL, on trees as the kernel has them, and GPUs by an NVML that plays its answers."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning.metrics import conditions, gpu_usage
from provisioning.metrics.conditions import joules, read_energy
from provisioning.metrics.gpu_usage import GpuSampler


@pytest.fixture(autouse=True)
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "POWERCAP", tmp_path)


def zone(powercap: Path, directory: str, name: str, uj: int, range_uj: int = 262_143_000_000) -> None:
    place = powercap / directory
    place.mkdir(parents=True, exist_ok=True)
    for file, value in {"name": name, "energy_uj": uj, "max_energy_range_uj": range_uj}.items():
        (place / file).write_text(f"{value}\n")


def test_energy_is_told_by_package_and_by_the_memory_of_each(tmp_path: Path) -> None:
    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}", 1_000_000)
        zone(tmp_path, f"intel-rapl:{package}:0", "core", 1_000_000)
        zone(tmp_path, f"intel-rapl:{package}:1", "dram", 1_000_000)
    before = read_energy()
    zone(tmp_path, "intel-rapl:0", "package-0", 6_500_000)
    zone(tmp_path, "intel-rapl:1:1", "dram", 3_000_000)
    spent = joules(before, read_energy())
    assert spent == {"package-0": 5.5, "package-1": 0.0, "dram-0": 0.0, "dram-1": 2.0}, "cores are in their package"


def test_a_counter_that_began_again_is_carried_over(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000, range_uj=10_000_000)
    before = read_energy()
    zone(tmp_path, "intel-rapl:0", "package-0", 2_000_000, range_uj=10_000_000)
    assert joules(before, read_energy()) == {"package-0": 3.0}


def test_a_host_without_counters_or_with_hidden_ones_has_no_energy(tmp_path: Path) -> None:
    assert read_energy() == {}
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (tmp_path / "intel-rapl:0/energy_uj").unlink()
    assert read_energy() == {}


class FakeNvml:
    """Two GPUs that use a joule each time they are asked; the second one cannot tell how busy it is."""

    class NVMLError(Exception):
        """As pynvml's."""

    lost: int | None = None

    def __init__(self, gpus: int = 2, driver: bool = True) -> None:
        self.gpus, self.driver, self.spent_mj, self.open = gpus, driver, 0, 0
        self.looked = threading.Event()

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's names)
        if not self.driver:
            raise self.NVMLError("library not found")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == self.lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0" if handle else b"00000000:AF:00.0")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        del handle
        self.spent_mj += 1000
        return self.spent_mj

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if handle:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=50, memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if handle == self.gpus - 1:
            self.looked.set()
        return SimpleNamespace(used=1000 + handle)


def test_a_gpu_is_looked_at_while_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_usage, "EVERY_S", 0.001)
    nvml = FakeNvml()
    monkeypatch.setattr(gpu_usage, "pynvml", nvml)
    sampler = GpuSampler()
    sampler.start()
    assert nvml.looked.wait(60)
    spent, gpus = sampler.stop()
    assert spent == {"gpu-0": 2.0, "gpu-1": 2.0}
    assert gpus is not None
    assert [gpu.pci_address for gpu in gpus] == ["0000:af:00.0", "0000:01:00.0"]
    assert [gpu.utilisation for gpu in gpus] == [0.5, None], "what a GPU does not tell is absent"
    assert [gpu.peak_memory_bytes for gpu in gpus] == [1000, 1001]
    assert nvml.open == 0


@pytest.mark.parametrize("nvml", [FakeNvml(driver=False), FakeNvml(gpus=0)])
def test_a_host_without_driver_or_gpu_has_nothing_to_say(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_usage, "pynvml", nvml)
    sampler = GpuSampler()
    sampler.start()
    assert sampler.stop() == (None, None)
    assert nvml.open == 0


def test_a_job_that_ends_before_anyone_looked_has_no_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_usage, "pynvml", FakeNvml())
    sampler = GpuSampler()
    sampler.start()
    _, gpus = sampler.stop()
    assert gpus is not None
    assert gpus[0].utilisation is None


def test_a_lost_gpu_ends_no_job_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.lost = 0
    monkeypatch.setattr(gpu_usage, "pynvml", nvml)
    sampler = GpuSampler()
    sampler.start()
    spent, gpus = sampler.stop()
    assert [gpu.pci_address for gpu in gpus or []] == ["0000:01:00.0"]
    assert spent == {"gpu-0": 1.0}
