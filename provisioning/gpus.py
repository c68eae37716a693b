"""GPUs: those of a machine, and what a target is given so that CUDA works in it.

A target gets device files and one directory with the driver's libraries, which are not in the image: they fit the
kernel's module. They are mounted below /run, which is memory in every target, so that the tree stays as it is.
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

from suite.errors import BenchError, RequestError, option
from suite.interfaces import Node
from suite.records.environment import Gpu

DRIVER = "/run/nvidia"
"""The place of the driver's libraries in a target."""
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")
TOOLS = "/dev/nvidia-uvm-tools"
READ_AND_WRITE = 0o006
"""The mode of a device file that everybody may use."""
NO_DRIVER = "install NVIDIA's driver; none is needed unless you use GPUs"


@dataclass(frozen=True)
class DeviceNode:
    path: str
    major: int
    minor: int
    group: int | None = None
    """The group that may open it; None for one that everybody may."""


@dataclass(frozen=True)
class Edits:
    """The parts of a target for its GPUs: devices, read-only mounts (source, target), and variables of the worker."""

    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    """The GPUs as fields of ``records.Environment``, against which those that the worker reports are held."""

    @property
    def groups(self) -> list[int]:
        """Return the groups that may open the devices: NVIDIA's module may give them to one (NVreg_DeviceFileGID)."""
        return sorted({device.group for device in self.devices if device.group is not None})


NO_EDITS = Edits()


@dataclass(frozen=True)
class Card:
    """A GPU of a machine, or an instance of one by MIG, as NVML shows it."""

    index: str
    """``0``; ``0:1`` for the second instance of that GPU."""
    name: str = "unknown"
    driver: str | None = None
    uuid: str | None = None
    capability: Sequence[int] = ()
    pci_address: str | None = None
    memory_bytes: int | None = None
    devices: Sequence[str] = ()
    cuda: int | None = None
    """The CUDA that the machine's libcuda serves: 13000 for 13.0."""
    whole_uuid: str | None = None
    """The UUID of the GPU that an instance by MIG is part of."""
    fault: str | None = None
    """The reason why nothing can be computed on it."""

    def is_named(self, word: str) -> bool:
        """Return whether the word is its index, its UUID, or the beginning of that, as CUDA takes it."""
        return word == self.index or (word[:1] in "GM" and str(self.uuid).startswith(word))

    @property
    def driver_branch(self) -> int:
        """The first number of the driver's version; 0 if it is unknown."""
        return int((self.driver or "0").partition(".")[0])

    @property
    def fact(self) -> dict[str, object]:
        """Return the card as fields of ``records.Gpu``, with the UUID of the whole GPU."""
        capability = ".".join(map(str, self.capability)) or None
        facts: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(Gpu)}
        return {**facts, "capability": capability, "whole_uuid": self.whole_uuid}


def examined(node: Node | None = None, libraries: str = "") -> tuple[list[Card], str | None, str | None]:
    """Return the GPUs of a machine, why there are none, and the directory of the driver's libraries below a parent.

    None is this machine; ``libraries`` is the parent, empty for no libraries.
    """
    # Here and not above: it takes longer to import than what else this module is imported for takes.
    import pynvml

    from provisioning import gpu_driver

    if node is None or node.local:
        answer: dict[str, Any] = gpu_driver.answer(libraries)
    else:
        found_in_it = "import sys; sys.modules['pynvml'] = sys.modules['__main__']"
        parts = (inspect.getsource(pynvml), found_in_it, inspect.getsource(gpu_driver))
        program = "\n".join(parts)
        answered = node.run(["python3", "-I", "-", libraries], stdin=program.encode())
        answer = json.loads(answered.stdout)
    return [Card(**card) for card in answer["cards"]], answer["error"], answer["libraries"]


def chosen(cards: Sequence[Card], words: Sequence[str], source: str = "") -> tuple[Card, ...]:
    """Return the cards that these words name: an index, a UUID or its beginning. Raises RequestError for any other.

    ``source`` is what gave the words; by default the option.
    """
    source = source or option("gpus")
    named = [_chosen(cards, word, source) for word in words]
    uuids = {card.uuid for card in named}
    if len(uuids) < len(named):
        raise RequestError(f"{source} {','.join(words)}: a GPU is named twice", remedy="name each once")
    return tuple(named)


def _chosen(cards: Sequence[Card], word: str, source: str) -> Card:
    named = [card for card in cards if card.is_named(word)]
    usable = [f"{card.index} ({card.uuid})" for card in cards if not card.fault]
    remedy = f"this machine has: {', '.join(usable) or 'none'}"
    if not named:
        raise RequestError(f"{source} {word}: no GPU matches", remedy=remedy)
    if len(named) > 1:
        raise RequestError(f"{source} {word} matches several GPUs", remedy=remedy)
    (card,) = named
    if card.fault or not card.uuid:
        raise RequestError(f"{source} {word}: {card.fault or 'it has no UUID'}", remedy=remedy)
    return card


def edits_for(node: Node, gpus: Sequence[str], place: str | None = DRIVER) -> Edits:
    """Return what a target over the node needs for these GPUs. Raises RequestError for what is missing there.

    The libraries are at ``place`` in the target; None for a target that sees those of the node.
    """
    if not gpus:
        return NO_EDITS
    driver = str(PurePath(node.userland or "/tree").parent / "driver")
    cards, error, libraries = examined(node, driver)
    if error or libraries is None:
        raise RequestError(f"{node.name}: {error or 'libcuda.so.1 is not there'}", remedy=NO_DRIVER)
    named = chosen(cards, gpus)
    variables = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(card.uuid) for card in named),
        "LD_LIBRARY_PATH": place or libraries,
        # Triton finds libcuda by its own variable, or by the loader's cache, which is the image's.
        "TRITON_LIBCUDA_PATH": place or libraries,
    }
    devices = _devices_of(node, named)
    mounts = ((libraries, place),) if place else ()
    facts = [card.fact for card in named]
    return Edits(devices, mounts, variables, {"gpus": facts})


def _devices_of(node: Node, cards: Sequence[Card]) -> tuple[DeviceNode, ...]:
    """Return the device files of these GPUs and of the driver. Raises RequestError for one that is missing."""
    device_paths = (path for card in cards for path in card.devices)
    paths = dict.fromkeys((*CONTROL, TOOLS, *device_paths))
    devices = _device_nodes(node, paths)
    if CONTROL[1] not in devices:
        # Its module is loaded by the first program of root that computes; the confined user of a target could not.
        with suppress(BenchError):  # it is not installed
            node.run(["nvidia-modprobe", "-c0", "-u"], check=False)
        devices = _device_nodes(node, paths)
    missing = [path for path in paths if path not in devices and path != TOOLS]
    if missing:
        remedy = "run as root: nvidia-modprobe -c0 -u, or nvidia-smi"
        raise RequestError(f"{node.name}: {', '.join(missing)} is missing", remedy=remedy)
    return tuple(devices.values())


def _device_nodes(node: Node, paths: Iterable[str]) -> dict[str, DeviceNode]:
    answer = node.run(["stat", "--format=%n %t %T %a %g", "--", *paths], check=False)
    devices: dict[str, DeviceNode] = {}
    for line in answer.stdout.splitlines():
        path, major, minor, mode, group = line.split()
        for_all = int(mode, 8) & READ_AND_WRITE == READ_AND_WRITE
        devices[path] = DeviceNode(
            path=path,
            major=int(major, 16),
            minor=int(minor, 16),
            group=None if for_all else int(group),
        )
    return devices


def gpu_checks() -> Iterator[tuple[str, str, str | None, str | None]]:
    """Yield what NVML shows, and each GPU that is lost; of one that MIG divides its instances are shown.

    Each is a name, the evidence, and for a refusal its reason and remedy, as in ``doctor.Check``.
    """
    cards, error, _ = examined()
    if error:
        yield "nvml", "asked", error, NO_DRIVER
        return
    names = [f"{card.index}: {card.name}" for card in cards if not card.fault]
    driver = cards[0].driver if cards else "without a GPU"
    yield "nvml", f"driver {driver}: {', '.join(names) or 'no GPU'}", None, None
    for card in cards:
        if card.fault and not card.uuid:
            yield f"gpu {card.index}", "asked", card.fault, "reset it, or restart the machine; others can be used"
