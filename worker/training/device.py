"""The devices that train, the threads and the numerics of torch on them, and torchvision with a CPU build of torch."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import torch

from worker.environment import read
from worker.protocol import JobError

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a declaration ends with the object that made it
REMEDIES = {
    "802": "start NVIDIA's fabric manager (systemctl start nvidia-fabricmanager), of the driver's own version",
    "803": "restart the machine: the driver's libraries and its kernel module have different versions",
    "999": "load the module nvidia-uvm: nvidia-modprobe -c0 -u",
    "304": "load the module nvidia-uvm: nvidia-modprobe -c0 -u",
}
"""Remedies by the number that CUDA gives an error (cudaError_t of its runtime)."""
_OF_MKL = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2"),
    *("sin", "sqrt", "tan", "tanh"),
)
"""The functions of elements that torch has MKL's vector library compute."""


class Device:
    """The CPU, where nothing is copied and nothing waited for, or one CUDA device."""

    def __init__(self, name: str, *, timed: bool = True) -> None:
        self.torch = torch.device(name)
        self.is_cuda = self.torch.type == "cuda"
        self.timed = timed
        """Whether the host waits for the end of each step, to time it and its phases."""
        if self.is_cuda:
            # Made on the device at their first record: a rank of ddp must not take memory of the others' devices.
            self._begin = timing_event()
            self._end = timing_event()
            self._copied = False

    def copy(self, batch: tuple[torch.Tensor, torch.Tensor], *, wait: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch on the device. Without ``wait`` the host goes on during the copy from pinned memory."""
        if not self.is_cuda:
            return batch
        stream = torch.cuda.current_stream(self.torch)
        self._begin.record(stream)
        images, labels = (tensor.to(self.torch, non_blocking=not wait) for tensor in batch)
        self._end.record(stream)
        self._copied = True
        return images, labels

    def copy_s(self) -> float:
        """Return the seconds of this step's copy, 0 without one. Ask on CUDA only, after ``synchronize``."""
        copied = self._copied
        self._copied = False
        if copied:
            return float(self._begin.elapsed_time(self._end)) / 1e3
        return 0.0

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)


def timing_event() -> torch.cuda.Event:
    """Return an event that notes the device's time; torch annotates no part of its CUDA events."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def open_devices(kind: str, count: int, *, timed: bool = True) -> list[Device]:
    """Return ``count`` devices; the CPU is the same one every time. Raises JobError when there are fewer."""
    if kind == "cpu":
        return [Device("cpu") for _ in range(count)]
    there = 0
    if torch.cuda.is_available():
        there = torch.cuda.device_count()
    if there < count:
        build = ""
        if not torch.version.cuda:
            build = f"; torch {torch.__version__} is built without CUDA"
        message = f"{count} CUDA devices asked for, {there} can be used here{build or reason_of_none(there)}"
        matching = (remedy for number, remedy in REMEDIES.items() if f"rror {number}" in message)
        remedy = next(matching, None)
        raise JobError(message, kind="device", remedy=remedy)
    return [Device(f"cuda:{number}", timed=timed) for number in range(count)]


def peak_memory(device: Device) -> dict[str, int]:
    """Return the most memory that tensors held on a GPU, and that torch kept for them, as ``records.Usage``."""
    if not device.is_cuda:
        return {}
    return {
        "peak_gpu_memory_bytes": torch.cuda.max_memory_allocated(device.torch),
        "peak_gpu_reserved_bytes": torch.cuda.max_memory_reserved(device.torch),
    }


def reason_of_none(there: int) -> str:
    """Return why CUDA shows no device, as the end of a sentence; torch's own question hides it."""
    try:
        if not there:
            torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f": {str(error).strip().splitlines()[0]}"
    return ""


def prepare(threads: int, device: str) -> dict[str, object]:
    """Set torch's intra-op threads; return ``torch_facts()``."""
    torch.set_num_interop_threads(1)
    set_threads(threads)
    return torch_facts(device)


def set_threads(count: int) -> None:
    """Set torch's intra-op threads, and have MKL choose its vector functions before several threads use one.

    MKL chooses the code of each with its first call. Where two threads make that call at once, one may compute its
    share by less accurate code, and the training ends with other weights (https://github.com/pytorch/pytorch/issues/188792).
    """
    for kind in (torch.float32, torch.float64):
        for name in _OF_MKL:
            half = torch.full((1,), 0.5, dtype=kind)
            getattr(torch, name)(half)
    torch.set_num_threads(count)


def one_and_all(threads: int) -> Iterator[str]:
    """Set torch to one thread, then to all; where all are one, only that. Yields the ending of the metric's name."""
    for count, name in ((1, "one-thread"), (threads, "all-threads")):
        if name == "one-thread" or count > 1:
            torch.set_num_threads(count)
            yield name


def torch_facts(device: str) -> dict[str, object]:
    """Return what torch says of itself, as fields of ``records.Environment``."""
    facts: dict[str, object] = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        rounding = {"matmul": torch.backends.cuda.matmul.allow_tf32, "convolution": torch.backends.cudnn.allow_tf32}
        tf32 = [name for name, allowed in rounding.items() if allowed]
        facts |= {
            "gpus": gpus(),
            "cuda": torch.version.cuda,
            "cudnn": cudnn and str(cudnn),
            "tf32": tf32,
        }
    return facts


def gpus() -> list[dict[str, object]]:
    """Return the CUDA devices seen from inside, as ``records.Gpu``."""
    # Such as ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Thu ...``.
    driver_line = (read("proc/driver/nvidia/version") or "").partition("\n")[0]
    words = driver_line.split()
    versions = (word for word in words if word[:1].isdigit() and "." in word)
    driver = next(versions, None)
    listed = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        address = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        numbers = [number for number in address if isinstance(number, int)]
        listed.append(
            {
                "name": getattr(properties, "name", "unknown"),
                "memory_bytes": getattr(properties, "total_memory", None),
                "uuid": f"GPU-{uuid}" if (uuid := getattr(properties, "uuid", None)) else None,
                "capability": f"{properties.major}.{properties.minor}",
                "driver": driver,
                "pci_address": "{:04x}:{:02x}:{:02x}.0".format(*numbers) if len(numbers) == 3 else None,
            }
        )
    return listed


@dataclass(frozen=True)
class Numerics:
    """Formats and settings of the arithmetic. The recipe's allocator is set by the command that launches the worker."""

    bfloat16: bool = False
    channels_last: bool = False
    tf32: bool = False
    compiled: bool = False
    overlapped: bool = False
    """Whether copies of batches, which lie in pinned memory, are not waited for."""
    sparing: bool = False
    """Whether gradients that no optimizer uses are not computed."""

    def apply(self) -> None:
        """Set what torch keeps for the whole process; by its own defaults, convolutions on CUDA would run in TF32."""
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32

    def place(self, model: torch.nn.Module, device: Device) -> torch.nn.Module:
        placed = model.to(device.torch)
        if self.channels_last:
            # torch's stubs do not know that a module can be given a memory format.
            placed = placed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return placed

    def compile(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model, compiled in place where the recipe is; of several networks, each by itself.

        ``Module.compile`` would compile nothing of a ``Sequential``, and a module around the model would rename its
        weights. DistributedDataParallel goes around it afterwards, and the compiler cuts the graph where buckets end.
        """
        for network in (model.values() if isinstance(model, torch.nn.ModuleDict) else [model]) if self.compiled else ():
            network.forward = torch.compile(network.forward)
        return model

    def autocast(self, device: Device) -> AbstractContextManager[object]:
        if self.bfloat16:
            return torch.autocast(device.torch.type, dtype=torch.bfloat16)
        return nullcontext()


def numerics_of(recipe: str, device: str, *, channels_last: bool = False) -> Numerics:
    """Return the numerics of a recipe. On the CPU torch.compile gains nothing, and its first step takes minutes."""
    if recipe == "reference":
        return Numerics(channels_last=channels_last)
    on_cuda = device == "cuda"
    return Numerics(
        bfloat16=True,
        channels_last=True,
        tf32=on_cuda,
        compiled=on_cuda,
        overlapped=on_cuda,
        sparing=True,
    )


def torchvision_version() -> str:
    return str(import_torchvision().__version__)


def import_torchvision() -> ModuleType:
    """Return torchvision, also where it is PyPI's build beside a CPU build of torch.

    Its extension wants CUDA libraries and is then silently left out, so that the import fails on two operators that no
    model uses. Declared without an implementation, they let it pass. An installation that matches its torch needs none
    of this.
    """
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    loaded = [name for name in sys.modules if name.partition(".")[0] == "torchvision"]
    for name in loaded:
        del sys.modules[name]
    # torch annotates no part of torch.library.Library.
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(operator + _NMS)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return import_module("torchvision")
