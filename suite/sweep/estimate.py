"""Estimate how long trials take: from earlier ones like them, from those on the same target, or else roughly."""

import datetime
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from suite.differ import Host
from suite.errors import RequestError
from suite.job.job import Alternating, Job, leaves
from suite.job.profiles import Sizes
from suite.job.sharing import architecture
from suite.plan import Trial
from suite.records.headers import RecordHeader, headers
from suite.registries import WORKLOADS
from suite.request.parts import LEAST_BURST_S
from suite.results.store import TRIALS
from suite.targets import VMS
from suite.trial_names import arm_name

MOST_RECORDS = 5000
"""The newest directories suffice: older trials add nothing, and an estimate must be quick."""
ROUGH_OPENED_S = {
    "bare-metal": 9.0,
    "container": 10.0,
    "vm": 25.0,
    "container-vm": 30.0,
}
"""What opening a target, starting Python with torch, and closing take on a usual machine."""
ROUGH_EMULATED_S = {"vm": 100.0, "container-vm": 115.0}
"""The same where the CPU of the guest is emulated."""
ROUGH_GFLOP_PER_S = 30.0
"""The 10^9 operations of a thread in a second: less than in ResNet-50 on two CPUs, more than in small convolutions."""
ROUGH_UPDATE_GFLOP = 0.12
"""The operations that take as long as updating a million parameters: AlexNet's 61 million take 0.12 s on two CPUs."""
ROUGH_GFLOP_PER_PIXEL = 24.5 / 224**2
"""The operations of ResNet-50, for workloads that declare none."""
ROUGH_GPU_GFLOP_PER_S = 10_000.0
"""The operations of a GPU in fp32."""
ROUGH_GPU_STEP_S = 0.01
"""The least seconds of a step on a GPU: the host launches a thousand kernels."""
ROUGH_EMULATION = 300.0
"""How much longer computing takes on an emulated CPU."""
ROUGH_SETTLING_S = 3.0
"""What settling takes beside its least seconds: building the network, and the last windows."""
MOST_BURST_STEPS = 64
"""The most: a step may take long though its workload declares next to nothing, as one that exchanges messages does."""
ROUGH_WITHIN = 5
"""The factor within which these rules are right."""
ROUGH_EXCHANGE_S = 1.0
ROUGH_PROBE_S = 8.0
"""What a step of a distributed job takes for each worker beside computing, and a probe."""
Source = Literal["records", "similar", "rough"]
SOURCES: dict[Source, str] = {
    "records": "from earlier trials of this job",
    "similar": "from earlier trials of other sizes or models",
    "rough": f"ROUGH, within a factor of {ROUGH_WITHIN}: it never ran here",
}
"""The sources of a guess in words, the most certain first."""


@dataclass(frozen=True, order=True)
class Guess:
    """The seconds that trials take, and the source: trials like them, others on the same target, or a rough rule."""

    seconds: float
    source: Source


class _Fit(NamedTuple):
    """The times of other sizes by one record: seconds beside the steps, and those of a step for each unit of work."""

    beside_s: float
    rate_s: float
    """For 10^9 operations."""


class Durations:
    """Medians of how long trials took to open, run and close, by what was run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._fits: defaultdict[tuple[str, ...], list[_Fit]] = defaultdict(list)

    def add(self, header: RecordHeader, took_s: float | None = None) -> None:
        """Take a record that is ok into account; ``took_s`` is its time with the suite's own work, if known."""
        if header.ok:
            seconds = took_s or header.duration_s
            self._seconds[_key(header)].append(seconds)
            fit = _fit(header, seconds)
            for key in _similar(header):
                self._fits[key].append(fit)

    def of(self, trial: Trial) -> float | None:
        """Return the seconds that the trial takes; None if no record is like it."""
        measured = self._seconds.get(_key(trial))
        if measured:
            return statistics.median(measured)
        return None

    def guess(self, *trials: Trial) -> Guess:
        """Return the seconds that the trials take together, by the best source for each, and the least certain one."""
        guesses = [self._guess(trial) for trial in trials]
        seconds = sum(guess.seconds for guess in guesses)
        source = least_certain(guess.source for guess in guesses)
        return Guess(seconds, source)

    def _guess(self, trial: Trial) -> Guess:
        measured = self.of(trial)
        if measured is not None:
            return Guess(measured, "records")
        work = _steps(trial.job) * _work(trial.job)
        for key in _similar(trial):
            fits = self._fits.get(key)
            if fits:
                beside_s, rate_s = map(statistics.median, zip(*fits, strict=True))
                computing_s = max(work * rate_s, _least_s(trial.job))
                return Guess(beside_s + computing_s, "similar")
        return Guess(rough_s(trial), "rough")


def least_certain(sources: Iterable[Source]) -> Source:
    return max(sources, key=list(SOURCES).index, default="records")


def durations_below(*directories: Path, here: Host | None = None) -> Durations:
    """Return what the newest records below directories of runs and sweeps give; with ``here`` those of this machine."""
    runs = [run for directory in directories for run in (directory, *directory.glob("*"), *directory.glob("*/*"))]
    begun = [run for run in dict.fromkeys(runs) if (run / TRIALS).is_dir()]
    newest = sorted(begun, key=lambda directory: (directory / TRIALS).stat().st_mtime, reverse=True)
    durations = Durations()
    timed = map(_timed, newest)
    for header, took_s in itertools.islice(itertools.chain.from_iterable(timed), MOST_RECORDS):
        if here is None or (header.host.machine, header.host.cpu_model) == (here.machine, here.cpu_model):
            durations.add(header, took_s)
    return durations


def _timed(run: Path) -> Iterator[tuple[RecordHeader, float]]:
    """Yield the trials of a run with the seconds that each took: until the next one began, unless there was a pause."""
    in_order = sorted(headers(run), key=lambda header: header.started_at)
    begins = [datetime.datetime.fromisoformat(header.started_at).timestamp() for header in in_order]
    ends = [*begins[1:], 0.0]
    for header, begin_s, end_s in zip(in_order, begins, ends, strict=False):
        beside_s = end_s - begin_s - header.duration_s
        pause_s = 15 + header.duration_s / 2
        yield header, header.duration_s + (beside_s if 0 < beside_s < pause_s else 0.0)


def _key(trial: RecordHeader | Trial) -> str:
    """Return the key of trials that take equally long: their job and arm."""
    # A new image, or another engine, hardly changes how long a trial takes, so earlier records still count.
    fields = trial.job.model_dump(mode="json", exclude={"layers"})
    facts = dict(leaves(fields))
    return json.dumps([facts, _accelerator(trial), _arm(trial)], sort_keys=True)


def _similar(trial: RecordHeader | Trial) -> Sequence[tuple[str, ...]]:
    """Return the keys of trials of other sizes, and then of other models of the same unit, the nearest first."""
    job = trial.job
    shared = (job.scenario, str(job.devices.device), str(_accelerator(trial)), _arm(trial))
    nearest = (*shared, "model", str(job.model))
    # The time of one probe does not predict another.
    if not job.sizes:
        return (nearest,)
    same_unit = (*shared, "unit", str(job.unit))
    return (nearest, same_unit)


def _accelerator(trial: RecordHeader | Trial) -> str | None:
    if trial.target in VMS:
        return trial.job.layers.accelerator
    return None


def _arm(trial: RecordHeader | Trial) -> str:
    # The second bare metal of an A/A block is the first one again.
    return arm_name(trial.target, 0, trial.ablation, trial.aggressor)


def _steps(job: Job) -> int:
    if job.sizes:
        return job.sizes.steps + job.sizes.warmup_steps
    return 0


def _least_s(job: Job) -> float:
    """Return the seconds that a job takes however fast it is: those of its schedule, or until its steps are enough."""
    if job.serving:
        return job.serving.scheduled_s
    return (job.sizes and job.sizes.least_s) or 0.0


def _work(job: Job) -> float:
    """Return the work of one step, in 10^9 operations of all workers and devices; 1 for one that has no sizes."""
    if not job.sizes:
        return 1.0
    return _computing(str(job.model), job.sizes) * job.devices.devices * _workers(job)


def _computing(model: str, sizes: Sizes) -> float:
    """Return the 10^9 operations of a step on one device."""
    with suppress(RequestError):  # a workload of a package that is not installed here
        workload = WORKLOADS.get(architecture(model))
        cost = workload.cost_at(sizes.image_px or sizes.tokens, sizes.depth)
        if cost:
            return float(cost.gflop * sizes.batch + cost.parameters_millions * ROUGH_UPDATE_GFLOP)
    pixels = (sizes.image_px or 1) ** 2
    return sizes.batch * pixels * ROUGH_GFLOP_PER_PIXEL


def _workers(job: Job) -> int:
    if job.distributed:
        return job.distributed.workers
    return 1


def _fit(header: RecordHeader, seconds: float) -> _Fit:
    if not header.job.sizes:
        return _Fit(max(0.0, seconds - _least_s(header.job)), 0.0)
    if not header.measured_s:
        return _Fit(seconds, 0.0)
    step_s = header.measured_s / header.job.sizes.steps
    fixed_s = max(0.0, seconds - _steps(header.job) * step_s)
    rate_s = step_s / _work(header.job)
    return _Fit(fixed_s, rate_s)


def is_emulated(trial: Trial) -> bool:
    return trial.target in VMS and trial.job.layers.accelerator == "tcg"


def rough_s(trial: Trial) -> float:
    """Return the seconds that the trial takes by a rule that is right within a factor of 5."""
    job = trial.job
    emulated = is_emulated(trial)
    opened_s = ROUGH_EMULATED_S[trial.target] if emulated else ROUGH_OPENED_S[trial.target]
    opened_s *= max(1, len(trial.instances))
    if not job.sizes:
        return opened_s + ROUGH_PROBE_S + _least_s(job)
    exchange_s = 0.0
    if job.distributed:
        exchange_s = ROUGH_EXCHANGE_S * _workers(job)
    training_s = _steps(job) * (_computing_s(job, emulated=emulated) + exchange_s)
    settling_s = 0.0
    if job.sizes.settle_s:
        settling_s = job.sizes.settle_s + ROUGH_SETTLING_S
    return opened_s + settling_s + max(training_s, _least_s(job))


def with_lasting_bursts(job: Job) -> Job:
    """Return a job that takes turns with as many steps in each as last ``LEAST_BURST_S``, or with its own if more.

    Their number comes from what the workload declares, and from nothing measured: runs of one job stay comparable.
    """
    if not (job.sizes and isinstance(job.turns, Alternating)):
        return job
    step_s = max(_computing_s(job, emulated=False), LEAST_BURST_S / MOST_BURST_STEPS)
    lasting_steps = math.ceil(LEAST_BURST_S / step_s)
    burst_steps = max(job.turns.burst_steps, lasting_steps)
    turns = job.turns.model_copy(update={"burst_steps": burst_steps})
    sizes = job.sizes.model_copy(update={"steps": turns.rounds * burst_steps})
    return job.model_copy(update={"turns": turns, "sizes": sizes})


def _computing_s(job: Job, *, emulated: bool) -> float:
    """Return the seconds in which one step is computed. The threads of the CPU do nothing for that of a GPU."""
    if job.devices.device == "cuda":
        # Devices work at the same time; those of workers, too.
        alone = _work(job) / (job.devices.devices * _workers(job))
        return max(ROUGH_GPU_STEP_S, alone / ROUGH_GPU_GFLOP_PER_S)
    computing_s = _work(job) / (ROUGH_GFLOP_PER_S * job.envelope.threads)
    return computing_s * (ROUGH_EMULATION if emulated else 1.0)
