"""The pod that a job runs in: what is sent to the server, as one pure function, and what admission has made of it.

Each setting keeps a difference away that would not be the pod's own: docs/guide/kubernetes.md names them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provisioning.engines.base import SLEEPER, TMPFS, ContainerSpec
from provisioning.kubernetes import own_pod
from provisioning.kubernetes.cluster import Object, labels
from suite.errors import MeasurementError, option

CONTAINER = "job"
USER = 65534
"""The number of the user and of its group: nobody's, as no job needs root."""
LIVES_AT_MOST_S = 24 * 3600
HOSTNAME_LABEL = "kubernetes.io/hostname"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (inside the pod)
MIB = 1 << 20
ANNOTATIONS = {
    # Another container in the pod, or an eviction for a better place, would be measured, too.
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}


UNPRIVILEGED: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""The security of a container whose work needs no privilege."""


def as_nobody(seccomp: str = "RuntimeDefault") -> Object:
    """Return the security of a pod that runs as nobody, under this profile of system calls."""
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}
    return {**user, "seccompProfile": {"type": seccomp}}


@dataclass(frozen=True)
class Placement:
    """The node that the pod is to run on, and its image."""

    node: str
    """The value of the node's label ``kubernetes.io/hostname``."""
    image: str
    """The image's name in the runtime of the node, or in a registry."""
    pulled: bool = False
    """Whether the node pulls the image where it does not have it."""
    runtime_class: str | None = None


def manifest(spec: ContainerSpec, placement: Placement) -> Object:
    """Return the pod of a container: guaranteed resources, the runtime's seccomp profile, and nothing of a cluster's.

    It is placed by its node selector: ``nodeName`` would go around the scheduler and its check of resources.
    """
    resources = {"cpu": str(spec.cpu_count), "memory": str(spec.memory_bytes)}
    volumes, mounts = _volumes(spec)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spec.name,
            "labels": labels(spec.name),
            "annotations": ANNOTATIONS,
            "ownerReferences": own_pod.owners(),
        },
        "spec": {
            "nodeSelector": {HOSTNAME_LABEL: placement.node},
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIVES_AT_MOST_S,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # No job asks for a name: those of the node, and nothing of the cluster's own service.
            "dnsPolicy": "Default",
            "hostNetwork": spec.network is not None,
            "hostPID": False,
            "hostIPC": False,
            "shareProcessNamespace": False,
            **({"runtimeClassName": placement.runtime_class} if placement.runtime_class else {}),
            "securityContext": as_nobody("RuntimeDefault" if spec.seccomp else "Unconfined"),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": placement.image,
                    "imagePullPolicy": "IfNotPresent" if placement.pulled else "Never",
                    "command": list(SLEEPER),
                    "resources": {"requests": resources, "limits": resources},
                    "securityContext": {"privileged": False, "readOnlyRootFilesystem": True, **UNPRIVILEGED},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _volumes(spec: ContainerSpec) -> tuple[list[Object], list[Object]]:
    """Return the volumes, and where they are mounted: room in memory where the other engines have it, and the data."""
    half = f"{(spec.memory_bytes or 0) // 2 // MIB}Mi"
    volumes: list[Object] = []
    mounts: list[Object] = []
    for place in (SHARED_MEMORY, *TMPFS):
        name = place.strip("/").replace("/", "-")
        volumes.append({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": half}})
        mounts.append({"name": name, "mountPath": place})
    if spec.data:
        directory, target, writable = spec.data
        volumes.append({"name": "data", "hostPath": {"path": directory, "type": "Directory"}})
        mounts.append({"name": "data", "mountPath": target, "readOnly": not writable})
    return volumes, mounts


def changes(sent: object, live: object, path: str = "") -> Iterator[str]:
    """Yield what admission has changed of what was sent, or added to its lists: ``spec.schedulerName: sent, live``.

    Fields that were not sent are the server's defaults, or its own affairs.
    """
    if isinstance(sent, Mapping) and isinstance(live, Mapping):
        for key, value in sent.items():
            yield from changes(value, live.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(sent, list) and isinstance(live, list):
        for number, value in enumerate(sent):
            yield from changes(value, live[number] if number < len(live) else None, f"{path}[{number}]")
        yield from (f"{path}: {_named(added)} was added" for added in live[len(sent) :])
    elif not _same(sent, live):
        yield f"{path}: {live!r} instead of {sent!r}"


def _named(value: object) -> str:
    return str(value.get("name", value)) if isinstance(value, Mapping) else str(value)


def _same(sent: object, live: object) -> bool:
    # What is off by default may be left out of the answer: ``hostNetwork: false``.
    return sent == live or (not sent and live is None) or _bytes(sent) == _bytes(live) != None  # noqa: E711


def _bytes(value: object) -> int | None:
    """Return a quantity of memory in bytes: the server writes ``1073741824`` as ``1Gi``."""
    units = {"Ki": 1 << 10, "Mi": MIB, "Gi": 1 << 30, "Ti": 1 << 40}
    text = str(value)
    number, unit = (text[:-2], units[text[-2:]]) if text[-2:] in units else (text, 1)
    return int(number) * unit if number.isdigit() else None


HARMLESS = ("metadata.annotations", "metadata.labels", "spec.tolerations")
"""What may be changed without any effect on what is measured."""


def changed(sent: Object, live: Object) -> list[str]:
    """Return what admission has changed of a pod."""
    return list(changes({key: sent[key] for key in ("metadata", "spec")}, live))


def refuse_unfair(sent: Object, live: Object) -> list[str]:
    """Return what admission has changed. Raises MeasurementError for a change after which nothing can be compared."""
    found = changed(sent, live)
    # The server mounts what it adds: a token of the service account, certificates.
    unfair = [each for each in found if not each.startswith(HARMLESS)]
    quality = live.get("status", {}).get("qosClass")
    if quality not in (None, "Guaranteed"):
        unfair.append(f"status.qosClass: {quality!r} instead of 'Guaranteed'")
    if unfair:
        raise MeasurementError(
            f"admission has changed the pod so that it is not comparable: {'; '.join(unfair)}",
            kind="admission",
            remedy=f"choose a {option('namespace')} without this LimitRange or webhook",
        )
    return found


def true_condition(live: Object, *names: str) -> Object | None:
    """Return the first of these conditions that is true of an object; None if none is."""
    conditions: list[Object] = live.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] in names and each["status"] == "True"), None)


def container_status(live: Object) -> Mapping[str, Any]:
    """Return the status of the job's container; empty before there is one."""
    found = live.get("status", {}).get("containerStatuses") or [{}]
    status: Mapping[str, Any] = found[0]
    return status
