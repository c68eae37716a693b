"""The targets: which layers are stacked over this machine."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.accelerator import Accelerator
from provisioning.images.docker_store import docker_store
from provisioning.images.image import Image
from provisioning.layers.container import ContainerLayer
from provisioning.layers.engines import ENGINES
from provisioning.layers.userland import OwnEnvironmentLayer, UserlandLayer
from provisioning.layers.vm import VmLayer
from provisioning.nodes import local_node
from suite.envelope import Envelope
from suite.interfaces import Layer, Node, open_stack
from suite.plan import Trial

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Choices:
    """What the user chose of the layers, resolved: how every target of a run is made."""

    image: Image
    engine: str
    accelerator: Accelerator
    gpus: tuple[str, ...] = ()
    vfio: tuple[str, ...] = ()

    def options(self) -> dict[str, str]:
        """As the plan stores them: what changes the meaning of a number."""
        chosen = {"engine": self.engine, "accelerator": self.accelerator, "image": self.image.digest}
        if self.gpus:
            chosen["gpus"] = ",".join(self.gpus)
        if self.vfio:
            chosen["vfio"] = ",".join(self.vfio)
        return chosen


def layers(target: str, choices: Choices, envelope: Envelope) -> list[Layer]:
    """The stack of a target, from the machine upwards."""
    engine = ENGINES[choices.engine]
    vm = VmLayer(choices.image, choices.accelerator, envelope, choices.vfio, with_docker=engine.name == "docker")
    container = ContainerLayer(engine, choices.image.digest, envelope.memory_bytes, choices.gpus)
    stacks: dict[str, list[Layer]] = {
        "bare-metal": [bare_metal(choices, envelope)],
        "container": [container],
        "vm": [VmLayer(choices.image, choices.accelerator, envelope, choices.vfio)],
        "container-vm": [vm, container],
    }
    return stacks[target]


def bare_metal(choices: Choices, envelope: Envelope) -> Layer:
    """The image's tree entered in place; without root the suite's own environment, named as a substitute."""
    if os.geteuid() == 0:
        return UserlandLayer(envelope, choices.gpus)
    return OwnEnvironmentLayer(envelope, (sys.executable, str(REPOSITORY)))


def prepare(choices: Choices, targets: Sequence[str], note: Callable[[str], None]) -> None:
    """What is made once and kept: the image in the stores of engines that have one."""
    engine = ENGINES[choices.engine]
    if engine.name == "docker" and "container-vm" in targets:
        docker_store(choices.image, note)
    if "container" in targets:
        with local_node((), None) as node:
            engine.prepare(node, choices.image.digest, str(choices.image.file("oci.tar")))


@contextmanager
def open_target(trial: Trial, choices: Choices) -> Iterator[Node]:
    """Open the trial's target on this machine; at the end nothing of it is left."""
    with (
        local_node(trial.envelope.cpus, str(choices.image.tree)) as node,
        open_stack(node, layers(trial.target, choices, trial.envelope)) as target,
    ):
        yield target
