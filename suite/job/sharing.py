"""Jobs that share a machine: a victim that is measured, and aggressors beside it, each in an instance of its own."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from suite.job.distributed import InstancePlan, Role, divided, with_roles
from suite.job.envelope import Envelope
from suite.job.profiles import Profile, Sizes, check_sizes
from suite.part import Part
from suite.registries import AGGRESSORS, WORKLOADS

SMALL_ALEXNET = "alexnet-small"
"""A victim: AlexNet with the paper's small batch."""
PAPERS_VICTIMS = ("inception_v3", "resnet50", "alexnet", SMALL_ALEXNET)
_SMALLER = 16
"""The paper's large batch of AlexNet, 512, over its small one, 32."""


class Sharing(Part):
    """The jobs beside the victim."""

    aggressors: Annotated[tuple[str, ...], Field(min_length=1)]
    """The aggressors of each block, one at a time beside the victim; see ``aggressor_names``."""
    copies: Annotated[int, Field(ge=1, le=64)] = 1
    """The number of instances that run the aggressor, all the same."""
    workloads: dict[str, Sizes] = {}
    """The sizes of the aggressors that train; each is repeated until the victim has ended."""
    sources: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = {}
    """Digests of the sources of the aggressors that other packages provide."""

    def instances_of(self, target: str, envelope: Envelope) -> tuple[InstancePlan, ...]:
        """Return the victim's instance and then the aggressors', each with its share of the envelope.

        Jobs on bare metal are in one operating system: each has all CPUs and all memory, as in the paper.
        """
        count = 1 + self.copies
        shares = (envelope,) * count if target == "bare-metal" else divided(envelope, count)
        aggressors: list[Role] = ["aggressor"] * self.copies
        return with_roles(("victim", *aggressors), shares)


def victim_names() -> tuple[str, ...]:
    """Return what can be measured beside an aggressor: every workload, and AlexNet's small batch."""
    return (*WORKLOADS.names(), SMALL_ALEXNET)


def aggressor_names() -> tuple[str, ...]:
    """Return what can run beside a victim: every workload, and the aggressors that train nothing."""
    others = (name for name in AGGRESSORS.names() if name not in WORKLOADS)
    return (*WORKLOADS.names(), *others)


def architecture(victim: str) -> str:
    if victim == SMALL_ALEXNET:
        return "alexnet"
    return victim


def sizes_of(profile: Profile, model: str, changed: Mapping[str, int]) -> Sizes:
    """Return the sizes of a workload or victim, some replaced. Raises RequestError for those that cannot be."""
    sizes = profile.sizes_of(architecture(model))
    smaller = {}
    if model == SMALL_ALEXNET:
        smaller = {"batch": max(1, sizes.batch // _SMALLER)}
    sizes = sizes.model_copy(update={**smaller, **changed})
    check_sizes(architecture(model), sizes, model)
    return sizes
