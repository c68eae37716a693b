"""Kubernetes: a pod is a container that a cluster starts. Its node may be this machine, or any other of the cluster."""
# ruff: noqa: ARG002 (the protocol has arguments for other engines)

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from provisioning import ledger
from provisioning.engines.base import ContainerEngine, ContainerSpec, image_reference
from provisioning.gpus import Card, examined
from provisioning.images.image import Image
from provisioning.isa import reports_hypervisor
from provisioning.kubernetes import owned
from provisioning.kubernetes.claims import ClaimedData
from provisioning.kubernetes.cluster import Cluster, Object, kubeconfig, not_installed
from provisioning.kubernetes.execution import PodNode, await_end, cpus_inside, first_process, kernel_inside
from provisioning.kubernetes.node import ClusterNode, import_image, local_name, others_on
from provisioning.kubernetes.opening import Opening, changed, open_service
from provisioning.kubernetes.pod import USER, Placement, manifest
from provisioning.kubernetes.refusals import refused_as_request
from provisioning.kubernetes.states import PodState, container_status
from provisioning.nodes import WrappedNode, local_node
from provisioning.volumes import MOUNT
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Node
from suite.job.datasets import Dataset
from suite.job.envelope import format_cpu_list
from suite.job.properties import AS_IT_IS, Properties
from suite.process_identity import BOOT_ID, MACHINE_ID
from suite.records.environment import Pod
from suite.units import parse_share

RIGHTS = {
    "pods": ("create", "get", "list", "watch", "delete"),
    "pods/exec": ("get", "create"),
    "events": ("list", "watch"),
}
TOLD_WITHIN_S = 10.0
ASKED_WITHIN_S = 2.0
"""How long a server has to answer that no run has named."""
SEEN_WITHIN_S, LOOKED_EVERY_S = 0.5, 0.02
"""How long the first process of a pod of this machine is looked for: that of a sandbox is never seen."""
SWITCHES = {"engine", "seccomp", "host_network", "huge_pages", "lower_isa", "channels_last", "service", "pod_requests"}
"""The properties that a pod can be given, or that are not the pod's."""


@dataclass(frozen=True)
class Allotment:
    """The CPUs that a kubelet, which chooses them, gives to the pods of a run."""

    cpus: tuple[int, ...] | None
    """The CPUs that a pod has to itself; None where it has the time of so many, on any."""
    cpuinfo: str = ""
    """The content of /proc/cpuinfo in one of them."""
    cards: tuple[Card, ...] = ()
    """The GPUs that one of them has."""


@dataclass(frozen=True)
class KubernetesEngine(ContainerEngine):
    settings: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    virtual: bool = False
    """Whether the user names its node as a virtual machine, which each of its pods has to attest."""
    name = "kubernetes"
    rootfs = "overlay"
    network = "pod"
    commands_are_children = False
    site = "cluster"
    by_default = False

    def configured(self, given: Mapping[str, str]) -> "KubernetesEngine":
        return replace(self, settings=given, named=True)

    def on_vm(self, node: str) -> "KubernetesEngine":
        """Return the engine for pods on a node that is a virtual machine, which the pods attest.

        Raises RequestError for a node that runs under the same kernel as this engine's own.
        """
        settings = {**self.settings, "node": node}
        engine = replace(self, settings=settings, virtual=True)
        if engine._node.boot_id == self._node.boot_id:
            raise RequestError(
                f"{option('node')}: {self._node.name} of container and {node} of container-vm run under one kernel, so "
                f"{node} is no virtual machine apart from {self._node.name}",
                remedy="name a node for container-vm that is a virtual machine",
            )
        return engine

    def hindrance(self, properties: Properties) -> str | None:
        if properties.service:
            self._cluster.demand({"services": ("create", "get", "list", "delete")})
        usual_values = vars(AS_IT_IS)
        switched = {name for name, usual in usual_values.items() if getattr(properties, name) != usual}
        if properties.pod_requests < 1:
            if "pod_requests" in self.settings:
                return "pods of the run request less than their limits already"
            switched.discard("pinned")  # it follows
        if switched <= SWITCHES:
            return None
        return "a pod cannot be given it"

    def most_cpus(self) -> int:
        return self._node.whole_cpus

    def check_sizes(self, cpus: int, gpus: int) -> None:
        """Raise RequestError if pods of the node cannot have so many CPUs or GPUs; 0 is not looked for."""
        if cpus and cpus > (most := self._node.whole_cpus):
            message = f"{option('cpus')} {cpus}: the node {self._node.name} has {most} whole CPUs for its pods"
            raise RequestError(message, remedy=f"ask for no more, or choose another {option('node')}")
        if gpus and gpus > (most := self._node.gpus):
            raise RequestError(
                f"{option('devices')} {gpus}: the node {self._node.name} has {most} GPUs for its pods",
                remedy=f"ask for fewer, choose another {option('node')}, or install NVIDIA's device plugin there",
            )

    def check_machine(self, node: Node) -> None:
        expected = self._node
        files = (BOOT_ID, MACHINE_ID)
        ids = (node.run(["cat", "--", str(path)], check=False).stdout for path in files)
        if not (expected.here if node.local else expected.is_machine(*ids)):
            name = "this machine"
            if not node.local:
                name = f"{node.name} of the inventory"
            raise RequestError(
                f"{name} is not the node {expected.name} of the cluster: nothing on it can be compared with its pods",
                remedy=f"list the node {expected.name} in {option('inventory')}, as ssh reaches it, choose another "
                f"{option('node')}, or use {option('target')} container alone",
            )

    def version(self, node: Node) -> str:
        if not node.local:
            remedy = f"choose another {option('engine')} there"
            raise RequestError("pods are opened from this machine only", remedy=remedy)
        if not find_spec("kubernetes"):  # looked for, and not imported: that takes a second
            raise not_installed()
        if self.named:
            return self._cluster.version()
        listed = kubeconfig().split(os.pathsep)
        if not any(Path(path).is_file() for path in listed):
            raise RequestError(f"there is no kubeconfig at {kubeconfig()}", remedy="set KUBECONFIG, or name another")
        # Asked before every run, also of other engines: a server that is away must not hold it up.
        cluster = Cluster.connect()
        return f"{cluster.version(ASKED_WITHIN_S)} of the server of the context {cluster.context}"

    def load(self, host: Node, digest: str, archive: Path) -> None:
        if not self.settings.get("registry") and self._node.here:
            address = self.settings.get("containerd") or self._node.containerd
            import_image(host, address, digest, archive)

    def allotment(self, image: Image, cpus: int, memory_bytes: int, count: int = 1, gpus: int = 0) -> Allotment:
        """Try which CPUs ``count`` pods get that are open at once. Raises BenchError if the cluster cannot run one.

        ``cpus`` and ``memory_bytes`` are those of each.
        """
        self._cluster.demand(RIGHTS)
        if not (self.settings.get("registry") or self._node.here):
            raise RequestError(
                f"the node {self._node.name} is another machine: its image comes from a registry",
                remedy=f"name the one that has {image_reference(image.digest)} with {option('registry')}",
            )
        self._check_storage_class()
        with ExitStack() as stack:
            inside = [stack.enter_context(self.tried(image, cpus, memory_bytes, gpus)) for _ in range(count)]
            cards = _cards_in(inside[0], gpus)
            cpuinfos = list(map(self._attested, inside))
            cpu_sets = list(map(cpus_inside, inside))
        # Pods of whole CPUs then have them alone, and the kubelet hands out free ones in the same order again.
        static = self._node.kubelet.get("cpuManagerPolicy") == "static"
        exclusive = static and all(len(cpu_set) == cpus for cpu_set in cpu_sets)
        alone = None
        if exclusive:
            alone = tuple(cpu for cpu_set in cpu_sets for cpu in cpu_set)
        return Allotment(alone, cpuinfos[-1], cards)

    @contextmanager
    def tried(self, image: Image, cpus: int, memory_bytes: int, gpus: int = 0) -> Iterator[PodNode]:
        """Open a pod before anything is measured. Raises RequestError where the cluster or the node refuses it."""
        name = ledger.fresh("virtbench")
        tree = str(image.tree)
        data = ("", MOUNT, False) if self.claimed else None
        cpu_list = format_cpu_list(range(cpus))
        spec = ContainerSpec(name, image.digest, tree, cpu_list, memory_bytes, data=data, gpus=gpus)
        with local_node((), None) as host, ExitStack() as stack:
            self.load(host, image.digest, image.file("oci.tar"))
            stack.callback(await_end, name)
            stack.enter_context(ledger.holding(*self.entry(name)))
            try:
                with refused_as_request():
                    self.begin(host, spec)
            except RequestError as error:
                most = f"{self._node.whole_cpus} whole ones for all pods"
                raise error.within(f"a pod of {cpus} CPUs on the node {self._node.name}, {most}") from error
            yield self._inside(host, name)

    def data_set(self, image: Image, memory_bytes: int, frame_stride: int | None) -> tuple[ClaimedData, Dataset]:
        """Return the data set of the claim, as a pod on the node sees it. Raises RequestError if it cannot be read."""
        claimed = ClaimedData(*self.settings["claim"].split(":", 2))
        self._cluster.demand({**RIGHTS, "persistentvolumeclaims": ("get",)})
        with refused_as_request():
            owned.demand_claim(self._cluster, claimed.claim)
        with self.tried(image, 1, memory_bytes) as inside:
            return claimed.identified(inside, frame_stride)

    @property
    def claimed(self) -> bool:
        return "claim" in self.settings

    def _check_storage_class(self) -> None:
        """Raise RequestError for a storage class that the cluster does not have."""
        wanted = self.settings.get("storage_class")
        if not wanted:
            return
        self._cluster.demand({"storageclasses.storage.k8s.io": ("list",)})
        items = self._cluster.get("/apis/storage.k8s.io/v1/storageclasses")["items"]
        known = [item["metadata"]["name"] for item in items]
        if wanted not in known:
            remedy = f"choose {option('storage_class')} from: {', '.join(known) or 'none, create one'}"
            raise RequestError(f"the cluster has no storage class {wanted}", remedy=remedy)

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        if spec.data and spec.data[2] and not self.settings.get("storage_class"):
            node.run(["chown", f"{USER}:{USER}", "--", spec.data[0]])
        opening = Opening(self._cluster, spec.name, node.opening)
        opening.open(manifest(spec, self._placement(spec)))

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        return []

    def removal(self, name: str) -> list[list[str]]:
        return []

    def entered(self, node: Node, spec: ContainerSpec) -> Node:
        live = self._running(spec.name)
        pod = Pod(
            **self._node.facts(),
            runtime_class=live["spec"].get("runtimeClassName"),
            quality=live["status"]["qosClass"],
            image_id=container_status(live)["imageID"],
            changed=changed(manifest(spec, self._placement(spec)), live),
            others=others_on(self._cluster, self._node.name, spec.name),
            virtual=self.virtual,
        )
        inside = self._inside(node, spec.name)
        facts: dict[str, object] = {} if spec.by_count else {"host_cpus": list(cpus_inside(inside))}
        if spec.gpus:
            facts["gpus"] = [card.fact for card in _cards_in(inside, spec.gpus)]
        if self.virtual:
            self._attested(inside)
            facts["accelerator"] = None  # unknown for a machine that the suite has not booted
        return replace(inside, facts={"pod": asdict(pod), **facts})

    def _attested(self, inside: PodNode) -> str:
        """Return the /proc/cpuinfo of a pod. Raises RequestError where it is to attest a virtual machine, and does not.

        The kernel must be that of the node: a runtime class may give each pod a virtual machine of its own.
        """
        boot, cpuinfo = kernel_inside(inside)
        if self.virtual and boot != self._node.boot_id:
            raise RequestError(
                f"{option('node')} {self._node.name}: its pods have kernels of their own, which cannot attest that the "
                "node is a virtual machine",
                remedy=f"leave {option('runtime_class')} out",
            )
        if self.virtual and not reports_hypervisor(cpuinfo):
            raise RequestError(
                f"{option('node')} {self._node.name}: the CPU that its pods see reports no hypervisor, so it is not "
                "attested as a virtual machine",
                remedy="name a node for container-vm that is a virtual machine",
            )
        return cpuinfo

    def _running(self, name: str) -> Object:
        """Return the live pod once the server knows that it runs: the kubelet tells it up to a second later."""
        deadline = time.monotonic() + TOLD_WITHIN_S
        while True:
            live = self._cluster.get(self._cluster.path("pods", name))
            if container_status(live).get("imageID"):
                return live
            if time.monotonic() > deadline:
                unknown = MeasurementError("the server does not report that the pod runs", kind="engine")
                raise PodState.of(live).failure or unknown
            time.sleep(TOLD_WITHIN_S / 100)

    def address(self, node: Node) -> str:
        return str(self._running(_name_of(node))["status"]["podIP"])

    def served(self, node: Node, port: int, way: str) -> AbstractContextManager[tuple[str, int]]:
        """Put a service before a port of an opened pod; see ``Properties.service`` for ``way``.

        Yields the address and the port to which its clients connect.
        """
        return open_service(self._cluster, _name_of(node), port, way)

    def main_pid(self, node: Node, name: str) -> int | None:
        """Return it once it is seen: its environment is empty for the moment in which its runtime starts it."""
        if not self._node.here:
            return None
        with node.opening.paused():
            deadline = time.monotonic() + SEEN_WITHIN_S
            while not (process := first_process(name)) and time.monotonic() < deadline:
                time.sleep(LOOKED_EVERY_S)
        return process.pid if process else None

    def entry(self, name: str) -> tuple[str, str]:
        """Return the kind and the text of the pod's entry in the ledger of this machine."""
        return "kubernetes", owned.entry(self._cluster, name, ("v1/pods",))

    def await_end(self, name: str) -> None:
        if self._node.here:
            await_end(name)

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster.connect(self.settings.get("context"), self.settings.get("namespace"))

    @cached_property
    def _node(self) -> ClusterNode:
        return ClusterNode.find(self._cluster, self.settings.get("node"))

    def _placement(self, spec: ContainerSpec) -> Placement:
        registry = self.settings.get("registry")
        if registry:
            image = f"{registry}/{image_reference(spec.image)}"
        else:
            image = local_name(spec.image)
        _, claim, path = self.settings["claim"].split(":", 2) if self.claimed else ("", "", "")
        classes = self.settings.get("runtime_class"), self.settings.get("storage_class")
        requests = self.settings.get("pod_requests")
        share = parse_share(requests) if requests else spec.pod_requests
        hostname = self._node.hostname
        return Placement(hostname, image, bool(registry), *classes, claim, path, share)

    def _inside(self, node: Node, name: str) -> PodNode:
        place = f"{node.name}/{name}"
        return PodNode(
            parent=node,
            wrap=list,
            name=place,
            userland="/",
            cluster=self._cluster,
            pod=name,
        )


def _cards_in(inside: PodNode, count: int) -> tuple[Card, ...]:
    """Return the GPUs that a pod sees. Raises MeasurementError unless they are as many as it asked for."""
    cards, error, _ = examined(inside) if count else ([], None, None)
    if len(cards) != count:
        raise MeasurementError(
            f"the pod has {len(cards)} GPUs instead of {count}: {error or 'NVML shows no others'}",
            kind="device",
            remedy=f"give the {option('runtime_class')} of NVIDIA's runtime, if it is not the node's usual one",
        )
    return tuple(cards)


def _name_of(node: Node) -> str:
    pod = node.parent if isinstance(node, WrappedNode) else node
    if not isinstance(pod, PodNode):
        raise MeasurementError(f"{node.name} is no pod", kind="plan")
    return pod.pod


KUBERNETES = KubernetesEngine()
