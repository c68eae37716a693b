"""How the targets of a run are prepared and opened: here, in a lab, on machines, as pods, or beside neighbours.

The way follows from the scenario and from the choices of a run; ``opener_of`` chooses it once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from provisioning.distributed import on_machine, open_as_pods, open_in_lab, open_on_machines
from provisioning.engines.base import ContainerEngine, get_engine
from provisioning.images.image import Image
from provisioning.nodes import LocalNode, local_node
from provisioning.remote import content
from provisioning.remote.content import scratch_on, sync_file, sync_image
from provisioning.remote.machine import Machine, machine
from provisioning.targets import Choices, layers
from provisioning.volumes import Volume, check_disk_space, disk_of, packed_bytes, prepare_disk, volume_of
from suite.errors import MeasurementError
from suite.interfaces import Instance, Layer, Node, open_stack
from suite.inventory import Inventory
from suite.job.ablations import properties_of
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob
from suite.job.envelope import Envelope
from suite.plan import Trial
from suite.request.traits import Traits
from suite.targets import VMS


@dataclass(frozen=True)
class Opener(ABC):
    """One way to open the instances of a trial's target."""

    choices: Choices

    @abstractmethod
    def opened(self, trial: Trial) -> AbstractContextManager[tuple[Instance, ...]]:
        """Open the instances; when the context ends, nothing of them is left."""

    @property
    def tree(self) -> str:
        return str(self.choices.image.tree)

    def machine(self, envelope: Envelope, data: str | None) -> AbstractContextManager[LocalNode]:
        """Open this machine with the image of the run, and this directory of data."""
        return local_node(envelope.cpus, self.tree, data, self.choices.image.python)

    def choices_of(self, trial: Trial, *, shared: bool) -> Iterator[Choices]:
        """Yield the choices of each instance. Those that compute get GPUs, a share each on a ``shared`` machine."""
        idle = "server" if trial.job.distributed and trial.job.distributed.strategy else "client"
        computing = [number for number, planned in enumerate(trial.instances) if planned.role != idle]
        for number in range(len(trial.instances)):
            if number not in computing:
                yield replace(self.choices, gpus=())
            elif shared:
                yield self.choices.of_instance(computing.index(number), len(computing))
            else:
                yield self.choices

    def layers(
        self, trial: Trial, envelope: Envelope, choices: Choices | None = None, volume: Volume | None = None
    ) -> list[Layer]:
        """Return the stack of one instance, from the machine upwards."""
        return layers(trial.target, choices or self.choices, envelope, properties=trial.properties, volume=volume)


class Here(Opener):
    """One instance on this machine, or one pod that is opened from it."""

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        with ExitStack() as stack:
            volume = None if self.choices.inventory else stack.enter_context(volume_of(trial))
            directory = str(volume.directory) if volume else None
            machine = stack.enter_context(self.machine(trial.envelope, directory))
            stacked = self.layers(trial, trial.envelope, volume=volume)
            yield (Instance(stack.enter_context(open_stack(machine, stacked))),)


class OnOwnMachines(Here):
    """One instance on the machine of an inventory that is listed for the target. Pods are opened from here."""

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        pods = self.choices.engines if self.choices.container_engine.is_cluster else {}
        if trial.target in pods and not trial.properties.engine:
            with super().opened(trial) as instances:
                yield instances
            return
        (planned,) = _inventory(self.choices).of_target(trial.target)
        with ExitStack() as stack:
            cpus, dataset = trial.envelope.cpus, trial.job.dataset
            machine = stack.enter_context(on_machine(planned, cpus, self.choices.image, dataset))
            volume = None
            if trial.scratch_bytes:
                volume = stack.enter_context(scratch_on(machine.node, planned, trial.scratch_bytes))
                machine.node.data = str(volume.directory)
            stacked = self.layers(trial, trial.envelope, volume=volume)
            yield (replace(machine, node=stack.enter_context(open_stack(machine.node, stacked))),)


class InLab(Opener):
    """The instances of a joined job on the nodes of a lab."""

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        job = _joined(trial)
        if job.lab and trial.properties.link:
            job = job.model_copy(update={"lab": job.lab.model_copy(update=trial.properties.link)})
        with volume_of(trial) as volume:
            each = zip(trial.instances, self.choices_of(trial, shared=True), strict=True)
            stacks = [self.layers(trial, planned.envelope, choices, volume) for planned, choices in each]
            directory = str(volume.directory) if volume else None
            with open_in_lab(job, trial.instances, stacks, self.choices.image, directory) as instances:
                yield instances


class OnMachines(Opener):
    """The instances of a joined job, each on a machine of the inventory, which has its own data."""

    def opened(self, trial: Trial) -> AbstractContextManager[tuple[Instance, ...]]:
        each = zip(trial.instances, self.choices_of(trial, shared=False), strict=True)
        stacks = [self.layers(trial, planned.envelope, choices) for planned, choices in each]
        inventory, image = _inventory(self.choices), self.choices.image
        return open_on_machines(_joined(trial), inventory, stacks, image, trial.job.dataset)


class AsPods(Opener):
    """The instances of a joined job, each a pod on a node of a cluster."""

    def opened(self, trial: Trial) -> AbstractContextManager[tuple[Instance, ...]]:
        placed = zip(self.choices.placed, trial.instances, strict=True)
        stacks = [self.layers(trial, planned.envelope, choices) for choices, planned in placed]
        return open_as_pods(_joined(trial), trial.instances, stacks, self.tree)


class BesideNeighbours(Opener):
    """A victim and the instances beside it, in which an aggressor may run or not.

    Only aggressors write: each has a volume for itself, for two guests cannot write to one disk.
    """

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        with ExitStack() as stack:
            instances = []
            for planned, choices in zip(trial.instances, self.choices_of(trial, shared=True), strict=True):
                volume = stack.enter_context(volume_of(trial)) if planned.role == "aggressor" else None
                directory = str(volume.directory) if volume else None
                machine = stack.enter_context(self.machine(planned.envelope, directory))
                stacked = self.layers(trial, planned.envelope, choices, volume)
                instances.append(Instance(stack.enter_context(open_stack(machine, stacked))))
            yield tuple(instances)


def opener_of(choices: Choices, scenario: type[Traits] | Traits, targets: Sequence[str]) -> Opener:
    """Return the way in which the targets of a run are opened."""
    if scenario.neighbours:
        return BesideNeighbours(choices)
    if not scenario.joined:
        return OnOwnMachines(choices) if choices.inventory else Here(choices)
    if "container" in targets and choices.container_engine.is_cluster:
        return AsPods(choices)
    return OnMachines(choices) if choices.inventory else InLab(choices)


def _joined(trial: Trial) -> DistributedJob:
    if trial.job.distributed is None:
        raise MeasurementError("a joined job was planned without its instances", kind="plan")
    return trial.job.distributed


def _inventory(choices: Choices) -> Inventory:
    if choices.inventory is None:
        raise MeasurementError("this job was planned for machines of an inventory", kind="plan")
    return choices.inventory


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
    if engine.guest_store and "container-vm" in map(choices.opened_as, targets):
        engine.guest_store.make(choices.image, note)
    switched = [get_engine(name) for each in ablations if (name := properties_of(each).engine)]
    if choices.inventory:
        # Pods are opened from here, and their image came to the node when their CPUs were tried.
        engines = switched if engine.is_cluster else [engine, *switched]
        for planned in choices.inventory.nodes:
            opened = choices.inventory.opened_on(planned, targets)
            with machine(planned) as reached:
                _prepare_machine(reached, choices, opened, engines, note, dataset)
        return
    with local_node((), None) as node:
        if dataset and not dataset.device and VMS.intersection(targets):
            prepare_disk(node, dataset.directory, str(disk_of(dataset)), dataset, note, refuse_changed)
        if "container" in targets:
            for placed in choices.placed:
                _load(node, placed.engines.values(), choices.image)
            _load(node, switched, choices.image)
            if dataset and any(properties_of(name).data_in_layer for name in ablations):
                check_disk_space(node, engine.layers_at(node), packed_bytes(dataset), "the layer of the data set")


def _load(node: Node, engines: Iterable[ContainerEngine], image: Image) -> None:
    for engine in engines:
        engine.load(node, image.digest, image.file("oci.tar"))


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
            disk = content.disk_of(planned, dataset)
            prepare_disk(reached, content.directory_of(planned, dataset), disk, dataset, note)
    if "container-vm" in targets and engine.guest_store:
        sync_file(reached, choices.image, engine.guest_store.file, note)
    for each in engines if "container" in targets else ():
        note(f"comparing what the {each.name} of {reached.name} holds with the image")
        _load(reached, [each], choices.image)
