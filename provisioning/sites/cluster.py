"""A cluster: containers are pods on its nodes. All other targets stand at another site, on the machine of that node."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from provisioning import isa
from provisioning.engines.base import get_engine
from provisioning.engines.kubernetes import KubernetesEngine
from provisioning.engines.options import nodes_of
from provisioning.gpus import Card
from provisioning.joining import check_instances, end_of, joined_fields, linked, needs
from provisioning.kubernetes.claims import ClaimedData
from provisioning.kubernetes.layer import PodLayer
from provisioning.lab.connectivity import await_reached, free_port, interface_of
from provisioning.nodes import local_node
from provisioning.sites.base import NO_SERVICE, Capacity, RunInputs, Site, joined_job
from provisioning.sites.cards import check_gpus
from provisioning.sites.here import Here, choices_of, load, refuse_adopted
from provisioning.sites.machines import Machines, listed_for
from provisioning.targets import Choices
from provisioning.volumes import Volume
from suite.errors import RequestError, option
from suite.interfaces import Instance, Layer, Node, Note
from suite.job.datasets import SYNTHETIC, Dataset
from suite.job.distributed import NODE_INTERFACE, MachineSpec
from suite.job.envelope import Envelope, format_cpu_list
from suite.job.job import CpuCapability
from suite.job.profiles import PROFILES
from suite.job.properties import Properties
from suite.plan import Plan, Trial
from suite.request.request import RunRequest
from suite.request.traits import Traits, traits_of
from suite.targets import BASELINE, CONTAINERS, ON_REAL_MACHINES, VMS


@dataclass(frozen=True)
class ClusterSite(Here):
    """Pods on a node; one for container and one for container-vm may be named."""

    beside: Site = field(kw_only=True)
    """The site of what is compared with the pods."""
    vm_node: str | None = None
    """The node that is the virtual machine of container-vm; None where the suite boots that."""
    data: Dataset | None = None
    """The data set, which may be one that pods alone see."""
    name = "cluster"

    @classmethod
    def chosen_by(cls, request: RunRequest) -> bool:
        engine = request.targets.engine
        return engine is not None and get_engine(engine).site == cls.name

    @classmethod
    def boots(cls, request: RunRequest) -> frozenset[str]:
        return VMS.intersection(request.targets.target) - CONTAINERS

    @classmethod
    def with_usual_targets(cls, inputs: RunInputs) -> RunInputs:
        """Return the inputs with pods on the nodes that were named, else with bare metal and the pods of one."""
        nodes = inputs.request.value("node")
        named = nodes_of(nodes) if nodes else {}
        return inputs.on(("container", "container-vm") if "container-vm" in named else ON_REAL_MACHINES)

    @classmethod
    def refuse_request(cls, request: RunRequest) -> None:
        """Refuse nothing: GPUs are those of the nodes."""

    @classmethod
    def holds_data(cls, request: RunRequest) -> bool:
        return ClaimedData.of(request.data.data) is not None

    @classmethod
    def resolve(cls, inputs: RunInputs) -> "ClusterSite":
        kind = JoinedPods if traits_of(inputs.request.scenario).joined else cls
        request = inputs.request
        booted = cls.boots(inputs.request)
        path = inputs.request.joining.inventory
        if path:
            refuse_adopted(inputs.image)
            if inputs.scenario.joined:
                message = f"{option('engine')} {request.targets.engine}: pods are opened from this machine only"
                raise RequestError(message, remedy=f"leave {option('inventory')} out")
        here = None
        if not path:
            here = Here.with_guests(inputs, booted)
        if here:
            targets = here.targets
            choices = here.choices
        else:
            targets = request.targets.target
            choices = choices_of(request, (), targets, inputs.image, inputs.note, booted)
        if "node" in choices.engine_options:
            nodes = nodes_of(choices.engine_options["node"])
        else:
            nodes = {}
        if nodes:
            options = {**choices.engine_options, "node": nodes["container"]}
            choices = replace(choices, engine_options=options)
        if "container" in targets:
            with local_node((), None) as node:
                inputs.note(f"{choices.engine} {choices.container_engine.version(node)}")
        claimed = ClaimedData.of(inputs.request.data.data)
        if claimed:
            choices, dataset = _with_claim(inputs, choices, claimed)
            inputs = replace(inputs, dataset=dataset)
        if here:
            beside: Site = replace(here, choices=choices)
        else:
            listed = listed_for((*ON_REAL_MACHINES, *booted), path or Path())
            check_machine = choices.container_engine.check_machine
            beside = Machines.of_targets(inputs, listed, (BASELINE,), check_machine, choices)
        vm_node = nodes.get("container-vm")
        return kind(choices, targets, beside.path_only, beside=beside, vm_node=vm_node, data=inputs.dataset)

    def dataset(self, inputs: RunInputs) -> Dataset | None:  # noqa: ARG002 (it may be one that pods alone see)
        return self.data

    def stored(self, request: RunRequest) -> RunRequest:
        stored = super().stored(request)
        # The path on a claim is no path of this machine.
        if self.holds_data(request):
            return stored.changed(data=request.data.data)
        return stored

    @property
    def local(self) -> bool:
        return self.beside.local

    @property
    def boots_guests(self) -> bool:
        return not self.vm_node and self.beside.boots_guests

    @cached_property
    def pods(self) -> Mapping[str, KubernetesEngine]:
        """The engine of the pods, with their node, by target."""
        engine: Any = self.choices.container_engine
        return {"container": engine, **({"container-vm": engine.on_vm(self.vm_node)} if self.vm_node else {})}

    @property
    def engines(self) -> Iterable[KubernetesEngine]:
        return self.pods.values()

    def refuse(self, inputs: RunInputs, scratch_bytes: dict[str, int]) -> None:
        request = inputs.request
        engine = f"{option('engine')} {self.choices.engine}"
        gpus = self._gpus(inputs.request)
        if ("container-vm" in self.targets) != bool(self.vm_node) or "container" not in self.targets:
            raise RequestError(
                f"{engine}: the pods of container-vm are compared with those of container, on a "
                f"node that is a virtual machine; {option('node')} names one of each, or none of container-vm",
                remedy=f"give {option('target')} container {option('target')} container-vm {option('node')} "
                "container=N1,container-vm=N2; or leave container-vm out of both",
            )
        cpus = str(request.envelope.cpus or "1")
        leave = f"leave one of them out, or use {option('engine')} podman"
        rows = [
            (set(self.targets) >= VMS, f"{option('target')} vm and container-vm, which is another machine", leave),
            (bool(request.data.data_disk), str(option("data_disk")), leave),
            (inputs.scenario.multiplied, f"{option('scenario')} {request.scenario}, which opens many here", leave),
            (
                gpus > 0 and (self.targets != ("container",) or inputs.scenario.neighbours),
                f"{option('device')} cuda of other targets, or of neighbours: the cluster chooses the GPU of a pod",
                f"use {option('target')} container alone",
            ),
            (
                not re.fullmatch("[0-9]+", cpus),
                f"{option('cpus')} {cpus}",
                f"give a number with {option('cpus')}: the kubelet chooses which",
            ),
        ]
        for holds, words, remedy in rows:
            if holds:
                raise RequestError(f"{engine} does not go with {words}", remedy=remedy)
        count = int(cpus) if request.envelope.cpus else 0
        if count + gpus:
            for pods, computes in zip(self.engines, self.computing(inputs), strict=False):
                pods.check_sizes(count, gpus if computes else 0)
        self._refuse_data(inputs, scratch_bytes)

    def _refuse_data(self, inputs: RunInputs, scratch_bytes: dict[str, int]) -> None:
        """Raise RequestError for data, or room to write, that a target cannot reach."""
        request = inputs.request
        on_claim = self.holds_data(request)
        others = [name for name in self.targets if name not in CONTAINERS]
        if on_claim and others and self.local:
            raise RequestError(
                f"{option('data')} {request.data.data}: {' and '.join(others)} on this machine cannot read a claim",
                remedy=f"list the pods' node in {option('inventory')}, with the directory of its copy as data",
            )
        if (self.vm_node or not self.local) and (scratch_bytes or (self.data and not on_claim)):
            raise RequestError(
                "a pod on another machine cannot reach this machine's data or scratch disk",
                remedy=f"leave container-vm and {option('inventory')} out, or choose another {option('scenario')}, "
                f"{option('probe')} or aggressor",
            )

    def places(self, inputs: RunInputs) -> tuple[Capacity, ...]:
        most = min(engine.most_cpus() for engine in self.engines)
        places = self.beside.places(inputs)
        return tuple(replace(place, cpus=place.cpus[:most]) for place in places)

    def part(self, inputs: RunInputs) -> dict[str, Any]:
        envelope = self.envelopes(inputs)[0]
        note = inputs.note
        count = inputs.scenario.instances(inputs.request)
        whole = max(1, len(envelope.cpus) // count)  # the kubelet gives whole CPUs
        memory_bytes = envelope.memory_bytes // count
        gpus = self._gpus(inputs.request)
        allotments = {}
        for target, engine in self.pods.items():
            allotments[target] = engine.allotment(self.choices.image, whole, memory_bytes, count, gpus)
        if gpus:
            check_gpus(inputs.request, self.choices.image, allotments["container"].cards)
        if set(self.targets) - self.pods.keys() and self.local:
            with local_node((), None) as node:
                self.choices.container_engine.check_machine(node)
        cpus = {target: allotted.cpus for target, allotted in allotments.items()}
        envelope = self.given(envelope, cpus, note)
        inputs.scenario.check_shares(inputs.request, envelope, self.targets, note)
        levels = set()
        if self.vm_node:
            levels = {isa.capability(allotted.cpuinfo) for allotted in allotments.values()}
        capability = self.shared_capability(inputs, envelope, levels)
        return self.fields(envelope, capability)

    def computing(self, inputs: RunInputs) -> Iterable[bool]:  # noqa: ARG002 (others look at it)
        """Return, by node, whether its pods compute."""
        return [True for _ in self.engines]

    @staticmethod
    def _gpus(request: RunRequest) -> int:
        if request.gpus.device == "cuda":
            return request.gpus.devices or 1
        return 0

    def given(self, envelope: Envelope, allotted: Mapping[str, tuple[int, ...] | None], note: Note) -> Envelope:
        """Return the envelope with the CPUs that the kubelets give: other targets have those of the container."""
        engine = self.choices.engine
        if not all(allotted.values()):
            note(f"{engine} gives no CPUs by number: every target has a quota of {len(envelope.cpus)} CPUs on any")
            return envelope.model_copy(update={"pinning": "quota"})
        cpus = allotted["container"] or ()
        node_cpus = allotted.get("container-vm")
        note(f"{engine} gives the CPUs {format_cpu_list(cpus)}: every target is pinned to them")
        if node_cpus:
            note(f"container-vm is pinned to the CPUs {format_cpu_list(node_cpus)} of its own node")
        return envelope.model_copy(update={"cpus": cpus, "node_cpus": node_cpus, "node_chosen": True})

    def capability(self, envelope: Envelope, note: Note, *, always: bool) -> CpuCapability | None:
        return self.beside.capability(envelope, note, always=always)

    def refuse_switch(self, properties: Properties, scenario: Traits) -> tuple[str, str] | None:
        if properties.service and not scenario.service:
            return NO_SERVICE
        return None

    @contextmanager
    def nodes(self) -> Iterator[list[Node]]:
        with self.beside.nodes() as nodes:
            yield nodes

    def here_cpus(self, plan: Plan) -> tuple[int, ...]:
        return self.beside.here_cpus(plan)

    def prepare(self, plan: Plan, note: Note, refuse_changed: Callable[[], None] = lambda: None) -> None:
        # No guest is booted for pods. The image came to nodes that are other machines when their CPUs were tried.
        in_pods = "container-vm" if self.vm_node else None
        others = tuple(target for target in plan.targets if target != in_pods)
        others_alone = plan.model_copy(update={"targets": others})
        self.beside.prepare(others_alone, note, refuse_changed)
        if self.local:
            with local_node((), None) as node:
                load(node, self.engines, self.choices.image)

    def volume(self, trial: Trial) -> AbstractContextManager[Volume | None]:
        if "claim" in self.choices.engine_options:
            return nullcontext()
        return super().volume(trial)

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        in_pods = trial.target in self.pods and not trial.properties.engine
        opening = super().opened(trial) if in_pods else self.beside.opened(trial)
        with opening as instances:
            yield instances

    def layers(
        self,
        trial: Trial,
        envelope: Envelope,
        choices: Choices | None = None,  # noqa: ARG002 (a pod has no GPUs of this machine)
        volume: Volume | None = None,
    ) -> list[Layer]:
        pods = self.pods[trial.target]
        return [self.pod(pods, trial, envelope, volume)]

    def pod(
        self,
        engine: KubernetesEngine,
        trial: Trial,
        envelope: Envelope,
        volume: Volume | None = None,
        *,
        computes: bool = True,
    ) -> PodLayer:
        devices = trial.job.devices
        gpu_count = 0
        if devices.device == "cuda" and computes:
            gpu_count = devices.devices
        return PodLayer(
            engine,
            self.choices.image.digest,
            envelope.memory_bytes,
            properties=trial.properties,
            writable=volume is not None and volume.writable,
            gpu_count=gpu_count,
            reads=trial.job.dataset is not None,
        )


def _with_claim(inputs: RunInputs, choices: Choices, claimed: ClaimedData) -> tuple[Choices, Dataset]:
    """Return the choices with the claim that pods read, and the data set, which a pod on the first node identifies."""
    inputs.note(f"reading the claim {claimed.claim} in a pod")
    request = inputs.request
    options = {name: value.split(",")[0] for name, value in choices.engine_options.items()}
    options["claim"] = ":".join(claimed)
    engine: Any = get_engine(choices.engine).configured(options)
    profile = PROFILES[request.measurement.profile]
    memory_bytes = profile.memory_for(request.gpus.device)
    claimed, dataset = engine.data_set(inputs.image, memory_bytes, request.data.frame_stride)
    with_claim = {**choices.engine_options, "claim": ":".join(claimed)}
    return replace(choices, engine_options=with_claim), dataset


class JoinedPods(ClusterSite):
    """The instances of a joined job, each a pod on a node of its own."""

    instances_share = False
    no_turns = "a node of a cluster holds one job at a time"

    @cached_property
    def engines(self) -> tuple[KubernetesEngine, ...]:
        """The engine for each of the nodes that its options name, with commas between them."""
        options = {name: value.split(",") for name, value in self.choices.engine_options.items()}
        lengths = (len(parts) for parts in options.values())
        count = max(lengths, default=1)
        engine: Any = get_engine(self.choices.engine)
        engines = []
        for number in range(count):
            of_node = {name: parts[number % len(parts)] for name, parts in options.items()}
            engines.append(engine.configured(of_node))
        return tuple(engines)

    def refuse(self, inputs: RunInputs, scratch_bytes: dict[str, int]) -> None:
        super().refuse(inputs, scratch_bytes)
        request = inputs.request
        if self.targets != ("container",):
            raise RequestError(
                "the pods of one job are on several nodes of a cluster, which no other target runs on: they are "
                f"compared with pods, such as those with {option('network')} host",
                remedy=f"use {option('target')} container alone",
            )
        given = request.given()
        for name in ("lab", "network"):
            if name in given and given[name] != "host":
                message = f"{option(name)} {given[name]} is a network on this machine, and pods have the cluster's"
                raise RequestError(message, remedy=f"leave it out, or give {option('network')} host")
        if request.data.data not in (None, SYNTHETIC) and not self.holds_data(request):
            message = f"{option('data')} {request.data.data}: the nodes of a cluster have no data set of this machine"
            raise RequestError(message, remedy="leave it out")
        count = inputs.scenario.instances(request)
        named = self.choices.engine_options.get("node", "")
        nodes = list(filter(None, named.split(",")))
        if len(set(nodes)) != count or len(nodes) != count:
            remedy = f"name {count} different ones, with commas between them"
            raise RequestError(f"{option('node')} {named}: {needs(request, inputs.scenario, 'node')}", remedy=remedy)

    def computing(self, inputs: RunInputs) -> Iterable[bool]:
        workers, servers = inputs.scenario.ranks(inputs.request)
        trains = bool(inputs.scenario.strategy(inputs.request))
        return [not trains] * servers + [trains] * workers

    def part(self, inputs: RunInputs) -> dict[str, Any]:
        envelope = self.envelopes(inputs)[0]
        note = inputs.note
        nodes = self.choices.engine_options["node"].split(",")
        gpus = self._gpus(inputs.request)
        cpu_count = len(envelope.cpus)
        allotted = []
        cards = list[Card]()
        for node, engine, computes in zip(nodes, self.engines, self.computing(inputs), strict=True):
            note(f"trying which CPUs a pod gets on {node}")
            gpu_count = gpus if computes else 0
            allotment = engine.allotment(self.choices.image, cpu_count, envelope.memory_bytes, 1, gpu_count)
            allotted.append(allotment.cpus)
            cards += allotment.cards
        if gpus:
            check_gpus(inputs.request, self.choices.image, cards)
        if all(allotted):
            for node, cpus in zip(nodes, allotted, strict=True):
                note(f"{node} gives the CPUs {format_cpu_list(cpus or ())}")
        else:
            note(f"the nodes give no CPUs by number: every pod has a quota of {cpu_count} CPUs on any")
            envelope = envelope.model_copy(update={"pinning": "quota"})
            allotted = [envelope.cpus] * len(nodes)
        network = "pod"
        interface = "eth0"
        if inputs.request.joining.network == "host":
            network = "host"
            interface = NODE_INTERFACE
        machines = []
        for node, cpus in zip(nodes, allotted, strict=True):
            spec = MachineSpec(name=node, address=node, interface=interface, cpus=cpus or ())
            machines.append(spec)
        joined = joined_fields(
            inputs,
            self.targets,
            self.choices.accelerator,
            network=network,
            machines=tuple(machines),
        )
        inputs.scenario.check_shares(inputs.request, envelope, self.targets, note)
        check_instances(joined, envelope, note)
        capability = self.shared_capability(inputs, envelope)
        return self.fields(envelope, capability, distributed=joined)

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        """Open a pod for each instance, by rank, in the network of its cluster or of its node.

        Raises MeasurementError of kind ``network`` if one does not reach another.
        """
        job = joined_job(trial)
        idle = "server" if job.strategy else "client"
        with ExitStack() as stack:
            instances = []
            pairs = zip(self.engines, trial.instances, strict=True)
            for engine, planned in pairs:
                layer = self.pod(engine, trial, planned.envelope, computes=planned.role != idle)
                network = None
                if job.network == "host":
                    network = engine.host_network(None)
                machine = stack.enter_context(self.machine(planned.envelope, None))
                opening = replace(layer, network=network)
                node = stack.enter_context(opening.opened(machine))
                address = engine.address(node)
                instances.append(Instance(node, address, interface_of(node, address)))
            reached = linked(instances, job)
            if trial.properties.service:
                reached = self._behind_service(stack, trial.properties.service, reached)
            yield reached

    def _behind_service(
        self,
        stack: ExitStack,
        way: str,
        instances: Sequence[Instance],
    ) -> tuple[Instance, ...]:
        """Return the instances, of which all others reach the first by a service."""
        server, *clients = instances
        port = free_port(server.node, str(server.address))
        service = stack.enter_context(self.engines[0].served(server.node, port, way))
        end = replace(end_of("server", server), port=port)
        ends = [end_of("client", client) for client in clients]
        await_reached(ends, end, f"{service[0]}:{service[1]}")
        return (replace(server, port=port, service=service), *clients)
