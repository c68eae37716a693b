"""Manifests for the server, as pure functions: the pod that is measured, and Jobs whose pods run with no rights.

Each setting of a measured pod removes a difference that is not the pod's own: docs/guide/kubernetes.md has the sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provisioning.engines.base import SLEEPER, TMPFS, ContainerSpec
from provisioning.engines.options import CLAIMED
from provisioning.kubernetes.cluster import Object, labels
from provisioning.kubernetes.owned import owners
from provisioning.kubernetes.states import DEFAULT_CONTAINER
from suite.job.envelope import MIB

CONTAINER = "job"
USER = 65534
"""The number of the user and of its group: nobody's, as no job needs root."""
LIVES_AT_MOST_S = 24 * 3600
HOSTNAME_LABEL = "kubernetes.io/hostname"
GPU_RESOURCE = "nvidia.com/gpu"
"""The resource of NVIDIA's device plugin, and the key of the taint of nodes that are kept for pods with GPUs."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (inside the pod)
ALONE = {
    # Another container in the pod, or an eviction for a better place, would be measured, too; a Job's pod with a
    # sidecar never ends.
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""The annotations of pods that run to their end."""
POD_FAILURES = {
    # A pod that the cluster takes away is made again; every other failure is final, or counts as a retry.
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
"""The policy of a Job whose pods may go; servers before 1.25 drop it, and kubectl refuses it there."""
UNPRIVILEGED: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""The security of a container whose work needs no privilege."""


def as_nobody(seccomp: str = "RuntimeDefault") -> Object:
    """Return the security of a pod that runs as nobody, under this profile of system calls."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": seccomp},
    }


@dataclass(frozen=True)
class Placement:
    """The node that the pod is to run on, and its image."""

    node: str
    """The value of the node's label ``kubernetes.io/hostname``."""
    image: str
    """The image's name in the runtime of the node, or in a registry."""
    pulled: bool = False
    """Whether the node pulls an image that it does not have."""
    runtime_class: str | None = None
    storage_class: str | None = None
    """The class of the claim that is written to; None for a directory of the node."""
    claim: str = ""
    """The claim that holds the data set to read, and the path on it; empty for a directory of the node."""
    claim_path: str = ""
    requests: float = 1.0
    """The share of its limits that the pod requests; all of them make it guaranteed."""


def manifest(spec: ContainerSpec, placement: Placement) -> Object:
    """Return the pod of a container: its resources, the runtime's seccomp profile, and nothing of a cluster's.

    It is placed by its node selector: ``nodeName`` would go around the scheduler and its check of resources.
    """
    memory = {"medium": "Memory", "sizeLimit": f"{spec.tmpfs_bytes // MIB}Mi"}
    paths = (SHARED_MEMORY, *TMPFS)
    volumes = [PodVolume(path.strip("/").replace("/", "-"), {"emptyDir": memory}, path) for path in paths]
    security = as_nobody("RuntimeDefault" if spec.seccomp else "Unconfined")
    if spec.data:
        volumes.append(_data_volume(spec, placement))
        if spec.data[2] and placement.storage_class:
            security["fsGroup"] = USER  # a claim's volume is root's until then
    limits = {"cpu": str(spec.cpu_count), "memory": str(spec.memory_bytes)}
    if spec.gpus:
        limits[GPU_RESOURCE] = str(spec.gpus)
    template = pod_template(
        {
            "name": CONTAINER,
            "image": placement.image,
            "imagePullPolicy": "IfNotPresent" if placement.pulled else "Never",
            "command": list(SLEEPER),
            "securityContext": {"privileged": False, "readOnlyRootFilesystem": True},
            "resources": {"requests": _requests(spec, placement, limits), "limits": limits},
        },
        limits,
        volumes,
        labels(spec.name),
        ALONE,
        nodeSelector={HOSTNAME_LABEL: placement.node},
        activeDeadlineSeconds=LIVES_AT_MOST_S,
        terminationGracePeriodSeconds=0,
        hostNetwork=spec.network is not None,
        hostPID=False,
        hostIPC=False,
        shareProcessNamespace=False,
        securityContext=security,
        **({"tolerations": [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]} if spec.gpus else {}),
        **({"runtimeClassName": placement.runtime_class} if placement.runtime_class else {}),
    )
    template["metadata"] |= {"name": spec.name, "ownerReferences": owners()}
    return {"apiVersion": "v1", "kind": "Pod", **template}


def _requests(spec: ContainerSpec, placement: Placement, limits: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the pod requests; GPUs have no smaller request than their limit."""
    if placement.requests == 1:
        return limits
    millicpus = round(1000 * spec.cpu_count * placement.requests)
    memory_bytes = round(spec.memory_bytes * placement.requests)
    return {**limits, "cpu": f"{max(1, millicpus)}m", "memory": str(memory_bytes)}


def _data_volume(spec: ContainerSpec, placement: Placement) -> "PodVolume":
    """Return the volume of the data: a directory of the node, or a claim."""
    assert spec.data  # noqa: S101 (see the caller)
    directory, target, writable = spec.data
    if placement.claim and not writable:
        claimed = {"persistentVolumeClaim": {"claimName": placement.claim, "readOnly": True}}
        return PodVolume("data", claimed, target, read_only=True, sub_path=placement.claim_path)
    source: Object = {"hostPath": {"path": directory, "type": "Directory"}}
    if writable and placement.storage_class:
        size = {"requests": {"storage": CLAIMED}}
        claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": placement.storage_class, "resources": size}
        source = {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
    return PodVolume("data", source, target, read_only=not writable)


@dataclass(frozen=True)
class PodVolume:
    """A volume, and where the container of its pod sees it."""

    name: str
    source: Object
    path: str
    read_only: bool = False
    sub_path: str = ""
    """The directory of the volume that is seen there; empty for the whole of it."""

    @property
    def mount(self) -> Object:
        below = {"subPath": self.sub_path} if self.sub_path else {}
        return {
            "name": self.name,
            "mountPath": self.path,
            "readOnly": self.read_only,
            **below,
        }


def pod_template(
    container: Object,
    resources: Mapping[str, str],
    volumes: Sequence[PodVolume],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    **settings: object,
) -> Object:
    """Return the template of a pod that runs as nobody, without privileges or rights in the cluster.

    ``settings`` are further fields of the pod; with ``serviceAccountName`` it gets the token of that account.
    """
    return {
        "metadata": {
            "labels": dict(labels),
            "annotations": {DEFAULT_CONTAINER: container["name"], **(annotations or {})},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": "serviceAccountName" in settings,
            "enableServiceLinks": False,
            # No job asks for a name: those of the node, and nothing of the cluster's own service.
            "dnsPolicy": "Default",
            # The volumes belong to the group, so that nobody can write to them.
            "securityContext": {**as_nobody(), "fsGroup": USER},
            "containers": [
                {
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"requests": resources, "limits": resources},
                    **container,
                    "securityContext": {**UNPRIVILEGED, **container.get("securityContext", {})},
                    "volumeMounts": [item.mount for item in volumes],
                }
            ],
            "volumes": [{"name": item.name, **item.source} for item in volumes],
            **settings,
        },
    }


def job_manifest(
    name: str, labels: Mapping[str, str], template: Object, *, retries: int = 0, **settings: object
) -> Object:
    """Return the Job that runs a pod of the template to its end. ``settings`` are further fields of the Job."""
    template = {**template, "metadata": {**template["metadata"]}}
    template["metadata"]["annotations"] = {**ALONE, **template["metadata"]["annotations"]}
    spec = {"backoffLimit": retries, "template": template, **settings}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": spec,
    }
