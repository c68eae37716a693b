"""A service before one pod, by whose address or node port others ask it: what is sent, and where it is then reached."""

from collections.abc import Iterator
from contextlib import contextmanager

from provisioning import ledger
from provisioning.kubernetes import own_pod, owned
from provisioning.kubernetes.cluster import OWNER, Cluster, Object, labels
from suite.errors import MeasurementError

CLUSTER_IP, NODE_PORT = "ClusterIP", "NodePort"
"""The types of services, which are the ways through them."""
RIGHTS = {"services": ("create", "get", "list", "delete")}
"""What the user needs for them, by resource."""
KINDS = ("v1/services",)


def manifest(name: str, pod: str, port: int, way: str) -> Object:
    """Return the service that passes connections on to a port of the pod, which has the pod's name as its owner."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(name), "ownerReferences": own_pod.owners()},
        "spec": {
            "type": way,
            "selector": {OWNER: pod},
            "ports": [{"protocol": "TCP", "port": port, "targetPort": port}],
        },
    }


@contextmanager
def opened(cluster: Cluster, pod: str, port: int, way: str) -> Iterator[tuple[str, int]]:
    """Create the service of a pod that runs. Yields the address and the port to which its clients connect.

    The node's way of passing on connections is set up a moment later.
    """
    name = ledger.fresh("virtbench")
    with ledger.holding("kubernetes", owned.entry(cluster, name, KINDS)):
        live = cluster.create(manifest(name, pod, port, way))
        if way == CLUSTER_IP:
            yield str(live["spec"]["clusterIP"]), port
        else:
            yield _node_address(cluster, pod), int(live["spec"]["ports"][0]["nodePort"])


def _node_address(cluster: Cluster, pod: str) -> str:
    """Return the address of the pod's own node: the port of another one would add a way between nodes."""
    found = cluster.get(cluster.path("pods", pod))["status"].get("hostIP")
    if not found:
        raise MeasurementError(f"the server does not tell the address of the node of {pod}", kind="kubernetes")
    return str(found)
