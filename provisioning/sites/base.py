"""The protocol of sites: where the targets of a run stand, what they have there, and how they are opened.

A run has one site, chosen once from its request. Where some of its targets stand elsewhere, as what is compared with
pods does, the site passes these on to another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from provisioning import isa
from provisioning.doctor import Check
from provisioning.images.image import Image
from provisioning.machines.base import get_provider
from provisioning.nodes import LocalNode, local_node
from provisioning.targets import Choices, is_limited, layers
from provisioning.volumes import Volume
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Instance, Layer, Node, Note
from suite.job.ablations import properties_of
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob
from suite.job.envelope import Envelope, parse_bytes, plan_envelope
from suite.job.job import CpuCapability
from suite.job.profiles import PROFILES
from suite.job.properties import Properties
from suite.plan import Plan, Trial
from suite.registries import SITES
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.request.traits import Traits
from suite.targets import TARGETS, VMS


@dataclass(frozen=True)
class RunInputs:
    """A request, and what is the same for it at every site."""

    request: RunRequest
    scenario: PlannedScenario
    image: Image
    dataset: Dataset | None
    note: Note
    checks: Sequence[Check] | None = None
    """The checks of ``doctor.examine``, where they were made already."""
    lifetime: ExitStack | None = None
    """Closes at the end of the run what is made for its plan; None where nothing may be made yet."""

    def on(self, targets: tuple[str, ...]) -> "RunInputs":
        """Return the same for these targets."""
        return replace(self, request=self.request.changed(target=targets))


@dataclass(frozen=True)
class Capacity:
    """A machine or node at which instances stand, and what it has for each."""

    cpus: tuple[int, ...]
    memory_bytes: int
    name: str = ""
    """Empty for this machine."""
    offline: tuple[int, ...] = ()
    isolated: tuple[int, ...] = ()
    """CPUs that the kernel's scheduler leaves alone (``isolcpus``): it moves no thread between them."""


@dataclass(frozen=True)
class Site(ABC):
    """Where the targets of a run stand.

    A new site must have a ``name``, and implement the first five methods. Of all methods only ``prepare``, ``opened``,
    ``nodes`` and ``machine`` start anything; the others raise RequestError.
    """

    choices: Choices
    targets: tuple[str, ...] = ()
    """Those of the request that it carries."""
    path_only: tuple[str, ...] = ()
    """Those of them whose numbers are no measurement; see ``suite.measurable``."""
    name: ClassVar[str]
    instances_share: ClassVar[bool] = True
    """Whether the instances of a job share the envelope; otherwise each has it whole."""
    no_turns: ClassVar[str] = ""
    """Why jobs cannot take turns there; empty if they can."""

    @classmethod
    @abstractmethod
    def resolve(cls, inputs: RunInputs) -> "Site":
        """Return the site with what it has for the run."""

    @abstractmethod
    def places(self, inputs: RunInputs) -> tuple[Capacity, ...]:
        """Return where the instances stand, and what each of these has."""

    @abstractmethod
    def capability(self, envelope: Envelope, note: Note, *, always: bool) -> CpuCapability | None:
        """Return the vector instructions that all targets have; see ``isa.shared``."""

    @abstractmethod
    def prepare(self, plan: Plan, note: Note, refuse_changed: Callable[[], None] = lambda: None) -> None:
        """Make what is kept between runs: images in the stores of engines, the data set as a disk of guests.

        ``refuse_changed`` raises when the data set is no longer the one that is prepared.
        """

    @abstractmethod
    def opened(self, trial: Trial) -> AbstractContextManager[tuple[Instance, ...]]:
        """Open the instances of the trial; when the context ends, nothing of them is left."""

    @classmethod
    def chosen_by(cls, request: RunRequest) -> bool:  # noqa: ARG003 (others look at it)
        """Return whether the options of the request lead to it, unless they name a site."""
        return False

    @classmethod
    def boots(cls, request: RunRequest) -> frozenset[str]:
        """Return the targets of the request for which the suite boots a virtual machine."""
        return VMS.intersection(request.targets.target)

    @classmethod
    def with_usual_targets(cls, inputs: RunInputs) -> RunInputs:
        """Return the inputs, whose request names no target, with those that it takes by default."""
        return inputs.on(TARGETS)

    @classmethod
    def capabilities(cls) -> Iterable[Check]:
        """Return the checks of ``bench doctor`` that concern this site alone, with reason and remedy."""
        return ()

    @classmethod  # noqa: B027 (most refuse nothing)
    def refuse_request(cls, request: RunRequest) -> None:
        """Raise RequestError for what is refused before an image is looked for."""

    @classmethod
    def holds_data(cls, request: RunRequest) -> bool:  # noqa: ARG003 (as ``chosen_by``)
        """Return whether the data that the request names are no directory of this machine, but of the site."""
        return False

    @property
    def local(self) -> bool:
        """Return whether targets other than pods are opened on this machine."""
        return True

    @property
    def boots_guests(self) -> bool:
        return True

    def dataset(self, inputs: RunInputs) -> Dataset | None:
        """Return the data set of the run; None if it reads none."""
        return inputs.dataset

    def stored(self, request: RunRequest) -> RunRequest:
        """Return the request as it can be repeated from another directory."""
        return request.with_absolute_paths()

    def opened_as(self, target: str) -> str:
        """Return the target whose layers are opened: on a machine that is the virtual one, it boots none."""
        return target

    def refuse(self, inputs: RunInputs, scratch_bytes: dict[str, int]) -> None:  # noqa: B027 (as ``refuse_request``)
        """Raise RequestError for what the site cannot give to the run, which writes so much."""

    def part(self, inputs: RunInputs) -> dict[str, Any]:
        """Return the fields of ``suite.job.job.Job`` that the site decides."""
        envelope = self.envelopes(inputs)[0]
        inputs.scenario.check_shares(inputs.request, envelope, self.targets, inputs.note)
        return self.fields(envelope, self.shared_capability(inputs, envelope))

    def fields(self, envelope: Envelope, capability: CpuCapability | None, **more: object) -> dict[str, Any]:
        recorded = self.choices.layers(local=self.local, boots_guests=self.boots_guests)
        return {"envelope": envelope, "cpu_capability": capability, "layers": recorded, **more}

    def envelopes(self, inputs: RunInputs) -> tuple[Envelope, ...]:
        """Return the envelope at each place: as many CPUs, and as much memory, at all of them."""
        wanted = inputs.request.envelope
        places = self.places(inputs)
        sharing = self._sharing(inputs)
        memory_bytes = self.wanted_bytes(inputs)
        envelopes = []
        for place in places:
            try:
                envelope = plan_envelope(
                    str(wanted.cpus or min(len(place.cpus) for place in places)),
                    memory_bytes,
                    wanted.threads,
                    host_cpus=place.cpus,
                    host_memory_bytes=place.memory_bytes,
                    offline=place.offline,
                    isolated=place.isolated,
                )
            except RequestError as error:
                raise error.within(f"on {place.name}") if place.name else error from None
            envelopes.append(envelope)
        if sharing == 1:
            self._check_guest(envelopes[0])
        return tuple(envelopes)

    def _sharing(self, inputs: RunInputs) -> int:
        """Return how many instances share an envelope."""
        return inputs.scenario.instances(inputs.request) if self.instances_share else 1

    def wanted_bytes(self, inputs: RunInputs) -> int:
        """Return the memory that the user asks for, or by default that of the profile for each instance."""
        memory = inputs.request.envelope.memory
        if memory:
            return parse_bytes(memory)
        usual_bytes = PROFILES[inputs.request.measurement.profile].memory_for(inputs.request.gpus.device)
        return usual_bytes * self._sharing(inputs)

    def _check_guest(self, envelope: Envelope) -> None:
        """Raise RequestError for more CPUs than a guest can have."""
        most = get_provider(self.choices.provider).most_cpus
        guests = self.boots_guests and VMS.intersection(self.targets)
        if guests and most and len(envelope.cpus) > most:
            limit = f"a virtual machine of {self.choices.provider} has {most} at most, without an IOMMU for interrupts"
            raise RequestError(
                f"{len(envelope.cpus)} CPUs: {limit}",
                remedy=f"use {option('cpus')} {most}, which all targets then have, or leave out {', '.join(guests)}",
            )

    def shared_capability(
        self, inputs: RunInputs, envelope: Envelope, levels: Collection[CpuCapability] = ()
    ) -> CpuCapability | None:
        """Return the cap on the job's libraries, by ``levels`` if they are known; None for no cap."""
        wanted = inputs.request.targets
        if wanted.isa == "native":
            return None
        ablated = any(properties_of(name).lower_isa for name in wanted.ablate)
        if levels:
            return isa.lowest_of(levels, inputs.note, always=ablated)
        return self.capability(envelope, inputs.note, always=ablated)

    def refuse_switch(self, properties: Properties, scenario: Traits) -> tuple[str, str] | None:
        """Return why a network or a service cannot be switched in the scenario, and a remedy; None if it can."""
        if properties.host_network and scenario.joined:
            return (
                f": {option('network')} says how the instances are joined",
                f"leave it out, and run it once more with {option('network')} host",
            )
        if properties.service:
            return NO_SERVICE
        return None

    @contextmanager
    def nodes(self) -> Iterator[list[Node]]:
        """Open the machines on which all targets but pods are opened."""
        with local_node((), None) as node:
            yield [node]

    def here_cpus(self, plan: Plan) -> tuple[int, ...]:
        """Return the CPUs of this machine that the run takes."""
        return plan.job.envelope.cpus

    def machine(self, envelope: Envelope, data: str | None) -> AbstractContextManager[LocalNode]:
        """Open this machine with the image of the run, and this directory of data."""
        image = self.choices.image
        return local_node(envelope.cpus, str(image.tree), data, image.python)

    def choices_of(self, trial: Trial, *, shared: bool) -> Iterator[Choices]:
        """Yield the choices of each instance. Those that compute get GPUs, a share each on a ``shared`` machine."""
        idle = "server" if trial.job.distributed and trial.job.distributed.strategy else "client"
        computing = [number for number, planned in enumerate(trial.instances) if planned.role != idle]
        for number in range(len(trial.instances)):
            if number not in computing:
                yield replace(self.choices, gpus=())
            elif shared:
                yield self.choices.of_instance(computing.index(number), len(computing))
            else:
                yield self.choices

    def layers(
        self, trial: Trial, envelope: Envelope, choices: Choices | None = None, volume: Volume | None = None
    ) -> list[Layer]:
        """Return the stack of one instance, from the machine upwards."""
        return layers(
            self.opened_as(trial.target),
            choices or self.choices,
            envelope,
            properties=trial.properties,
            volume=volume,
            limited=is_limited(local=self.local),
        )


NO_SERVICE = (
    " is about a service of a cluster, before a pod that serves",
    f"use {option('scenario')} serve {option('target')} container {option('engine')} kubernetes",
)


def joined_job(trial: Trial) -> DistributedJob:
    if trial.job.distributed is None:
        raise MeasurementError("a joined job was planned without its instances", kind="plan")
    return trial.job.distributed


def site_of(request: RunRequest) -> type[Site]:
    """Return the site that the request leads to. Raises RequestError for one that fails to load, or does not fit."""
    leading: type[Site] = next(site for name in SITES.own if (site := SITES.get(name)).chosen_by(request))
    named = request.joining.site
    asked: type[Site] = SITES.get(named) if named else leading
    if asked is leading:
        return leading
    if named in SITES.own or leading.name != [*SITES.own][-1]:
        raise RequestError(
            f"{option('site')} {named}: the other options lead to the site {leading.name}",
            remedy=f"leave {option('site')} out, or the options of {leading.name}",
        )
    return asked
