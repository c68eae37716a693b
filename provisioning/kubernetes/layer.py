"""The layer of a pod: a container of the image that a cluster starts, removed by the ledger alone."""

from contextlib import ExitStack
from dataclasses import dataclass, replace

from provisioning import ledger
from provisioning.engines.base import ContainerSpec
from provisioning.engines.kubernetes import KubernetesEngine
from provisioning.gpus import Edits
from provisioning.layers.container import ContainerLayer
from provisioning.volumes import MOUNT
from suite.interfaces import Node


@dataclass(frozen=True)
class PodLayer(ContainerLayer):
    engine: KubernetesEngine
    gpu_count: int = 0
    reads: bool = False
    """Whether the job reads the data set of the engine's claim."""

    def hold(self, stack: ExitStack, node: Node, spec: ContainerSpec) -> None:  # noqa: ARG002 (others look at it)
        stack.callback(self.engine.await_end, spec.name)
        stack.enter_context(ledger.holding(*self.engine.entry(spec.name)))

    def specification(self, node: Node, tree: str) -> ContainerSpec:
        spec = super().specification(node, tree)
        if self.gpu_count:
            edits = Edits(variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
            spec = replace(spec, gpus=self.gpu_count, edits=edits)
        if self.reads and self.engine.claimed:
            return replace(spec, data=("", MOUNT, False))
        return spec
