"""The state of each object of a pipeline, and of the pods behind it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from commands.kubernetes.manifests import COMPONENT, labels_of
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.refusals import fault
from provisioning.kubernetes.states import JobState, condition, events_of
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
    """Return the state of an object of the pipeline ``name``."""
    about, status = {"kind": kind, "name": live["metadata"]["name"]}, live.get("status", {})
    if kind == "PersistentVolumeClaim":
        phase = status.get("phase", "Pending")
        state: State = "ready" if phase == "Bound" else "failed" if phase == "Lost" else "waiting"
        return FollowedPart(PipelinePart(**about, state=state, reason=phase))
    if kind not in ("Job", "Deployment"):
        return FollowedPart(PipelinePart(**about, state="ready"))
    pods = cluster.listed("v1/pods", selector(name, "train" if kind == "Job" else "serve"))
    if kind == "Deployment" and status.get("readyReplicas"):
        return FollowedPart(PipelinePart(**about, state="ready"))
    if kind == "Deployment" and (refused := condition(live, "ReplicaFailure")):
        return FollowedPart(
            PipelinePart(**about, state="failed", reason=refused["message"]), fault("engine", refused["message"])
        )
    # A Deployment has neither of a Job's two ends: until it answers, its pod decides as that of a Job does.
    job = JobState.of(live, pods, [] if pods else events_of(cluster, about["name"]))
    part = PipelinePart(**about, state="failed" if job.failure else job.state, reason=job.reason)
    return FollowedPart(part, job.failure or job.hindrance, job.pod)
