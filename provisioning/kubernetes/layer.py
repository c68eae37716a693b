"""The layer of a pod: a container of the image that a cluster starts, removed by the ledger alone."""

from contextlib import ExitStack
from dataclasses import dataclass

from provisioning import ledger
from provisioning.engines.base import ContainerSpec
from provisioning.engines.kubernetes import KubernetesEngine
from provisioning.layers.container import ContainerLayer
from suite.interfaces import Node


@dataclass(frozen=True)
class PodLayer(ContainerLayer):
    engine: KubernetesEngine

    def hold(self, stack: ExitStack, node: Node, spec: ContainerSpec) -> None:  # noqa: ARG002 (others look at it)
        stack.callback(self.engine.await_end, spec.name)
        stack.enter_context(ledger.holding(*self.engine.entry(spec.name)))
