"""The tests' own cluster: its nodes are genuine, pods of whole CPUs are pinned, a killed kubelet comes back.

That nothing is left of it is checked by ``down``, at the end of every use.
"""

import os
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from provisioning.engines.base import image_reference
from provisioning.images.image import current
from tests.kubernetes_cluster.cluster import Cluster, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


@pytest.fixture
def api(cluster: Cluster) -> Any:
    library: Any = kubernetes
    library.config.load_kube_config(str(cluster.kubeconfig))
    return library.client.CoreV1Api()


def pod_of(name: str, node: str) -> dict[str, Any]:
    whole = {"cpu": "1", "memory": "64Mi"}
    container = {
        "name": "main",
        "image": f"localhost/{image_reference(current().digest)}",
        "imagePullPolicy": "Never",
        "command": ["cat", "/proc/self/status", "/proc/sys/kernel/random/boot_id"],
        "resources": {"requests": whole, "limits": whole},
    }
    selector = {"kubernetes.io/hostname": node}
    spec = {"containers": [container], "restartPolicy": "Never", "nodeSelector": selector, "dnsPolicy": "Default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def said_by(api: Any, name: str, node: str) -> str:
    """What a pod on the node has said when it ended."""
    api.create_namespaced_pod("default", pod_of(name, node))

    def phase() -> str:
        return str(api.read_namespaced_pod(name, "default").status.phase)

    wait_for("the end of the pod", lambda: phase() in ("Succeeded", "Failed"))
    assert phase() == "Succeeded"
    # The log of a pod that has just ended may be empty at first.
    wait_for("its log", lambda: bool(api.read_namespaced_pod_log(name, "default")))
    text = str(api.read_namespaced_pod_log(name, "default"))
    api.delete_namespaced_pod(name, "default", grace_period_seconds=0)
    return text


def test_a_pod_of_one_cpu_has_it_to_itself_on_each_node(cluster: Cluster, api: Any) -> None:
    if not cluster.cpus:
        pytest.skip("the nodes of VIRTBENCH_TEST_KUBECONFIG are not of this machine")
    allowed = {}
    for node in cluster.nodes:
        text = said_by(api, f"pinned-{node}", node)
        (allowed[node],) = (line.split()[1] for line in text.splitlines() if line.startswith("Cpus_allowed_list:"))
        assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in text, "the node is this machine"
    assert all(int(allowed[node]) in cluster.cpus[node] for node in cluster.nodes)
    assert len(set(allowed.values())) == len(cluster.nodes)
    assert {int(cpu) for cpu in allowed.values()} <= os.sched_getaffinity(0)


def test_a_killed_kubelet_comes_back_and_runs_pods_again(cluster: Cluster, api: Any) -> None:
    if not cluster.containerd:
        pytest.skip("the nodes of VIRTBENCH_TEST_KUBECONFIG are not of this machine")
    node = cluster.nodes[0]

    def heartbeat() -> Any:
        return max(each.last_heartbeat_time for each in api.read_node(node).status.conditions)

    killed = cluster.process("kubelet", node)
    killed.kill()
    killed.wait(20)
    last = heartbeat()
    cluster.restart_kubelet(node)
    # Until it knows which pods there are, it holds the CPUs of those that are gone, and refuses a pod that wants them.
    wait_for("a sign of life of the kubelet", lambda: heartbeat() > last)
    assert "Cpus_allowed_list" in said_by(api, "after-the-kill", node)
