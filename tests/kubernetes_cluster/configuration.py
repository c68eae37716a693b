"""The files that configure one node: containerd, its network, the kubelet and kube-proxy."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kubernetes_cluster.credentials import CA
from tests.kubernetes_cluster.layout import PAUSE, PODS, REGISTRY, RUN, Node

CONTAINERD = """\
version = 2
root = "{store}"
state = "{node.directory}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{node.containerd}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."{registry}"]
    endpoint = ["http://{registry}"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.directory}/cni"
"""


def configure(node: Node, store: Path, reserved_cpus: Sequence[int]) -> None:
    """Write the node's configuration. With ``reserved_cpus`` the kubelet pins pods of whole CPUs to the others."""
    for name in ("cni", "kubelet", "state"):
        (node.directory / name).mkdir(parents=True)
    (node.directory / "xtables.lock").touch()
    (RUN / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    configuration = CONTAINERD.format(node=node, store=store, pause=PAUSE, registry=REGISTRY)
    (node.directory / "containerd.toml").write_text(configuration)
    _write(node.directory / "cni/10-bridge.conflist", _network(node))
    _write(node.directory / "kubelet.json", _kubelet(node, reserved_cpus))
    _write(node.directory / "kube-proxy.json", _proxy(node))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2))


def _network(node: Node) -> dict[str, Any]:
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{node.directory}/ipam",
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": node.namespace, "plugins": [bridge, ports]}


def _kubelet(node: Node, reserved_cpus: Sequence[int]) -> dict[str, Any]:
    cpus = {"cpuManagerPolicy": "static", "reservedSystemCPUs": ",".join(map(str, reserved_cpus))}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(CA)},
        },
        "authorization": {"mode": "Webhook"},
        "featureGates": {"GenericEphemeralVolume": True},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.namespace}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["pods"],
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "resolvConf": str(RUN / "resolv.conf"),
        "clusterDomain": "cluster.local",
        **(cpus if reserved_cpus else {}),
        "cpuManagerReconcilePeriod": "2s",
        "systemReserved": {"memory": "512Mi"},
        # A disk that others have filled is not to taint the node.
        "evictionHard": {"nodefs.available": "2Gi", "imagefs.available": "2Gi", "memory.available": "200Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "10s",
        "serializeImagePulls": True,
        "volumePluginDir": f"{node.directory}/volume-plugins",
        "staticPodPath": "",
    }


def _proxy(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(RUN / "kube-proxy.kubeconfig")},
        "hostnameOverride": node.name,
        "clusterCIDR": PODS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        # The limits of connection tracking are the host's, and stay as they are.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
