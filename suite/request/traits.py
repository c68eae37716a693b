"""The traits of a scenario: what options, plans and comparisons must know of it, declared in place of its name.

They are reached through the registry alone, so that no room imports ``scenarios``.
"""

from collections.abc import Iterable
from typing import ClassVar

from suite.errors import RequestError
from suite.part import Part
from suite.registries import SCENARIOS, WORKLOADS

PLAIN_MODEL = "resnet50"


class Traits:
    """The declaration of a scenario; the defaults are those of a plain training in memory."""

    name: str = ""
    options: ClassVar[type[Part] | None] = None
    """The options that this scenario alone knows: a ``suite.request.option.OptionGroup``."""
    workloads: ClassVar[bool] = True
    """Whether its models are workloads, of which each trial trains or serves one."""
    trains: ClassVar[bool] = True
    """Whether its jobs train: they have batches, steps and a warm-up."""
    reads: ClassVar[bool] = False
    """Whether its jobs can read a data set."""
    needs_data: ClassVar[bool] = False
    """Whether they always read one."""
    epochs: ClassVar[bool] = False
    """Whether a trial can consist of whole epochs of the data set."""
    checkpoints: ClassVar[bool] = False
    """Whether a trial can write checkpoints: after epochs or, if its data are drawn, after a number of steps."""
    generates: ClassVar[bool] = False
    """Whether a trial can end with images of the trained generator."""
    keeps: ClassVar[bool] = False
    """Whether the trained generator can be kept."""
    resizes: ClassVar[bool] = False
    """Whether its instance can be given other CPUs while it trains."""
    joined: ClassVar[bool] = False
    """Whether a trial has several instances that a network joins, each with its share of the envelope."""
    spread: ClassVar[bool] = False
    """Whether one step is spread over the instances, which not every workload allows."""
    inventory: ClassVar[bool] = False
    """Whether it can run on the machines of an inventory."""
    service: ClassVar[bool] = False
    """Whether clients ask one of the instances, perhaps through a service of a cluster."""
    neighbours: ClassVar[bool] = False
    """Whether further instances share the machine with the one that is measured."""
    multiplied: ClassVar[bool] = False
    """Whether a trial opens further instances of its target on this machine."""
    probes: ClassVar[bool] = False
    """Whether a trial measures one cost of a layer, with metrics of its own that all decide, and no throughput."""
    normalised: ClassVar[bool] = True
    """Whether targets are compared with bare metal. Victims of neighbours are compared with themselves alone."""
    deciding: ClassVar[tuple[str, ...]] = ("throughput",)
    """The metrics that its claims are about: the first of them that was measured."""
    subject: ClassVar[str] = "model"
    """The option that names what is measured."""
    unnamed: ClassVar[str] = PLAIN_MODEL
    """What cells of a sweep are called after that do not give it."""
    turns_by_default: ClassVar[bool] = True
    """Whether its jobs take turns in a run that is decided by default; read only of a scenario with ``turn_taker``."""
    no_turns: ClassVar[str] = "its jobs cannot be cut into turns"
    """Why its jobs cannot take turns; read only of a scenario without ``turn_taker``."""

    @classmethod
    def model_names(cls) -> Iterable[str]:
        return WORKLOADS.names()

    @classmethod
    def usual_models(cls, profile: str) -> tuple[str, ...]:
        return (PLAIN_MODEL,)


def traits_of(scenario: str) -> type[Traits]:
    """Return the traits; the usual ones of a scenario that is not installed here, such as that of a foreign record."""
    try:
        traits: type[Traits] = SCENARIOS.get(scenario)
    except RequestError:
        return Traits
    return traits
