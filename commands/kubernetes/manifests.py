"""The manifests of a pipeline from claim to image: pure functions of the request.

A Job for each generator trains it and writes it to a volume; a Deployment mounts the volume read-only, loads the
numbers without running code, and answers on port 5000. All run the image of the targets, as nobody, with what a pod can
do without. A data set is on a claim of the user's, which is mounted read-only.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from provisioning.kubernetes.cluster import MANAGED, Object
from provisioning.kubernetes.pod import PodVolume, job_manifest, pod_template
from provisioning.nodes import IMAGE_PYTHON
from suite.job.profiles import Sizes
from suite.part import Part
from suite.registries import DATA_KINDS, WORKLOADS

NAME = r"^[a-z]([-a-z0-9]{0,40}[a-z0-9])?$"
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
PORT = 5000
DATASET = "synthetic"
"""The name of the data set of generators that are trained on drawn images."""
_MODEL = "/model"
_DATA = "/data"
_NAMESPACE = "NAMESPACE"
"""The variable of the service's container with its namespace."""
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
"""The labels with the name of the pipeline, and with ``train`` or ``serve``: the first is applied before the second."""
_FIRST_ANSWER_S = 600
_PROBED_EVERY_S = 5
"""How long loading may take, on a slow node."""


class PipelineModel(Part):
    """A generator, and the data set that it is trained on."""

    model: str
    sizes: Sizes
    dataset: str = DATASET
    claim: str = ""
    """The claim of the user's that holds the data set; empty for drawn images."""
    directory: str = ""
    """The directory of the data set: the claim, and the path on it."""


class Pipeline(Part):
    """A pipeline of generators, each trained by a Job, and all of them served."""

    name: Annotated[str, Field(pattern=NAME)]
    """The beginning of all names, and the value of the label that all objects have."""
    image: Annotated[str, Field(pattern=r"^[\w.:/-]+@sha256:[0-9a-f]{64}$")]
    """The image of the targets in a registry, by its digest: a tag could be moved between training and service."""
    models: tuple[PipelineModel, ...]
    epochs: Annotated[int, Field(gt=0)] | None
    """The epochs of the data sets; None for the steps of the sizes."""
    deadline_s: Annotated[int, Field(gt=0)]
    """The time that each training may take."""
    seed: int
    cpus: Annotated[int, Field(gt=0)]
    memory_bytes: Annotated[int, Field(gt=0)]
    claim_bytes: Annotated[int, Field(gt=0)]
    access_mode: AccessMode
    storage_class: str | None = None
    """The class of the volume; None for the cluster's usual one."""


def labels_of(name: str, part: str = "") -> dict[str, str]:
    labels = {**MANAGED, INSTANCE: name}
    if part:
        labels[COMPONENT] = part
    return labels


def training(pipeline: Pipeline) -> list[Object]:
    """Return the claim, the network policy, and the Jobs that write the models to the claim."""
    claim_class = {"storageClassName": pipeline.storage_class} if pipeline.storage_class else {}
    claim = {
        "accessModes": [pipeline.access_mode],
        "resources": {"requests": {"storage": str(pipeline.claim_bytes)}},
        **claim_class,
    }
    # Pods of the namespace may connect to the port of the service; nothing else is allowed.
    ingress = {
        "from": [{"podSelector": {}}],
        "ports": [{"protocol": "TCP", "port": PORT}],
    }
    policy = {
        "podSelector": {"matchLabels": labels_of(pipeline.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [ingress],
        "egress": [],
    }
    return [
        _object(pipeline, "train", "v1", "PersistentVolumeClaim", "model", claim),
        _object(pipeline, "train", "networking.k8s.io/v1", "NetworkPolicy", "network", policy),
        *(_job(pipeline, item) for item in pipeline.models),
    ]


def _job(pipeline: Pipeline, item: PipelineModel) -> Object:
    spec: Object = {
        **item.sizes.model_dump(),
        **_generator(pipeline, item),
        "threads": pipeline.cpus,
        "device": "cpu",
        "recipe": "reference",
        "devices": 1,
        "parallel": "none",
    }
    volumes = []
    if item.claim:
        spec["data"] = {
            "kind": DATA_KINDS.place(item.dataset),
            "directory": f"{_DATA}/{item.directory}",
            "loader_workers": pipeline.cpus,
            "decoder": "auto",
            "crop": WORKLOADS.get(item.model).crop,
        }
        claim = {"persistentVolumeClaim": {"claimName": item.claim, "readOnly": True}}
        volumes.append(PodVolume("data", claim, f"{_DATA}/{item.claim}", read_only=True))
    if pipeline.epochs:
        spec["epochs"] = pipeline.epochs
        spec["steps"] = 0
        spec["warmup_steps"] = 0
        spec["within_s"] = pipeline.deadline_s
    template = _pod(pipeline, "train", ["--train", json.dumps(spec)], volumes)
    name = f"{pipeline.name}-train-{item.model}-{item.dataset}"
    if len(name) > 63:  # it becomes a label of the pods
        digest = hashlib.sha256(name.encode()).hexdigest()
        beginning = name[:54].rstrip("-")
        name = f"{beginning}-{digest[:8]}"
    # The training is deterministic: one that fails twice would fail again.
    labels = labels_of(pipeline.name, "train")
    return job_manifest(name, labels, template, retries=1, activeDeadlineSeconds=pipeline.deadline_s)


def service(pipeline: Pipeline) -> list[Object]:
    """Return the Deployment that loads the models, and its Service."""
    generators = []
    for item in pipeline.models:
        keys = _generator(pipeline, item)
        generators.append({**keys, "dataset": item.dataset, "model": item.model})
    first, *others = generators
    spec = {
        **first,
        "others": others,
        "threads": pipeline.cpus,
        "device": "cpu",
        "address": "0.0.0.0",  # noqa: S104 (all addresses of the pod; the policy limits the clients)
        "port": PORT,
        "names": _names(f"{pipeline.name}-serve"),
    }
    template = _pod(pipeline, "serve", ["--serve", json.dumps(spec)])
    (container,) = template["spec"]["containers"]
    own_namespace = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    container["env"].append({"name": _NAMESPACE, "valueFrom": own_namespace})
    health = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": _PROBED_EVERY_S}
    container |= {
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": {**health, "failureThreshold": _FIRST_ANSWER_S // _PROBED_EVERY_S},
        "readinessProbe": health,
        "livenessProbe": {**health, "periodSeconds": 30},
    }
    deployment: Object = {
        "replicas": 1,
        "selector": {"matchLabels": template["metadata"]["labels"]},
        # The volume of a ReadWriteOnce claim cannot be on the nodes of an old and a new pod at once.
        "strategy": {"type": "Recreate"},
        "template": template,
    }
    ports = [{"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}]
    service = {"selector": deployment["selector"]["matchLabels"], "ports": ports}
    return [
        _object(pipeline, "serve", "v1", "Service", "serve", service),
        _object(pipeline, "serve", "apps/v1", "Deployment", "serve", deployment),
    ]


def _names(service: str) -> list[str]:
    """Return the names of a Service in its cluster. The kubelet puts the namespace in."""
    qualified = f"{service}.$({_NAMESPACE})"
    return [service, qualified, f"{qualified}.svc", f"{qualified}.svc.cluster.local"]


def _generator(pipeline: Pipeline, item: PipelineModel) -> Object:
    """Return the keys of a generator that the specifications of both programs have."""
    return {
        "workload": WORKLOADS.place(item.model),
        "seed": pipeline.seed,
        "model_file": f"{_MODEL}/{item.model}-{item.dataset}.pt",
        "image_px": item.sizes.image_px,
        "channels": item.sizes.channels or 3,
    }


def _pod(pipeline: Pipeline, part: str, words: Sequence[str], volumes: Sequence[PodVolume] = ()) -> Object:
    (interpreter, python_path) = IMAGE_PYTHON
    read_only = part == "serve"
    variables = {
        "PYTHONPATH": python_path,
        "HOME": "/tmp",  # noqa: S108 (inside)
        "OMP_NUM_THREADS": str(pipeline.cpus),
    }
    claim = {"persistentVolumeClaim": {"claimName": f"{pipeline.name}-model", "readOnly": read_only}}
    model = PodVolume("model", claim, _MODEL, read_only=read_only)
    tmp = PodVolume("tmp", {"emptyDir": {}}, "/tmp")  # noqa: S108 (inside)
    return pod_template(
        {
            "name": part,
            "image": pipeline.image,
            "command": [interpreter, "-m", "worker", *words],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "securityContext": {"readOnlyRootFilesystem": True},
        },
        {"cpu": str(pipeline.cpus), "memory": str(pipeline.memory_bytes)},
        [model, tmp, *volumes],
        labels_of(pipeline.name, part),
        restartPolicy="Never" if part == "train" else "Always",
    )


def _object(pipeline: Pipeline, part: str, version: str, kind: str, name: str, spec: Object) -> Object:
    metadata = {"name": f"{pipeline.name}-{name}", "labels": labels_of(pipeline.name, part)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
