"""The control plane: etcd, the API server, the controller manager and the scheduler, as processes of this host."""

import os
import subprocess
from collections.abc import Callable, Sequence

from tests.kubernetes_cluster.configuration import CA, KEYS, TOKENS
from tests.kubernetes_cluster.layout import HOST_ADDRESS, KUBECONFIG, LOGS, MARK, PROGRAMS, REPOSITORY, RUN, SERVICES

ETCD_CLIENTS, ETCD_PEERS = "http://127.0.0.1:23790", "http://127.0.0.1:23800"
# Without them 1.20 drops ttlSecondsAfterFinished and ephemeral claims in silence.
GATES = "--feature-gates=TTLAfterFinished=true,GenericEphemeralVolume=true"
ETCD = (
    *(f"--data-dir={RUN}/etcd", f"--listen-peer-urls={ETCD_PEERS}", "--unsafe-no-fsync"),
    *(f"--listen-client-urls={ETCD_CLIENTS}", f"--advertise-client-urls={ETCD_CLIENTS}"),
)
API_SERVER = (
    *(f"--etcd-servers={ETCD_CLIENTS}", f"--bind-address={HOST_ADDRESS}", f"--advertise-address={HOST_ADDRESS}"),
    *("--secure-port=6443", f"--tls-cert-file={KEYS}/server.crt", f"--tls-private-key-file={KEYS}/server.key"),
    *(f"--client-ca-file={CA}", f"--token-auth-file={TOKENS}", "--kubelet-preferred-address-types=InternalIP"),
    *(f"--kubelet-client-certificate={KEYS}/kubelet-client.crt", f"--kubelet-client-key={KEYS}/kubelet-client.key"),
    "--service-account-issuer=https://kubernetes.default.svc",
    f"--service-account-key-file={KEYS}/service-accounts.key",
    f"--service-account-signing-key-file={KEYS}/service-accounts.key",
    f"--service-cluster-ip-range={SERVICES}",
    "--authorization-mode=Node,RBAC",
    "--allow-privileged=true",  # for the sweep whose plan asks for it
    "--enable-admission-plugins=NodeRestriction",
    *("--default-not-ready-toleration-seconds=10", "--default-unreachable-toleration-seconds=10", GATES),
)
CONTROLLER_MANAGER = (
    *(f"--service-account-private-key-file={KEYS}/service-accounts.key", "--use-service-account-credentials=true"),
    *("--node-monitor-period=1s", "--node-monitor-grace-period=10s", "--node-startup-grace-period=20s"),
    *(f"--root-ca-file={CA}", f"--flex-volume-plugin-dir={RUN}/volume-plugins", GATES),
)


def start(cpus: Sequence[int], wait_for: Callable[[str, Callable[[], bool]], None]) -> None:
    """Start the control plane on the CPUs that no measured pod gets."""
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cpus))]
    spawn("etcd", [*pinned, f"{PROGRAMS}/etcd", *ETCD])
    spawn("kube-apiserver", [*pinned, f"{PROGRAMS}/kube-apiserver", *API_SERVER])
    # The controller manager exits for good if the roles that a cluster begins with are not there yet; the only sign
    # of that is a missing service account.
    wait_for("API server", lambda: kubectl("get", "--raw", "/readyz").returncode == 0)
    spawn("kube-controller-manager", [*pinned, *_controller("kube-controller-manager", 10257), *CONTROLLER_MANAGER])
    spawn("kube-scheduler", [*pinned, *_controller("kube-scheduler", 10259), GATES])


def _controller(name: str, port: int) -> list[str]:
    credentials = [f"--{kind}kubeconfig={RUN}/{name}.kubeconfig" for kind in ("", "authentication-", "authorization-")]
    address = ["--bind-address=127.0.0.1", f"--secure-port={port}", "--port=0", f"--cert-dir={RUN}/{name}"]
    return [f"{PROGRAMS}/{name}", *credentials, "--leader-elect=false", *address]


def spawn(name: str, argv: Sequence[str]) -> None:
    """Start a process of the cluster: it outlives this one, is a child of init, and is found by ``MARK``."""
    with (LOGS / f"{name}.log").open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", *argv],
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, MARK: str(RUN)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def kubectl(*words: str) -> "subprocess.CompletedProcess[str]":
    argv = [f"{PROGRAMS}/kubectl", f"--kubeconfig={KUBECONFIG}", *words]
    return subprocess.run(argv, check=False, capture_output=True, text=True)
