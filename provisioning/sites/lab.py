"""A lab on this machine: the instances of a joined job on nodes of a virtual network."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from provisioning.joining import check_instances, joined_fields, linked, needs, open_containers
from provisioning.lab.lab import DEVICE, LabNode, open_lab
from provisioning.lab.nat import rules_for
from provisioning.lab.tap import join, tap
from provisioning.layers.container import ContainerLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines.base import get_provider
from provisioning.nodes import WrappedNode, local_node
from provisioning.sites.base import RunInputs, joined_job
from provisioning.sites.here import Here
from provisioning.volumes import volume_of
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Instance, Layer, Node
from suite.job.lab import LabSpec, parse_lab
from suite.plan import Trial
from suite.request.request import RunRequest
from suite.request.traits import traits_of
from suite.targets import VMS


class LabSite(Here):
    name = "lab"

    @classmethod
    def chosen_by(cls, request: RunRequest) -> bool:
        return traits_of(request.scenario).joined

    def part(self, inputs: RunInputs) -> dict[str, Any]:
        """Return the fields with the instances on the nodes. Raises RequestError for a lab that cannot be."""
        if os.geteuid():
            raise RequestError("a lab network needs root: it makes network namespaces", remedy="run bench as root")
        network = inputs.request.joining.network
        lab = _lab_of(inputs)
        if VMS.intersection(self.targets):
            get_provider(self.choices.provider).check_lab()
        if "container" in self.targets:
            self.choices.container_engine.check_network(network, in_lab=True)
            if network == "bridge":
                with local_node((), None) as node:
                    rules_for(node)
        joined = joined_fields(inputs, self.targets, self.choices.accelerator, network=network, lab=lab)
        fields = super().part(inputs)
        check_instances(joined, fields["envelope"], inputs.note)
        return {**fields, "distributed": joined}

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        """Open the instances by rank. Raises MeasurementError of kind ``network`` if one does not reach another."""
        job = joined_job(trial)
        spec = job.lab
        if spec is None:
            remedy = f"give its {option('inventory')}"
            raise MeasurementError("this job was planned for machines", kind="plan", remedy=remedy)
        if trial.properties.link:
            spec = spec.model_copy(update=trial.properties.link)
            job = job.model_copy(update={"lab": spec})
        with ExitStack() as stack:
            volume = stack.enter_context(volume_of(trial))
            directory = str(volume.directory) if volume else None
            stacks = []
            for planned, choices in zip(trial.instances, self.choices_of(trial, shared=True), strict=True):
                stacks.append(self.layers(trial, planned.envelope, choices, volume))
            lab = stack.enter_context(open_lab(spec))
            used_nodes = lab.nodes[: len(stacks)]
            places = []
            for planned, lab_node, layers in zip(trial.instances, used_nodes, stacks, strict=True):
                machine = stack.enter_context(self.machine(planned.envelope, directory))
                places.append(_lower(stack, machine, lab_node, layers))
            namespaces = [node.namespace for node in lab.nodes]
            instances = open_containers(stack, job, places, stacks, namespaces)
            yield linked(instances, job)


def _lab_of(inputs: RunInputs) -> LabSpec:
    """Return the lab of a request, as large as its job by default. Raises RequestError for one that is too small."""
    request = inputs.request
    scenario = inputs.scenario
    count = scenario.instances(request)
    if request.joining.lab:
        lab = parse_lab(request.joining.lab)
    else:
        lab = LabSpec(nodes=max(2, count), rate="1gbit")
    if lab.nodes < count:
        remedy = f"write nodes={count}, or ask for fewer"
        raise RequestError(f"{option('lab')} {lab}: {needs(request, scenario, 'node')}", remedy=remedy)
    return lab


def _lower(stack: ExitStack, machine: Node, lab_node: LabNode, layers: Sequence[Layer]) -> Instance:
    """Return what a container is started on: the lab node, or a guest in it. Bare metal and VMs are then complete."""
    first = layers[0]
    if isinstance(first, VmLayer):
        plugged = stack.enter_context(tap(lab_node, machine))
        layer = first.plugged(plugged)
        guest = stack.enter_context(layer.opened(lab_node.node(machine)))
        device = join(guest, plugged)
        snapshot = guest.snapshot if isinstance(guest, WrappedNode) else None
        return Instance(guest, plugged.address, device, snapshot=snapshot)
    node: Node = lab_node.node(machine)
    if not isinstance(first, ContainerLayer):
        node = stack.enter_context(first.opened(node))
    return Instance(node, lab_node.address, DEVICE)
