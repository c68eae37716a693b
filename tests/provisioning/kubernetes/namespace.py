"""A namespace in memory that keeps objects as an API server does; tests play the controllers of its cluster."""

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.refusals import ApiError, away

JOB, DEPLOYMENT = "Job", "Deployment"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
NUMBERS = itertools.count()
DEFAULTS: dict[str, Object] = {
    "Service": {"type": "ClusterIP", "sessionAffinity": "None"},
    "Deployment": {"progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
    "Job": {"completions": 1, "parallelism": 1},
}


def defaulted(manifest: Object, *, given: bool = True) -> Object:
    """Return an object as a server makes it: with defaults, and with what it gives to each one by itself."""
    made = copy.deepcopy(manifest)
    number, spec = str(next(NUMBERS)), made["spec"]
    spec |= DEFAULTS.get(made["kind"], {})
    if "template" in spec:
        spec["template"]["spec"] |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    if made["kind"] == "Service" and given:
        spec |= {"clusterIP": f"10.0.0.{number}", "clusterIPs": [f"10.0.0.{number}"]}
    if made["kind"] == JOB and given:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": number}}
        own = dict.fromkeys(("controller-uid", "batch.kubernetes.io/controller-uid"), number)
        spec["template"]["metadata"]["labels"] |= {**own, "job-name": made["metadata"].get("name", number)}
    return made


@dataclass(frozen=True)
class Namespace(Cluster):
    """What the controllers of a cluster do to an object is in ``status`` and ``pod``, by its kind."""

    kubeconfig: str = "config"
    context: str = "here"
    namespace: str = "lab"
    api: None = None
    objects: dict[str, Object] = field(default_factory=dict)
    status: dict[str, Object] = field(default_factory=lambda: {JOB: COMPLETE, DEPLOYMENT: {"readyReplicas": 1}})
    pod: dict[str, Object] = field(default_factory=dict)
    """The status of the pod that is made for an object of a kind."""
    denied: set[tuple[str, str]] = field(default_factory=set)
    resources: tuple[str, ...] = ("jobs", "cronjobs")
    """The kinds of batch/v1."""
    image: Object = field(default_factory=lambda: {"text": "\ufffdPNG\r\n"})
    asked: list[Object] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """Methods and paths of the requests that change something."""
    log: list[str] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    """After how many lines the log breaks off, once each."""
    happened: list[Object] = field(default_factory=list)
    refusals: dict[str, ApiError] = field(default_factory=dict)
    """What is answered in place of anything else, by the end of a path."""

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        patience_s: float = 0.0,  # noqa: ARG002
        within_s: float = 0.0,  # noqa: ARG002
        query: Mapping[str, object] = MappingProxyType({}),
    ) -> Object:
        if refused := [error for end, error in self.refusals.items() if path.endswith(end)]:
            raise refused[0]
        if path.endswith("selfsubjectaccessreviews"):
            asked = (body or {})["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        if path.endswith("proxy/generate"):
            self.asked.append(body or {})
            return self.image
        if path.endswith("/log"):
            text = "\n".join(self.log[-int(str(query["tailLines"])) :])
            return json.loads(text) if text.startswith("{") else {"text": text}
        if path == "/apis/batch/v1":
            return {"resources": [{"name": name} for name in self.resources]}
        if body:
            return self._change(method, path, body, query)
        if "labelSelector" in query:
            wanted = [pair.partition("=") for pair in str(query["labelSelector"]).split(",")]
            within = (each for place, each in self.objects.items() if place.rpartition("/")[0] == path)
            return {"items": [each for each in within if _has(each["metadata"]["labels"], wanted)]}
        if path.endswith("events"):
            return {"items": self.happened}
        if path not in self.objects:
            raise ApiError(f"{path} not found", 404)
        if method != "DELETE":
            return self.objects[path]
        assert query["propagationPolicy"] == "Background"
        self.changes.append(f"{method} {path}")
        return self.objects.pop(path)

    def log_lines(self, pod: str, container: str, within_s: float) -> Iterator[str]:
        assert container, "a pod with a sidecar has no log without a name"
        del pod, within_s
        ends = self.breaks.pop() if self.breaks else None
        yield from self.log[:ends]
        if ends is not None:
            raise away("test", "gone for a moment")

    def _change(self, method: str, path: str, body: Object, query: Mapping[str, object]) -> Object:
        body = defaulted(body)
        place = path if method == "PUT" else f"{path}/{body['metadata'].get('name')}"
        if "dryRun" in query:
            return body
        if method == "POST" and place in self.objects:
            raise ApiError(f"{place} already exists", 409)
        self.changes.append(f"{method} {place}")
        kind, metadata = body["kind"], {"uid": str(next(NUMBERS)), **body["metadata"]}
        self.objects[place] = body | {"metadata": metadata, "status": self.status.get(kind, {})}
        if kind in self.pod:
            template, name = body["spec"]["template"], f"{metadata['name']}-x"
            pod = {"metadata": {"name": name, **template["metadata"]}, "spec": {"nodeName": "n1"}}
            self.objects[self.path("pods", name)] = pod | {"status": self.pod[kind]}
        return self.objects[place]


def _has(labels: Mapping[str, str], wanted: list[tuple[str, str, str]]) -> bool:
    return all(label in labels and (not equal or labels[label] == value) for label, equal, value in wanted)
