"""The plan of a run: which trials, in which order. Deterministic in its seeds."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, model_validator

from suite.errors import MeasurementError, RequestError, option
from suite.job import ablations
from suite.job.distributed import InstancePlan, instances_of
from suite.job.envelope import Envelope
from suite.job.job import CPU_CAPABILITIES, Alternating, CpuCapability, Job
from suite.job.profiles import Sizes
from suite.job.properties import Properties
from suite.part import Part, RunId
from suite.request.request import RunRequest
from suite.targets import BASELINE
from suite.trial_names import TrialKey, arm_name, trial_name

MOST_TRIALS = 200_000
"""The most trials of a plan, or of a sweep: months of measuring. All of them are walked again and again."""
WARM_UP = -1
"""Stands for the warm-up blocks in place of a block."""
_Item = TypeVar("_Item")
Arm = tuple[str, int, str | None, str | None]
"""Target, replica, ablation, aggressor: what tells the trials of one job in a block apart."""


class Trial(TrialKey):
    """One launch of a job: launched once, finished once, one record."""

    trial_id: str
    job: Job
    order_seed: int | None = None
    run_id: RunId | None = None
    """The identity of its run; None before the run begins."""
    trial_timeout_s: int
    scratch_bytes: int | None = None
    """The disk space that the job needs on the data disk; None if it writes nothing."""
    fixes_steps: bool = False
    """Whether it is the first one of its job, which finds how many steps last ``Sizes.least_s``."""

    @property
    def instances(self) -> tuple[InstancePlan, ...]:
        """Return the instances of a distributed job, by rank, or of jobs that share the machine, the victim first.

        It is empty if there is one, which has the whole envelope.
        """
        if self.job.sharing:
            return self.job.sharing.instances_of(self.target, self.envelope)
        if self.job.distributed:
            return instances_of(self.job.distributed, self.job.envelope)
        return ()

    @property
    def arm(self) -> Arm:
        return self.target, self.replica, self.ablation, self.aggressor

    @property
    def cpu_capability(self) -> CpuCapability | None:
        if self.properties.lower_isa:
            return lower(self.job.cpu_capability)
        return self.job.cpu_capability

    def with_job(self, **changes: object) -> "Trial":
        return self.model_copy(update={"job": self.job.model_copy(update=changes)})

    @property
    def envelope(self) -> Envelope:
        return self.job.envelope_of(self.target)

    @property
    def properties(self) -> Properties:
        properties = ablations.properties_of(self.ablation)
        if self.job.envelope.pinning:
            return replace(properties, pinned=False)
        return properties


class Detection(Part):
    """The number of blocks that a run takes to detect a difference, as it was planned from blocks before."""

    difference: Annotated[float, Field(gt=0)]
    """The difference from 1 of a true ratio to bare metal, as a share."""
    needed: int | None
    """The blocks that it takes; None where that is out of reach."""
    blocks: Annotated[int, Field(gt=0)]
    """The blocks of the run, within the fewest and the most that were asked for."""
    detectable: float | None
    """The difference that these detect; None where it is out of reach."""
    source: Literal["pilot", "earlier"]
    """The first blocks of the run itself, or earlier runs of this machine."""
    measured: int
    """The blocks that it was planned from."""
    ratio: str
    """The ratio that takes most blocks: ``resnet50 on vm``."""
    deviation: float
    """The standard deviation of this ratio from block to block, as a share."""

    @property
    def capped(self) -> bool:
        return self.needed is None or self.needed > self.blocks

    def serves(self, difference: float, most: int) -> bool:
        """Return whether it is what a run needs that detects a difference with at most so many blocks."""
        fits = self.difference == difference and self.blocks <= most
        return fits and not (self.capped and self.blocks < most)


class Plan(Part):
    """Everything that decides which trials are run and how. Stored beside the records as ``plan.json``."""

    jobs: Annotated[tuple[Job, ...], Field(min_length=1)]
    """One for each design and model; they are alike in all but these, the sizes and the source of the model."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    blocks: Annotated[int, Field(gt=0)] = 1
    seed: int = 0
    """The seed of weights and data."""
    order_seed: int | None = None
    """The seed of the order of the trials, which each run draws when it begins; see ``results.store.Run``. None before
    that."""
    run_id: RunId | None = None
    """The identity of the run, which it draws when it begins; the name of its directory is for people. None before."""
    suite_version: str | None = None
    """The suite that began the run, with the digest of its code. None before that."""
    trial_timeout_s: Annotated[int, Field(gt=0)]
    aa: bool = False
    """Whether each block measures bare metal twice: two identical targets, whose difference is the noise."""
    ablations: tuple[str, ...] = ()
    """Each adds to every block one more trial of each target that has the property, with it switched."""
    warmup_blocks: Annotated[int, Field(ge=0)] = 0
    """Blocks before the first that counts: what the first jobs on a machine meet (cold caches, clocks) is not noise."""
    scratch_bytes: dict[str, Annotated[int, Field(gt=0)]] = {}
    """The disk space that each model or probe needs, without those that write nothing."""
    detection: Detection | None = None
    """Why it has so many blocks; None where they were asked for, or are not yet planned."""
    margin: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share within which a target is equivalent to bare metal; None for the usual one. It decides no trial."""
    request: RunRequest | None = None
    """The request that it was made from, to repeat it; None if there is none. It decides nothing."""
    defaults: str | None = None
    """The project's file and the options of the request that it gave; None if it gave none. It decides nothing."""

    @model_validator(mode="after")
    def _can_be_walked(self) -> Self:
        # Without replicas, ablations and aggressors, whose names another package may have to know.
        blocks = self.blocks + self.warmup_blocks
        trials = blocks * len(self.jobs) * len(self.targets)
        if trials > MOST_TRIALS:
            raise RequestError(
                f"{self.blocks:,} blocks are {trials:,} trials or more: {MOST_TRIALS:,} are the most",
                remedy=f"ask for fewer with {option('blocks')}",
            )
        return self

    @property
    def job(self) -> Job:
        """Return the first job, for what all jobs of the plan have in common."""
        return self.jobs[0]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(job.model for job in self.jobs))

    def with_cpus_of(self, other: Envelope) -> "Plan":
        """Return the plan with the CPUs of an envelope that differs in nothing but those that a node has chosen."""
        jobs = (
            job.model_copy(update={"envelope": other}) if job.envelope.planned() == other.planned() else job
            for job in self.jobs
        )
        return self.model_copy(update={"jobs": tuple(jobs)})

    def with_fixed_steps(self, model: str, design: str, sizes: Sizes) -> "Plan":
        """Return the plan with the steps that a trial of this job has fixed for all of them; see ``Sizes.least_s``."""
        jobs = (
            job.model_copy(update={"sizes": sizes}) if (job.model, job.design) == (model, design) else job
            for job in self.jobs
        )
        return self.model_copy(update={"jobs": tuple(jobs)})

    def sizes_of(self, job: Job) -> Sizes | None:
        """Return the sizes that a job of the plan has by now."""
        key = job.model, job.design
        return next(planned.sizes for planned in self.jobs if (planned.model, planned.design) == key)

    def continuing(self, stored: "Plan") -> "Plan":
        """Return the plan with what trials of the stored one, which it goes on with, have fixed."""
        plan = self
        if len(self.jobs) != len(stored.jobs) or self.models != stored.models:
            return plan
        for job in stored.jobs:
            sizes = self.sizes_of(job)
            if job.sizes and sizes and sizes.least_s and sizes.fixed(job.sizes.steps) == job.sizes:
                plan = plan.with_fixed_steps(job.model, job.design, job.sizes)
        return plan

    def trials(self) -> Iterator[Trial]:
        """Yield every trial in the order in which it is run: blocks, in each the jobs, in each the arms."""
        for block in range(self.blocks):
            yield from self.trials_of(block)

    def trials_of(self, block: int) -> Iterator[Trial]:
        """Yield the trials of one block, in order. The first one has the warm-up blocks; ``WARM_UP`` is these alone."""
        if block in (0, WARM_UP):
            for warm_up in range(self.warmup_blocks):
                yield from self._trials(warm_up, warm_up=True)
        if block != WARM_UP:
            yield from self._trials(block, warm_up=False)

    def _trials(self, block: int, *, warm_up: bool) -> Iterator[Trial]:
        kind = "warm-up/" if warm_up else ""
        seed = self.seed * 100_003 + block
        alone = random.Random(f"{self.seed}/{kind}{block}")
        positions = itertools.count()
        for job in self.jobs:
            arms = self._arms(job)
            if self.order_seed is None:
                order = alone.sample(arms, len(arms))
            else:
                order = balanced(arms, block, f"{self.order_seed}/{kind}{job.model}/{job.design}")
            for arm in order:
                target, replica, ablation, aggressor = arm
                yield Trial(
                    trial_id=trial_name(job.scenario, job.model, arm_name(*arm, job.design), block, warm_up=warm_up),
                    job=job,
                    target=target,
                    replica=replica,
                    ablation=ablation,
                    aggressor=aggressor,
                    warm_up=warm_up,
                    block=block,
                    position=next(positions),
                    seed=seed,
                    order_seed=self.order_seed,
                    run_id=self.run_id,
                    trial_timeout_s=self.trial_timeout_s,
                    scratch_bytes=self.scratch_bytes.get(job.model),
                )

    def _arms(self, job: Job) -> list[Arm]:
        arms = self._alone(job)
        aggressors = job.sharing.aggressors if job.sharing else ()
        loaded = ((*arm[:3], name) for arm in arms if not arm[1] for name in aggressors)
        return [*arms, *loaded]

    def _alone(self, job: Job) -> list[Arm]:
        arms: list[Arm] = [(target, 0, None, None) for target in self.targets]
        if self.aa:
            # What a victim loses is held against the same target, so that each target shows what is only noise.
            arms += [(target, 1, None, None) for target in (self.targets if job.sharing else (BASELINE,))]
        for target in self.targets:
            arms += [(target, 0, name, None) for name in ablations.arms(target, self.ablations)]
        if job.turns and (partner := job.turns.partner):
            plain = (BASELINE, 0, None, None)
            partners = (arm for arm in arms if arm[0] == partner and arm != plain)
            arms = [plain, *partners]
        return arms


def planned(part: _Item | None, what: str) -> _Item:
    """Return a part that the jobs of a scenario always have. Raises MeasurementError where one was planned without."""
    if part is None:
        raise MeasurementError(f"the trial was planned without {what}", kind="plan")
    return part


def together(trials: Iterable[Trial]) -> Iterator[list[Trial]]:
    """Yield the trials that are open at once: those of a block that take turns, and every other one by itself."""

    def group_of(trial: Trial) -> tuple[object, ...]:
        alone = (trial.trial_id,)
        if trial.job.turns:
            return (trial.warm_up, trial.block, trial.job.model, trial.job.design)
        return alone

    yield from (list(group) for _, group in itertools.groupby(trials, group_of))


def rounds_of(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Yield the order of the turns in each round of trials that are open at once; of time slices without end."""
    first = trials[0]
    seed = f"{first.order_seed}/{first.seed}/{first.job.model}/{first.job.design}/{first.warm_up}"
    numbers: Iterable[int] = itertools.count()
    if isinstance(first.job.turns, Alternating):
        numbers = range(first.job.turns.rounds)
    for number in numbers:
        yield balanced(trials, number, seed)


def balanced(items: Sequence[_Item], number: int, seed: str) -> list[_Item]:
    """Return the items in the order of block ``number``, from 0. A longer run begins with the orders of a shorter.

    The blocks of a pair have an order and its reverse, so that after every even number of blocks all items have the
    same mean place, and a steady drift cancels. The orders of successive pairs are the rows of a Williams design
    (Austral. J. Sci. Res. A 2 (1949) 149), in which everything follows everything else equally often; of an odd number
    of items, with their reverses. Each design is drawn anew: its labels, the order of its pairs, and which block of a
    pair comes first.
    """
    count = len(items)
    pairs = count if count % 2 else count // 2
    design, pair = divmod(number // 2, pairs)
    draw = random.Random(f"{seed}/{design}")
    labels = draw.sample(items, count)
    row = draw.sample(range(pairs), pairs)[pair]
    reverse = draw.choices((False, True), k=pairs)[pair]
    zigzag = ((position + 1) // 2 * (1 if position % 2 else -1) for position in range(count))
    order = [labels[(row + step) % count] for step in zigzag]
    if reverse != bool(number % 2):
        return order[::-1]
    return order


def lower(capability: CpuCapability | None) -> CpuCapability:
    """Return the next lower level. Raises RequestError where there is none, or where none is known."""
    if capability in (None, CPU_CAPABILITIES[0]):
        capped = "not capped"
        if capability is not None:
            capped = f"already {capability}"
        raise RequestError(
            f"{option('ablate')} isa: the vector instructions are {capped}",
            remedy=f"leave it out, or use {option('isa')} shared",
        )
    return CPU_CAPABILITIES[CPU_CAPABILITIES.index(capability) - 1]
