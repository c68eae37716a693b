"""NVIDIA's driver on a machine, as a program on any (Python 3.9 or newer): its GPUs by NVML, and its libraries.

Where it is not installed, ``provisioning.gpus`` puts pynvml's source before this one.
"""

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
PLACES = ("/usr/local/nvidia/lib64", "/run/opengl-driver/lib")
"""Directories of the driver that are in no cache of the dynamic loader: those of container runtimes and of NixOS."""
DIVIDED = "it is divided by MIG"


def answer(libraries: str = "") -> dict[str, object]:
    """Return the GPUs, or why there are none; and the driver's libraries, which are brought together below a directory.

    ``libraries`` is that directory; empty for no libraries.
    """
    facts: dict[str, object] = {"error": None, "cards": [], "libraries": collected(libraries)}
    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        cuda = cuda_version()
        found = (card for index in range(pynvml.nvmlDeviceGetCount()) for card in _cards(index, driver))
        facts["cards"] = [{**card, "cuda": cuda} for card in found]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        facts["error"] = f"no NVIDIA driver answers: {error}"
    return facts


def _cards(index: int, driver: str) -> Iterator[dict[str, object]]:
    """Yield a GPU and its instances by MIG, as ``gpus.Card``: what it does not answer is null."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError as error:
        yield {"index": str(index), "driver": driver, "fault": f"NVML: {error}"}
        return
    minor = asked(pynvml.nvmlDeviceGetMinorNumber, handle)
    card = {
        "index": str(index),
        "name": name,
        "driver": driver,
        "uuid": asked(pynvml.nvmlDeviceGetUUID, handle),
        "capability": asked(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        "pci_address": asked(pci_address, handle),
        "memory_bytes": _memory_bytes(handle),
        "devices": [f"/dev/nvidia{minor}"],
    }
    divided = (asked(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0]
    if not divided:
        yield card
        return
    yield {**card, "fault": DIVIDED}
    for number in range(asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if instance:
            part = f"gi{asked(pynvml.nvmlDeviceGetGpuInstanceId, instance)}"
            parts = part, f"{part}/ci{asked(pynvml.nvmlDeviceGetComputeInstanceId, instance)}"
            caps = [_minor(CAPABILITIES / f"gpu{minor}/mig" / name / "access") for name in parts]
            yield {
                **card,
                "index": f"{index}:{number}",
                "uuid": asked(pynvml.nvmlDeviceGetUUID, instance),
                "whole_uuid": card["uuid"],
                "memory_bytes": _memory_bytes(instance),
                "devices": [f"/dev/nvidia{minor}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)],
            }


def pci_address(handle: object) -> str:
    """Return the PCI address as the kernel writes it: with four digits for the domain, where NVML has eight."""
    address = os.fsdecode(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    return address[-len("0000:00:00.0") :].lower()


def _memory_bytes(handle: object) -> "int | None":
    memory = asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return memory and int(memory.total)


def _minor(access: Path) -> str:
    """Return the minor number of the device file that gives access to an instance."""
    if access.is_file():
        numbers: list[str] = re.findall(r"DeviceFileMinor:\s*(\d+)", access.read_text())
        return numbers[0]
    return "-missing"


def asked(question: Callable[..., Any], *words: object) -> Any:  # noqa: ANN401 (NVML's answers)
    """Return the answer of a GPU; None if it does not answer this question."""
    try:
        return question(*words)
    except pynvml.NVMLError:
        return None


def libcuda() -> "Path | None":
    """Return ``libcuda.so.1`` where the dynamic loader finds it, or in the places to which others bring it."""
    argv = ["/sbin/ldconfig", "-p"]
    cache = subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        start_new_session=True,
    ).stdout
    cached = (Path(path).parent for path in re.findall(r"libcuda\.so\.1 \(.*x86-64.*\) => (.+)", cache))
    searched = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    directories = [*searched, *map(str, cached), *PLACES]
    paths = [Path(place) / "libcuda.so.1" for place in directories]
    return next((path for path in paths if path.is_file()), None)


def cuda_version() -> "int | None":
    """Return the CUDA that libcuda serves, as 13000: with NVIDIA's cuda-compat it is newer than the driver's."""
    library = libcuda()
    if library is None:
        return None
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL(str(library)).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if status else version.value


def collected(parent: str) -> "str | None":
    """Return a directory, made if it is missing, with the driver's libraries and the links of their SONAMEs.

    None without a parent or a driver. Hard links take no space; on another disk the libraries are copied.
    """
    found = libcuda() if parent else None
    if found is None:
        return None
    library = found.resolve()
    version = library.name.partition(".so.")[2]
    files = [file for kind in ("libcuda", "libnvidia-") for file in library.parent.glob(f"{kind}*.so.{version}")]
    described = ((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    stamps = sorted(described)
    final = Path(parent, f"{version}-{hashlib.sha256(repr(stamps).encode()).hexdigest()[:8]}")
    if final.is_dir():
        return str(final)
    Path(parent).mkdir(mode=0o755, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as workshop:
        making = Path(workshop, "libraries")
        making.mkdir(mode=0o755)
        for file in files:
            try:
                os.link(file, making / file.name)
            except OSError:
                shutil.copy2(file, making / file.name)
        subprocess.run(["/sbin/ldconfig", "-n", str(making)], check=True, start_new_session=True)
        with suppress(OSError):  # another trial has made it meanwhile
            making.rename(final)
    return str(final)


if __name__ == "__main__":
    print(json.dumps(answer(*sys.argv[1:])))
