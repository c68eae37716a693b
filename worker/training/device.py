"""The devices that train, what copying batches to them takes on their own clock, and the threads of torch."""

from collections.abc import Iterator

import torch

from worker.environment import read
from worker.errors import JobError


class Device:
    """The CPU, where nothing is copied and nothing waited for, or one CUDA device."""

    def __init__(self, name: str) -> None:
        self.torch = torch.device(name)
        self.is_cuda = self.torch.type == "cuda"
        if self.is_cuda:
            # Made on the device at their first record: a rank of ddp must not take memory of the others' devices.
            self._begin, self._end = timing_event(), timing_event()

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


def timing_event() -> torch.cuda.Event:
    """Return an event that notes the device's time; torch annotates no part of its CUDA events."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def open_devices(kind: str, count: int) -> list[Device]:
    """Return ``count`` devices; the CPU is the same one every time. Raises JobError when there are fewer."""
    if kind == "cpu":
        return [Device("cpu") for _ in range(count)]
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < count:
        build = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
        raise JobError(f"{count} CUDA devices asked for, {there} can be used here{build}", kind="device")
    return [Device(f"cuda:{number}") for number in range(count)]


def prepare(threads: int, device: str) -> dict[str, object]:
    """Set torch's intra-op threads; return ``torch_facts()``."""
    torch.set_num_interop_threads(1)
    torch.set_num_threads(threads)
    return torch_facts(device)


def one_and_all(threads: int) -> Iterator[str]:
    """Set torch to one thread, then to all; where all are one, only that. Yields the ending of the metric's name."""
    for count, name in ((1, "one-thread"), (threads, "all-threads")):
        if name == "one-thread" or count > 1:
            torch.set_num_threads(count)
            yield name


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
    # Such as ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Thu ...``.
    words = (read("proc/driver/nvidia/version") or "").partition("\n")[0].split()
    driver = next((word for word in words if word[:1].isdigit() and "." in word), None)
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        place = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        numbers = [each for each in place if isinstance(each, int)]
        found.append(
            {
                "name": getattr(properties, "name", "unknown"),
                "memory_bytes": getattr(properties, "total_memory", 0),
                "driver": driver,
                "pci_address": "{:04x}:{:02x}:{:02x}.0".format(*numbers) if len(numbers) == 3 else None,
            }
        )
    return found
