"""The targets: which layers are stacked over this machine."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from provisioning.cgroup import limits as cgroups
from provisioning.distributed import on_machine, open_as_pods, open_in_lab, open_on_machines
from provisioning.engines.base import ContainerEngine, get_engine
from provisioning.images.image import Image
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import OwnEnvironmentLayer, UserlandLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines.accelerator import Accelerator
from provisioning.machines.base import DEFAULT_PROVIDER, GuestSpec, get_provider
from provisioning.nodes import local_node
from provisioning.remote import data
from provisioning.remote.image_sync import sync_file, sync_image
from provisioning.remote.machine import Machine, machine
from provisioning.volumes import Volume, check_disk_space, disk_of, packed_bytes, prepare_disk, volume_of
from suite.errors import BenchError, RequestError, option
from suite.interfaces import Instance, Layer, Node, open_stack
from suite.inventory import Inventory
from suite.job.ablations import properties_of
from suite.job.datasets import Dataset
from suite.job.envelope import Envelope
from suite.job.job import Layers
from suite.job.properties import AS_IT_IS, Properties
from suite.plan import Trial
from suite.request.traits import Traits
from suite.targets import CONTAINERS, VMS


@dataclass(frozen=True)
class Choices:
    """The user's choices about the layers, resolved: how every target of a run is made."""

    image: Image
    engine: str
    accelerator: Accelerator
    gpus: tuple[str, ...] = ()
    vfio: tuple[str, ...] = ()
    inventory: Inventory | None = None
    """The machines, in place of this one. Pods are opened from this one all the same."""
    provider: str = DEFAULT_PROVIDER
    """The machine provider of the VM targets."""
    engine_options: Mapping[str, str] = field(default_factory=dict)
    """The options that the engine alone knows."""
    vm_node: str | None = None
    """The node of a cluster that is the virtual machine of container-vm; None where the suite boots that."""

    @cached_property
    def container_engine(self) -> ContainerEngine:
        """Return the engine with its options."""
        return get_engine(self.engine).configured(self.engine_options)

    @cached_property
    def engines(self) -> Mapping[str, ContainerEngine]:
        """Return the engines of the targets that are a container on a node, by target."""
        engine = self.container_engine
        return {"container": engine, **({"container-vm": engine.on_vm(self.vm_node)} if self.vm_node else {})}

    @property
    def most_cpus(self) -> int | None:
        """Return how many CPUs each container can have; None where it is this machine that decides."""
        most = [engine.most_cpus() for each in self.placed for engine in each.engines.values()]
        return min((cpus for cpus in most if cpus is not None), default=None)

    @cached_property
    def placed(self) -> "tuple[Choices, ...]":
        """Return the choices for each of the nodes that the engine's options name, with commas between them."""
        options = {name: value.split(",") for name, value in self.engine_options.items()}
        count = max((len(parts) for parts in options.values()), default=1)
        return tuple(
            replace(self, engine_options={name: parts[number % len(parts)] for name, parts in options.items()})
            for number in range(count)
        )

    def layers(self) -> Layers:
        """Return the choices as a job records them."""
        return Layers(
            engine=self.engine,
            accelerator=None if self.vm_node else self.accelerator,
            image=self.image.digest,
            gpus=",".join(self.gpus) or None,
            provider=self.provider if self.provider != DEFAULT_PROVIDER else None,
            vfio=",".join(self.vfio) or None,
            confinement="user" if enters_tree(self.inventory) else None,
            **{name: self.engine_options[name] for name in Layers.model_fields if name in self.engine_options},
        )

    def of_instance(self, number: int, count: int) -> "Choices":
        """Return the choices for one of several instances, with its share of the GPUs.

        If there are fewer GPUs than instances, all instances share them, as the user has set them up (MPS, MIG).
        Raises RequestError for too few passed-through GPUs, which cannot be shared.
        """
        if self.vfio and len(self.vfio) < count:
            raise RequestError(
                f"{option('vfio')} names {len(self.vfio)} GPUs, and {count} virtual machines need one each: a GPU that "
                "is passed through belongs to one machine",
                remedy=f"name {count}, or leave out the targets with a VM",
            )
        return replace(self, gpus=_share(self.gpus, number, count), vfio=_share(self.vfio, number, count))


def _share(devices: tuple[str, ...], number: int, count: int) -> tuple[str, ...]:
    each = len(devices) // count
    return devices[number * each : (number + 1) * each] if each else devices


def layers(
    target: str,
    choices: Choices,
    envelope: Envelope,
    *,
    properties: Properties = AS_IT_IS,
    volume: Volume | None = None,
) -> list[Layer]:
    """Return the stack of a target, from the machine upwards."""
    engine = get_engine(properties.engine) if properties.engine else choices.container_engine
    guest = GuestSpec(choices.image, choices.accelerator, envelope, choices.vfio, volume=volume, properties=properties)
    vm = VmLayer(get_provider(choices.provider), guest)
    store = engine.guest_store.file if engine.guest_store else None
    writable = volume is not None and volume.writable
    container = ContainerLayer(
        engine,
        choices.image.digest,
        envelope.memory_bytes,
        choices.gpus,
        properties,
        writable,
        layer=str(volume.layer) if volume and volume.layer else None,
    )
    stacks: dict[str, list[Layer]] = {
        "bare-metal": [bare_metal(choices, envelope, properties, writable=writable)],
        "container": [container],
        "vm": [vm],
        "container-vm": [replace(vm, spec=replace(guest, store=store)), container],
    }
    if target == "container-vm" and choices.vm_node:
        return [replace(container, engine=choices.engines[target])]
    return stacks[target]


def booted(targets: Collection[str], engine: str | None) -> frozenset[str]:
    """Return the targets for which the suite boots a virtual machine: in a cluster, that of container-vm is a node."""
    found = VMS.intersection(targets)
    return found - CONTAINERS if engine and get_engine(engine).is_cluster else found


def bare_metal(
    choices: Choices, envelope: Envelope, properties: Properties = AS_IT_IS, *, writable: bool = False
) -> Layer:
    """Return the image's tree entered in place; without root the suite's own environment, named as a substitute."""
    if enters_tree(choices.inventory):
        return UserlandLayer(envelope, choices.gpus, properties, writable)
    return OwnEnvironmentLayer(envelope)


def enters_tree(inventory: Inventory | None) -> bool:
    """Return whether bare metal is the image's tree: root is needed to enter it, and is had on other machines."""
    return os.geteuid() == 0 or inventory is not None


def refuse_ablation(name: str, choices: Choices, recipe: str, scenario: Traits) -> None:
    """Raise RequestError for an ablation that changes a property which cannot be switched in this run."""
    properties = properties_of(name)
    if (properties.virtiofs or properties.data_in_layer) and not scenario.needs_data:
        raise RequestError(
            f"{option('ablate')} {name} is about where a data set lies", remedy=f"use {option('scenario')} real"
        )
    if properties.host_network and scenario.joined and not choices.container_engine.is_cluster:
        raise RequestError(
            f"{option('ablate')} {name}: {option('network')} says how the instances are joined",
            remedy=f"leave it out, and run it once more with {option('network')} host",
        )
    if properties.service and not (scenario.service and choices.container_engine.is_cluster):
        raise RequestError(
            f"{option('ablate')} {name} is about a service of a cluster, before a pod that serves",
            remedy=f"use {option('scenario')} serve {option('target')} container {option('engine')} kubernetes",
        )
    if found := get_provider(choices.provider).hindrance(properties, choices.image):
        raise RequestError(f"{option('ablate')} {name}: {found[0]}", remedy=found[1])
    if reason := next(hindrances(properties, choices, recipe), None):
        raise RequestError(f"{option('ablate')} {name}: {reason}", remedy="leave it out, or change the other option")


def hindrances(properties: Properties, choices: Choices, recipe: str) -> Iterator[str]:
    """Yield why these properties cannot be had, or would be the same if they were switched."""
    engine = choices.container_engine
    if properties == AS_IT_IS:
        yield "it changes no property"
    yield from _hindrances_of_engine(properties, choices)
    if properties.bound_tree and engine.rootfs == "directory":
        yield f"{engine.name} runs the tree in place already"
    if properties.huge_pages and recipe == "tuned":
        yield "the tuned recipe has them already"
    limits = ("pinned", "memory_limited", "confined", "disk_limit_bytes_per_s", "cpu_share")
    limited = any(getattr(properties, name) != getattr(AS_IT_IS, name) for name in limits)
    if limited and not enters_tree(choices.inventory):
        yield "without root nothing is limited that could be"
    if properties.disk_limit_bytes_per_s:
        if choices.inventory:
            yield "disks are limited on this machine only"
        elif not cgroups.disks_can_be_limited():
            yield "the kernel's block I/O controller is not there"
        else:
            try:
                cgroups.disks_under((str(choices.image.tree),))
            except RequestError as error:
                yield error.message


def _hindrances_of_engine(properties: Properties, choices: Choices) -> Iterator[str]:
    engine = choices.container_engine
    if reason := engine.hindrance(properties):
        yield reason
    if properties.engine == engine.name:
        yield "it is the engine of the run already"
    elif properties.engine:
        try:
            with _machines(choices) as nodes:
                for node in nodes:
                    engine.check_machine(node)
                    get_engine(properties.engine).version(node)
        except BenchError as error:
            yield error.message


@contextmanager
def _machines(choices: Choices) -> Iterator[list[Node]]:
    """Open the machines that all targets but pods are opened on: this one, or those of the inventory."""
    with ExitStack() as stack:
        if choices.inventory:
            yield [stack.enter_context(machine(planned)) for planned in choices.inventory.nodes]
        else:
            yield [stack.enter_context(local_node((), None))]


def prepare(
    choices: Choices,
    targets: Sequence[str],
    note: Callable[[str], None],
    dataset: Dataset | None = None,
    ablations: Sequence[str] = (),
    refuse_changed: Callable[[], None] = lambda: None,
) -> None:
    """Make what is kept between runs: the image in the stores of engines that have one, the data set as VM disk.

    ``refuse_changed`` raises when the data set is no longer the one that is prepared.
    """
    engine = choices.container_engine
    if engine.guest_store and "container-vm" in targets:
        engine.guest_store.make(choices.image, note)
    switched = [get_engine(name) for each in ablations if (name := properties_of(each).engine)]
    if choices.inventory:
        # Pods are opened from here, and their image came to the node when their CPUs were tried.
        engines = switched if engine.is_cluster else [engine, *switched]
        for planned in choices.inventory.nodes:
            with machine(planned) as reached:
                _prepare_machine(reached, choices, targets, engines, note, dataset)
        return
    with local_node((), None) as node:
        if dataset and not dataset.device and VMS.intersection(targets):
            prepare_disk(node, dataset.directory, str(disk_of(dataset)), dataset, note, refuse_changed)
        if "container" in targets:
            for each in (*(found for own in choices.placed for found in own.engines.values()), *switched):
                each.load(node, choices.image.digest, choices.image.file("oci.tar"))
            if dataset and any(properties_of(name).data_in_layer for name in ablations):
                check_disk_space(node, engine.layers_at(node), packed_bytes(dataset), "the layer of the data set")


def _prepare_machine(
    reached: Machine,
    choices: Choices,
    targets: Sequence[str],
    engines: Sequence[ContainerEngine],
    note: Callable[[str], None],
    dataset: Dataset | None,
) -> None:
    engine, planned = choices.container_engine, reached.planned
    sync_image(reached, choices.image, note)
    if VMS.intersection(targets):
        sync_file(reached, choices.image, "disk.img", note)
        if dataset:
            disk = data.disk_of(planned, dataset)
            prepare_disk(reached, data.directory_of(planned, dataset), disk, dataset, note)
    if "container-vm" in targets and engine.guest_store:
        sync_file(reached, choices.image, engine.guest_store.file, note)
    for each in engines if "container" in targets else ():
        note(f"comparing what the {each.name} of {reached.name} holds with the image")
        each.load(reached, choices.image.digest, choices.image.file("oci.tar"))


@contextmanager
def open_target(trial: Trial, choices: Choices) -> Iterator[tuple[Instance, ...]]:
    """Open the instances of the trial's target; at the end nothing of them is left."""
    if trial.job.sharing:
        with _open_sharing(trial, choices) as instances:
            yield instances
        return
    with ExitStack() as stack:
        # The machines of an inventory have theirs: ``open_on_machines`` finds it there.
        volume = None if choices.inventory else stack.enter_context(volume_of(trial))
        directory = str(volume.directory) if volume else None
        tree = str(choices.image.tree)
        envelopes = [planned.envelope for planned in trial.instances] or [trial.envelope]
        distributed = trial.job.distributed
        pods = distributed is not None and bool(distributed.machines) and not choices.inventory
        stacks = [
            layers(trial.target, own, envelope, properties=trial.properties, volume=volume)
            for own, envelope in zip(choices.placed if pods else [choices] * len(envelopes), envelopes, strict=True)
        ]
        if distributed and pods:
            yield stack.enter_context(open_as_pods(distributed, trial.instances, stacks, tree))
        elif distributed and choices.inventory:
            opened = open_on_machines(distributed, choices.inventory, stacks, choices.image, trial.job.dataset)
            yield stack.enter_context(opened)
        elif distributed:
            if distributed.lab and trial.properties.link:
                lab = distributed.lab.model_copy(update=trial.properties.link)
                distributed = distributed.model_copy(update={"lab": lab})
            yield stack.enter_context(open_in_lab(distributed, trial.instances, stacks, tree, directory))
        else:
            cpus, pod = trial.envelope.cpus, trial.target in choices.engines and not trial.properties.engine
            if choices.inventory and not pod:
                (planned,) = choices.inventory.nodes
                place = stack.enter_context(on_machine(planned, cpus, choices.image, trial.job.dataset))
            else:
                place = Instance(stack.enter_context(local_node(cpus, tree, directory)))
            yield (replace(place, node=stack.enter_context(open_stack(place.node, stacks[0]))),)


@contextmanager
def _open_sharing(trial: Trial, choices: Choices) -> Iterator[tuple[Instance, ...]]:
    """Open the victim's instance and those beside it, whether something will run in them or not.

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
            stacked = layers(trial.target, own, planned.envelope, properties=trial.properties, volume=volume)
            opened.append(Instance(stack.enter_context(open_stack(machine, stacked))))
        yield tuple(opened)
