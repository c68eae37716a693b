"""A namespace in memory that keeps objects as an API server does; tests play the controllers of its cluster."""

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.refusals import ApiError, away
from tests.provisioning.kubernetes.managed_fields import applied, demand_mutable, updated

JOB, DEPLOYMENT = "Job", "Deployment"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
NUMBERS = itertools.count()
DEFAULTS: dict[str, Object] = {
    "Service": {"type": "ClusterIP", "sessionAffinity": "None"},
    "Deployment": {"progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
    "Job": {"completions": 1, "parallelism": 1},
}


def defaulted(made: Object, live: Object | None) -> Object:
    """Return an object with its defaults and its address, which a server gives to every object that it stores."""
    made = copy.deepcopy(made)
    kept = {key: live["spec"][key] for key in ("clusterIP", "clusterIPs") if key in live["spec"]} if live else {}
    made["spec"] = spec = DEFAULTS.get(made["kind"], {}) | kept | made["spec"]
    if "template" in spec:
        pod = {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        spec["template"]["spec"] = pod | spec["template"].get("spec", {})
    return made


def created(manifest: Object) -> Object:
    """Return a new object with what a server gives to each one by itself."""
    made = defaulted(manifest, None)
    number, spec = str(next(NUMBERS)), made["spec"]
    if made["kind"] == "Service":
        spec |= {"clusterIP": f"10.0.0.{number}", "clusterIPs": [f"10.0.0.{number}"]}
    if made["kind"] == JOB:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": number}}
        own = dict.fromkeys(("controller-uid", "batch.kubernetes.io/controller-uid"), number)
        spec["template"]["metadata"]["labels"] |= {**own, "job-name": made["metadata"]["name"]}
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
        host: str = "",
    ) -> Object:
        if refused := [error for end, error in self.refusals.items() if path.endswith(end)]:
            raise refused[0]
        if path.endswith("selfsubjectaccessreviews"):
            asked = (body or {})["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        if path.endswith("proxy/generate"):
            self.asked.append({**(body or {}), "host": host})
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
        place = f"{path}/{body['metadata'].get('name')}" if method == "POST" else path
        live = self.objects.get(place)
        if method == "POST" and live:
            raise ApiError(f"{place} already exists", 409)
        stored = partial(defaulted, live=live) if live else created
        if method == "PATCH":
            made = stored(applied(live, body, str(query["fieldManager"]), f"{method} {place}"))
        else:
            made = updated(live, stored(body), str(query.get("fieldManager", "test")))
        if live:
            demand_mutable(live, made, f"{method} {place}")
        if "dryRun" in query:
            return made
        self.changes.append(f"{method} {place}")
        kind, metadata = made["kind"], {"uid": str(next(NUMBERS)), **made["metadata"]}
        self.objects[place] = made | {"metadata": metadata, "status": self.status.get(kind, {})}
        if kind in self.pod:
            template, name = made["spec"]["template"], f"{metadata['name']}-x"
            pod = {"metadata": {"name": name, **template["metadata"]}, "spec": {"nodeName": "n1"}}
            self.objects[self.path("pods", name)] = pod | {"status": self.pod[kind]}
        return self.objects[place]


def _has(labels: Mapping[str, str], wanted: list[tuple[str, str, str]]) -> bool:
    return all(label in labels and (not equal or labels[label] == value) for label, equal, value in wanted)
