"""The options that engines declare, apart from the engines, so that a request is read without importing these."""

from typing import Literal

from suite.errors import RequestError, option
from suite.request.option import OptionGroup, Text, about
from suite.targets import CONTAINERS
from suite.units import parse_share

CLAIMED = "20Gi"
"""The size of claims for all jobs and probes: many providers give more IOPS to larger volumes."""


class GvisorOptions(OptionGroup):
    """Container engine gvisor."""

    gvisor_platform: Literal["systrap", "ptrace", "kvm"] | None = about(
        None,
        f"With {option('engine')} gvisor: how the sentry intercepts system calls. Default: systrap if runsc has it, "
        "else ptrace.",
    )


def nodes_of(text: str) -> dict[str, str]:
    """Return the nodes of a cluster by target; ``n1``, or ``n1,n2`` for several instances, are those of container.

    Raises RequestError for names of targets that are not exactly those with containers.
    """
    named = [word.partition("=") for word in text.split(",")]
    if not any(equals for _, equals, _ in named):
        return {"container": text}
    nodes = {target: node for target, _, node in named}
    if len(named) != len(CONTAINERS) or nodes.keys() != CONTAINERS or not all(nodes.values()):
        remedy = "write it as container=N1,container-vm=N2"
        raise RequestError(f"{text!r} does not name a node for container and one for container-vm", remedy=remedy)
    return nodes


class PodOptions(OptionGroup):
    """Container engine kubernetes."""

    context: Text | None = about(None, "Context of the kubeconfig. Default: the current one.", meaning=False)
    namespace: Text | None = about(None, "Namespace of the pods. Default: the context's.", meaning=False)
    node: Text | None = about(
        None,
        "Node of the pods. Default: this machine, or the only node. For "
        "several instances, name one node each, separated by commas. container=N1,container-vm=N2: N2 is a virtual "
        "machine and runs the target container-vm.",
        parse=nodes_of,
        meaning=False,
    )
    registry: Text | None = about(
        None,
        "Registry that holds the image, such as registry.example/team. "
        "Default: import the image into the containerd of this machine.",
        meaning=False,
    )
    containerd: Text | None = about(None, "Socket of the containerd of this machine.", meaning=False)
    runtime_class: Text | None = about(None, "Runtime class of the pods, such as gvisor or kata.")
    pod_requests: Text | None = about(
        None,
        "Share of their limits that pods request, such as 50%: Burstable pods, which may use more than they are "
        "promised and have no CPUs to themselves. Default: all of it (Guaranteed).",
        parse=parse_share,
    )
    storage_class: Text | None = about(
        None,
        f"Storage class of the disk that trials write to (the disk probe, {option('checkpoint_every')}): a claim of "
        f"{CLAIMED} per pod, removed with it. Default: a directory of this machine.",
    )
