"""The node of a cluster that pods run on: which machine it is, how its kubelet treats them, how it gets the image."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.engines.base import image_reference
from provisioning.kubernetes.cluster import Cluster, Object, quantity
from provisioning.kubernetes.owned import own_node
from provisioning.kubernetes.pod import GPU_RESOURCE, HOSTNAME_LABEL
from provisioning.kubernetes.refusals import ApiError
from suite.errors import RequestError, nearest, option
from suite.interfaces import Node
from suite.process_identity import MACHINE_ID, boot_id

CONTAINERD = "/run/containerd/containerd.sock"
CONTAINERD_OF = {
    "k3s": "/run/k3s/containerd/containerd.sock",
    "rke2": "/run/k3s/containerd/containerd.sock",
    "k0s": "/run/k0s/containerd.sock",
}
"""The sockets of distributions that bring a containerd, by a part of their versions."""
IMPORTED_WITHIN_S = 1800.0


@dataclass(frozen=True)
class ClusterNode:
    """One node, as the server and its kubelet describe it."""

    live: Object
    kubelet: Object
    """The kubelet's configuration; empty if the user may not read it."""

    @classmethod
    def find(cls, cluster: Cluster, name: str | None) -> "ClusterNode":
        """Return the node of this name; by default that of this pod, this machine, or the only one that takes pods.

        Raises RequestError if there is none.
        """
        nodes = {node["metadata"]["name"]: node for node in cluster.get("/api/v1/nodes")["items"]}
        chosen = name or own_node() or _default(cluster, [cls(node, {}) for node in nodes.values()])
        if chosen not in nodes:
            message = f"{option('node')} {chosen}: the cluster has no such node"
            raise RequestError(message, remedy=nearest(chosen, list(nodes)))
        try:
            config: Object = cluster.get(f"/api/v1/nodes/{chosen}/proxy/configz").get("kubeletconfig", {})
        except ApiError:
            config = {}
        return cls(nodes[chosen], config)

    @property
    def name(self) -> str:
        return str(self.live["metadata"]["name"])

    @property
    def hostname(self) -> str:
        labels = self.live["metadata"].get("labels", {})
        return str(labels.get(HOSTNAME_LABEL, self.name))

    @property
    def boot_id(self) -> str:
        return str(self.live["status"]["nodeInfo"]["bootID"])

    def is_machine(self, boot: str, machine_id: str) -> bool:
        """Return whether it is the machine with these contents of ``BOOT_ID`` and ``MACHINE_ID``.

        Nodes that are containers of one machine, as those of kind and LXD, share the first alone.
        """
        own = str(self.live["status"]["nodeInfo"].get("machineID", ""))
        return self.boot_id == boot.strip() and own in ("", machine_id.strip())

    @property
    def is_this_machine(self) -> bool:
        return self.is_machine(boot_id(), MACHINE_ID.read_text() if MACHINE_ID.is_file() else "")

    @property
    def here(self) -> bool:
        return self.is_this_machine and not own_node()

    @property
    def takes_pods(self) -> bool:
        """Whether nothing keeps pods without tolerations away, as from a control plane."""
        spec = self.live.get("spec", {})
        return all(taint.get("effect") == "PreferNoSchedule" for taint in spec.get("taints") or ())

    @property
    def containerd(self) -> str:
        """The socket of the containerd that the kubelet starts containers with.

        Raises RequestError for another runtime: an image in some containerd of the machine is none of its images.
        """
        info = self.live["status"]["nodeInfo"]
        runtime = str(info["containerRuntimeVersion"])
        if not runtime.startswith("containerd://"):
            raise RequestError(
                f"the node {self.name} runs {runtime}: an image can be imported into containerd only",
                remedy=f"push it to a registry, and name that with {option('registry')}",
            )
        versions = f"{runtime} {info['kubeletVersion']}"
        distributions = [socket for mark, socket in CONTAINERD_OF.items() if mark in versions]
        endpoint = str(self.kubelet.get("containerRuntimeEndpoint") or "").removeprefix("unix://")
        return endpoint or next(iter(distributions), CONTAINERD)

    @property
    def whole_cpus(self) -> int:
        return int(quantity(self.live["status"]["allocatable"]["cpu"]))

    @property
    def gpus(self) -> int:
        return int(self.live["status"]["allocatable"].get(GPU_RESOURCE, 0))

    def facts(self) -> dict[str, Any]:
        """Return the fields of ``records.environment.Pod`` that are the node's."""
        info = self.live["status"]["nodeInfo"]
        kubelet = self.kubelet
        return {
            "node": self.name,
            "this_machine": self.here,
            "boot_id": self.boot_id,
            "kubelet": info["kubeletVersion"],
            "runtime": info["containerRuntimeVersion"],
            "cpu_manager": kubelet.get("cpuManagerPolicy"),
            "memory_manager": kubelet.get("memoryManagerPolicy"),
            "topology_manager": kubelet.get("topologyManagerPolicy"),
            "reserved_cpus": kubelet.get("reservedSystemCPUs"),
            "cpu_quota": kubelet.get("cpuCFSQuota"),
            "cgroup_driver": kubelet.get("cgroupDriver"),
        }


def _default(cluster: Cluster, nodes: Sequence[ClusterNode]) -> str:
    taking = [node for node in nodes if node.takes_pods]
    candidates = [node for node in taking if node.is_this_machine] or taking
    if len(candidates) != 1:
        remedy = f"choose a {option('node')} of: {', '.join(sorted(node.name for node in taking or nodes))}"
        raise RequestError(f"no node of {cluster.context} that takes any pod is this machine", remedy=remedy)
    return candidates[0].name


def others_on(cluster: Cluster, node: str, pod: str) -> list[str] | None:
    """Return the other pods of a node, as ``namespace/name``; None if the user may not see those of others."""
    try:
        pods = cluster.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node},status.phase=Running")["items"]
    except ApiError:
        return None
    names = (f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in pods)
    return sorted(name for name in names if not name.endswith(f"/{pod}"))


def ctr(address: str, *words: str) -> list[str]:
    return ["ctr", "--address", address, "--namespace", "k8s.io", "images", *words]


def local_name(digest: str) -> str:
    """Return the name under which pods ask for an imported image: no registry is asked for it."""
    return f"localhost/{image_reference(digest)}"


def import_image(host: Node, address: str, digest: str, archive: Path) -> None:
    """Import the image into the containerd of this machine, once."""
    reference = image_reference(digest)
    name = local_name(digest)
    listed = host.run(ctr(address, "ls", "--quiet"), check=False)
    if listed.returncode:
        raise RequestError(
            f"containerd does not answer at {address}: {listed.stderr.strip()[-200:]}",
            remedy=f"run as root; name its socket with {option('containerd')}, or a registry that has the image with "
            f"{option('registry')}",
        )
    if name in listed.stdout.split():
        return
    host.run(ctr(address, "import", str(archive)), timeout_s=IMPORTED_WITHIN_S)
    # The first is how containerd completes a name without a registry: without it no name of the image is found.
    for alias in (f"docker.io/library/{reference}", name):
        host.run(ctr(address, "tag", "--force", reference, alias))
