"""The opening of a pod stage by stage, what admission has made of it, and of a service before it."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from provisioning import ledger
from provisioning.kubernetes import owned
from provisioning.kubernetes.cluster import OWNER, Cluster, Object, labels, quantity
from provisioning.kubernetes.refusals import cause_of, fault
from provisioning.kubernetes.states import PodState
from suite.errors import MeasurementError, option
from suite.interfaces import Stopwatch

OPENED_WITHIN_S = 180.0
SCHEDULED_WITHIN_S = 60.0
"""A pod that was just removed may hold its CPUs for a moment: the scheduler's first word is not its last."""
ACCEPTED = "accepted"
STAGES = ("scheduled", "sandbox", "image", "container", "first-instruction")
"""The stages that end by an event of the pod. The sandbox holds the volumes and the network, too: no older server
separates them. When one stage has ended so have those before it, even if their events were dropped."""
SCHEDULED, SANDBOX, IMAGE, CONTAINER, STARTED = range(1, 6)
ENDS = {
    "Scheduled": SCHEDULED,
    "Pulling": SANDBOX,
    "Pulled": IMAGE,
    "Created": CONTAINER,
    "Started": STARTED,
}
"""How many of the stages have ended by an event's reason."""
HARMLESS = ("metadata.annotations", "metadata.labels", "spec.tolerations")
"""What may be changed without any effect on what is measured."""
OF_SERVER = (
    *("spec.nodeName", "spec.serviceAccount", "spec.imagePullSecrets", "spec.tolerations", "spec.volumes["),
    *("spec.containers[0].terminationMessage", "spec.containers[0].volumeMounts["),
)
"""The beginnings of fields that a server fills in for every pod, or that decide only where it is placed."""
DEFAULTS = {
    "spec.schedulerName": "default-scheduler",
    "spec.preemptionPolicy": "PreemptLowerPriority",
    "spec.priority": 0,
    "spec.hostUsers": True,
}
DECIDING = ("initContainers", "ephemeralContainers", "runtimeClassName", "args", "lifecycle", "envFrom", "workingDir")
"""Fields that change what runs in a pod, or with it: a native sidecar is an init container that goes on."""
DECIDING_VARIABLES = ("LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "GLIBC_", "PYTHON", "CUDA_", "NCCL_", "TORCH")
"""The beginnings of variables that libraries of a training read."""
CLUSTER_IP = "ClusterIP"
NODE_PORT = "NodePort"
"""The types of services, which are the ways through them."""


@dataclass
class Opening:
    """The opening of one pod. Its times are those at which this machine was notified of the ends of stages."""

    cluster: Cluster
    pod: str
    stopwatch: Stopwatch
    ended: int = 0
    """How many of the stages have ended."""
    complaint: str = "no event says why"
    _heard: "queue.SimpleQueue[tuple[str, Object] | Exception]" = field(default_factory=queue.SimpleQueue)

    def open(self, manifest: Object) -> None:
        """Create the pod and return when its first process runs.

        Raises MeasurementError if it does not get that far.
        """
        for plural, name in (("pods", "metadata.name"), ("events", "involvedObject.name")):
            path = self.cluster.path(plural)
            selector = f"{name}={self.pod}"
            threading.Thread(
                target=self._listen,
                args=(plural, path, selector),
                daemon=True,
                name="watch",
            ).start()
        with self.stopwatch.running(ACCEPTED):
            live = self.cluster.create(manifest)
        refuse_unfair(manifest, live)
        deadline = time.monotonic() + OPENED_WITHIN_S
        for number, stage in enumerate(STAGES, start=1):
            with self.stopwatch.running(stage):
                self._until(number, deadline)

    def _listen(self, plural: str, path: str, selector: str) -> None:
        """Pass on the events of the server, until the pod is gone; called by a thread, which sleeps in the kernel."""
        try:
            for kind, live in self.cluster.events(path, OPENED_WITHIN_S, fieldSelector=selector):
                self._heard.put((plural, live))
                if kind == "DELETED" and plural == "pods":
                    return
        except Exception as error:  # noqa: BLE001 (raised where the pod is waited for)
            self._heard.put(error)

    def _until(self, stage: int, deadline: float) -> None:
        scheduled_by = time.monotonic() + SCHEDULED_WITHIN_S if stage == SCHEDULED else deadline
        while self.ended < stage:
            try:
                remaining_s = max(0.0, min(deadline, scheduled_by) - time.monotonic())
                heard = self._heard.get(timeout=remaining_s)
            except queue.Empty:
                late = f"the pod was not started within {OPENED_WITHIN_S:g} s: {self.complaint}"
                live = self.cluster.get(self.cluster.path("pods", self.pod))
                raise PodState.of(live).hindrance or fault("engine", late) from None
            if isinstance(heard, Exception):
                raise heard
            self._take(*heard)

    def _take(self, plural: str, live: Object) -> None:
        if plural == "events":
            if live.get("type") == "Warning":
                self.complaint = f"{live.get('reason')}: {live.get('message')}"
                cause = cause_of(self.complaint, lasting=True)
                if cause:
                    raise cause
            reason = str(live.get("reason"))
            self.ended = max(self.ended, ENDS.get(reason, 0))
            return
        now = PodState.of(live)
        if now.failure:
            raise now.failure
        placed = SCHEDULED if live["spec"].get("nodeName") else 0
        self.ended = max(self.ended, STARTED if now.state == "running" else placed)


def changes(sent: object, live: object, path: str = "") -> Iterator[str]:
    """Yield what admission has changed of what was sent, or added to its lists: ``spec.schedulerName: sent, live``.

    Fields that were not sent are ``additions``, the server's defaults, or its own affairs.
    """
    if isinstance(sent, Mapping) and isinstance(live, Mapping):
        for key, value in sent.items():
            yield from changes(value, live.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(sent, list) and isinstance(live, list):
        for number, value in enumerate(sent):
            yield from changes(value, live[number] if number < len(live) else None, f"{path}[{number}]")
        for added in live[len(sent) :]:
            yield f"{path}: {added.get('name', added) if isinstance(added, Mapping) else added} was added"
    elif not _same(sent, live):
        yield f"{path}: {live!r} instead of {sent!r}"


def _same(sent: object, live: object) -> bool:
    # What is off by default may be left out of the answer: ``hostNetwork: false``.
    if sent == live or (not sent and live is None):
        return True
    try:  # the server writes a quantity in its own way: ``1073741824`` as ``1Gi``
        return quantity(sent) == quantity(live)
    except ValueError:
        return False


def additions(sent: object, live: object, path: str = "spec") -> Iterator[tuple[str, object]]:
    """Yield the path and the value of each field that was not sent, and is none of the server's defaults."""
    if isinstance(sent, Mapping) and isinstance(live, Mapping):
        for key, value in live.items():
            below = f"{path}.{key}"
            if key in sent:
                yield from additions(sent[key], value, below)
            elif not _is_default(below, value):
                yield below, value
    elif isinstance(sent, list) and isinstance(live, list):
        pairs = zip(sent, live, strict=False)
        for number, (item, value) in enumerate(pairs):
            yield from additions(item, value, f"{path}[{number}]")


def _is_default(path: str, value: object) -> bool:
    """Return whether a server gives every pod this field."""
    if path.startswith(OF_SERVER) or value in (None, "", [], {}):
        return True
    return path in DEFAULTS and DEFAULTS[path] == value


def decides(path: str, value: object) -> bool:
    """Return whether an added field changes what runs in the pod, or what runs with it."""
    field = path.rpartition(".")[2]
    if field.endswith("Probe"):  # the kubelet's own requests cost the pod nothing
        return isinstance(value, Mapping) and "exec" in value
    if field == "env":
        return any(name.startswith(DECIDING_VARIABLES) for name in _names(value))
    return field in DECIDING


def _names(value: object) -> list[str]:
    """Return the names of the items of a list, such as containers and variables, whose values may be secret."""
    items = value if isinstance(value, list) else []
    return [str(item["name"]) for item in items if isinstance(item, Mapping) and "name" in item]


def _added(path: str, value: object) -> str:
    shown = ", ".join(_names(value))
    if not isinstance(value, Mapping | list):
        shown = repr(value)
    if shown:
        return f"{path}: {shown} was added"
    return f"{path} was added"


def changed(sent: Object, live: Object) -> list[str]:
    """Return what admission has changed of the pod that was sent, and what it has added."""
    added_items = additions(sent["spec"], live["spec"])
    added = (_added(*addition) for addition in added_items)
    return [*_changes_of_pod(sent, live), *added]


def _changes_of_pod(sent: Object, live: Object) -> Iterator[str]:
    return changes({key: sent[key] for key in ("metadata", "spec")}, live)


def refuse_unfair(sent: Object, live: Object) -> None:
    """Raise MeasurementError if admission has changed something after which nothing can be compared."""
    # The server mounts what it adds: a token of the service account, certificates.
    unfair = [line for line in _changes_of_pod(sent, live) if not line.startswith(HARMLESS)]
    for path, value in additions(sent["spec"], live["spec"]):
        if decides(path, value):
            unfair.append(_added(path, value))
    quality = live.get("status", {}).get("qosClass")
    expected = _quality_of(sent)
    if quality not in (None, expected):
        unfair.append(f"status.qosClass: {quality!r} instead of {expected!r}")
    if unfair:
        raise MeasurementError(
            f"admission has changed the pod so that it is not comparable: {'; '.join(unfair)}",
            kind="admission",
            remedy=f"choose a {option('namespace')} without this LimitRange or webhook",
        )


def _quality_of(sent: Object) -> str:
    """Return the class of quality of service that a server gives a pod of these requests and limits."""
    resources = [container["resources"] for container in sent["spec"].get("containers", ())]
    guaranteed = all(each["requests"] == each["limits"] for each in resources)
    if guaranteed:
        return "Guaranteed"
    return "Burstable"


def service_manifest(name: str, pod: str, port: int, way: str) -> Object:
    """Return the service that passes connections on to a port of the pod, which has the pod's name as its owner."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(name), "ownerReferences": owned.owners()},
        "spec": {
            "type": way,
            "selector": {OWNER: pod},
            "ports": [{"protocol": "TCP", "port": port, "targetPort": port}],
        },
    }


@contextmanager
def open_service(cluster: Cluster, pod: str, port: int, way: str) -> Iterator[tuple[str, int]]:
    """Create the service of a pod that runs. Yields the address and the port to which its clients connect.

    The node's way of passing on connections is set up a moment later.
    """
    name = ledger.fresh("virtbench")
    with ledger.holding("kubernetes", owned.entry(cluster, name, ("v1/services",))):
        live = cluster.create(service_manifest(name, pod, port, way))
        if way == CLUSTER_IP:
            yield str(live["spec"]["clusterIP"]), port
            return
        # The port of another node than the pod's would add a way between nodes.
        address = cluster.get(cluster.path("pods", pod))["status"].get("hostIP")
        if not address:
            raise MeasurementError(f"the server does not report the address of the node of {pod}", kind="kubernetes")
        yield str(address), int(live["spec"]["ports"][0]["nodePort"])
