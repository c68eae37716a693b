"""The machines that ``--inventory`` names, in place of this one.

Those of a joined job, or those that are listed for targets; what is compared with pods is opened on their node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commands.run.joined import joined_job, needs
from provisioning.engines.base import get_engine
from provisioning.images.image import Image
from provisioning.isa import lowest_of
from provisioning.remote.content import check_data, directory_of
from provisioning.remote.discovery import Discovery, Wanted, attest, discover
from provisioning.remote.machine import Machine
from provisioning.targets import Choices, booted
from suite.errors import RequestError, option
from suite.host_compatibility import differences
from suite.inventory import Inventory, read_inventory
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob, MachineSpec
from suite.job.envelope import Envelope, parse_bytes, plan_envelope
from suite.job.job import CpuCapability
from suite.job.profiles import PROFILES
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import BASELINE, ON_REAL_MACHINES, VMS, ListedMachine, OwnMachine
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
    own: tuple[OwnMachine, ...] = ()
    """The machines of targets as a job has them; none of a joined job, nor of pods, whose CPUs a kubelet chooses."""

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
        machines, guests_alone = self.discovery.machines, VMS.issuperset(self.targets)
        levels = {found.capability for found in machines if not (guests_alone and found.guest_capability)}
        levels |= {found.guest_capability for found in machines if found.guest_capability}
        return lowest_of(levels, note, always=always)


def machines_of(
    request: RunRequest, scenario: PlannedScenario, path: Path, image: Image, dataset: Dataset | None, note: Note
) -> InventoryMachines:
    """Return the machines of the inventory at ``path``. Raises RequestError for what they do not carry."""
    inventory = read_inventory(path)
    check_inventory(request, scenario, len(inventory.nodes))
    if listed := [node.name for node in inventory.nodes if "targets" in node.model_fields_set]:
        why = f"and every target of {request.scenario} is on all machines"
        raise RequestError(f"{option('inventory')} {path} lists targets at {listed[0]}, {why}", remedy="leave them out")
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


def machines_of_targets(
    request: RunRequest, path: Path, image: Image, dataset: Dataset | None, pods: Choices | None, note: Note
) -> InventoryMachines:
    """Return the machines that the inventory at ``path`` lists for the targets; beside ``pods`` that of their node.

    Raises RequestError for a target without a machine or with several, and for one that is not what it is listed as.
    """
    asked = request.targets
    due = (*ON_REAL_MACHINES, *booted(asked.target, asked.engine)) if pods else asked.target
    inventory = _listed_for(due, path)
    opened = (BASELINE,) if pods else tuple(map(inventory.opened_as, due))
    wanted = Wanted(opened, image, asked.engine, network=None, with_data=dataset is not None)
    boots: dict[str, str] = {}
    check_copy = _data_check(dataset, note)

    def check(machine: Machine) -> None:
        if pods:
            pods.container_engine.check_machine(machine)
        else:
            attest(machine, boots)
        check_copy(machine)

    found = discover(inventory, wanted, check, note)
    for difference in differences(each.host for each in found.machines):
        note(f"the machines differ: {difference}")
    envelopes = envelopes_of(request, found, pods.most_cpus if pods else None)
    as_listed = [node.model_dump(include={*ListedMachine.model_fields}) for node in inventory.nodes]
    own = tuple(OwnMachine(**node, cpus=each.cpus) for node, each in zip(as_listed, envelopes, strict=True))
    return InventoryMachines(inventory, found, asked.target, envelopes, () if pods else own)


def _listed_for(targets: Sequence[str], path: Path) -> Inventory:
    inventory = read_inventory(path)
    for target in targets:
        names = [node.name for node in inventory.of_target(target)]
        if len(names) != 1:
            wrong = f"{option('inventory')} {path} lists {' and '.join(names) or 'no machine'} for {target}"
            raise RequestError(wrong, remedy=f'write targets = ["{target}"] at one node')
    nodes = tuple(node for node in inventory.nodes if not {*targets}.isdisjoint(node.targets))
    return inventory.model_copy(update={"nodes": nodes})


def _data_check(dataset: Dataset | None, note: Note) -> Callable[[Machine], None]:
    """Return what checks that a machine holds the data set that this one has."""
    expected = dataset
    if dataset and (dataset.digest == "manifest" or dataset.kind == "files"):
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
