"""What the machines of an inventory are and have: asked once, before anything is planned."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from provisioning.engines import ENGINES
from provisioning.images.image import Image
from provisioning.isa import capability
from provisioning.lab.nat import rules_for
from provisioning.machines.accelerator import Accelerator
from provisioning.remote import data, virtual
from provisioning.remote.machine import Machine, machine
from provisioning.remote.places import Place, places
from suite.errors import BenchError, RequestError
from suite.inventory import Inventory
from suite.job.job import CpuCapability
from suite.plan import VMS

PROGRAMS = {
    "bwrap": "bubblewrap",
    "cgexec": "cgroup-tools",
    "ip": "iproute2",
    "bridge": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "sysctl": "procps",
    "tar": "tar",
}
"""And the packages that have them, as Debian calls them."""


@dataclass(frozen=True)
class Surveyed:
    """One machine."""

    name: str
    place: Place
    cpus: tuple[int, ...]
    """That the inventory names, or that a shell there may use."""
    memory_bytes: int
    capability: CpuCapability
    clock_offset_s: float
    """How far its time of day is ahead of this machine's."""
    guest_capability: CpuCapability | None = None
    """Of its virtual machines, where there are to be some."""


@dataclass(frozen=True)
class Survey:
    machines: tuple[Surveyed, ...]
    engine: str
    """Of containers: one that all of them have."""
    accelerator: Accelerator = "tcg"
    """Of virtual machines: one that all of them have."""


@dataclass(frozen=True)
class Wanted:
    """What the machines are to carry."""

    targets: tuple[str, ...]
    image: Image
    engine: str | None = None
    """None lets choose."""
    accelerator: str = "auto"
    network: str = "overlay"
    """Of containers."""
    with_data: bool = False
    """Whether there is a data set, which every machine holds."""

    @property
    def programs(self) -> dict[str, str]:
        guests = {**virtual.PROGRAMS, **(data.PROGRAMS if self.with_data else {})}
        return {**PROGRAMS, **(guests if self.guests else {})}

    @property
    def guests(self) -> bool:
        return bool(VMS.intersection(self.targets))


def survey(
    inventory: Inventory, wanted: Wanted, check: Callable[[Machine], None], note: Callable[[str], None]
) -> Survey:
    """Raises RequestError for a machine that cannot be reached or lacks something; ``check`` looks for more on each."""
    with ExitStack() as stack:
        reached = []
        for planned in inventory.nodes:
            note(f"reaching {planned.name} ({planned.host})")
            try:
                reached.append(stack.enter_context(machine(planned)))
            except BenchError as error:
                raise RequestError(error.message, remedy=error.remedy) from error
            _check_programs(reached[-1], wanted.programs)
            if "container" in wanted.targets and wanted.network == "bridge":
                rules_for(reached[-1])
            check(reached[-1])
        engine = _engine(reached, wanted.engine) if "container" in wanted.targets else wanted.engine or "runc"
        found = places(reached)
        accelerator = virtual.accelerator_of(reached, wanted.accelerator, wanted.image, note) if wanted.guests else None
        surveyed = (_surveyed(*each, accelerator) for each in zip(reached, found, strict=True))
        return Survey(tuple(surveyed), engine, accelerator or "tcg")


def _check_programs(reached: Machine, programs: Mapping[str, str]) -> None:
    missing = reached.keeper.ask(do="find", programs=list(programs))["missing"]
    if missing:
        packages = " ".join(dict.fromkeys(programs[name] for name in missing))
        raise RequestError(f"{reached.name} has no {', '.join(missing)}", remedy=f"there: apt-get install {packages}")


def _engine(reached: Sequence[Machine], wanted: str | None) -> str:
    """The one that is wanted, or the first that works on all of them."""
    reasons = []
    for name in (wanted,) if wanted else ENGINES:
        try:
            for each in reached:
                ENGINES[name].version(each)
        except BenchError as error:
            if wanted:
                raise RequestError(f"--engine {wanted}: {error.message}", remedy=f"there: {error.remedy}") from error
            reasons.append(error.message)
            continue
        return name
    raise RequestError(
        "no engine that all machines have: " + "; ".join(reasons), remedy="there: apt-get install podman, or runc"
    )


def _surveyed(reached: Machine, place: Place, accelerator: Accelerator | None) -> Surveyed:
    level = capability(reached.run(["cat", "/proc/cpuinfo"]).stdout)
    offset_s = reached.keeper.clock_offset_s()
    guests = virtual.guest_capability(reached, accelerator, level) if accelerator else None
    return Surveyed(reached.name, place, reached.cpus, reached.memory_bytes, level, offset_s, guests)
