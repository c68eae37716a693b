"""The machines of an inventory, reached by SSH: those that are listed for targets, or those of a joined job."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provisioning.engines.base import get_engine
from provisioning.gpus import Card
from provisioning.images.image import Image
from provisioning.isa import CPUINFO, lowest_of, reports_hypervisor
from provisioning.joining import BRIDGES, end_of, joined_fields, linked, needs, open_containers
from provisioning.lab.connectivity import free_port, reach
from provisioning.layers.container import ContainerLayer
from provisioning.layers.vm import VmLayer
from provisioning.remote import content
from provisioning.remote.content import directory_of, scratch_on, sync_file, sync_image, tree_of, volume_on
from provisioning.remote.discovery import Discovery, attest, discover
from provisioning.remote.machine import Machine, machine
from provisioning.remote.network import forwarded, joined, routed
from provisioning.sites.base import Capacity, RunInputs, Site, joined_job
from provisioning.sites.cards import GUESTS_WITHOUT_GPUS, WITHOUT_GUESTS, check_gpus
from provisioning.sites.here import load, loading_engines, refuse_adopted
from provisioning.targets import Choices
from provisioning.volumes import disk_under, prepare_disk
from suite.differ import differences
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Instance, Layer, Node, Note, open_stack
from suite.inventory import Inventory, InventoryNode, read_inventory
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob, MachineSpec, check_memory
from suite.job.envelope import Envelope
from suite.job.job import CpuCapability
from suite.plan import Plan, Trial
from suite.request.parts import gpu_words
from suite.request.request import RunRequest
from suite.request.traits import traits_of
from suite.targets import ON_REAL_MACHINES, TARGETS, VMS, ListedMachine, OwnMachine

CLOCKS_APART_S = 1.0
"""Nothing is measured across clocks; but logs that are so far apart are hard to read."""


@dataclass(frozen=True)
class Machines(Site):
    """Each target on the machine that is listed for it."""

    inventory: Inventory = field(kw_only=True)
    discovery: Discovery = field(kw_only=True)
    name = "machines"
    instances_share = False

    @classmethod
    def chosen_by(cls, request: RunRequest) -> bool:
        return bool(request.joining.inventory)

    @classmethod
    def boots(cls, request: RunRequest) -> frozenset[str]:
        if traits_of(request.scenario).joined:
            return super().boots(request)
        return frozenset()

    @classmethod
    def with_usual_targets(cls, inputs: RunInputs) -> RunInputs:
        """Return the inputs with the targets that machines are listed for; of a joined job, those without a guest."""
        if inputs.scenario.joined:
            return inputs.on(ON_REAL_MACHINES)
        inventory = read_inventory(inputs.request.joining.inventory or Path())
        listed = (target for target in TARGETS if inventory.of_target(target))
        return inputs.on(tuple(listed))

    @classmethod
    def resolve(cls, inputs: RunInputs) -> "Machines":
        refuse_adopted(inputs.image)
        if inputs.scenario.joined:
            return JoinedMachines.joined(inputs)
        request = inputs.request
        inventory = listed_for(request.targets.target, request.joining.inventory or Path())
        boots: dict[str, str] = {}
        opened = tuple(map(inventory.opened_as, request.targets.target))
        return cls.of_targets(inputs, inventory, opened, lambda reached: attest(reached, boots))

    @classmethod
    def of_targets(
        cls,
        inputs: RunInputs,
        inventory: Inventory,
        opened: tuple[str, ...],
        check: Callable[[Machine], None],
        choices: Choices | None = None,
    ) -> "Machines":
        """Return the machines on which such targets are opened; ``choices`` are those of what is compared with them."""
        discovery = discover(inventory, inputs, opened, None, check)
        for difference in differences(found.host for found in discovery.machines):
            inputs.note(f"the machines differ: {difference}")
        choices = choices or discovered_choices(inputs, discovery)
        targets = inputs.request.targets.target
        return cls(choices, targets, inventory=inventory, discovery=discovery)

    @property
    def local(self) -> bool:
        return False

    @property
    def boots_guests(self) -> bool:
        return {*map(self.opened_as, VMS)} == VMS

    def opened_as(self, target: str) -> str:
        return self.inventory.opened_as(target)

    def places(self, inputs: RunInputs) -> tuple[Capacity, ...]:  # noqa: ARG002 (others look at it)
        return self.discovery.machines

    def part(self, inputs: RunInputs) -> dict[str, Any]:
        fields = super().part(inputs)
        machines = []
        for node, share in zip(self.inventory.nodes, self.envelopes(inputs), strict=True):
            as_listed = node.model_dump(include={*ListedMachine.model_fields})
            machines.append(OwnMachine(**as_listed, cpus=share.cpus))
        return {**fields, "machines": tuple(machines)}

    def capability(self, envelope: Envelope, note: Note, *, always: bool) -> CpuCapability | None:  # noqa: ARG002
        """Return the vector instructions that all of the machines and their guests have; see ``isa.shared``."""
        guests_alone = VMS.issuperset(self.targets)
        levels = set()
        for reached in self.discovery.machines:
            if reached.guest_capability:
                levels.add(reached.guest_capability)
            if not (guests_alone and reached.guest_capability):
                levels.add(reached.capability)
        return lowest_of(levels, note, always=always)

    @contextmanager
    def nodes(self) -> Iterator[list[Node]]:
        with ExitStack() as stack:
            yield [stack.enter_context(machine(planned)) for planned in self.inventory.nodes]

    def here_cpus(self, plan: Plan) -> tuple[int, ...]:  # noqa: ARG002 (those of its machines are not this one's)
        return ()

    def prepare(
        self,
        plan: Plan,
        note: Note,
        refuse_changed: Callable[[], None] = lambda: None,  # noqa: ARG002 (their copies were compared)
    ) -> None:
        engine = self.choices.container_engine
        image = self.choices.image
        dataset = plan.job.dataset
        loading = loading_engines(engine, plan)
        if engine.guest_store and "container-vm" in map(self.opened_as, plan.targets):
            engine.guest_store.make(image, note)
        for planned in self.inventory.nodes:
            targets = self.inventory.opened_on(planned, plan.targets)
            with machine(planned) as reached:
                sync_image(reached, image, note)
                if VMS.intersection(targets):
                    sync_file(reached, image, "disk.img", note)
                    if dataset:
                        disk = content.disk_of(planned, dataset)
                        prepare_disk(reached, directory_of(planned, dataset), disk, dataset, note)
                if "container-vm" in targets and engine.guest_store:
                    sync_file(reached, image, engine.guest_store.file, note)
                if "container" in targets:
                    for loader in loading:
                        note(f"comparing what the {loader.name} of {reached.name} holds with the image")
                        load(reached, [loader], image)

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        (planned,) = self.inventory.of_target(trial.target)
        with ExitStack() as stack:
            cpus = trial.envelope.cpus
            dataset = trial.job.dataset
            opening = on_machine(planned, cpus, self.choices.image, dataset)
            instance = stack.enter_context(opening)
            volume = None
            if trial.scratch_bytes:
                opening_scratch = scratch_on(instance.node, planned, trial.scratch_bytes)
                volume = stack.enter_context(opening_scratch)
                instance.node.data = str(volume.directory)
            stacked = self.layers(trial, trial.envelope, volume=volume)
            node = stack.enter_context(open_stack(instance.node, stacked))
            yield (replace(instance, node=node),)


class JoinedMachines(Machines):
    """The instances of a joined job, one on each machine, which has its own data."""

    @classmethod
    def joined(cls, inputs: RunInputs) -> "JoinedMachines":
        request = inputs.request
        if request.gpus.device == "cuda" and VMS.intersection(request.targets.target):
            raise RequestError(GUESTS_WITHOUT_GPUS, remedy=WITHOUT_GUESTS)
        path = inputs.request.joining.inventory or Path()
        inventory = read_inventory(path)
        count = inputs.scenario.instances(inputs.request)
        if len(inventory.nodes) < count:
            needed = needs(request, inputs.scenario, "machine")
            raise RequestError(
                f"{option('inventory')} {path}: {needed}, and it lists {len(inventory.nodes)}",
                remedy=f"list more, or ask for fewer with {option('workers')} and {option('ps')}",
            )
        listed = [node.name for node in inventory.nodes if "targets" in node.model_fields_set]
        if listed:
            where = f"{option('inventory')} {path} lists targets at {listed[0]}"
            why = f"every target of {request.scenario} is on all machines"
            raise RequestError(f"{where}, and {why}", remedy="leave them out")
        engine = request.targets.engine
        if engine:
            get_engine(engine).check_network(request.joining.network, in_lab=False)
        first_nodes = inventory.nodes[:count]
        inventory = inventory.model_copy(update={"nodes": first_nodes})
        discovery = discover(inventory, inputs, request.targets.target, request.joining.network, lambda _: None)
        for reached, place in zip(discovery.machines, discovery.places, strict=True):
            inputs.note(f"{reached.name}: {place.interface} {place.address}, {len(reached.cpus)} CPUs")
            if abs(reached.clock_offset_s) > CLOCKS_APART_S:
                off = f"its clock is {reached.clock_offset_s:+.1f} s off this machine's"
                inputs.note(f"{reached.name}: {off}; all is timed here")
        choices = discovered_choices(inputs, discovery)
        targets = request.targets.target
        return cls(choices, targets, inventory=inventory, discovery=discovery)

    def part(self, inputs: RunInputs) -> dict[str, Any]:
        discovery = self.discovery
        fields = Site.part(self, inputs)
        check_memory(fields["envelope"], 1)
        envelopes = self.envelopes(inputs)
        machines = []
        for reached, place, envelope in zip(discovery.machines, discovery.places, envelopes, strict=True):
            spec = MachineSpec(
                name=reached.name,
                address=place.address,
                interface=place.interface,
                cpus=envelope.cpus,
            )
            machines.append(spec)
        fields["distributed"] = joined_fields(
            inputs,
            self.targets,
            self.choices.accelerator,
            network=inputs.request.joining.network,
            machines=tuple(machines),
            guests="routed" if VMS.intersection(self.targets) else None,
        )
        return fields

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        choices_of_instances = self.choices_of(trial, shared=False)
        stacks = []
        for planned, choices in zip(trial.instances, choices_of_instances, strict=True):
            stacks.append(self.layers(trial, planned.envelope, choices))
        image = self.choices.image
        dataset = trial.job.dataset
        with open_on_machines(joined_job(trial), self.inventory, stacks, image, dataset) as instances:
            yield instances


def listed_for(targets: Sequence[str], path: Path) -> Inventory:
    """Return the machines that the inventory lists for the targets: one for each. Raises RequestError for another."""
    inventory = read_inventory(path)
    for target in targets:
        names = [node.name for node in inventory.of_target(target)]
        if len(names) != 1:
            listed = " and ".join(names) or "no machine"
            wrong = f"{option('inventory')} {path} lists {listed} for {target}"
            raise RequestError(wrong, remedy=f'write targets = ["{target}"] at one node')
    nodes = [node for node in inventory.nodes if not {*targets}.isdisjoint(node.targets)]
    return inventory.model_copy(update={"nodes": tuple(nodes)})


def discovered_choices(inputs: RunInputs, discovery: Discovery) -> Choices:
    """Return what the layers on these machines are made of. Raises RequestError for GPUs that cannot be used."""
    gpus = inputs.request.gpus
    words = tuple[str, ...]()
    if gpus.device != "cpu":
        first = map(str, range(gpus.devices or 1))
        words = gpu_words(gpus.gpus or ",".join(first))
        cards = [Card(word) for word in words]
        check_gpus(inputs.request, inputs.image, cards)
    provider = inputs.request.targets.provider
    return Choices(inputs.image, discovery.engine, discovery.accelerator, words, provider)


@contextmanager
def open_on_machines(
    job: DistributedJob,
    inventory: Inventory,
    stacks: Sequence[Sequence[Layer]],
    image: Image,
    dataset: Dataset | None,
) -> Iterator[tuple[Instance, ...]]:
    """Open one instance on each machine of an inventory; the machines hold the image and the data set.

    Whether they reach each other is checked before anything is made on them, so that a message names the machines and
    not containers.
    """
    with ExitStack() as stack:
        machines = []
        for planned, spec in zip(inventory.nodes, job.machines, strict=True):
            opened = stack.enter_context(on_machine(planned, spec.cpus, image, dataset))
            machines.append(replace(opened, address=spec.address, interface=spec.interface))
        _check_ways(machines)
        first = []
        for (layer, *_), machine, planned in zip(stacks, machines, inventory.nodes, strict=True):
            if dataset and isinstance(layer, VmLayer):  # all others read the machine's directory
                volume = volume_on(machine.node, planned, dataset)
                guest_spec = replace(layer.spec, volume=volume)
                layer = replace(layer, spec=guest_spec)
            first.append(layer)
        places = _on_machines(stack, machines, first)
        if job.network in BRIDGES and isinstance(stacks[0][0], ContainerLayer):
            for machine in machines:
                stack.enter_context(forwarded(machine.node, [BRIDGES[job.network]]))
        addresses = [None] * len(places)
        master, *others = open_containers(stack, job, places, stacks, addresses)
        port = master.port or free_port(master.node, str(master.address))
        members = (replace(master, port=port), *others)
        yield linked(members, job)


@contextmanager
def on_machine(
    planned: InventoryNode,
    cpus: tuple[int, ...],
    image: Image,
    dataset: Dataset | None,
) -> Iterator[Instance]:
    """Open a machine of an inventory, which holds the image and the data set, for a target with these CPUs."""
    tree = tree_of(planned, image)
    with machine(planned, tree) as node:
        node.cpus = cpus
        node.data = directory_of(planned, dataset) if dataset else None
        machine_disk = disk_under(node, tree)
        node.facts = {**node.facts, "host_cpus": list(cpus), "machine_disk": machine_disk}
        if planned.is_vm:
            node.facts["accelerator"] = None  # unknown of a machine that the suite has not booted
        elif planned.virtual:
            cpuinfo = node.run(["cat", str(CPUINFO)])
            if reports_hypervisor(cpuinfo.stdout):
                node.substitutes = ("machine:virtual",)
        yield Instance(node, clock_offset_s=node.agent.clock_offset_s())


def _check_ways(machines: Sequence[Instance]) -> None:
    """Raise MeasurementError if a machine does not reach another, or does through another interface."""
    ends = [end_of(instance.node.name, instance) for instance in machines]
    for pair in reach(ends):
        if pair.source_address != pair.source.address:
            raise MeasurementError(
                f"{pair.source.name} reaches {pair.target.name} from {pair.source_address}, through another interface",
                kind="network",
                remedy=f"write the interface that leads there in the inventory: ip route get {pair.target.address}",
            )


def _on_machines(stack: ExitStack, machines: Sequence[Instance], first: Sequence[Layer]) -> Sequence[Instance]:
    """Return what containers are started on: the machines, or guests of them. Bare metal and VMs are then complete."""
    guests = [layer for layer in first if isinstance(layer, VmLayer)]
    if guests:
        taps = stack.enter_context(routed(machines))
        return [
            joined(machine, stack.enter_context(layer.plugged(tap).opened(machine.node)), tap)
            for machine, layer, tap in zip(machines, guests, taps, strict=True)
        ]
    if isinstance(first[0], ContainerLayer):
        return machines
    return [
        replace(machine, node=stack.enter_context(layer.opened(machine.node)))
        for machine, layer in zip(machines, first, strict=True)
    ]
