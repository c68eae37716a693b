"""GPUs as this machine's buses show them: drivers, IOMMU groups, and what hinders handing one to a VM."""

from collections.abc import Iterator
from pathlib import Path

SYS = Path("/sys")
NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")

Found = tuple[str, bool, str, str | None, str | None]
"""Name, usable, evidence, reason, remedy: the fields of ``doctor.Check``."""


def gpu_checks(sys: Path = SYS) -> Iterator[Found]:
    """What NVML says, and for each GPU on the bus whether a VM could have it."""
    yield _nvml()
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        if _read(device / "vendor") == NVIDIA and _read(device / "class")[:6] in DISPLAY_CLASSES:
            yield passthrough(device)


def _nvml() -> Found:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return "nvml", False, "asked", f"no NVIDIA driver answers: {error}", "none is needed unless you ask for GPUs"
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        count = pynvml.nvmlDeviceGetCount()
        names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        pynvml.nvmlShutdown()
    return "nvml", True, f"driver {driver}: {', '.join(names) or 'no GPU'}", None, None


def passthrough(device: Path) -> Found:
    """Whether a VM could have the device by VFIO: an IOMMU group without strangers, and the driver vfio-pci."""
    name = f"passthrough {device.name}"
    link = device / "driver"
    driver = link.resolve().name if link.exists() else "none"
    group = device / "iommu_group"
    if not group.exists():
        remedy = "switch the IOMMU on in the firmware and the kernel (intel_iommu=on or amd_iommu=on)"
        return name, False, f"driver {driver}", "it is in no IOMMU group", remedy
    members = sorted(path.name for path in (group / "devices").glob("*"))
    evidence = f"driver {driver}, IOMMU group {group.resolve().name}: {', '.join(members)}"
    # Functions of the same card (its audio, its USB) go with it; bridges are not handed over.
    card = device.name.rpartition(".")[0]
    strangers = [m for m in members if not m.startswith(card) and not _is_bridge(group / "devices" / m)]
    if strangers:
        return name, False, evidence, f"shares its IOMMU group with {', '.join(strangers)}", "use another slot"
    if driver != "vfio-pci":
        return (
            name,
            False,
            evidence,
            f"its driver is {driver}",
            f"bind it: driverctl set-override {device.name} vfio-pci",
        )
    return name, True, evidence, None, None


def _is_bridge(device: Path) -> bool:
    return _read(device / "class").startswith("0x0604")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
