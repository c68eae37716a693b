"""The targets: which layers are stacked over a machine."""

import os
from collections.abc import Mapping
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
    provider: str = DEFAULT_PROVIDER
    engine_options: Mapping[str, str] = field(default_factory=dict)
    oci_runtime: str | None = None

    @cached_property
    def container_engine(self) -> ContainerEngine:
        engine = get_engine(self.engine).configured(self.engine_options)
        if self.oci_runtime:
            return engine.run_by(self.oci_runtime)
        return engine

    def engine_of(self, properties: Properties) -> ContainerEngine:
        """Return the engine of containers with these properties. Raises RequestError if it cannot be had."""
        engine = get_engine(properties.engine) if properties.engine else self.container_engine
        if properties.oci_runtime:
            return engine.run_by(properties.oci_runtime)
        return engine

    def provider_of(self, properties: Properties) -> MachineProvider:
        return get_provider(properties.provider or self.provider)

    def no_snapshot_of(self, target: str) -> str:
        """Return why a server in the target cannot be saved and resumed; empty if it can.

        Its lowest layer would have to do it.
        """
        if target in VMS:
            reason = get_provider(self.provider).no_snapshot
            if reason:
                return f"{reason} ({self.provider})"
            if target in CONTAINERS:
                return "a server is detached in a guest, and not in a container of one"
            return ""
        if target in CONTAINERS:
            return f"{self.container_engine.no_snapshot} ({self.engine})"
        return "a process is not saved together with bench's end of its pipes"

    def layers(self, *, local: bool = True, boots_guests: bool = True) -> Layers:
        return Layers(
            engine=self.engine,
            accelerator=self.accelerator if boots_guests else None,
            image=self.image.digest,
            oci_runtime=self.oci_runtime,
            gpus=",".join(self.gpus) or None,
            provider=self.provider if self.provider != DEFAULT_PROVIDER else None,
            confinement="user" if is_limited(local=local) else None,
            **{name: self.engine_options[name] for name in Layers.model_fields if name in self.engine_options},
        )

    def of_instance(self, number: int, count: int) -> "Choices":
        """Return the choices for one of several instances, with its share of the GPUs.

        If there are fewer GPUs than instances, all instances share them in turns of time.
        """
        share = len(self.gpus) // count
        return replace(self, gpus=self.gpus[number * share : (number + 1) * share] if share else self.gpus)


def layers(
    target: str,
    choices: Choices,
    envelope: Envelope,
    *,
    properties: Properties = AS_IT_IS,
    volume: Volume | None = None,
    limited: bool | None = None,
) -> list[Layer]:
    """Return the stack of a target, from the machine upwards. Without root, bare metal is not ``limited``."""
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
    bare_metal: Layer = UnlimitedLayer(envelope, choices.gpus, writable)
    if is_limited(local=True) if limited is None else limited:
        bare_metal = UserlandLayer(envelope, choices.gpus, properties, writable)
    stacks: dict[str, list[Layer]] = {
        "bare-metal": [bare_metal],
        "container": [container],
        "vm": [vm],
        "container-vm": [replace(vm, spec=replace(guest, store=store)), container],
    }
    return stacks[target]


def is_limited(*, local: bool) -> bool:
    """Return whether bare metal has a control group and an unnamed user: root makes them, here and elsewhere."""
    return os.geteuid() == 0 or not local
