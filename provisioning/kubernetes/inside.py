"""The inside of a pod, as a node that runs commands; and its processes, where its node is this machine."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

import psutil

from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.execution import PodProcess
from provisioning.kubernetes.faults import fate
from provisioning.nodes import WrappedNode
from suite.errors import MeasurementError
from suite.interfaces import Completed
from suite.job.envelope import parse_cpu_list
from suite.process_identity import BOOT_ID

ENDED_WITHIN_S = 30.0


@dataclass(kw_only=True)
class PodNode(WrappedNode):
    """A pod: its commands are started by the API server, and by no command of the node below."""

    cluster: Cluster
    pod: str

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> Completed:
        return self.start(argv, stdin=stdin).completed(timeout_s, check=check)

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> PodProcess:
        return PodProcess(self.cluster, self.pod, argv, stdin, partial(fate, self.cluster, self.pod))


def cpus_inside(node: PodNode) -> tuple[int, ...]:
    """Return the CPUs that the pod may use, in the numbers of its node's kernel."""
    status = node.run(["cat", "/proc/self/status"]).stdout
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    if not found:
        raise MeasurementError("the pod does not say which CPUs it may use", kind="engine")
    return parse_cpu_list(found[1])


def kernel_inside(node: PodNode) -> tuple[str, str]:
    """Return the number of the boot of the kernel that the pod sees, and what its /proc/cpuinfo holds."""
    # A sandbox with a kernel of its own may lack the first file: what then stands there is no number of a boot.
    boot, _, cpuinfo = node.run(["cat", str(BOOT_ID), "/proc/cpuinfo"], check=False).stdout.partition("\n")
    return boot, cpuinfo


def first_process(pod: str) -> psutil.Process | None:
    """Return the first process of the pod's container on this machine; None where it cannot be seen.

    Its runtime gives it the pod's name as the name of its host.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOSTNAME") == pod and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.create_time(), process.pid, process))
        except psutil.Error:
            continue
    return min(found)[2] if found else None


def await_end(pod: str) -> None:
    """Return when no process of the pod is left on this machine: the server forgets it up to 2 s before its end."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    while first_process(pod):
        if time.monotonic() > deadline:
            raise MeasurementError(
                f"the pod {pod} still runs {ENDED_WITHIN_S:g} s after it was deleted",
                kind="kubernetes",
                remedy="see whether the kubelet of its node runs; bench clean tries it again",
            )
        time.sleep(0.05)
