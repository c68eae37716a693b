"""The base of a scenario: it plans its part of a job from a request, says what cannot be, and measures."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from suite.errors import RequestError, option
from suite.interfaces import Context, Instance, Measurement, Note, Observer, TurnScenario
from suite.job.datasets import SYNTHETIC, Dataset
from suite.job.distributed import Strategy
from suite.job.envelope import Envelope
from suite.job.job import Alternating, TimeSlices
from suite.job.profiles import Profile
from suite.job.sharing import architecture
from suite.plan import Trial
from suite.registries import SCENARIOS, WORKLOADS
from suite.registry import Registry
from suite.request.request import OPTIONS, RunRequest
from suite.request.traits import Traits


class PlannedScenario(Traits, ABC):
    """A scenario for one request. Methods before ``measure`` start nothing, and raise RequestError for what cannot be.

    A scenario whose jobs take turns, too, has a method ``turn_taker``; see ``suite.interfaces.TurnScenario``.
    """

    members: ClassVar[Registry | None] = None
    """The registry of what is measured, if its models are no workloads."""

    @classmethod
    def of(cls, request: RunRequest) -> Self:
        return cls()

    def models(self, request: RunRequest) -> tuple[str, ...]:
        """Return what is measured, by the names that records have; a file stands for the workload that it declares."""
        return request.models

    def data_set(self, request: RunRequest, home: Path, note: Note) -> tuple[str, Dataset | None]:
        """Return the name of the data and, if they are files, the data set; ``home`` has those that were generated."""
        chosen = request.data.data or SYNTHETIC
        if chosen != SYNTHETIC:
            raise RequestError(
                f"{option('data')} {chosen} with {option('scenario')} {self.name}",
                remedy=f"use {option('scenario')} {' or '.join(reading())} for it",
            )
        return SYNTHETIC, None

    def images_read(self, request: RunRequest) -> tuple[str, int]:
        """Return the data set that is read, as ``--data`` names it, and how many images of it the largest job takes."""
        return SYNTHETIC, 0

    def check_model(self, request: RunRequest, model: str) -> None:
        """Raise RequestError for a model that cannot be measured as the request asks for."""
        self.check_devices(request)
        if not self.workloads:
            return
        workload = WORKLOADS.get(architecture(model))
        between_devices = workload.communicates and request.gpus.parallel == "ddp" and not self.joined
        if not between_devices:
            self._check_scenario(model)
        unusable = [name for name in ("generate", "keep_model") if getattr(request.measurement, name)]
        if unusable and not workload.makes_images:
            remedy = f"leave out {option(unusable[0])}, or use another {option('model')}"
            raise RequestError(f"{model} generates no images", remedy=remedy)
        _check_rate(request, model)
        if request.gpus.parallel != "none" and not workload.one_loss:
            raise RequestError(
                f"{model} has a training step of its own, which cannot be spread over devices",
                remedy=f"leave out {option('parallel')}, or use another {option('model')}",
            )

    def _check_scenario(self, model: str) -> None:
        """Raise RequestError for a workload of other scenarios."""
        workload = WORKLOADS.get(architecture(model))
        if workload.scenarios and self.name not in workload.scenarios:
            several = f", {option('parallel')} ddp with {option('devices')} 2" if workload.communicates else ""
            raise RequestError(
                f"{model} cannot be trained in the scenario {self.name}",
                remedy=f"use {option('scenario')} {' or '.join(workload.scenarios)}{several} for it, or another "
                f"{option('model')}",
            )

    def check_devices(self, request: RunRequest) -> None:
        """Raise RequestError for several devices of an instance that has one."""
        if request.gpus.parallel != "none" and (self.joined or not self.trains):
            raise RequestError(
                f"{option('parallel')} does not go with {option('scenario')} {self.name}, whose instances have one "
                "device each",
                remedy=f"leave out {option('parallel')} and {option('devices')}",
            )

    def ranks(self, request: RunRequest) -> tuple[int, int]:
        """Return how many workers and servers a joined job has."""
        raise NotImplementedError(f"the instances of {self.name} are not joined: {request.scenario}")

    def strategy(self, request: RunRequest) -> Strategy | None:
        """Return how the workers of a joined job train together; None if they are clients of a server."""
        return None

    def batches(self, request: RunRequest) -> int:
        """Return how many batches a step takes of the data set: one for each instance that trains on its own."""
        return 1

    def instances(self, request: RunRequest) -> int:
        if self.joined:
            return sum(self.ranks(request))
        return 1

    def check_shares(
        self,
        request: RunRequest,
        envelope: Envelope,
        targets: Sequence[str],
        note: Note,
    ) -> None:
        """Raise RequestError if the envelope is too small for its instances."""

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        """Return the disk space in bytes that each model needs to write to, without those that write nothing."""
        return {}

    def unit(self, request: RunRequest, model: str) -> str | None:
        """Return what the throughput counts; None if there is none."""
        if self.workloads:
            return str(WORKLOADS.get(architecture(model)).unit)
        return None

    def turns(self, request: RunRequest) -> Alternating | TimeSlices | None:
        """Return how the jobs take turns; None if they do not."""
        return request.measurement.turns

    def hinders_turns(self, request: RunRequest) -> tuple[str, str] | None:
        """Return why the jobs of the request cannot take turns, and a remedy; None if they can."""
        return None

    def arms(self, request: RunRequest) -> tuple[str, ...]:
        """Return the arms that are compared on one target, with the target as it is; none where targets are."""
        return ()

    def part(self, request: RunRequest, profile: Profile, model: str) -> Mapping[str, Any]:
        """Return the fields of ``suite.job.job.Job`` that it alone decides: of a foreign scenario, its options."""
        if self.name in SCENARIOS.own:
            return {}
        names = [
            declared.name for declared in OPTIONS.values() if declared.scenario == self.name and declared.about.meaning
        ]
        values = {name: value for name in names if (value := request.value(name)) is not None}
        return {"options": {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}}

    @abstractmethod
    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Measure; see ``suite.interfaces.Scenario``."""


def _check_rate(request: RunRequest, model: str) -> None:
    """Raise RequestError for the learning rate of a workload that only exchanges messages."""
    if request.measurement.learning_rate and WORKLOADS.get(architecture(model)).communicates:
        raise RequestError(
            f"{model} trains nothing, and has no learning rate",
            remedy=f"leave out {option('learning_rate')}, or use another {option('model')}",
        )


def scenario_of(request: RunRequest) -> PlannedScenario:
    """Return the scenario of a request. Raises RequestError for one that fails to load."""
    scenario: PlannedScenario = SCENARIOS.get(request.scenario).of(request)
    return scenario


def can_take_turns(scenario: PlannedScenario, request: RunRequest) -> bool:
    """Return whether the jobs of a request can take turns."""
    return isinstance(scenario, TurnScenario) and not scenario.hinders_turns(request)


def reading() -> list[str]:
    return [name for name in SCENARIOS.own if SCENARIOS.get(name).reads]
