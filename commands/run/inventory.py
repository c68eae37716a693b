"""The machines that ``--inventory`` names, in place of this one.

Those of a joined job, or the one that is the node of the pods: what these are compared with is opened there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commands.run.joined import joined_job, needs
from provisioning.engines.base import get_engine
from provisioning.images.image import Image
from provisioning.isa import lowest_of
from provisioning.remote.content import check_data, directory_of
from provisioning.remote.discovery import Discovery, Wanted, discover
from provisioning.remote.machine import Machine
from provisioning.targets import Choices, booted
from suite.errors import RequestError, option
from suite.inventory import Inventory, read_inventory
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob, MachineSpec
from suite.job.envelope import Envelope, parse_bytes, plan_envelope
from suite.job.job import CpuCapability
from suite.job.profiles import PROFILES
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import BASELINE, VMS
from worker.data import listing

Note = Callable[[str], None]
CLOCKS_APART_S = 1.0
"""Nothing is measured across clocks; but logs that are so far apart are hard to read."""


@dataclass(frozen=True)
class InventoryMachines:
    """The machines of one run, by rank."""

    inventory: Inventory
    discovery: Discovery
    targets: tuple[str, ...]
    envelopes: tuple[Envelope, ...]

    def choices(self, image: Image, gpus: tuple[str, ...]) -> Choices:
        found = self.discovery
        return Choices(image, found.engine, found.accelerator, gpus, inventory=self.inventory, provider=found.provider)

    def distributed_job(self, request: RunRequest, scenario: PlannedScenario) -> DistributedJob:
        machines = (
            MachineSpec(name=found.name, address=place.address, interface=place.interface, cpus=envelope.cpus)
            for found, place, envelope in zip(
                self.discovery.machines, self.discovery.places, self.envelopes, strict=True
            )
        )
        return joined_job(
            request,
            scenario,
            self.targets,
            self.discovery.accelerator,
            network=request.joining.network,
            machines=tuple(machines),
            guests="routed" if VMS.intersection(self.targets) else None,
        )

    def capability(self, note: Note, *, always: bool) -> CpuCapability | None:
        """Return the vector instructions that all of the machines and their guests have; see ``isa.shared``."""
        levels = {found.capability for found in self.discovery.machines if not VMS.issuperset(self.targets)}
        levels |= {found.guest_capability for found in self.discovery.machines if found.guest_capability}
        return lowest_of(levels, note, always=always)


def machines_of(
    request: RunRequest, scenario: PlannedScenario, path: Path, image: Image, dataset: Dataset | None, note: Note
) -> InventoryMachines:
    """Return the machines of the inventory at ``path``. Raises RequestError for what they do not carry."""
    inventory = read_inventory(path)
    check_inventory(request, scenario, len(inventory.nodes))
    if engine := request.targets.engine:
        get_engine(engine).check_network(request.joining.network, in_lab=False)
    inventory = inventory.model_copy(update={"nodes": inventory.nodes[: scenario.instances(request)]})
    wanted = Wanted(
        request.targets.target,
        image,
        request.targets.engine,
        request.targets.accel,
        request.joining.network,
        provider=request.targets.provider,
        with_data=dataset is not None,
    )
    found = discover(inventory, wanted, _data_check(dataset, note), note)
    for each, place in zip(found.machines, found.places, strict=True):
        note(f"{each.name}: {place.interface} {place.address}, {len(each.cpus)} CPUs")
        if abs(each.clock_offset_s) > CLOCKS_APART_S:
            note(f"{each.name}: its clock is {each.clock_offset_s:+.1f} s off this machine's; all is timed here")
    return InventoryMachines(inventory, found, request.targets.target, envelopes_of(request, found))


def inventory_of_pods(request: RunRequest, path: Path) -> Inventory:
    """Return the inventory at ``path``, whose one machine is the node of the pods.

    Raises RequestError for a run without pods, for virtual machines, and for several machines.
    """
    inventory, asked = read_inventory(path), request.targets
    if "container" not in asked.target or not (asked.engine and get_engine(asked.engine).is_cluster):
        raise RequestError(
            f"{option('inventory')} with {option('scenario')} {request.scenario} names the node of pods, and there are "
            "none",
            remedy=f"add {option('target')} container {option('engine')} kubernetes, or leave it out",
        )
    if guests := sorted(booted(asked.target, asked.engine)):
        raise RequestError(
            f"{option('inventory')} does not go with {option('target')} {guests[0]}: beside pods there are no virtual "
            "machines on other machines",
            remedy=f"name the targets: {option('target')} bare-metal {option('target')} container",
        )
    if len(inventory.nodes) > 1:
        raise RequestError(
            f"{option('inventory')} {path} lists {len(inventory.nodes)} machines, and the pods are on one node",
            remedy="list that one alone",
        )
    return inventory


def node_of_pods(request: RunRequest, inventory: Inventory, choices: Choices, note: Note) -> InventoryMachines:
    """Return the machine of the inventory. Raises RequestError unless it is the node of the pods."""
    wanted = Wanted((BASELINE,), choices.image, choices.engine, network=None)
    found = discover(inventory, wanted, choices.container_engine.check_machine, note)
    envelopes = envelopes_of(request, found, choices.most_cpus)
    return InventoryMachines(inventory, found, request.targets.target, envelopes)


def _data_check(dataset: Dataset | None, note: Note) -> Callable[[Machine], None]:
    """Return what checks that a machine holds the data set that this one has."""
    expected = dataset
    if dataset and dataset.digest == "manifest":
        # A machine's copy is held against this one, and not against its manifest.
        _, sha256 = listing.identify(dataset.directory, tuple(listing.entries_of(dataset.directory)))
        expected = dataset.model_copy(update={"sha256": sha256})

    def check(machine: Machine) -> None:
        if expected:
            directory = directory_of(machine.planned, expected)
            note(f"comparing {directory} on {machine.name} with the data set here")
            check_data(machine, directory, expected, Path(listing.__file__).read_text())

    return check


def check_inventory(request: RunRequest, scenario: PlannedScenario, nodes: int) -> None:
    """Raise RequestError for more ranks than there are machines."""
    if nodes < scenario.instances(request):
        raise RequestError(
            f"{option('inventory')} {request.joining.inventory}: {needs(request, scenario, 'machine')}, and it lists "
            f"{nodes}",
            remedy=f"list more, or ask for fewer with {option('workers')} and {option('ps')}",
        )


def envelopes_of(request: RunRequest, found: Discovery, most_cpus: int | None = None) -> tuple[Envelope, ...]:
    """Return the envelope on each machine: the same number of CPUs, and the same memory, on all of them.

    Raises RequestError, with the name of the machine, for what one of them cannot give. No more than ``most_cpus`` are
    given where there is such a number.
    """
    count = min(len(each.cpus[:most_cpus]) for each in found.machines)
    asked = request.envelope
    envelopes = []
    for each in found.machines:
        try:
            envelopes.append(
                plan_envelope(
                    str(asked.cpus or count),
                    parse_bytes(asked.memory) if asked.memory else PROFILES[request.measurement.profile].memory_bytes,
                    asked.threads,
                    host_cpus=each.cpus[:most_cpus],
                    host_memory_bytes=each.memory_bytes,
                )
            )
        except RequestError as error:
            raise error.within(f"on {each.name}") from None
    return tuple(envelopes)
