"""The targets by name, what they have in common, and the machines that are listed for some of them."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from suite.part import Part

TARGETS = ("bare-metal", "container", "vm", "container-vm")
BASELINE = "bare-metal"
VERSUS = "versus"
"""The arm of a run of two commands on one target that runs the second one."""
COMMANDS = ("a", "b")
"""The names of two commands in comparisons, in place of the target that both ran on. The first is the base."""
BASES = (BASELINE, COMMANDS[0])
"""What others are compared with."""
VMS = frozenset(("vm", "container-vm"))
"""The targets with a kernel of their own."""
CONTAINERS = frozenset(("container", "container-vm"))
"""The targets in which a container engine runs the job."""
ON_REAL_MACHINES = ("bare-metal", "container")
IN_PLACE: Mapping[str, str] = {"vm": "bare-metal", "container-vm": "container"}
"""What is opened for a target on a machine that is its virtual machine already."""


def base_of(target: str) -> str:
    """Return what a target, or one of two commands, is compared with."""
    if target in COMMANDS:
        return COMMANDS[0]
    return BASELINE


def _of_one_kind(targets: tuple[str, ...]) -> tuple[str, ...]:
    if not targets or not set(targets) <= set(TARGETS):
        raise ValueError(f"name some of {', '.join(TARGETS)}")
    if VMS.intersection(targets) and not VMS.issuperset(targets):
        raise ValueError("a machine is a virtual machine for all of its targets, or for none")
    return targets


class ListedMachine(Part):
    """A machine that is listed for targets. For those with a virtual machine, it is that machine itself."""

    name: str
    targets: Annotated[tuple[str, ...], AfterValidator(_of_one_kind)] = ON_REAL_MACHINES
    """The targets that run on it. Default: bare-metal and container."""
    virtual: bool = False
    """Whether bare metal and containers on it may be in a virtual machine: a substitute, named at every number."""

    @property
    def is_vm(self) -> bool:
        return VMS.issuperset(self.targets)

    def contradiction(self, *, hypervisor: bool) -> str:
        """Return why a machine whose CPU reports a hypervisor, or none, is not what it is listed as; empty if it is."""
        if self.is_vm == hypervisor or (self.virtual and not self.is_vm):
            return ""
        reported = "reports a hypervisor" if hypervisor else "reports no hypervisor"
        return f"{self.name} is listed for {', '.join(self.targets)}, and its CPU {reported}"


class OwnMachine(ListedMachine):
    """The machine of some targets as a job has it: no key, no account, no path of the user's."""

    cpus: Annotated[tuple[int, ...], Field(min_length=1)]
    """The CPUs, in the machine's own numbers."""
