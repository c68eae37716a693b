"""The node of a cluster that pods run on: which machine it is, and how its kubelet treats them."""

from dataclasses import dataclass
from typing import Any

from provisioning.kubernetes import own_pod
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.pod import HOSTNAME_LABEL
from provisioning.kubernetes.refusals import ApiError
from suite.errors import RequestError, nearest, option
from suite.process_identity import boot_id


@dataclass(frozen=True)
class ClusterNode:
    """One node, as the server and its kubelet describe it."""

    live: Object
    kubelet: Object
    """The kubelet's configuration; empty where the user may not read it."""

    @classmethod
    def find(cls, cluster: Cluster, name: str | None) -> "ClusterNode":
        """Return the node of this name; without one that of this pod, this machine, or the only one there is.

        Raises RequestError where there is none.
        """
        nodes = {each["metadata"]["name"]: each for each in cluster.get("/api/v1/nodes")["items"]}
        here = [key for key, each in nodes.items() if cls(each, {}).boot_id == boot_id()]
        name = name or own_pod.node()
        chosen = name or next(iter(here or nodes), "")
        if name is None and not (here or len(nodes) == 1):
            known = ", ".join(sorted(nodes))
            raise RequestError(
                f"no node of {cluster.context} is this machine", remedy=f"choose a {option('node')} of: {known}"
            )
        if chosen not in nodes:
            raise RequestError(
                f"{option('node')} {chosen}: the cluster has no such node", remedy=nearest(chosen, list(nodes))
            )
        return cls(nodes[chosen], _kubelet(cluster, chosen))

    @property
    def name(self) -> str:
        return str(self.live["metadata"]["name"])

    @property
    def hostname(self) -> str:
        """Return the value of the label by which pods are placed on it."""
        return str(self.live["metadata"].get("labels", {}).get(HOSTNAME_LABEL, self.name))

    @property
    def boot_id(self) -> str:
        """Return the value that changes with each boot of its kernel."""
        return str(self.live["status"]["nodeInfo"]["bootID"])

    @property
    def here(self) -> bool:
        """Return whether it is this machine: its kernel was booted here, and bench does not run in a pod of it."""
        return self.boot_id == boot_id() and not own_pod.node()

    @property
    def whole_cpus(self) -> int:
        """Return how many whole CPUs its pods can have together."""
        text = str(self.live["status"]["allocatable"]["cpu"])
        return int(text[:-1]) // 1000 if text.endswith("m") else int(text)

    def facts(self) -> dict[str, Any]:
        """Return the fields of ``records.environment.Pod`` that are the node's."""
        info, kubelet = self.live["status"]["nodeInfo"], self.kubelet
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


def others_on(cluster: Cluster, node: str, pod: str) -> list[str] | None:
    """Return the other pods of a node, as ``namespace/name``; None where the user may not see those of others."""
    try:
        found = cluster.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node},status.phase=Running")["items"]
    except ApiError:
        return None
    names = (f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in found)
    return sorted(name for name in names if not name.endswith(f"/{pod}"))


def _kubelet(cluster: Cluster, node: str) -> Object:
    try:
        found = cluster.get(f"/api/v1/nodes/{node}/proxy/configz")
    except ApiError:
        return {}
    config: Object = found.get("kubeletconfig", {})
    return config
