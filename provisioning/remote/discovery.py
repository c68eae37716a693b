"""Discovery of the machines of an inventory: asked once, before anything is planned."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from provisioning import processes
from provisioning.engines.base import default_engine, get_engine
from provisioning.isa import CPUINFO, capability, reports_hypervisor
from provisioning.lab.connectivity import Place
from provisioning.lab.nat import rules_for
from provisioning.machines.accelerator import Accelerator
from provisioning.machines.base import MachineProvider, get_provider
from provisioning.remote import content
from provisioning.remote.machine import Machine, machine
from provisioning.remote.network import places
from provisioning.sites.base import Capacity, RunInputs
from suite.differ import Host
from suite.errors import BenchError, RequestError, option
from suite.inventory import Inventory
from suite.job.job import CpuCapability
from suite.process_identity import BOOT_ID
from suite.registries import ENGINES
from suite.targets import CONTAINERS, VMS

PROGRAMS = {program.name: program.package for program in processes.PROGRAMS if program.on_machines}
"""The programs that every machine needs, and the Debian packages that have them."""


@dataclass(frozen=True, kw_only=True)
class DiscoveredMachine(Capacity):
    """A machine with the CPUs that the inventory names, or that a shell there may use."""

    capability: CpuCapability
    clock_offset_s: float
    """The seconds that its time of day is ahead of this machine's."""
    host: Host = field(default_factory=Host)
    """Its facts that should be equal on all of them."""
    guest_capability: CpuCapability | None = None
    """The level of its virtual machines, if there are to be some."""


@dataclass(frozen=True)
class Discovery:
    """The machines, and what they have in common."""

    machines: tuple[DiscoveredMachine, ...]
    engine: str
    """A container engine that all of them have."""
    places: tuple[Place, ...] = ()
    """Where each is reached by the others; empty for machines that are not joined."""
    accelerator: Accelerator = "tcg"
    """An accelerator of virtual machines that all of them have."""


def needed(targets: Sequence[str], provider: str, *, with_data: bool) -> Mapping[str, str]:
    """Return the programs that machines need for these targets, by the packages that have them."""
    if not VMS.intersection(targets):
        return PROGRAMS
    return {**PROGRAMS, **get_provider(provider).tools, **(content.PROGRAMS if with_data else {})}


def discover(
    inventory: Inventory,
    inputs: RunInputs,
    targets: Sequence[str],
    network: str | None,
    check: Callable[[Machine], None],
) -> Discovery:
    """Return what the machines are and have that open these targets; ``check`` looks for more on each.

    ``network`` is that of containers; None for machines that are not joined. Raises RequestError for a machine that
    cannot be reached, lacks something, or has another data set than this one.
    """
    wanted = inputs.request.targets
    note = inputs.note
    programs = needed(targets, wanted.provider, with_data=inputs.dataset is not None)
    with ExitStack() as stack:
        reached = []
        for planned in inventory.nodes:
            note(f"reaching {planned.name} ({planned.host})")
            try:
                reached.append(stack.enter_context(machine(planned)))
            except BenchError as error:
                raise RequestError(error.message, remedy=error.remedy) from error
            _check_programs(reached[-1], programs)
            if "container" in targets and network == "bridge":
                rules_for(reached[-1])
            check(reached[-1])
            if inputs.dataset:
                directory = content.directory_of(planned, inputs.dataset)
                note(f"comparing {directory} on {planned.name} with the data set here")
                content.check_copy(reached[-1], directory, inputs.dataset)
        named = wanted.engine
        if "container" in targets:
            engine = _engine(reached, named)
        else:
            engine = named or default_engine(())
        provider = get_provider(wanted.provider) if VMS.intersection(targets) else None
        accelerator: Accelerator = "tcg"
        locations = places(reached) if network else ()
        if provider:
            accelerator = provider.choose_common_accelerator(reached, wanted.accel, inputs.image, note)
        machines = tuple(_discovered(connected, provider, accelerator) for connected in reached)
        return Discovery(machines, engine, locations, accelerator)


def attest(reached: Machine, boots: dict[str, str]) -> None:
    """Raise RequestError unless the machine is what it is listed as, and another one than those before it.

    ``boots`` holds their names, by the numbers of their boots.
    """
    hypervisor = reports_hypervisor(reached.run(["cat", str(CPUINFO)]).stdout)
    contradiction = reached.planned.contradiction(hypervisor=hypervisor)
    if contradiction:
        remedy = "list another machine; bare metal that is a virtual machine is allowed by virtual = true at its node"
        raise RequestError(contradiction, remedy=remedy)
    boot = reached.run(["cat", str(BOOT_ID)]).stdout.strip()
    other = boots.setdefault(boot, reached.name)
    if other != reached.name:
        remedy = "list one machine, or one system container of it, at one node"
        raise RequestError(f"{other} and {reached.name} have the same boot ID", remedy=remedy)


def _check_programs(reached: Machine, packages: Mapping[str, str]) -> None:
    """Raise RequestError, with the packages that have them, for programs that a machine lacks."""
    missing = reached.agent.ask(do="find", programs=list(packages))["missing"]
    if missing:
        remedy = f"there: apt-get install {' '.join(dict.fromkeys(packages[name] for name in missing))}"
        raise RequestError(f"{reached.name} has no {', '.join(missing)}", remedy=remedy)


def _engine(reached: Sequence[Machine], wanted: str | None) -> str:
    """Return the engine that is wanted, or the first that works on all machines with containers."""
    reasons = []
    reached = [each for each in reached if CONTAINERS.intersection(each.planned.targets)]
    for name in (wanted,) if wanted else ENGINES:
        try:
            for node in reached:
                get_engine(name).version(node)
                get_engine(name).check_machine(node)
        except BenchError as error:
            if wanted:
                message = f"{option('engine')} {wanted}: {error.message}"
                raise RequestError(message, remedy=f"there: {error.remedy}") from error
            reasons.append(error.message)
            continue
        return name
    message = f"no engine that all machines have: {'; '.join(reasons)}"
    raise RequestError(message, remedy="there: apt-get install podman, or runc")


def _discovered(reached: Machine, provider: MachineProvider | None, accelerator: Accelerator) -> DiscoveredMachine:
    cpuinfo = reached.run(["cat", str(CPUINFO)]).stdout
    level = capability(cpuinfo)
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    host = Host(
        hostname=reached.name,
        machine_id=reached.agent.greeting["machine_key"],
        cpu_model=model[1] if model else None,
        cpus=len(reached.cpus),
        memory_bytes=reached.memory_bytes,
        kernel=reached.run(["uname", "--kernel-release"]).stdout.strip(),
    )
    offset_s = reached.agent.clock_offset_s()
    guests = provider.guest_capability(reached, accelerator, level) if provider else None
    place = reached.cpus, reached.memory_bytes, reached.name
    return DiscoveredMachine(
        *place,
        offline=reached.offline,
        isolated=reached.isolated,
        capability=level,
        clock_offset_s=offset_s,
        host=host,
        guest_capability=guests,
    )
