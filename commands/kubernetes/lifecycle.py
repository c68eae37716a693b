"""A pipeline in a cluster: its objects are created, followed until an image was made, and removed."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from commands.kubernetes.manifests import PORT, Pipeline, PipelineModel, labels_of
from provisioning.batch.patience import AWAY_AT_MOST_S, AwayError
from provisioning.kubernetes.cluster import FIELD_MANAGER, Cluster, Object
from provisioning.kubernetes.opening import SCHEDULED_WITHIN_S
from provisioning.kubernetes.owned import find, remove_selected
from provisioning.kubernetes.refusals import ApiError, fault, refused_as_request
from provisioning.kubernetes.states import JobState, State, condition, events_of
from suite.errors import MeasurementError, RequestError
from suite.part import Count, Part, Seconds
from suite.units import count
from suite.untrusted.parse import parse_object

KINDS = {
    "Deployment": "apps/v1/deployments",
    "Service": "v1/services",
    "Job": "batch/v1/jobs",
    "NetworkPolicy": "networking.k8s.io/v1/networkpolicies",
    "PersistentVolumeClaim": "v1/persistentvolumeclaims",
}
"""The kinds of a pipeline's objects, in the order in which they are removed."""


class TrainedModel(BaseModel):
    """A training as the worker reports it at its end; the file of the model and ``GET /models`` have the same."""

    model_config = ConfigDict(frozen=True)

    epoch_s: tuple[Seconds, ...]
    training_s: Seconds
    steps: Count
    losses: dict[str, float]
    """The losses of the last step."""
    data: dict[str, str | int] | None
    """The kind, images and digest of the data set; None for drawn images, which have no epochs either."""
    peak_memory_bytes: Count | None

    def __str__(self) -> str:
        if self.epoch_s:
            epochs = f"{count(len(self.epoch_s), 'epoch')}, median {median(self.epoch_s):.2f} s, "
        else:
            epochs = ""
        return f"{epochs}{count(self.steps, 'step')} in {self.training_s:.1f} s"


class PipelinePart(Part):
    """One object of a pipeline in the cluster."""

    kind: str
    name: str
    state: Literal["waiting", "running", "ready", "complete", "failed"]
    """``ready`` is a claim with a volume, a Deployment that answers, or an object that is simply there."""
    reason: str = ""
    """The node, what it waits for, or why it failed."""
    trained: TrainedModel | None = None
    """The training of a complete Job; None if its log is gone."""


def parts_of(cluster: Cluster, name: str) -> Iterator[PipelinePart]:
    for kind, path in KINDS.items():
        for live in cluster.listed(path, labels_of(name)):
            now = seen(cluster, name, kind, live)
            trained = _trained(cluster, now.pod) if now.pod and now.state == "complete" else None
            about = {"kind": kind, "name": now.name, "state": now.state, "reason": now.reason}
            yield PipelinePart.model_validate({**about, "trained": trained})


def _trained(cluster: Cluster, pod: str) -> TrainedModel | None:
    """Return the training that the last line of a pod's log reports; None if it does not."""
    try:
        last = cluster.get(cluster.path("pods", pod, part="log"), container=CONTAINERS["Job"], tailLines=1)
        return TrainedModel.model_validate(last.get("trained"))
    except (MeasurementError, ValueError):
        return None


CONTAINERS = {"Job": "train", "Deployment": "serve"}
"""The containers of their pods, as ``manifests`` names them."""
_CLAIMS: dict[str, State] = {"Bound": "ready", "Lost": "failed"}
"""The states of claims by their phases; all others wait."""


def seen(cluster: Cluster, name: str, kind: str, live: Object) -> JobState:
    """Return the state of an object of the pipeline ``name``."""
    own_name = live["metadata"]["name"]
    status = live.get("status", {})
    if kind == "PersistentVolumeClaim":
        phase = status.get("phase", "Pending")
        return JobState(_CLAIMS.get(phase, "waiting"), phase, name=own_name)
    if kind not in ("Job", "Deployment") or (kind == "Deployment" and status.get("readyReplicas")):
        return JobState("ready", "", name=own_name)
    if kind == "Deployment" and (refused := condition(live, "ReplicaFailure")):
        return JobState("failed", refused["message"], fault("engine", refused["message"]), name=own_name)
    if kind == "Job":
        labels = {**labels_of(name), "job-name": own_name}
    else:
        labels = labels_of(name, "serve")
    pods = cluster.listed("v1/pods", labels)
    # A Deployment has neither of a Job's two ends: until it answers, its pod decides as that of a Job does.
    job = JobState.of_job(live, pods, [] if pods else events_of(cluster, own_name))
    if job.failure:
        return replace(job, state="failed")
    return job


RIGHTS = {
    **dict.fromkeys(
        ("persistentvolumeclaims", "networkpolicies.networking.k8s.io", "jobs.batch", "services", "deployments.apps"),
        ("get", "create", "patch"),
    ),
    "pods": ("list",),
    "pods/log": ("get",),
    "events": ("list",),
}
"""What ``up`` needs; ``services/proxy`` besides, to ask for an image from here."""
LOOKED_EVERY_S = 1.0
SAID_WITHIN_S = 30.0
SAID_LINES = 20
MOST_SHOWN = 4
"""How many fields that another manager has added are shown."""
INTERNAL_ERROR = 500
_REMEDIES = {
    "unschedulable": "free what is missing, and the same command continues; or remove it with down and request less",
    "killed": "remove the pipeline with bench kubernetes pipeline down, and give it more with --memory",
    "timeout": "remove the pipeline with bench kubernetes pipeline down, and give it fewer --epochs or more --deadline",
}
_REMADE = "remove it with bench kubernetes pipeline down, or choose another --name"
_AGAIN = "fix the cause, remove the pipeline with bench kubernetes pipeline down, and bring it up again"


def ensure(cluster: Cluster, manifest: Object, *, dry_run: bool = False) -> None:
    """Bring an object to the request, or with ``dry_run`` check that the server would: it keeps what is equal.

    Raises RequestError if another object has its name, or another manager has changed or added to its specification,
    or the server refuses it.
    """
    title = f"{manifest['kind']} {manifest['metadata']['name']}"
    live = find(cluster, f"{cluster.path_of(manifest)}/{manifest['metadata']['name']}")
    if live is not None:
        _refuse_other(title, manifest, live)
        if manifest["kind"] == "PersistentVolumeClaim":
            return
    with refused_as_request():
        try:
            applied = cluster.apply(manifest, **({"dryRun": "All"} if dry_run else {}))
        except ApiError as error:
            if live is None or error.kind not in ("conflict", "invalid"):
                raise
            remedy = f"{error.remedy}, {_REMADE}"
            raise RequestError(f"the {title} exists already: {error.message}", remedy=remedy) from error
    _refuse_additions(title, applied)


def _refuse_other(title: str, manifest: Object, live: Object) -> None:
    """Raise RequestError for an object without the pipeline's labels, and for a claim of another access mode."""
    labels = manifest["metadata"]["labels"]
    there = live["metadata"].get("labels", {})
    missing = [f"{key}={value}" for key, value in labels.items() if there.get(key) != value]
    if missing:
        raise RequestError(
            f"the {title} exists already, and does not belong to this pipeline: it has no label {missing[0]}",
            remedy="choose another --name, or remove it yourself; a claim that you made is used if it has "
            + ", ".join(f"{key}={value}" for key, value in labels.items()),
        )
    if manifest["kind"] == "PersistentVolumeClaim":
        wanted, present = (item["spec"]["accessModes"] for item in (manifest, live))
        if wanted != present:
            raise RequestError(
                f"the {title} has the access mode {', '.join(present)}, and {', '.join(wanted)} is requested",
                remedy=f"take it as it is with --access-mode {present[0]}, or choose another --name",
            )


def _refuse_additions(title: str, applied: Object) -> None:
    """Raise RequestError if another manager has added to the specification: an apply leaves that in place."""
    managers = applied["metadata"]["managedFields"]
    requested: Object = {}
    for entry in managers:
        if (entry["manager"], entry["operation"]) == (FIELD_MANAGER, "Apply"):
            requested = entry["fieldsV1"]["f:spec"]
    for entry in managers:
        added = [f"spec{field}" for field in _additions(entry["fieldsV1"].get("f:spec", {}), requested)]
        if added:
            more = f" and {len(added) - MOST_SHOWN} more" if len(added) > MOST_SHOWN else ""
            fields = f"{', '.join(added[:MOST_SHOWN])}{more}"
            raise RequestError(
                f"the {title} exists already, and {entry['manager']} has added to it: {fields}", remedy=_REMADE
            )


def _additions(fields: Object, requested: Object) -> Iterator[str]:
    """Yield the paths of ``fields`` that are not ``requested``: trees as ``fieldsV1`` of a manager has them."""
    for key, below in fields.items():
        if key == ".":  # the mark of a list or an object that holds nothing yet
            continue
        kind, _, name = key.partition(":")
        place = f".{name}" if kind == "f" else f"[{name}]"
        if key not in requested:
            yield place
        else:
            yield from (f"{place}{rest}" for rest in _additions(below, requested[key]))


def follow(cluster: Cluster, name: str, manifest: Object, note: Callable[[str], None]) -> None:
    """Wait until a Job is complete or a Deployment answers, and note each change.

    Raises MeasurementError for what has failed, and for what keeps it waiting over ``SCHEDULED_WITHIN_S``.
    """
    kind = manifest["kind"]
    path = f"{cluster.path_of(manifest)}/{manifest['metadata']['name']}"
    shown = ""
    well_s = time.monotonic()
    while True:
        now = seen(cluster, name, kind, cluster.request("GET", path, patience_s=AWAY_AT_MOST_S))
        words = f"{now.state} {now.reason}".rstrip()
        fault = now.failure or now.hindrance
        now_s = time.monotonic()
        if words != shown and now.state != "failed":
            shown = words
            note(f"{kind} {now.name}: {words}")
        if now.state in ("complete", "ready"):
            return
        if fault is None:
            well_s = now_s
        elif now.state == "failed" or now_s - well_s > SCHEDULED_WITHIN_S:
            raise _failure(cluster, kind, now, fault)
        time.sleep(LOOKED_EVERY_S)


def _failure(cluster: Cluster, kind: str, now: JobState, fault: MeasurementError) -> MeasurementError:
    """Return why an object does not go on, with the end of its log."""
    output: deque[str] = deque(maxlen=SAID_LINES)
    if now.pod:
        try:
            output.extend(cluster.log_lines(now.pod, CONTAINERS[kind], SAID_WITHIN_S))
        except MeasurementError:  # a container that was never started has no log
            output.clear()
    fault = _reported(output) or fault
    return MeasurementError(
        f"{kind} {now.name}: {fault.message}",
        kind=fault.kind,
        output_tail="\n".join(output),
        remedy=_REMEDIES.get(fault.kind) or fault.remedy or _AGAIN,
    )


def _reported(output: Iterable[str]) -> MeasurementError | None:
    """Return the error that the worker reports in its log; None if there is none."""
    for line in output:
        with suppress(ValueError):
            event = parse_object(line)
            if event.get("event") == "error":
                remedy = f"{event['remedy']}; then {_AGAIN}" if event.get("remedy") else None
                return MeasurementError(str(event.get("message")), kind=str(event.get("kind")), remedy=remedy)
    return None


def ask(cluster: Cluster, pipeline: Pipeline, item: PipelineModel) -> str | None:
    """Ask the Service for one image through the API server; return why it cannot be asked from here.

    Raises MeasurementError if the answer is no image.
    """
    path = cluster.path("services", f"{pipeline.name}-serve:http", part="proxy/generate")
    try:
        names = {"dataset": item.dataset, "model": item.model}
        # The API server hands on the name under which it is asked itself; the service answers to its own alone.
        answer = cluster.request("POST", path, names, host=f"{pipeline.name}-serve")
    except AwayError as error:  # a network policy lets the request run out of time
        return error.message
    except ApiError as error:
        if error.status == INTERNAL_ERROR:  # the service's own word: it could make no image
            raise
        return error.message
    text = str(answer.get("text", ""))
    if text[1:4] != "PNG":
        raise MeasurementError(
            f"Service {pipeline.name}-serve: no image, but {(text or json.dumps(answer))[:300]}",
            remedy=f"kubectl logs deployment/{pipeline.name}-serve has the reason",
        )
    return None


def address_of(cluster: Cluster, name: str) -> str:
    return f"http://{name}-serve.{cluster.namespace}:{PORT}/generate"


def remove(cluster: Cluster, name: str, *, claim: bool) -> list[str]:
    """Remove the objects with the pipeline's labels, the claim only if requested; return their names."""
    *others, claims = KINDS.values()
    # A ReplicaSet that is there would make another pod; and a volume that is in use cannot be removed.
    created = ["apps/v1/replicasets", "v1/pods"]
    return remove_selected(cluster, labels_of(name), [*others, *created, *([claims] if claim else [])])
