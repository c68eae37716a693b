"""The processes of a distributed job, as a record has them."""

from typing import Annotated

from pydantic import Field

from suite.job.distributed import Role
from suite.part import Count, Part, Seconds
from suite.records.environment import Environment


class Link(Part):
    """The connection from one rank to another over TCP, measured right before the job."""

    rank: Count
    """The rank at the other end."""
    source_address: str
    """The address that the kernel chose, which shows the interface."""
    connect_s: Seconds
    rate_bits_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The rate without headers; null if the CPUs are emulated, whose speed would limit it."""


class Rank(Part):
    """One process of a distributed job. Seconds are sums over the measured steps."""

    rank: Count
    role: Role
    address: str
    interface: str
    node_address: str | None = None
    """The address of the node below, if ``address`` is that of a container behind it."""
    environment: Environment
    throughput_images_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The throughput of a worker; null for a server."""
    measured_s: Seconds | None = None
    data_s: Seconds | None = None
    compute_s: Seconds | None = None
    communicate_s: Seconds | None = None
    """Communication that a step waited for, without what overlapped with computing."""
    sent_bytes: Count | None = None
    received_bytes: Count | None = None
    links: list[Link] = []
    """The connections to all other ranks."""
    clock_offset_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Seconds by which its machine's time of day is ahead of the launcher's; null if both are one machine."""
