"""The state of each object of a pipeline, and of the pods behind it, as the cluster tells it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from commands.kubernetes.manifests import COMPONENT, labels_of
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.faults import failure_of, fault, last_event, unschedulable
from provisioning.kubernetes.pod import container_status, true_condition
from suite.errors import MeasurementError

KINDS = {
    "Deployment": "apps/v1/deployments",
    "Service": "v1/services",
    "Job": "batch/v1/jobs",
    "NetworkPolicy": "networking.k8s.io/v1/networkpolicies",
    "PersistentVolumeClaim": "v1/persistentvolumeclaims",
}
"""The kinds of a pipeline's objects, in the order in which they are removed."""
State = Literal["waiting", "running", "ready", "complete", "failed"]


class PipelinePart(BaseModel):
    """One object of a pipeline in the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    name: str
    state: State
    """``ready`` is a claim with a volume, a Deployment that answers, or an object that is simply there."""
    reason: str = ""
    """The node, what it waits for, or why it failed."""


@dataclass(frozen=True)
class FollowedPart:
    """A part as it is followed."""

    part: PipelinePart
    fault: MeasurementError | None = None
    """What keeps it from going on; if it waits, another look may find that gone."""
    pod: str | None = None
    """The newest pod behind it."""


@dataclass(frozen=True)
class _PodSeen:
    state: State
    reason: str
    fault: MeasurementError | None = None


def selector(name: str, component: str | None = None) -> str:
    """Return the label selector of a pipeline's objects, or of those of one component."""
    wanted = labels_of(name) | ({COMPONENT: component} if component else {})
    return ",".join(f"{label}={value}" for label, value in wanted.items())


def parts_of(cluster: Cluster, name: str) -> Iterator[PipelinePart]:
    """Yield the objects of a pipeline that are in the cluster."""
    for kind, path in KINDS.items():
        for live in cluster.listed(path, selector(name)):
            yield seen(cluster, name, kind, live).part


def seen(cluster: Cluster, name: str, kind: str, live: Object) -> FollowedPart:
    """Return what an object of the pipeline ``name`` has come to."""
    about = {"kind": kind, "name": live["metadata"]["name"]}
    status = live.get("status", {})
    if kind == "PersistentVolumeClaim":
        phase = status.get("phase", "Pending")
        state: State = "ready" if phase == "Bound" else "failed" if phase == "Lost" else "waiting"
        return FollowedPart(PipelinePart(**about, state=state, reason=phase))
    if kind not in ("Job", "Deployment"):
        return FollowedPart(PipelinePart(**about, state="ready"))
    pods = cluster.listed("v1/pods", selector(name, "train" if kind == "Job" else "serve"))
    pod = max(pods, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
    end = _ended(live, pod) if kind == "Job" else _serves(live)
    found = end or (_pod_seen(pod) if pod else _without_pod(cluster, live))
    return FollowedPart(
        PipelinePart(**about, state=found.state, reason=found.reason),
        found.fault,
        pod["metadata"]["name"] if pod else None,
    )


def _ended(live: Object, pod: Object | None) -> _PodSeen | None:
    """Return how a Job has ended; None while it runs."""
    condition = true_condition(live, "Complete", "Failed")
    if condition is None:
        return None
    if condition["type"] == "Complete":
        return _PodSeen("complete", "")
    why = (pod and failure_of(pod)) or fault("engine", str(condition.get("message", "no pod says why")))
    return _PodSeen("failed", why.message, why)


def _serves(live: Object) -> _PodSeen | None:
    """Return that a Deployment answers, or can make no pod; None while it waits for one."""
    if live.get("status", {}).get("readyReplicas"):
        return _PodSeen("ready", "")
    refused = true_condition(live, "ReplicaFailure")
    if refused is None:
        return None
    return _PodSeen("failed", refused["message"], fault("engine", refused["message"]))


def _without_pod(cluster: Cluster, live: Object) -> _PodSeen:
    why = fault("engine", f"no pod was made: {last_event(cluster, live['metadata']['name'])}")
    return _PodSeen("waiting", "for a pod", why)


def _pod_seen(pod: Object) -> _PodSeen:
    status = container_status(pod)
    why = failure_of(pod)
    if pod.get("metadata", {}).get("deletionTimestamp") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        # The Job or the Deployment decides whether there is another one.
        return _PodSeen("waiting", why.message if why else "its pod has ended")
    waiting = (status.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") == "CrashLoopBackOff":
        ended = (status.get("lastState") or {}).get("terminated") or {}
        said = f"the container ends again and again: {ended.get('reason')}, exit code {ended.get('exitCode')}"
        why = fault("engine", said)
    if why:
        return _PodSeen("failed", why.message, why)
    if none := unschedulable(pod):
        return _PodSeen("waiting", none.message, none)
    if (status.get("state") or {}).get("running"):
        return _PodSeen("running", f"on {pod['spec']['nodeName']}")
    if (status.get("state") or {}).get("terminated"):
        return _PodSeen("waiting", "its container has ended")
    node = pod["spec"].get("nodeName")
    return _PodSeen("waiting", str(waiting.get("reason") or (f"to start on {node}" if node else "for a node")))
