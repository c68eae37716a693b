"""The plan of a run: which trials, in which order. Deterministic in its seed."""

import random
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from suite.envelope import Envelope
from suite.profiles import Recipe, Workload

TARGETS = ("bare-metal", "container", "vm", "container-vm")
BASELINE = "bare-metal"
CpuCapability = Literal["default", "avx2", "avx512"]
CPU_CAPABILITIES: tuple[CpuCapability, ...] = ("default", "avx2", "avx512")
"""Levels of vector instructions, lowest first, as torch's ATen names them."""


class Trial(BaseModel):
    """One job of the plan: launched once, finished once, one record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial_id: str
    scenario: str
    target: str
    replica: int = 0
    """0, or 1 for the second bare-metal trial of an A/A block."""
    model: str
    data: str
    profile: str
    recipe: Recipe
    block: int
    position: int
    """Place in its block, from 0, in the order in which the block was run."""
    seed: int
    workload: Workload
    envelope: Envelope
    trial_timeout_s: int
    cpu_capability: CpuCapability | None = None
    """What the job's libraries are capped to; None leaves each target what it has."""


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
    workloads: dict[str, Workload]
    envelope: Envelope
    trial_timeout_s: Annotated[int, Field(gt=0)]
    cpu_capability: CpuCapability | None = None
    aa: bool = False
    """Whether each block measures bare metal twice: two identical targets, whose difference is the noise."""
    options: dict[str, str] = {}
    """Choices of the layers that change what is measured: engine, accelerator, GPUs."""

    def trials(self) -> Iterator[Trial]:
        """Every trial in the order in which it is run: blocks, in each the models, in each the targets shuffled."""
        for block in range(self.blocks):
            # A generator of its own for each block: a longer run begins with exactly the blocks of a shorter one.
            order = random.Random(f"{self.seed}/{block}")
            position = 0
            for model in self.models:
                arms = [(target, 0) for target in self.targets] + ([(BASELINE, 1)] if self.aa else [])
                for target, replica in order.sample(arms, len(arms)):
                    yield self._trial(block, position, model, target, replica)
                    position += 1

    def _trial(self, block: int, position: int, model: str, target: str, replica: int) -> Trial:
        again = "-again" if replica else ""
        return Trial(
            trial_id=f"{self.scenario}-{model}-{target}{again}-b{block:03d}",
            scenario=self.scenario,
            target=target,
            replica=replica,
            model=model,
            data=self.data,
            profile=self.profile,
            recipe=self.recipe,
            block=block,
            position=position,
            seed=self.seed * 100_003 + block,
            workload=self.workloads[model],
            envelope=self.envelope,
            trial_timeout_s=self.trial_timeout_s,
            cpu_capability=self.cpu_capability,
        )
