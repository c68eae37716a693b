"""The cluster that the tests of this package run on."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from tests.integration.machine import require_image, require_root
from tests.kubernetes_cluster import build
from tests.kubernetes_cluster.cluster import CONTROL_GROUPS, Cluster, down, up

PROGRAMS = ("containerd", "ctr", "runc", "iptables", "openssl", "ip", "nsenter", "taskset")
BRIDGE = Path("/usr/lib/cni/bridge")


# Of the package: it takes 0.8 GB and some of a CPU, which tests elsewhere are not to share.
@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes on this host that have the suite's image, or the cluster of ``VIRTBENCH_TEST_KUBECONFIG``.

    A test with the parameter False gets kubelets without the static CPU manager, whose pods share all CPUs.
    """
    if named := os.environ.get("VIRTBENCH_TEST_KUBECONFIG"):
        library: Any = kubernetes
        library.config.load_kube_config(named)
        nodes = library.client.CoreV1Api().list_node().items
        yield Cluster(Path(named), tuple(node.metadata.name for node in nodes))
        return
    require_root()
    if missing := [name for name in PROGRAMS if shutil.which(name) is None] + [str(BRIDGE)] * (not BRIDGE.exists()):
        pytest.skip(f"{', '.join(missing)} not installed (make setup-test)")
    if not (CONTROL_GROUPS / "cpuset/cpuset.cpus").exists():
        pytest.skip("the cluster's nodes need control groups of version 1")
    if not build.built():
        pytest.skip("Kubernetes was not built: python -m tests.kubernetes_cluster build, or VIRTBENCH_TEST_KUBECONFIG")
    image = require_image()
    try:
        yield up(image, pin=getattr(request, "param", True))
    finally:
        down()
