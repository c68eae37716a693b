"""The files that configure the cluster: its certificates, a kubeconfig for each of its parts, and those of a node."""

import json
import secrets
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from tests.kubernetes_cluster.layout import HOST_ADDRESS, KUBECONFIG, NODES, PAUSE, PODS, REGISTRY, RUN, SERVICES, Node

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
    callers = {"anonymous": {"enabled": False}, "webhook": {"enabled": True}}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {**callers, "x509": {"clientCAFile": str(CA)}},
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


KEYS = RUN / "keys"
CA = KEYS / "ca.crt"
TOKENS = KEYS / "tokens.csv"
SERVED_AS = (
    f"IP:{HOST_ADDRESS},IP:127.0.0.1,IP:{IPv4Network(SERVICES)[1]},"
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
)
# The names are those to which the roles that every cluster begins with are bound.
USERS = {
    KUBECONFIG: ("admin", "system:masters"),
    RUN / "kube-controller-manager.kubeconfig": ("system:kube-controller-manager", ""),
    RUN / "kube-scheduler.kubeconfig": ("system:kube-scheduler", ""),
    RUN / "kube-proxy.kubeconfig": ("system:kube-proxy", ""),
    **{RUN / f"{node.name}.kubeconfig": (f"system:node:{node.name}", "system:nodes") for node in NODES},
}


def issue_credentials() -> None:
    """Write all keys, certificates and kubeconfigs of a new cluster."""
    KEYS.mkdir(mode=0o700)
    _key("ca")
    _openssl("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=virtbench-tests", "-days", "30", "-out", "ca.crt")
    _certificate("server", "/CN=kube-apiserver", f"subjectAltName={SERVED_AS}\nextendedKeyUsage=serverAuth\n")
    client = "/O=system:masters/CN=apiserver-kubelet-client"
    _certificate("kubelet-client", client, "extendedKeyUsage=clientAuth\n")
    _openssl("genrsa", "-out", "service-accounts.key", "2048")
    tokens = []
    for path, (user, group) in USERS.items():
        token = secrets.token_hex(16)
        tokens.append(f'{token},{user},{user},"{group}"\n')
        _write_kubeconfig(path, token)
    TOKENS.write_text("".join(tokens))


def _write_kubeconfig(path: Path, token: str) -> None:
    path.touch(mode=0o600)
    server = f"https://{HOST_ADDRESS}:6443"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": str(CA)}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "virtbench-tests", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "virtbench-tests",
    }
    path.write_text(json.dumps(config, indent=2))


def _key(name: str) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")


def _certificate(name: str, subject: str, extensions: str) -> None:
    _key(name)
    (KEYS / f"{name}.ext").write_text(extensions)
    _openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext"]
    _openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, cwd=KEYS, capture_output=True)
