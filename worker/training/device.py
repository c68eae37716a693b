"""A device that trains: waiting for it, and copying batches to it with the copy's time on the device's own clock."""

from pathlib import Path

import torch

from worker.errors import JobError


class Device:
    """The CPU, where nothing is copied and nothing waited for, or one CUDA device."""

    def __init__(self, name: str) -> None:
        self.torch = torch.device(name)
        self.is_cuda = self.torch.type == "cuda"
        if self.is_cuda:
            # Made on the device at their first record: a rank of ddp must not take memory of the others' devices.
            # torch annotates no part of its CUDA events.
            self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def copy(self, batch: tuple[torch.Tensor, torch.Tensor], *, wait: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch on the device. Without ``wait`` the host goes on during the copy from pinned memory."""
        if not self.is_cuda:
            return batch
        stream = torch.cuda.current_stream(self.torch)
        self._begin.record(stream)
        images, labels = (tensor.to(self.torch, non_blocking=not wait) for tensor in batch)
        self._end.record(stream)
        return images, labels

    def copy_s(self) -> float:
        """Return how many seconds the last copy took. Ask on CUDA only, and after ``synchronize``."""
        return float(self._begin.elapsed_time(self._end)) / 1e3

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)


def open_devices(kind: str, count: int) -> list[Device]:
    """Return ``count`` devices; the CPU is the same one every time. Raises JobError when there are fewer."""
    if kind == "cpu":
        return [Device("cpu") for _ in range(count)]
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < count:
        build = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
        raise JobError(f"{count} CUDA devices asked for, {there} can be used here{build}", kind="device")
    return [Device(f"cuda:{number}") for number in range(count)]


def torch_facts(device: str) -> dict[str, object]:
    """Return what torch says of itself, as fields of ``records.Environment``."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus() if device == "cuda" else None,
    }


def gpus() -> list[dict[str, object]]:
    """Return the CUDA devices seen from inside, as ``records.Gpu``."""
    return [_gpu(torch.cuda.get_device_properties(number)) for number in range(torch.cuda.device_count())]


def _gpu(properties: object) -> dict[str, object]:
    place = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [number for number in place if isinstance(number, int)]
    return {
        "name": getattr(properties, "name", "unknown"),
        "memory_bytes": getattr(properties, "total_memory", 0),
        "driver": _driver(),
        "pci_address": "{:04x}:{:02x}:{:02x}.0".format(*numbers) if len(numbers) == 3 else None,
    }


def _driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version, from a line such as ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Thu ...``."""
    try:
        words = path.read_text(encoding="ascii", errors="replace").partition("\n")[0].split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), None)
