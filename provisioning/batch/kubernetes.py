"""The blocks of a sweep as Jobs of a Kubernetes cluster, each with a pod that runs bench.

The cluster is the only memory, as the queue is with Slurm: Jobs are found by a label that is made from the output
directory, and a block has one name, which the server gives to one Job at a time. So no block runs twice.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from provisioning.batch.options import KubernetesOptions
from provisioning.kubernetes import own_pod
from provisioning.kubernetes.cluster import AWAY_AT_MOST_S, MANAGED, Cluster, Object
from provisioning.kubernetes.faults import failure_of, unschedulable
from provisioning.kubernetes.owned import await_gone, not_found_is_fine
from provisioning.kubernetes.pod import (
    HOSTNAME_LABEL,
    UNPRIVILEGED,
    USER,
    as_nobody,
    container_status,
    true_condition,
)
from provisioning.kubernetes.refusals import ApiError, cause_of, refused_as_request
from suite.errors import MeasurementError, RequestError

SWEEP, BLOCK = "virtbench.dev/sweep", "virtbench.dev/block"
"""The labels by which Jobs and their pods are found."""
QUEUE = "kueue.x-k8s.io/queue-name"
CONTAINER = "bench"
GIVEN = "virtbench.dev/given"
"""The annotation with the files of a block, which its pod sees as a file: so a Job is one object, there or not."""
GIVEN_AT = "/given/lines"
RECORDS_AT = "/records"
MOST_GIVEN_BYTES = 250_000
"""The server takes 256 KiB of annotations."""
CLOSES_WITHIN_S = 120
GONE_WITHIN_S = CLOSES_WITHIN_S + 60.0
"""How long removed pods are waited for: the node may need a moment more than bench."""
KEPT_S = 7 * 24 * 3600
"""How long a Job that nobody has followed is kept, with its log."""
POD_FAILURES = {
    # A pod that the cluster takes away is made again; what bench itself refuses or fails at is decided here.
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
RIGHTS = {
    "jobs.batch": ("create", "get", "list", "delete"),
    "pods": ("list",),
    "pods/log": ("get",),
}
"""What the user who submits needs; the pods need what ``--engine kubernetes`` does."""
CONFLICT = 409
NO_POD = "no pod yet"


@dataclass(frozen=True)
class BlockJob:
    """One block in the cluster."""

    name: str
    block: int
    state: str
    """``waiting``, ``running``, ``complete`` or ``failed``."""
    reason: str
    """The scheduler's reason, the node, or why it failed."""
    pod: str | None
    """The newest pod that has begun; None before there is one."""
    hindrance: MeasurementError | None = None
    """What keeps its pod from beginning, as far as that is known."""

    @property
    def ended(self) -> bool:
        return self.state in ("complete", "failed")


def label_of(job_name: str) -> str:
    """Return the value of the label of a sweep whose jobs elsewhere would have this name: 63 characters at most."""
    name, _, hashed = job_name.rpartition("-")
    return f"{re.sub('[._]', '-', name)[:40].strip('-')}-{hashed}"


def manifest(options: KubernetesOptions, sweep: str, block: int, given: str, bench: Sequence[str]) -> Object:
    """Return the Job of a block.

    ``given`` are the files that it begins with, from ``file_transfer.packed``; ``bench`` is the command that runs a
    block, whose number is put behind it. Raises RequestError for more files than a Job holds.
    """
    labels = {**MANAGED, SWEEP: sweep, BLOCK: str(block)}
    queued = {QUEUE: options.queue} if options.queue else {}
    node_bench = ["--on-node", options.privileged_bench] if options.privileged_bench else []
    placed = template(options, labels, given, [*bench, *node_bench, str(block)])
    placed["spec"]["affinity"] = _affinity(options)
    if node_bench:
        _make_privileged(placed["spec"])
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{sweep}-{block:03d}",
            "labels": {**labels, **queued},
            # Made by the pod of a CronJob, it is removed with that pod.
            "ownerReferences": own_pod.owners(),
        },
        "spec": {
            "backoffLimit": 0,
            "podFailurePolicy": POD_FAILURES,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": placed,
        },
    }


def _make_privileged(pod: Object) -> None:
    """Let the pod enter the namespaces of its node's first process, as root, without a token of the cluster."""
    pod.update(hostPID=True, automountServiceAccountToken=False, securityContext={"runAsUser": 0})
    pod["containers"][0]["securityContext"] = {"privileged": True}


def _affinity(options: KubernetesOptions) -> Object:
    on_nodes = {"key": HOSTNAME_LABEL, "operator": "In", "values": list(options.nodes)}
    placed = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [on_nodes]}]}
    }
    # Two blocks on one node would measure each other.
    alone = {
        "labelSelector": {"matchExpressions": [{"key": SWEEP, "operator": "Exists"}]},
        "topologyKey": HOSTNAME_LABEL,
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}
    return affinity | ({"nodeAffinity": placed} if options.nodes else {})


def template(options: KubernetesOptions, labels: Mapping[str, str], given: str, command: Sequence[str]) -> Object:
    """Return a pod without rights of its own on the node; what it runs reaches the cluster through the API.

    ``given`` is the content of the file ``GIVEN_AT``. Raises RequestError if it is more than a pod holds.
    """
    if len(given.encode()) > MOST_GIVEN_BYTES:
        raise RequestError(
            f"the pod needs {len(given.encode())} bytes of files, and a Job takes {MOST_GIVEN_BYTES}",
            remedy="give [engine] a claim, on which the records of earlier tries stay",
        )
    # No CPU is asked for: whole CPUs are the measured pods', and bench waits while they run.
    memory = {"memory": options.memory}
    file = {"path": PurePosixPath(GIVEN_AT).name, "fieldRef": {"fieldPath": f"metadata.annotations['{GIVEN}']"}}
    records = {"persistentVolumeClaim": {"claimName": options.claim}} if options.claim else {"emptyDir": {}}
    pod = {
        "serviceAccountName": options.service_account,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": CLOSES_WITHIN_S,
        "enableServiceLinks": False,
        "dnsPolicy": "Default",
        "securityContext": {**as_nobody(), "fsGroup": USER},
        "containers": [
            {
                "name": CONTAINER,
                "image": options.image,
                "imagePullPolicy": "IfNotPresent",
                "command": list(command),
                "env": [
                    {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}}
                    for variable, field in own_pod.FIELDS.items()
                ],
                "resources": {"requests": memory, "limits": memory},
                "securityContext": UNPRIVILEGED,
                "volumeMounts": [
                    {"name": "given", "mountPath": str(PurePosixPath(GIVEN_AT).parent), "readOnly": True},
                    {"name": "records", "mountPath": RECORDS_AT},
                ],
            }
        ],
        "volumes": [{"name": "given", "downwardAPI": {"items": [file]}}, {"name": "records", **records}],
    }
    return {"metadata": {"labels": dict(labels), "annotations": {GIVEN: given}}, "spec": pod}


def submit(cluster: Cluster, job: Object, **query: object) -> bool:
    """Create the Job of a block; return False, and change nothing, if the block has one already.

    With ``dryRun="All"`` nothing is created. Raises RequestError for a Job that this cluster takes from nobody.
    """
    try:
        with refused_as_request():
            cluster.create(job, **query)
    except ApiError as error:
        if error.status == CONFLICT:
            return False
        raise
    return True


def jobs(cluster: Cluster, sweep: str, block: int | None = None) -> list[BlockJob]:
    """Return the Jobs of a sweep in the cluster, or of one block of it."""
    wanted = f"{SWEEP}={sweep}" + ("" if block is None else f",{BLOCK}={block}")
    found, pods = (cluster.listed(kind, wanted) for kind in ("batch/v1/jobs", "v1/pods"))
    told = [job_of(each, [pod for pod in pods if _is_of(pod, each)]) for each in found]
    return [_without_pod(cluster, job) if job.reason == NO_POD else job for job in told]


def _without_pod(cluster: Cluster, job: BlockJob) -> BlockJob:
    """Return the job with why its pod cannot be made (a quota, admission), where the user may see its events."""
    about = f"involvedObject.kind=Job,involvedObject.name={job.name},reason=FailedCreate"
    try:
        events = cluster.get(cluster.path("events"), fieldSelector=about)["items"]
    except ApiError:
        return job
    reason = str(events[-1]["message"]) if events else NO_POD
    return replace(job, reason=reason, hindrance=cause_of(reason))


def _is_of(pod: Object, job: Object) -> bool:
    return any(owner["uid"] == job["metadata"]["uid"] for owner in pod["metadata"].get("ownerReferences", []))


def job_of(job: Object, pods: Sequence[Object]) -> BlockJob:
    """Return what a Job and its pods say of a block."""
    about = {"name": job["metadata"]["name"], "block": int(job["metadata"]["labels"][BLOCK])}
    pod = max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
    status = pod["status"] if pod else {}
    begun = status.get("phase") in ("Running", "Succeeded", "Failed")
    name = pod["metadata"]["name"] if pod and begun else None
    why = (failure_of(pod) or unschedulable(pod)) if pod else None
    if ended := true_condition(job, "Complete", "Failed"):
        reason = why.message if why and ended["type"] == "Failed" else ended.get("message", "")
        return BlockJob(**about, state=ended["type"].lower(), reason=reason, pod=name)
    if begun and pod:
        return BlockJob(**about, state="running", reason=f"on {pod['spec']['nodeName']}", pod=name)
    waits = (container_status(pod).get("state") or {}).get("waiting", {}).get("reason") if pod else None
    return BlockJob(**about, state="waiting", reason=why.message if why else waits or NO_POD, pod=None, hindrance=why)


def remove(cluster: Cluster, name: str) -> None:
    """Remove a Job with its pod and the pods that it has opened; harmless if it is not there."""
    with not_found_is_fine():
        path = cluster.path("jobs", name, group="batch/v1")
        cluster.request("DELETE", path, patience_s=AWAY_AT_MOST_S, query={"propagationPolicy": "Background"})


def remove_all(cluster: Cluster, sweep: str, removed: Sequence[BlockJob]) -> None:
    """Remove Jobs of a sweep, and wait until their pods are gone, with those that these have opened.

    Raises MeasurementError if some are still there after ``GONE_WITHIN_S``.
    """
    blocks, owners = {str(job.block) for job in removed}, set()
    managed = ",".join(f"{label}={value}" for label, value in MANAGED.items())
    for job in removed:
        owners |= {pod["metadata"]["uid"] for pod in cluster.listed("v1/pods", f"{SWEEP}={sweep},{BLOCK}={job.block}")}
        remove(cluster, job.name)

    def left() -> Iterator[str]:
        for pod in cluster.listed("v1/pods", managed):
            about = pod["metadata"]
            if about["labels"].get(SWEEP) == sweep and about["labels"].get(BLOCK) in blocks:
                owners.add(about["uid"])
                yield about["name"]
            elif owners.intersection(owner["uid"] for owner in about.get("ownerReferences", [])):
                yield about["name"]

    await_gone(cluster, "pods", lambda: list(left()), GONE_WITHIN_S)
