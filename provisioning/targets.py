"""The targets: which layers are stacked over this machine."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from provisioning.engines.base import ContainerEngine, get_engine
from provisioning.images.image import Image
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import UnlimitedLayer, UserlandLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines.accelerator import Accelerator
from provisioning.machines.base import DEFAULT_PROVIDER, GuestSpec, MachineProvider, get_provider
from provisioning.volumes import Volume
from suite.interfaces import Layer
from suite.inventory import Inventory
from suite.job.envelope import Envelope
from suite.job.job import Layers
from suite.job.properties import AS_IT_IS, Properties
from suite.targets import CONTAINERS, VMS


@dataclass(frozen=True)
class Choices:
    """The user's choices about the layers, resolved: how every target of a run is made."""

    image: Image
    engine: str
    accelerator: Accelerator
    gpus: tuple[str, ...] = ()
    """The UUIDs of GPUs of this machine; of machines of an inventory the words that name them there."""
    inventory: Inventory | None = None
    """The machines, in place of this one. Pods are opened from this one all the same."""
    provider: str = DEFAULT_PROVIDER
    """The machine provider of the VM targets."""
    engine_options: Mapping[str, str] = field(default_factory=dict)
    """The options that the engine alone knows."""
    oci_runtime: str | None = None
    vm_node: str | None = None
    """The node of a cluster that is the virtual machine of container-vm; None where the suite boots that."""

    @cached_property
    def container_engine(self) -> ContainerEngine:
        """Return the engine with its options."""
        engine = get_engine(self.engine).configured(self.engine_options)
        return engine.run_by(self.oci_runtime) if self.oci_runtime else engine

    def engine_of(self, properties: Properties) -> ContainerEngine:
        """Return the engine of containers with these properties. Raises RequestError if it cannot be had."""
        engine = get_engine(properties.engine) if properties.engine else self.container_engine
        return engine.run_by(properties.oci_runtime) if properties.oci_runtime else engine

    def provider_of(self, properties: Properties) -> MachineProvider:
        """Return the machine provider of guests with these properties."""
        return get_provider(properties.provider or self.provider)

    @cached_property
    def engines(self) -> Mapping[str, ContainerEngine]:
        """Return the engines of the targets that are a container on a node, by target."""
        engine = self.container_engine
        return {"container": engine, **({"container-vm": engine.on_vm(self.vm_node)} if self.vm_node else {})}

    @property
    def pods_elsewhere(self) -> bool:
        """Return whether there are pods on a machine other than this one."""
        return bool(self.vm_node or (self.inventory and self.container_engine.is_cluster))

    @property
    def own_vms(self) -> bool:
        """Return whether a virtual machine is there already: a node of a cluster, or a machine of the inventory."""
        return bool(self.vm_node) or {*map(self.opened_as, VMS)} != VMS

    def opened_as(self, target: str) -> str:
        """Return the target that the suite opens; see ``Inventory.opened_as``."""
        return self.inventory.opened_as(target) if self.inventory else target

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
            accelerator=None if self.own_vms else self.accelerator,
            image=self.image.digest,
            oci_runtime=self.oci_runtime,
            gpus=",".join(self.gpus) or None,
            provider=self.provider if self.provider != DEFAULT_PROVIDER else None,
            confinement="user" if is_limited(self.inventory) else None,
            **{name: self.engine_options[name] for name in Layers.model_fields if name in self.engine_options},
        )

    def of_instance(self, number: int, count: int) -> "Choices":
        """Return the choices for one of several instances, with its share of the GPUs.

        If there are fewer GPUs than instances, all instances share them in turns of time.
        """
        return replace(self, gpus=_share(self.gpus, number, count))


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
    engine = choices.engine_of(properties)
    guest = GuestSpec(choices.image, choices.accelerator, envelope, volume=volume, properties=properties)
    vm = VmLayer(choices.provider_of(properties), guest)
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
    return stacks[choices.opened_as(target)]


def booted(targets: Collection[str], engine: str | None) -> frozenset[str]:
    """Return the targets for which the suite boots a virtual machine: in a cluster, that of container-vm is a node."""
    found = VMS.intersection(targets)
    return found - CONTAINERS if engine and get_engine(engine).is_cluster else found


def bare_metal(
    choices: Choices, envelope: Envelope, properties: Properties = AS_IT_IS, *, writable: bool = False
) -> Layer:
    """Return the image's tree entered in place; without root without limits."""
    if is_limited(choices.inventory):
        return UserlandLayer(envelope, choices.gpus, properties, writable)
    return UnlimitedLayer(envelope, choices.gpus, writable)


def is_limited(inventory: Inventory | None) -> bool:
    """Return whether bare metal has a control group and an unnamed user: root makes them, here and elsewhere."""
    return os.geteuid() == 0 or inventory is not None
