"""The opening of a pod, stage by stage as the server tells of it."""

import queue
import threading
import time
from dataclasses import dataclass, field

from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.faults import failure_of, fault, unschedulable
from provisioning.kubernetes.pod import container_status, refuse_unfair
from provisioning.kubernetes.refusals import cause_of
from suite.interfaces import Stopwatch

OPENED_WITHIN_S = 180.0
SCHEDULED_WITHIN_S = 60.0
"""A pod that was just removed may hold its CPUs for a moment: the scheduler's first word is not its last."""
ACCEPTED = "accepted"
STAGES = ("scheduled", "sandbox", "image", "container", "first-instruction")
"""The stages that end by an event of the pod. The sandbox holds the volumes and the network, too: no older server tells
them apart. When one stage has ended so have those before it, even if their events were dropped."""
SCHEDULED, SANDBOX, IMAGE, CONTAINER, STARTED = range(1, 6)
ENDS = {"Scheduled": SCHEDULED, "Pulling": SANDBOX, "Pulled": IMAGE, "Created": CONTAINER, "Started": STARTED}
"""How many of the stages have ended by an event's reason."""


@dataclass
class Opening:
    """The opening of one pod. Its times are those at which this machine has heard of the ends of stages."""

    cluster: Cluster
    pod: str
    stopwatch: Stopwatch
    ended: int = 0
    """How many of the stages have ended."""
    complaint: str = "nothing was said of it"
    _heard: "queue.SimpleQueue[tuple[str, Object] | Exception]" = field(default_factory=queue.SimpleQueue)

    def open(self, manifest: Object) -> None:
        """Create the pod and return when its first process runs.

        Raises MeasurementError where it does not come so far.
        """
        for plural, name in (("pods", "metadata.name"), ("events", "involvedObject.name")):
            path, selector = self.cluster.path(plural), f"{name}={self.pod}"
            threading.Thread(target=self._listen, args=(plural, path, selector), daemon=True, name="watch").start()
        with self.stopwatch.running(ACCEPTED):
            live = self.cluster.create(manifest)
        refuse_unfair(manifest, live)
        deadline = time.monotonic() + OPENED_WITHIN_S
        for number, stage in enumerate(STAGES, start=1):
            with self.stopwatch.running(stage):
                self._until(number, deadline)

    def _listen(self, plural: str, path: str, selector: str) -> None:
        """Pass on what the server tells, until the pod is gone; called by a thread, which sleeps in the kernel."""
        try:
            for kind, found in self.cluster.events(path, OPENED_WITHIN_S, fieldSelector=selector):
                self._heard.put((plural, found))
                if kind == "DELETED" and plural == "pods":
                    return
        except Exception as error:  # noqa: BLE001 (raised where the pod is waited for)
            self._heard.put(error)

    def _until(self, stage: int, deadline: float) -> None:
        scheduled_by = time.monotonic() + SCHEDULED_WITHIN_S if stage == SCHEDULED else deadline
        while self.ended < stage:
            try:
                heard = self._heard.get(timeout=max(0.0, min(deadline, scheduled_by) - time.monotonic()))
            except queue.Empty:
                late = f"the pod was not started within {OPENED_WITHIN_S:g} s: {self.complaint}"
                raise unschedulable(self._now()) or fault("engine", late) from None
            if isinstance(heard, Exception):
                raise heard
            self._take(*heard)

    def _take(self, plural: str, found: Object) -> None:
        if plural == "events":
            if found.get("type") == "Warning":
                self.complaint = f"{found.get('reason')}: {found.get('message')}"
                if cause := cause_of(self.complaint):
                    raise cause
            self.ended = max(self.ended, ENDS.get(str(found.get("reason")), 0))
            return
        if failure := failure_of(found):
            raise failure
        running = (container_status(found).get("state") or {}).get("running")
        self.ended = max(self.ended, STARTED if running else SCHEDULED if found["spec"].get("nodeName") else 0)

    def _now(self) -> Object:
        return self.cluster.get(self.cluster.path("pods", self.pod))
