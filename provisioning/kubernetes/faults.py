"""Why a pod does not start, and why it is gone: what the server knows, as an error with a remedy."""

from typing import Any

from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.owned import NOT_FOUND
from provisioning.kubernetes.pod import container_status
from provisioning.kubernetes.refusals import ApiError, cause_of
from suite.errors import BenchError, MeasurementError

PATIENCE_S = 90.0
"""How long the server is waited for when a pod is lost: it may be the server that was away, and not the pod."""
_WAITING = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""The reasons for which a container waits for ever, besides those that ``cause_of`` knows."""
_REMEDIES = {
    "unschedulable": "free what is missing, choose another --node, or lower --cpus and --memory",
    "evicted": "see why the node was short of it: kubectl describe node",
    "killed": "give the targets more with --memory, or make --batch smaller",
    "node-lost": "see why: kubectl describe node",
}


def fault(kind: str, message: str) -> MeasurementError:
    """Return the error that these words tell, else that of this kind, with its remedy."""
    return cause_of(message[:1000]) or MeasurementError(message[:1000], kind=kind, remedy=_REMEDIES.get(kind))


def failure_of(live: Object) -> MeasurementError | None:
    """Return why the pod, as the server knows it, will not run any more; None for one that may."""
    status = live.get("status", {})
    state = container_status(live).get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    said = f"the container does not start: {waiting.get('reason')}: {waiting.get('message', '')}"
    if waiting.get("reason") in _WAITING or cause_of(said):
        return fault("engine", said)
    if ended.get("reason") == "OOMKilled":
        return fault("killed", "the pod was killed: it wanted more memory than its limit (OOMKilled)")
    if status.get("reason") == "Evicted":
        return fault("evicted", f"the pod was evicted: {status.get('message', '')}")
    if status.get("phase") in ("Failed", "Succeeded"):
        why = status.get("reason") or ended.get("reason") or f"its phase is {status['phase']}"
        said = status.get("message") or ended.get("message") or f"exit code {ended.get('exitCode')}"
        return fault("engine", f"the pod has ended: {why}: {said}")
    if live.get("metadata", {}).get("deletionTimestamp"):
        return fault("evicted", "the pod is being deleted by somebody else, or by an eviction")
    return None


def unschedulable(live: Object) -> MeasurementError | None:
    """Return the reason for which the scheduler finds no node; None where it has found one, or has not looked."""
    said = _condition(live, "PodScheduled")
    if said.get("status") != "False":
        return None
    return fault("unschedulable", f"the pod cannot be scheduled: {said.get('message', said.get('reason'))}")


def fate(cluster: Cluster, pod: str) -> BenchError | None:
    """Return why a pod does not run any more, or cannot be asked; None for one that runs."""
    try:
        live = cluster.request("GET", cluster.path("pods", pod), patience_s=PATIENCE_S)
        if found := failure_of(live):
            return found
        node = cluster.get(f"/api/v1/nodes/{live['spec']['nodeName']}")
        ready = _condition(node, "Ready")
        if ready.get("status") != "True":
            return fault("node-lost", f"the node {node['metadata']['name']} is lost: {ready.get('message')}")
    except ApiError as error:
        if error.status != NOT_FOUND:
            return error
        return fault("evicted", f"the pod was deleted while the job ran: {last_event(cluster, pod)}")
    except MeasurementError as error:
        return error
    return None


def last_event(cluster: Cluster, name: str) -> str:
    """Return the last thing that was told of an object, which may be gone."""
    try:
        events: list[Any] = cluster.get(cluster.path("events"), fieldSelector=f"involvedObject.name={name}")["items"]
    except MeasurementError:
        events = []
    events.sort(key=lambda each: each.get("lastTimestamp") or "")
    return f"{events[-1].get('reason')}: {events[-1].get('message')}" if events else "no event says why"


def _condition(live: Object, name: str) -> Object:
    conditions: list[Object] = live.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == name), {})
