"""The state of a pod, and of the Job behind it: what the server and its events report, and why it does not run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self

from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.owned import NOT_FOUND
from provisioning.kubernetes.refusals import ApiError, cause_of, fault
from suite.errors import BenchError, MeasurementError

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""The annotation with the name of the container that a pod was made for."""
State = Literal["waiting", "running", "ended", "ready", "complete", "failed"]
"""A pod has one of the first three, an object behind pods all but ``ended``."""
PATIENCE_S = 90.0
"""How long to wait for the server when a pod is lost: the server may be away, and the pod fine."""
_NEVER_STARTS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""Reasons for which a container waits forever, in addition to those that ``cause_of`` recognises."""
_GOING_DOWN = "the node is going down: run it again when it is back"
_EVICTIONS = {
    "Evicted": "see why the node was short of it: kubectl describe node",
    "Preempting": "keep what the cluster needs by itself off this node, or choose another",
    "Terminated": _GOING_DOWN,
    "NodeShutdown": _GOING_DOWN,
    "Shutdown": _GOING_DOWN,
}
"""Remedies by the reason that a kubelet gives a pod which it has ended for others' sake."""


@dataclass(frozen=True)
class PodState:
    state: State
    reason: str
    """The node, what it waits for, or why it ended."""
    failure: MeasurementError | None = None
    """Why this pod will not run any more; another one may."""
    hindrance: MeasurementError | None = None
    """What keeps it from running; it may go away: a quota, or nodes that are full."""
    begun: bool = False
    """Whether its container has run, and so has a log."""

    @classmethod
    def of(cls, pod: Object | None, events: Sequence[Object] = ()) -> Self:
        """Derive the state from the live pod; without a pod from the events of its Job or Deployment."""
        if pod is None:
            hindrance = fault("engine", f"no pod was made: {last_event(events)}")
            warned = events and events[-1].get("type") == "Warning"
            return cls("waiting", hindrance.message if warned else "for a pod", hindrance=hindrance)
        phase = pod.get("status", {}).get("phase")
        failure = _failure(pod)
        begun = phase in ("Running", "Succeeded", "Failed")
        if pod.get("metadata", {}).get("deletionTimestamp") or phase in ("Succeeded", "Failed"):
            return cls("ended", failure.message if failure else "its pod has ended", failure, begun=begun)
        if failure:
            return cls("waiting", failure.message, failure, begun=begun)
        placed = condition(pod, "PodScheduled", status="False")
        if placed:
            why = f"the pod cannot be scheduled: {placed.get('message', placed.get('reason'))}"
            unplaced = fault("gated" if placed.get("reason") == "SchedulingGated" else "unschedulable", why)
            return cls("waiting", unplaced.message, hindrance=unplaced, begun=begun)
        return cls(*_progress(pod, begun=begun), begun=begun)


@dataclass(frozen=True)
class JobState(PodState):
    """How far a Job has come, by its own conditions and the newest pod behind it."""

    name: str = ""
    pod: str | None = None
    """The newest pod behind it; None before there is one."""

    @classmethod
    def of_job(cls, job: Object, pods: Sequence[Object], events: Sequence[Object] = ()) -> Self:
        """Derive the state from the live Job, the pods that it has made, and without a pod from its events."""
        pod = max(pods, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
        now = PodState.of(pod, events)
        if pod is None and (suspended := condition(job, "Suspended")):
            held = fault("gated", f"the Job is suspended: {suspended.get('message')}")
            now = PodState("waiting", held.message, hindrance=held)
        found = cls(**vars(now), name=job["metadata"]["name"], pod=pod["metadata"]["name"] if pod else None)
        end = condition(job, "Complete", "Failed")
        if end and end["type"] == "Complete":
            return replace(
                found,
                state="complete",
                reason="",
                failure=None,
                hindrance=None,
            )
        if end:
            late = end.get("reason") == "DeadlineExceeded"  # its pods are removed then
            ended = fault("timeout" if late else "engine", str(end.get("message", "no pod says why")))
            why = ended if late else now.failure or ended
            return replace(
                found,
                state="failed",
                reason=why.message,
                failure=why,
                hindrance=None,
            )
        if now.state == "ended":  # the Job decides whether there is another pod
            return replace(found, state="waiting", failure=None, hindrance=None)
        return found


def condition(live: Object, *names: str, status: str | None = "True") -> Object | None:
    """Return the first of these conditions of an object, by default only one that is true; None if it has none."""
    conditions: list[Object] = live.get("status", {}).get("conditions") or []
    matching = (item for item in conditions if item["type"] in names and status in (None, item["status"]))
    return next(matching, None)


def container_status(pod: Object) -> Mapping[str, Any]:
    """Return the status of the suite's container, whatever sidecars a pod has; empty before there is one."""
    statuses: list[Mapping[str, Any]] = pod.get("status", {}).get("containerStatuses") or [{}]
    name = pod.get("metadata", {}).get("annotations", {}).get(DEFAULT_CONTAINER)
    matching = (status for status in statuses if status.get("name") == name)
    return next(matching, statuses[0])


def _progress(pod: Object, *, begun: bool) -> tuple[State, str]:
    """Return the state of a pod that nothing hinders, and its reason."""
    container = container_status(pod).get("state") or {}
    node = pod.get("spec", {}).get("nodeName")
    if container.get("terminated"):
        return "ended", "its container has ended"
    if container.get("running") or (begun and not container):
        return "running", f"on {node}"
    waiting = (container.get("waiting") or {}).get("reason")
    return "waiting", str(waiting or (f"to start on {node}" if node else "for a node"))


def _failure(pod: Object) -> MeasurementError | None:
    status = pod.get("status", {})
    container = container_status(pod)
    ended = (container.get("state") or {}).get("terminated") or {}
    stuck = _not_started(container)
    if stuck:
        return fault("engine", stuck)
    if ended.get("reason") == "OOMKilled":
        return fault("killed", "the pod was killed: it wanted more memory than its limit (OOMKilled)")
    if status.get("reason") in _EVICTIONS:
        remedy = _EVICTIONS[status["reason"]]
        message = f"the pod was evicted: {status.get('message', '')}"
        return MeasurementError(message[:1000], kind="evicted", remedy=remedy)
    if status.get("phase") in ("Failed", "Succeeded"):
        why = status.get("reason") or ended.get("reason") or f"its phase is {status['phase']}"
        message = status.get("message") or ended.get("message") or f"exit code {ended.get('exitCode')}"
        return fault("engine", f"the pod has ended: {why}: {message}")
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return fault("evicted", "the pod is being deleted by somebody else, or by an eviction")
    return None


def _not_started(container: Mapping[str, Any]) -> str | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") == "CrashLoopBackOff":
        last = (container.get("lastState") or {}).get("terminated") or {}
        return f"the container ends again and again: {last.get('reason')}, exit code {last.get('exitCode')}"
    message = f"the container does not start: {waiting.get('reason')}: {waiting.get('message', '')}"
    if waiting.get("reason") in _NEVER_STARTS or cause_of(message):
        return message
    return None


def fate(cluster: Cluster, pod: str) -> BenchError | None:
    """Return why a pod does not run any more, or why the server cannot be asked; None for one that runs."""
    try:
        live = cluster.request("GET", cluster.path("pods", pod), patience_s=PATIENCE_S)
        failure = PodState.of(live).failure
        if failure:
            return failure
        node = cluster.get(f"/api/v1/nodes/{live['spec']['nodeName']}")
        if not condition(node, "Ready"):
            ready = condition(node, "Ready", status=None) or {}
            return fault("node-lost", f"the node {node['metadata']['name']} is lost: {ready.get('message')}")
    except ApiError as error:
        if error.status != NOT_FOUND:
            return error
        return fault("evicted", f"the pod was deleted while the job ran: {last_event(events_of(cluster, pod))}")
    except MeasurementError as error:
        return error
    return None


def events_of(cluster: Cluster, name: str) -> list[Object]:
    """Return the events of an object, which may be gone, in their order; none if the user may not see them."""
    try:
        events = cluster.get(cluster.path("events"), fieldSelector=f"involvedObject.name={name}")["items"]
    except MeasurementError:
        return []
    return sorted(events, key=_happened_at)


def _happened_at(event: Object) -> datetime:
    """Return when an event was last seen: reporters of the newer API leave ``lastTimestamp`` out."""
    series = event.get("series") or {}
    fields = map(event.get, ("eventTime", "lastTimestamp", "firstTimestamp"))
    times = (series.get("lastObservedTime"), *fields)
    moments = (datetime.fromisoformat(time) for time in times if time)
    return max(moments, default=datetime.min.replace(tzinfo=UTC))


def last_event(events: Sequence[Object]) -> str:
    if events:
        return f"{events[-1].get('reason')}: {events[-1].get('message')}"
    return "no event says why"
