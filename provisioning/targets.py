"""The targets: which layers are stacked over this machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.cgroup import limits as cgroups
from provisioning.disks import disks_under
from provisioning.distributed import open_cluster, open_machines
from provisioning.engines import ENGINES
from provisioning.images.docker_store import NAME as DOCKER_STORE
from provisioning.images.docker_store import docker_store
from provisioning.images.image import Image
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import OwnEnvironmentLayer, UserlandLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines import virtiofs
from provisioning.machines.accelerator import Accelerator
from provisioning.machines.qemu import takes_direct_io
from provisioning.nodes import local_node
from provisioning.remote import data
from provisioning.remote.image_sync import push, push_packed
from provisioning.remote.machine import Machine, machine
from provisioning.volumes import Volume, check_room, packed_bytes, prepare_disk, volume_of
from suite.errors import RequestError
from suite.interfaces import Instance, Layer, open_stack
from suite.inventory import Inventory
from suite.job.datasets import Dataset
from suite.job.envelope import Envelope
from suite.job.job import Layers
from suite.plan import VMS, Trial


@dataclass(frozen=True)
class Choices:
    """What the user chose of the layers, resolved: how every target of a run is made."""

    image: Image
    engine: str
    accelerator: Accelerator
    gpus: tuple[str, ...] = ()
    vfio: tuple[str, ...] = ()
    inventory: Inventory | None = None
    """The machines, in place of this one."""

    def layers(self) -> Layers:
        """Return what a job says of them."""
        return Layers(
            engine=self.engine,
            accelerator=self.accelerator,
            image=self.image.digest,
            gpus=",".join(self.gpus) or None,
            vfio=",".join(self.vfio) or None,
        )

    def of_instance(self, number: int, count: int) -> "Choices":
        """For one of several instances: its share of the GPUs. Fewer GPUs than instances are shared by all of them,
        as the user has set them up (MPS, MIG). Raises RequestError for passed-through ones, which cannot be."""
        if self.vfio and len(self.vfio) < count:
            raise RequestError(
                f"--vfio names {len(self.vfio)} GPUs, and {count} virtual machines need one each: a GPU that is passed "
                "through belongs to one machine",
                remedy=f"name {count}, or leave out the targets with a VM",
            )
        return replace(self, gpus=_share(self.gpus, number, count), vfio=_share(self.vfio, number, count))


def _share(devices: tuple[str, ...], number: int, count: int) -> tuple[str, ...]:
    each = len(devices) // count
    return devices[number * each : (number + 1) * each] if each else devices


def layers(
    target: str, choices: Choices, envelope: Envelope, *, ablation: str | None = None, volume: Volume | None = None
) -> list[Layer]:
    """The stack of a target, from the machine upwards; one property of it switched by ``ablation``."""
    engine = ENGINES[choices.engine]
    vm = VmLayer(
        choices.image,
        choices.accelerator,
        envelope,
        choices.vfio,
        volume=volume,
        pinned=ablation != "pinning",
        direct=ablation != "disk-cache",
        disks_limited=ablation == "disk-limit",
    )
    writable = volume is not None and volume.writable
    container = ContainerLayer(
        engine,
        choices.image.digest,
        envelope.memory_bytes,
        choices.gpus,
        ablation,
        writable,
        layer=str(volume.layer) if volume and volume.layer else None,
    )
    stacks: dict[str, list[Layer]] = {
        "bare-metal": [bare_metal(choices, envelope, ablation, writable=writable)],
        "container": [container],
        "vm": [vm],
        "container-vm": [replace(vm, with_docker=engine.name == "docker"), container],
    }
    return stacks[target]


def bare_metal(choices: Choices, envelope: Envelope, ablation: str | None = None, *, writable: bool = False) -> Layer:
    """The image's tree entered in place; without root the suite's own environment, named as a substitute."""
    if os.geteuid() == 0 or choices.inventory:
        return UserlandLayer(envelope, choices.gpus, ablation, writable)
    return OwnEnvironmentLayer(envelope)


def refuse_ablation(name: str, choices: Choices, recipe: str, scenario: str) -> None:
    """Raises RequestError for a switch that would switch nothing."""
    if name in ("virtiofs", "data-layer") and scenario != "real":
        raise RequestError(f"--ablate {name} is about where a data set lies", remedy="use --scenario real")
    if name == "network" and scenario == "distributed":
        raise RequestError(
            "--ablate network: --network says how the instances of a distributed job are joined",
            remedy="leave it out, and run it once more with --network host",
        )
    if name == "virtiofs" and (hindrance := virtiofs.hindrance(choices.image.tree)):
        raise RequestError(f"--ablate {name}: {hindrance[0]}", remedy=hindrance[1])
    engine = ENGINES[choices.engine]
    powerless = "without root nothing is limited that could be" if os.geteuid() and not choices.inventory else ""
    elsewhere = "disks are limited on this machine only" if choices.inventory else ""
    reasons = {
        "rootfs": f"{engine.name} runs the tree in place already" if engine.rootfs == "directory" else "",
        "huge-pages": "the tuned recipe has them already" if recipe == "tuned" else "",
        "pinning": powerless,
        "memory-limit": powerless,
        "disk-limit": powerless or elsewhere or _unlimitable(choices.image),
        "disk-cache": ""
        if name != "disk-cache" or _direct(choices.image.file("disk.img"))
        else "the file system of the images allows no other",
    }
    if reason := reasons.get(name):
        raise RequestError(f"--ablate {name}: {reason}", remedy="leave it out, or change the other option")


def _unlimitable(image: Image) -> str:
    """Why the disk of the image cannot be limited; empty where it can."""
    if not cgroups.disks_can_be_limited():
        return "the kernel's block I/O controller is not there"
    try:
        disks_under((str(image.tree),))
    except RequestError as error:
        return error.message
    return ""


def _direct(path: Path) -> bool:
    with local_node((), None) as node:
        return takes_direct_io(node, str(path))


def prepare(
    choices: Choices,
    targets: Sequence[str],
    note: Callable[[str], None],
    dataset: Dataset | None = None,
    ablations: Sequence[str] = (),
) -> None:
    """What is made once and kept: the image in the stores of engines that have one, the data set as a disk for VMs."""
    engine = ENGINES[choices.engine]
    if engine.name == "docker" and "container-vm" in targets:
        docker_store(choices.image, note)
    if choices.inventory:
        for planned in choices.inventory.nodes:
            with machine(planned) as reached:
                _prepare_machine(reached, choices, targets, note, dataset)
        return
    if dataset and VMS.intersection(targets):
        prepare_disk(dataset, note)
    if "container" in targets:
        with local_node((), None) as node:
            engine.load(node, choices.image.digest, choices.image.file("oci.tar"))
            if dataset and "data-layer" in ablations:
                check_room(Path(engine.layers_at(node)), packed_bytes(dataset))


def _packed(choices: Choices, targets: Sequence[str]) -> Iterator[str]:
    """The disks that guests start from."""
    if VMS.intersection(targets):
        yield "disk.img"
    if "container-vm" in targets and choices.engine == "docker":
        yield DOCKER_STORE


def _prepare_machine(
    reached: Machine, choices: Choices, targets: Sequence[str], note: Callable[[str], None], dataset: Dataset | None
) -> None:
    push(reached, choices.image, note)
    for name in _packed(choices, targets):
        push_packed(reached, choices.image, name, note)
    if dataset and VMS.intersection(targets):
        data.prepare_disk(reached, reached.planned, dataset, note)
    if "container" in targets:
        note(f"comparing what the {choices.engine} of {reached.name} holds with the image")
        ENGINES[choices.engine].load(reached, choices.image.digest, choices.image.file("oci.tar"))


def _cluster(
    trial: Trial, choices: Choices, stacks: Sequence[Sequence[Layer]], directory: str | None
) -> AbstractContextManager[tuple[Instance, ...]]:
    assert trial.job.cluster  # noqa: S101 (asked by the caller)
    if choices.inventory is None:
        return open_cluster(trial.job.cluster, trial.instances, stacks, str(choices.image.tree), directory)
    return open_machines(trial.job.cluster, choices.inventory, stacks, choices.image, trial.job.dataset)


@contextmanager
def open_target(trial: Trial, choices: Choices) -> Iterator[tuple[Instance, ...]]:
    """Open the instances of the trial's target on this machine; at the end nothing of them is left."""
    if trial.job.sharing:
        with _open_sharing(trial, choices) as instances:
            yield instances
        return
    with ExitStack() as stack:
        # The machines of an inventory have theirs: ``open_machines`` finds it there.
        volume = None if choices.inventory else stack.enter_context(volume_of(trial))
        directory = str(volume.directory) if volume else None
        tree = str(choices.image.tree)
        envelopes = [planned.envelope for planned in trial.instances] or [trial.job.envelope]
        stacks = [
            layers(trial.target, choices, envelope, ablation=trial.ablation, volume=volume) for envelope in envelopes
        ]
        if trial.job.cluster:
            yield stack.enter_context(_cluster(trial, choices, stacks, directory))
        else:
            node = stack.enter_context(local_node(trial.job.envelope.cpus, tree, directory))
            yield (Instance(stack.enter_context(open_stack(node, stacks[0]))),)


@contextmanager
def _open_sharing(trial: Trial, choices: Choices) -> Iterator[tuple[Instance, ...]]:
    """The victim's instance, and those beside it, whether something will run in them or not.

    Only aggressors write: each has room of its own, for two guests cannot write to one disk.
    """
    with ExitStack() as stack:
        opened = []
        for number, planned in enumerate(trial.instances):
            volume = stack.enter_context(volume_of(trial)) if planned.role == "aggressor" else None
            machine = stack.enter_context(
                local_node(planned.envelope.cpus, str(choices.image.tree), str(volume.directory) if volume else None)
            )
            own = choices.of_instance(number, len(trial.instances))
            stacked = layers(trial.target, own, planned.envelope, ablation=trial.ablation, volume=volume)
            opened.append(Instance(stack.enter_context(open_stack(machine, stacked))))
        yield tuple(opened)
