"""The plan of a run: which trials, in which order. Deterministic in its seed."""

import random
from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from suite.envelope import Envelope
from suite.profiles import Recipe, Workload

TARGETS = ("bare-metal", "container", "vm", "container-vm")
BASELINE = "bare-metal"


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
    options: dict[str, str] = {}
    """Choices of the layers that change what is measured: engine, accelerator, GPUs."""

    def trials(self) -> Iterator[Trial]:
        """Every trial in the order in which it is run: blocks, in each the models, in each the targets shuffled."""
        for block in range(self.blocks):
            # A generator of its own for each block: a longer run begins with exactly the blocks of a shorter one.
            order = random.Random(f"{self.seed}/{block}")
            position = 0
            for model in self.models:
                for target in order.sample(self.targets, len(self.targets)):
                    yield self._trial(block, position, model, target)
                    position += 1

    def _trial(self, block: int, position: int, model: str, target: str) -> Trial:
        return Trial(
            trial_id=f"{self.scenario}-{model}-{target}-b{block:03d}",
            scenario=self.scenario,
            target=target,
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
        )
