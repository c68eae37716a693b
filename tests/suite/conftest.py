"""Plans, records, and the fakes that the loop runs: real implementations of the interfaces, without any machine."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from suite.interfaces import Instance, Measurement, Observer
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Sizes
from suite.plan import Plan, Trial
from suite.records.environment import Environment, Environments
from suite.records.fields import checked_part
from suite.records.record import Epochs, Outcome, Steps, Timeline, TrialRecord
from suite.records.usage import Conditions, GpuUsage, Resources, Usage
from suite.registries import SCENARIOS
from suite.results.store import Run
from tests.jobs import identity, in_job, plan_of
from tests.provisioning import conftest as provisioning

ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=2 * GIB, threads=2)
FAILED = {"outcome": Outcome(status="failed", kind="boot", message="no guest"), "throughput_per_s": None}
WORKLOAD = Sizes(batch=2, image_px=32, warmup_steps=1, steps=3)


def inside(envelope: Envelope, **changes: Any) -> Environment:
    """What a target attests that has this envelope."""
    seen = {"cpus": list(envelope.cpus), "memory_bytes": envelope.memory_bytes, "threads": envelope.threads}
    return checked_part(Environment, {**seen, **changes})


@dataclass
class FakeNode(provisioning.FakeNode):
    """A place of this machine where every command succeeds and says nothing."""

    userland: str | None = None
    local: bool = True


@dataclass
class FakeTargets:
    """Opens a fake node for each trial. ``failing`` raises its error for a target; what happened is in ``events``."""

    events: list[str]
    failing: dict[str, BaseException] = field(default_factory=dict)
    substitutes: tuple[str, ...] = ()

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[Sequence[Instance]]:
        self.events.append(f"open {trial.trial_id}")
        if trial.target in self.failing:
            raise self.failing[trial.target]
        node = FakeNode(name=trial.target, substitutes=self.substitutes)
        node.opening.parts["container"] = 0.5
        try:
            yield [Instance(node)]
        finally:
            self.events.append(f"close {trial.trial_id}")


@dataclass
class FakeScenario:
    """Measures 10 images/s everywhere. ``failing`` raises its error for a target; ``seen`` changes what is attested."""

    events: list[str]
    failing: dict[str, BaseException] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    name: str = "synthetic"
    substitutes: tuple[str, ...] = ()
    epochs: Epochs | None = None
    chosen_steps: int = 3
    """The steps that a trial takes which fixes them."""

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        assert [instance.node.name for instance in instances] == [trial.target]
        self.events.append(f"measure {trial.trial_id}")
        observer.phase("measuring")
        with account:
            if trial.target in self.failing:
                raise self.failing[trial.target]
        sizes = trial.job.sizes
        fixed = sizes.fixed(self.chosen_steps) if sizes and trial.fixes_steps else None
        steps = (fixed or sizes or WORKLOAD).steps
        return Measurement(
            elapsed_s=5.0,
            throughput_per_s=10.0,
            steps=Steps(elapsed_s=[0.2] * steps, data_s=[0.0] * steps, compute_s=[0.2] * steps),
            fixed_sizes=fixed,
            timeline=Timeline(measured_s=0.6),
            epochs=self.epochs,
            environment=inside(trial.job.envelope, **self.seen),
            weights_sha256="ab" * 32,
            clock_ratio=1.0,
            usage=Usage(cpu_s=4.0),
            details={"devices": 1},
            substitutes=self.substitutes,
        )


def measuring_by(fake: FakeScenario, patch: pytest.MonkeyPatch) -> None:
    """Let every scenario plan as it does, and measure what the fake does."""
    for name in SCENARIOS:
        real = SCENARIOS.get(name)
        measure = {"measure": staticmethod(lambda *asked: fake.measure(*asked))}
        patch.setitem(SCENARIOS._loaded, name, type(real.__name__, (real,), measure))


@dataclass
class FakeAccount:
    """Counts one busy CPU on a host where nothing else happens, for no less time than a fake job claims to take."""

    least_s: float = 5.0

    conditions: Conditions | None = None
    resources: Resources | None = None
    gpus: ClassVar[list[GpuUsage] | None] = None

    def __enter__(self) -> None:
        self.begun_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.conditions = Conditions(interval_s=max(self.least_s, time.monotonic() - self.begun_s), other_cpu_s=0.0)
        self.resources = Resources(serving=Usage(cpu_s=self.conditions.interval_s), gpus=self.gpus)

    def meter(self, instances: Sequence[Instance]) -> Any:
        """Return what counts a second from each question to the next."""
        del instances
        return SimpleNamespace(cpu_s=partial(next, itertools.count(1.0)))


@dataclass
class FakeObserver:
    """Keeps what it was told."""

    told: list[str] = field(default_factory=list)

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        self.told.append(f"{number}/{of} {trial.trial_id}")

    def phase(self, name: str, detail: str = "") -> None:
        self.told.append(f"{name} {detail}".strip())

    def trial_finished(self, record: TrialRecord) -> None:
        self.told.append(f"{record.trial_id} {record.outcome.status}")

    def note(self, text: str) -> None:
        self.told.append(text)


def make_plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "scenario": "synthetic",
        "targets": ("bare-metal", "container", "vm"),
        "models": ("resnet50",),
        "profile": "smoke",
        "blocks": 2,
        "seed": 7,
        "sizes": WORKLOAD,
        "envelope": ENVELOPE,
        "trial_timeout_s": 60,
        "engine": "podman",
    }
    return plan_of(**(values | changes))


def record_fields(**changes: Any) -> dict[str, Any]:
    """What makes a record of a trial that is ok, with ``changes``."""
    values: dict[str, Any] = {
        "run_id": identity("run"),
        "trial_id": "synthetic-resnet50-vm-b000",
        "suite_version": "0",
        "started_at": "2026-01-01T00:00:00+00:00",
        "scenario": "synthetic",
        "target": "vm",
        "model": "resnet50",
        "data": "synthetic",
        "profile": "smoke",
        "recipe": "reference",
        "block": 0,
        "position": 0,
        "seed": 0,
        "sizes": WORKLOAD,
        "envelope": ENVELOPE,
        "outcome": Outcome(status="ok"),
        "throughput_per_s": 10.0,
        "elapsed_s": 5.0,
        "environment": Environments(host=Environment()),
    }
    return in_job(values | changes)


def make_record(**changes: Any) -> TrialRecord:
    return TrialRecord(**record_fields(**changes))


@pytest.fixture
def store(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def observer() -> FakeObserver:
    return FakeObserver()


@pytest.fixture
def events() -> list[str]:
    """What the fakes of one test did, in order."""
    return []


@pytest.fixture
def targets(events: list[str]) -> FakeTargets:
    return FakeTargets(events)


@pytest.fixture
def scenario(events: list[str]) -> FakeScenario:
    return FakeScenario(events)
