"""The manifests of a pipeline from claim to image: pure functions of the request.

A Job trains a generator and writes it to a volume; a Deployment mounts the volume read-only, loads the numbers without
running code, and answers on port 5000. Both run the image of the targets, as nobody, with what a pod can do without.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from provisioning.kubernetes.cluster import MANAGED, Object
from provisioning.kubernetes.pod import PodVolume, job_manifest, pod_template
from provisioning.nodes import IMAGE_PYTHON
from suite.job.profiles import Sizes
from suite.part import Part
from suite.registries import WORKLOADS

NAME = r"^[a-z]([-a-z0-9]{0,40}[a-z0-9])?$"
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
PORT = 5000
DATASET = "synthetic"
"""The images that it trains on are drawn."""
_MODEL, _PLACE = "/model", "/model/generator.pt"
INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
"""The labels with the name of the pipeline, and with ``train`` or ``serve``: the first is applied before the second."""
_FIRST_ANSWER_S, _PROBED_EVERY_S = 600, 5
"""How long loading may take, on a slow node."""


class Pipeline(Part):
    """A pipeline of one generator."""

    name: Annotated[str, Field(pattern=NAME)]
    """The beginning of all names, and the value of the label that all objects have."""
    image: Annotated[str, Field(pattern=r"^[\w.:/-]+@sha256:[0-9a-f]{64}$")]
    """The image of the targets in a registry, by its digest: a tag could be moved between training and service."""
    model: str
    sizes: Sizes
    seed: int
    cpus: Annotated[int, Field(gt=0)]
    memory_bytes: Annotated[int, Field(gt=0)]
    claim_bytes: Annotated[int, Field(gt=0)]
    access_mode: AccessMode
    storage_class: str | None = None
    """The class of the volume; None for the cluster's usual one."""

    @property
    def labels(self) -> dict[str, str]:
        return labels_of(self.name)


def labels_of(name: str) -> dict[str, str]:
    return {**MANAGED, INSTANCE: name}


def training(pipeline: Pipeline) -> list[Object]:
    """Return the claim, the network policy, and the Job that writes the model to the claim."""
    spec = {
        "workload": WORKLOADS.place(pipeline.model),
        **pipeline.sizes.model_dump(),
        **_common(pipeline),
        "recipe": "reference",
        "devices": 1,
        "parallel": "none",
    }
    claim_class = {"storageClassName": pipeline.storage_class} if pipeline.storage_class else {}
    claim = {
        "accessModes": [pipeline.access_mode],
        "resources": {"requests": {"storage": str(pipeline.claim_bytes)}},
        **claim_class,
    }
    name, labels = f"{pipeline.name}-train", {**pipeline.labels, COMPONENT: "train"}
    template = _pod(pipeline, "train", ["--train", json.dumps(spec)], read_only=False)
    return [
        _object(pipeline, "train", "v1", "PersistentVolumeClaim", "model", claim),
        _object(pipeline, "train", "networking.k8s.io/v1", "NetworkPolicy", "network", _policy(pipeline)),
        # The training is deterministic: one that fails twice would fail again.
        job_manifest(name, labels, template, retries=1),
    ]


def service(pipeline: Pipeline) -> list[Object]:
    """Return the Deployment that loads the model, and its Service."""
    spec = {
        "workload": WORKLOADS.place(pipeline.model),
        **pipeline.sizes.model_dump(include={"image_px"}),
        "channels": pipeline.sizes.channels or 3,
        **_common(pipeline),
        "dataset": DATASET,
        "model": pipeline.model,
        "address": "0.0.0.0",  # noqa: S104 (all addresses of the pod; the policy limits the clients)
        "port": PORT,
    }
    template = _pod(pipeline, "serve", ["--serve", json.dumps(spec)], read_only=True)
    (container,) = template["spec"]["containers"]
    health = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": _PROBED_EVERY_S}
    container |= {
        "ports": [{"name": "http", "containerPort": PORT}],
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
    ports = [{"name": "http", "port": PORT, "targetPort": PORT}]
    service = {"selector": deployment["selector"]["matchLabels"], "ports": ports}
    return [
        _object(pipeline, "serve", "v1", "Service", "serve", service),
        _object(pipeline, "serve", "apps/v1", "Deployment", "serve", deployment),
    ]


def _common(pipeline: Pipeline) -> Object:
    """Return the keys that the specifications of both programs have."""
    return {"threads": pipeline.cpus, "seed": pipeline.seed, "device": "cpu", "model_file": _PLACE}


def _pod(pipeline: Pipeline, part: str, words: Sequence[str], *, read_only: bool) -> Object:
    """Return the template of a pod that runs the worker."""
    interpreter, python_path = IMAGE_PYTHON
    variables = {"PYTHONPATH": python_path, "HOME": "/tmp", "OMP_NUM_THREADS": str(pipeline.cpus)}  # noqa: S108 (inside)
    claim = {"persistentVolumeClaim": {"claimName": f"{pipeline.name}-model", "readOnly": read_only}}
    return pod_template(
        {
            "name": part,
            "image": pipeline.image,
            "command": [interpreter, "-m", "worker", *words],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "securityContext": {"readOnlyRootFilesystem": True},
        },
        {"cpu": str(pipeline.cpus), "memory": str(pipeline.memory_bytes)},
        [PodVolume("model", claim, _MODEL, read_only=read_only), PodVolume("tmp", {"emptyDir": {}}, "/tmp")],  # noqa: S108 (inside)
        {**pipeline.labels, COMPONENT: part},
        restartPolicy="Never" if part == "train" else "Always",
    )


def _policy(pipeline: Pipeline) -> Object:
    """Return the policy: pods of the namespace may connect to the port of the service; nothing else is allowed."""
    ingress = {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": PORT}]}
    selector = {"matchLabels": pipeline.labels}
    return {"podSelector": selector, "policyTypes": ["Ingress", "Egress"], "ingress": [ingress], "egress": []}


def _object(pipeline: Pipeline, part: str, version: str, kind: str, name: str, spec: Object) -> Object:
    metadata = {"name": f"{pipeline.name}-{name}", "labels": {**pipeline.labels, COMPONENT: part}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
