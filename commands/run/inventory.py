"""From ``--inventory`` to what a plan needs of it: the machines stand in place of this one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.run.distributed import comm_timeout_s
from suite.errors import RequestError
from suite.inventory import Inventory, read_inventory
from suite.job.datasets import Dataset
from suite.job.distributed import Cluster, MachineSpec
from suite.job.envelope import Envelope, parse_bytes, plan_envelope
from suite.job.job import CpuCapability
from suite.job.profiles import get_profile
from suite.plan import VMS

if TYPE_CHECKING:
    from provisioning.remote.discovery import Discovery
    from provisioning.remote.machine import Machine
    from provisioning.targets import Choices

Options = dict[str, Any]
Note = Callable[[str], None]
CLOCKS_APART_S = 1.0
"""Nothing is measured across clocks; but logs that are so far apart are hard to read."""


@dataclass(frozen=True)
class Fleet:
    """The machines of one run, by rank."""

    inventory: Inventory
    survey: "Discovery"
    targets: tuple[str, ...]
    envelopes: tuple[Envelope, ...]

    def choices(self, options: Options) -> "Choices":
        from commands.run.plan import gpus_of, image_of
        from provisioning.targets import Choices

        found = self.survey
        return Choices(
            image_of(options),
            found.engine,
            found.accelerator,
            gpus_of(options),
            inventory=self.inventory,
            provider=found.provider,
        )

    def cluster(self, options: Options, workers: int, servers: int) -> Cluster:
        machines = (
            MachineSpec(
                name=found.name, address=found.place.address, interface=found.place.interface, cpus=envelope.cpus
            )
            for found, envelope in zip(self.survey.machines, self.envelopes, strict=True)
        )
        return Cluster(
            strategy=options["strategy"],
            workers=workers,
            servers=servers,
            network=options["network"],
            machines=tuple(machines),
            guests="routed" if VMS.intersection(self.targets) else None,
            comm_timeout_s=comm_timeout_s(options, self.targets, self.survey.accelerator),
        )

    def capability(self, note: Note, *, always: bool) -> CpuCapability | None:
        """As ``isa.shared``, of the machines and of their guests."""
        from provisioning.isa import lowest_of

        levels = {found.capability for found in self.survey.machines if not VMS.issuperset(self.targets)}
        levels |= {found.guest_capability for found in self.survey.machines if found.guest_capability}
        return lowest_of(levels, note, always=always)


def fleet_of(options: Options, dataset: Dataset | None, workers: int, servers: int, note: Note) -> Fleet | None:
    """None without ``--inventory``. Raises RequestError for what the machines do not carry."""
    if options.get("inventory") is None:
        return None
    from commands.run.plan import image_of
    from provisioning.remote.discovery import Wanted, discover

    inventory = read_inventory(options["inventory"])
    _check(options, len(inventory.nodes), workers, servers)
    inventory = inventory.model_copy(update={"nodes": inventory.nodes[: workers + servers]})
    targets = options["targets"]
    wanted = Wanted(
        targets,
        image_of(options),
        options["engine"],
        options["accel"],
        options["network"],
        with_data=dataset is not None,
        provider=options["provider"],
    )
    found = discover(inventory, wanted, _data_check(dataset, note), note)
    for each in found.machines:
        note(f"{each.name}: {each.place.interface} {each.place.address}, {len(each.cpus)} CPUs")
        if abs(each.clock_offset_s) > CLOCKS_APART_S:
            note(f"{each.name}: its clock is {each.clock_offset_s:+.1f} s off this machine's; all is timed here")
    return Fleet(inventory, found, targets, _envelopes(options, found))


def _data_check(dataset: Dataset | None, note: Note) -> "Callable[[Machine], None]":
    """That a machine holds the data set that this one has."""
    from provisioning.remote.data import check_data, directory_of
    from worker.data import listing

    def check(machine: "Machine") -> None:
        if dataset:
            directory = directory_of(machine.planned, dataset)
            note(f"comparing {directory} on {machine.name} with the data set here")
            check_data(machine, directory, dataset, Path(listing.__file__).read_text())

    return check


def _check(options: Options, nodes: int, workers: int, servers: int) -> None:
    if options["scenario"] != "distributed":
        raise RequestError("--inventory is about several machines", remedy="use --scenario distributed")
    refused = {
        "lab": "--lab is a network on this machine",
        "data_disk": "--data-disk is a device of this machine",
        "vfio": "--vfio is about virtual machines on this machine",
    }
    for name, why in refused.items():
        if options[name]:
            raise RequestError(f"{why}, and --inventory names others", remedy="give one of the two")
    if nodes < workers + servers:
        raise RequestError(
            f"--inventory {options['inventory']}: {workers + servers} instances ({servers} servers, {workers} workers) "
            f"need a machine each, and it lists {nodes}",
            remedy="list more, or ask for fewer with --workers and --ps",
        )


def _envelopes(options: Options, found: "Discovery") -> tuple[Envelope, ...]:
    """As many CPUs of each machine, and as much memory: those that it is asked for, or that all have."""
    count = min(len(each.cpus) for each in found.machines)
    memory_bytes = parse_bytes(options["memory"]) if options["memory"] else get_profile(options["profile"]).memory_bytes
    envelopes = []
    for each in found.machines:
        try:
            envelopes.append(
                plan_envelope(
                    options["cpus"] or str(count),
                    memory_bytes,
                    options["threads"],
                    host_cpus=each.cpus,
                    host_memory_bytes=each.memory_bytes,
                )
            )
        except RequestError as error:
            raise RequestError(f"on {each.name}: {error.message}", remedy=error.remedy) from None
    return tuple(envelopes)
