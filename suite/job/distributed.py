"""A distributed job: its instances, what each is given, and how they are connected."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from suite.errors import RequestError, option
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec
from suite.part import Part

Strategy = Literal["parameter-server", "parameter-server-async", "all-reduce", "split"]
ContainerNetwork = Literal["overlay", "bridge", "host"]
"""The networks of containers that can be asked for."""
Role = Literal["server", "worker", "client", "victim", "aggressor"]
SHARED_CPUS = "cpus:shared-by-instances"
"""The substitute of a job that has more instances than CPUs."""
LEAST_INSTANCE_BYTES = 640 << 20
"""A worker with torch in it takes some 450 MiB, and a guest's kernel has its share."""
NODE_INTERFACE = "the node's"
"""The interface of a pod in the network of its node."""


class MachineSpec(Part):
    """One machine of an inventory as a record knows it: no key, no account, no path of the user's."""

    name: str
    address: str
    interface: str
    cpus: Annotated[tuple[int, ...], Field(min_length=1)]
    """The CPUs, in the machine's own numbers."""


class DistributedJob(Part):
    """A distributed job. Ranks are numbered with the servers first; each has a node of the lab, or a machine."""

    strategy: Strategy | None = None
    """None where the workers train nothing: they are clients of a server."""
    workers: Annotated[int, Field(ge=1, le=64)]
    servers: Annotated[int, Field(ge=0, le=64)]
    network: ContainerNetwork | Literal["pod"]
    """The network of containers; other targets are in the node's own network. ``pod`` is the cluster's own."""
    lab: LabSpec | None = None
    machines: tuple[MachineSpec, ...] = ()
    """The machines by rank, or the nodes of a cluster, if there is no lab."""
    guests: Literal["routed"] | None = None
    """How the guests of machines reach each other: ``routed`` by their machines, with no tunnel and no translation. In
    a lab each is plugged into the cable of its node."""
    comm_timeout_s: Annotated[int, Field(gt=0)] = 60
    """The time without an answer after which a peer is given up."""

    @property
    def of_pods(self) -> bool:
        """Whether its instances are pods, in the network of their cluster or of their nodes."""
        return self.network == "pod" or any(machine.interface == NODE_INTERFACE for machine in self.machines)

    @model_validator(mode="after")
    def _stands_somewhere(self) -> Self:
        if (self.lab is None) == (not self.machines):
            raise ValueError("a distributed job is in a lab or on machines")
        if self.machines and len(self.machines) != len(self.roles):
            raise ValueError(f"{len(self.machines)} machines for {len(self.roles)} ranks")
        return self

    @property
    def roles(self) -> tuple[Role, ...]:
        servers: list[Role] = ["server"]
        workers: list[Role] = ["worker" if self.strategy else "client"]
        return (*servers * self.servers, *workers * self.workers)


class InstancePlan(Part):
    """One instance of a trial: its role, and its share of the envelope."""

    role: Role
    envelope: Envelope


def instances_of(distributed: DistributedJob, envelope: Envelope) -> tuple[InstancePlan, ...]:
    """Return the instances by rank, each with an equal share of the envelope; a machine gives it whole, on its CPUs."""
    if distributed.machines:
        shares = tuple(envelope.model_copy(update={"cpus": machine.cpus}) for machine in distributed.machines)
    else:
        shares = divided(envelope, len(distributed.roles))
    return with_roles(distributed.roles, shares)


def with_roles(roles: Sequence[Role], shares: Sequence[Envelope]) -> tuple[InstancePlan, ...]:
    pairs = zip(roles, shares, strict=True)
    return tuple(InstancePlan(role=role, envelope=share) for role, share in pairs)


def divided(envelope: Envelope, count: int) -> tuple[Envelope, ...]:
    """Return ``count`` equal shares of the envelope.

    Each has a run of neighbouring CPUs. With fewer CPUs than shares, each share is one CPU, which neighbours in rank
    share on every target alike (``cpus_are_shared``).
    """
    per_share = max(1, len(envelope.cpus) // count)
    shares = []
    for number in range(count):
        if cpus_are_shared(envelope, count):
            begin = (number * per_share) % len(envelope.cpus)
        else:
            begin = number * per_share
        cpus = envelope.cpus[begin : begin + per_share]
        threads = min(len(cpus), max(1, envelope.threads // count))
        memory_bytes = envelope.memory_bytes // count
        shares.append(Envelope(cpus=cpus, memory_bytes=memory_bytes, threads=threads))
    return tuple(shares)


def cpus_are_shared(envelope: Envelope, count: int) -> bool:
    return len(envelope.cpus) < count


def check_memory(envelope: Envelope, count: int, *, who: str = "", fewer: str = "") -> None:
    """Raise RequestError, with the arithmetic, when a share is below what one instance of the job needs.

    ``who`` shares it; ``fewer`` is the option that says how many they are, if one does.
    """
    share = envelope.memory_bytes // count
    if share < LEAST_INSTANCE_BYTES:
        remedy = f"give more with {option('memory')}"
        if fewer:
            remedy += f", or ask for fewer {option(fewer)}"
        raise RequestError(
            f"{who or f'{count} instances'} share {envelope.memory_bytes / GIB:.1f} GiB: {share / GIB:.2f} GiB each, "
            f"and each needs {LEAST_INSTANCE_BYTES / GIB:.2f} GiB",
            remedy=remedy,
        )
