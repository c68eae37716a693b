"""What a record tells of the processes of a job over several instances."""

from typing import Annotated

from pydantic import Field

from suite.job.distributed import Role
from suite.part import Count, Part, Seconds
from suite.records.environment import Environment


class Link(Part):
    """From one rank to another over TCP, right before the job."""

    rank: Count
    """Of the other end."""
    source_address: str
    """That the kernel chose: which interface it took."""
    connect_s: Seconds
    rate_bits_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Without headers; null where the CPUs are emulated, of which it would tell more."""


class Rank(Part):
    """One process of a cluster's job. Seconds are sums over the measured steps."""

    rank: Count
    role: Role
    address: str
    interface: str
    node_address: str | None = None
    """Of the node below, where the address is of a container behind it."""
    environment: Environment
    throughput_images_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of a worker."""
    measured_s: Seconds | None = None
    data_s: Seconds | None = None
    compute_s: Seconds | None = None
    communicate_s: Seconds | None = None
    """That a step waited for; what went on beside computing is not in it."""
    sent_bytes: Count | None = None
    received_bytes: Count | None = None
    links: list[Link] = []
    """To every other rank."""
    clock_offset_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """How far its machine's time of day is ahead of the launcher's; null on one and the same machine."""
