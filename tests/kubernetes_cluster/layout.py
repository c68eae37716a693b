"""The names, addresses and directories of the cluster, declared once."""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "virtbench-tests"
CACHE = Path(os.environ.get("VIRTBENCH_TEST_CACHE") or _CACHES) / "kubernetes"
BUILDING = CACHE / "building"
"""What a build that was interrupted goes on from; removed when it is done."""
PROGRAMS = CACHE / "programs"
RUN = CACHE / "run"
"""The state of the cluster that runs."""
LOGS = RUN / "log"
KUBECONFIG = RUN / "admin.kubeconfig"
MARK = "VIRTBENCH_TEST_CLUSTER"
"""The variable by which the processes of the cluster are found: it is in the environment of all of them."""
PREFIX = "vbk"
"""The beginning of the names of interfaces, network namespaces and control groups."""
HOST_LINK, SWITCH = f"{PREFIX}h", f"{PREFIX}-sw"
HOST_ADDRESS = "10.97.0.1"
REGISTRY = f"{HOST_ADDRESS}:5000"
PODS = "10.98.0.0/16"
SERVICES = "10.99.0.0/24"
PAUSE = "localhost/pause:1"
OVERMOUNTED = (
    *("/var/log/pods", "/var/log/containers", "/var/lib/kubelet", "/var/lib/cni"),
    *("/run/containerd", "/run/netns", "/usr/libexec/kubernetes"),
)
"""What a node would write outside its own directory: a tmpfs of its own lies over each."""
XTABLES_LOCK = Path("/run/xtables.lock")


@dataclass(frozen=True)
class Node:
    """A node of the cluster: network, mount and process namespaces of its own on this host."""

    number: int

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def namespace(self) -> str:
        """The name of its network namespace, and of its control groups."""
        return f"{PREFIX}-{self.name}"

    @property
    def address(self) -> str:
        return f"10.97.0.1{self.number}"

    @property
    def pods(self) -> str:
        return f"10.98.{self.number}.0/24"

    @property
    def directory(self) -> Path:
        return RUN / self.name

    @property
    def containerd(self) -> Path:
        return self.directory / "containerd.sock"


NODES = (Node(1), Node(2))
