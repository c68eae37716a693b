"""The plan of a run: which trials, in which order. Deterministic in its seed."""

import random
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from suite.errors import RequestError
from suite.job import ablations
from suite.job.datasets import Dataset, PageCache
from suite.job.distributed import Cluster, InstancePlan, instances_of
from suite.job.envelope import Envelope
from suite.job.profiles import Recipe, Sizes
from suite.job.properties import Properties
from suite.job.sharing import Sharing

TARGETS = ("bare-metal", "container", "vm", "container-vm")
BASELINE = "bare-metal"
VMS = frozenset(("vm", "container-vm"))
"""The targets with a kernel of their own."""
CpuCapability = Literal["default", "avx2", "avx512"]
CPU_CAPABILITIES: tuple[CpuCapability, ...] = ("default", "avx2", "avx512")
"""Levels of vector instructions, lowest first, as torch's ATen names them."""


Arm = tuple[str, int, str | None, str | None]
"""Target, replica, ablation, aggressor: what tells the trials of one model in a block apart."""


def arm_name(target: str, replica: int, ablation: str | None, aggressor: str | None) -> str:
    """Return what tells trials of one model in a block apart: ``vm``, ``bare-metal-again``, ``vm+isa-beside-disk``."""
    again, switched = "-again" if replica else "", f"+{ablation}" if ablation else ""
    return f"{target}{again}{switched}{f'-beside-{aggressor}' if aggressor else ''}"


class Trial(BaseModel):
    """One job of the plan: launched once, finished once, one record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial_id: str
    scenario: str
    target: str
    replica: int = 0
    """0, or 1 for the second bare-metal trial of an A/A block."""
    ablation: str | None = None
    """The one property of the target that is switched in this trial; see ``suite.job.ablations``."""
    warm_up: bool = False
    """Run and recorded like every trial, and counted in no estimate: it belongs to a block before the first."""
    model: str
    data: str
    profile: str
    recipe: Recipe
    block: int
    position: int
    """Place in its block, from 0, in the order in which the block was run."""
    seed: int
    workload: Sizes | None = None
    """None for a probe."""
    envelope: Envelope
    trial_timeout_s: int
    cpu_capability: CpuCapability | None = None
    """What the job's libraries are capped to; None leaves each target what it has."""
    dataset: Dataset | None = None
    """What the job reads; None where its data are drawn."""
    page_cache: PageCache | None = None
    """In which state the job finds the data set; None where there is none."""
    cluster: Cluster | None = None
    instances: tuple[InstancePlan, ...] = ()
    """Of a cluster, by rank, or of jobs that share the machine, the victim first; a trial without has one instance with
    the whole envelope."""
    sharing: Sharing | None = None
    aggressor: str | None = None
    """What runs beside the victim in this trial; None where the instances beside it are idle."""
    scratch_bytes: int | None = None
    """How much room the job needs on the data disk to write to; None where it writes nothing."""

    @property
    def properties(self) -> Properties:
        """The properties of the target in this trial."""
        return ablations.properties_of(self.ablation)


class Plan(BaseModel):
    """Everything that decides which trials are run and how. Stored beside the records as ``plan.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: str
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    data: str = "synthetic"
    profile: str
    recipe: Recipe = "reference"
    blocks: Annotated[int, Field(gt=0)] = 1
    seed: int = 0
    workloads: dict[str, Sizes] = {}
    """By model; of probes there is none."""
    envelope: Envelope
    trial_timeout_s: Annotated[int, Field(gt=0)]
    cpu_capability: CpuCapability | None = None
    aa: bool = False
    """Whether each block measures bare metal twice: two identical targets, whose difference is the noise."""
    ablations: tuple[str, ...] = ()
    """Each adds to every block one more trial of each target that has the property, with it switched."""
    warmup_blocks: Annotated[int, Field(ge=0)] = 0
    """Blocks before the first that counts: what the first jobs on a machine meet (cold caches, clocks) is not noise."""
    dataset: Dataset | None = None
    page_cache: PageCache | None = None
    cluster: Cluster | None = None
    sharing: Sharing | None = None
    """Each aggressor of it adds to every block one more trial of each target, with it beside the victim."""
    scratch_bytes: dict[str, Annotated[int, Field(gt=0)]] = {}
    """By model, of those that write."""
    options: dict[str, str] = {}
    """Choices of the layers that change what is measured: engine, accelerator, GPUs."""

    def trials(self) -> Iterator[Trial]:
        """Every trial in the order in which it is run: blocks, in each the models, in each the arms shuffled."""
        for block in range(self.blocks):
            yield from self.trials_of(block)

    def trials_of(self, block: int) -> Iterator[Trial]:
        """Those of one block, in order. The warm-up blocks belong to the first."""
        if block == 0:
            for warm_up in range(self.warmup_blocks):
                yield from self._block(warm_up, warm_up=True)
        yield from self._block(block, warm_up=False)

    def _block(self, block: int, *, warm_up: bool) -> Iterator[Trial]:
        # A generator of its own for each block: a longer run begins with exactly the blocks of a shorter one.
        order = random.Random(f"{self.seed}/warm-up/{block}" if warm_up else f"{self.seed}/{block}")
        position = 0
        for model in self.models:
            arms = self._arms()
            for arm in order.sample(arms, len(arms)):
                yield self._trial(block, position, model, arm, warm_up=warm_up)
                position += 1

    def _arms(self) -> list[Arm]:
        """What a block holds of each model."""
        switched = [(target, 0, name) for target in self.targets for name in ablations.arms(target, self.ablations)]
        # What a victim loses is held against the same target, so that each target shows what is only noise.
        twice = () if not self.aa else self.targets if self.sharing else (BASELINE,)
        alone: list[tuple[str, int, str | None]] = [
            *((target, 0, None) for target in self.targets),
            *((target, 1, None) for target in twice),
            *switched,
        ]
        beside = [
            (*arm, name) for arm in alone if not arm[1] for name in (self.sharing.aggressors if self.sharing else ())
        ]
        return [*((*arm, None) for arm in alone), *beside]

    def _trial(self, block: int, position: int, model: str, arm: Arm, *, warm_up: bool) -> Trial:
        target, replica, ablation, aggressor = arm
        lowered = ablations.properties_of(ablation).lower_isa
        return Trial(
            trial_id=f"{self.scenario}-{model}-{arm_name(*arm)}-{'w' if warm_up else 'b'}{block:03d}",
            scenario=self.scenario,
            target=target,
            replica=replica,
            ablation=ablation,
            warm_up=warm_up,
            model=model,
            data=self.data,
            profile=self.profile,
            recipe=self.recipe,
            block=block,
            position=position,
            seed=self.seed * 100_003 + block,
            workload=self.workloads.get(model),
            envelope=self.envelope,
            trial_timeout_s=self.trial_timeout_s,
            cpu_capability=lower(self.cpu_capability) if lowered else self.cpu_capability,
            dataset=self.dataset,
            page_cache=self.page_cache,
            cluster=self.cluster,
            instances=self._instances(target),
            sharing=self.sharing,
            aggressor=aggressor,
            scratch_bytes=self.scratch_bytes.get(model),
        )

    def _instances(self, target: str) -> tuple[InstancePlan, ...]:
        if self.sharing:
            return self.sharing.instances_of(target, self.envelope)
        return instances_of(self.cluster, self.envelope) if self.cluster else ()


def lower(capability: CpuCapability | None) -> CpuCapability:
    """The next lower level. Raises RequestError where there is none, or where none is known."""
    if capability in (None, CPU_CAPABILITIES[0]):
        known = "not capped" if capability is None else f"already {capability}"
        raise RequestError(
            f"--ablate isa: the vector instructions are {known}", remedy="leave it out, or use --isa shared"
        )
    return CPU_CAPABILITIES[CPU_CAPABILITIES.index(capability) - 1]
