"""A stand-in for Kueue and the Job controller, in the place of a genuine one: it needs a newer server than tests build.

It does what Kueue publishes of Jobs (https://kueue.sigs.k8s.io/docs/tasks/run/jobs, pkg/controller/jobs/job of its
source): the webhook suspends a Job that names a queue, without a look whether the queue is there; the controller
resumes it when there is quota, and suspends it again to preempt it. The Job controller removes the pod of a suspended
Job, which counts as no failure, and makes one for a resumed Job. The quota is a number of pods.
"""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from provisioning.kubernetes.cluster import Object
from tests.provisioning.kubernetes.namespace import Namespace

GROUP = "kueue.x-k8s.io"
VERSION = f"{GROUP}/v1beta2"
QUEUE_NAME = f"{GROUP}/queue-name"
PHASES = {"Pending": "Running", "Running": "Running"}


@dataclass(frozen=True)
class QueuedNamespace(Namespace):
    """A namespace with queues; every look at its Jobs is a turn of the controllers."""

    status: dict[str, Object] = field(default_factory=dict)
    queues: tuple[str, ...] = ("training",)
    quota: int = 1
    preempted: list[str] = field(default_factory=list)
    """The Jobs that are suspended once more as soon as they have begun, for one of a higher priority."""
    admitted: list[tuple[str, ...]] = field(default_factory=list)
    """The Jobs that had quota after each turn."""
    _pods: Iterator[int] = field(default_factory=itertools.count)
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def request(self, method: str, path: str, body: Object | None = None, **more: Any) -> Object:
        with self._turn:
            if path in self.refusals:
                raise self.refusals[path]
            if path == f"/apis/{GROUP}":
                return {"kind": "APIGroup", "preferredVersion": {"groupVersion": VERSION}}
            if path == self.path("localqueues", group=VERSION):
                return {"items": [{"metadata": {"name": name}} for name in self.queues]}
            of_jobs = path == self.path("jobs", group="batch/v1")
            if body and of_jobs:
                suspend = QUEUE_NAME in body["metadata"]["labels"]
                body = body | {"spec": body["spec"] | {"suspend": suspend}}
            if method == "GET" and of_jobs:
                self._admit()
            answer = super().request(method, path, body, **more)
            if method == "DELETE":
                self._remove_pods(answer)
            return answer

    def _admit(self) -> None:
        jobs = [made for made in self.objects.values() if made["kind"] == "Job"]
        waiting = [job for job in jobs if job["spec"]["suspend"]]
        for job in jobs:
            name = job["metadata"]["name"]
            if name in self.preempted and job not in waiting:
                self.preempted.remove(name)
                job["spec"]["suspend"] = True
        room = self.quota - sum(not job["spec"]["suspend"] for job in jobs)
        in_queues = [job for job in waiting if job["metadata"]["labels"][QUEUE_NAME] in self.queues]
        for job in in_queues[:room]:
            job["spec"]["suspend"] = False
        self.admitted.append(tuple(job["metadata"]["name"] for job in jobs if not job["spec"]["suspend"]))
        for job in jobs:
            self._control(job)

    def _control(self, job: Object) -> None:
        pods = self._pods_of(job)
        if job["spec"]["suspend"]:
            self._remove_pods(job)
            message = {"status": "True", "reason": "JobSuspended", "message": "Job suspended"}
        else:
            message = {"status": "False", "reason": "JobResumed", "message": "Job resumed"}
            if not pods:
                self._make_pod(job)
        job["status"] = {"conditions": [{"type": "Suspended", **message}]}
        for pod in pods:
            pod["status"]["phase"] = PHASES[pod["status"]["phase"]]

    def _make_pod(self, job: Object) -> None:
        number = next(self._pods)
        name = f"{job['metadata']['name']}-{number:05d}"
        metadata = {
            **job["spec"]["template"]["metadata"],
            "name": name,
            "uid": f"pod-{number}",
            "creationTimestamp": f"{number:05d}",
            "ownerReferences": [{"uid": job["metadata"]["uid"]}],
        }
        made = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
        self.objects[self.path("pods", name)] = made

    def _pods_of(self, job: Object) -> list[Object]:
        owner = {"uid": job["metadata"]["uid"]}
        return [made for made in self.objects.values() if owner in made["metadata"].get("ownerReferences", [])]

    def _remove_pods(self, job: Object) -> None:
        for pod in self._pods_of(job):
            del self.objects[self.path("pods", pod["metadata"]["name"])]
