"""A namespace in memory that keeps objects as an API server does; tests play the controllers of its cluster."""

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any

from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.refusals import ApiError, AwayError

JOB, DEPLOYMENT = "Job", "Deployment"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
NUMBERS = itertools.count()
KEYS = {"containers": ("name",), "volumes": ("name",), "env": ("name",), "volumeMounts": ("mountPath",)}
"""The lists whose elements have a key, by which the server merges them; all others are replaced as a whole."""
SERVER = ("before-first-apply", "Update")
Fields = dict[tuple[str, ...], Any]
"""The values of an object by their places, which are written as the server lists the fields of a manager."""
DEFAULTS: dict[str, Object] = {
    "Service": {"type": "ClusterIP", "sessionAffinity": "None"},
    "Deployment": {"progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
    "Job": {"completions": 1, "parallelism": 1},
}


def defaulted(manifest: Object) -> Object:
    """Return an object as a server makes it: with defaults, and with what it gives to each one by itself."""
    made = copy.deepcopy(manifest)
    number, spec = str(next(NUMBERS)), made["spec"]
    spec.update({**DEFAULTS.get(made["kind"], {}), **spec})
    if "template" in spec:
        spec["template"]["spec"] |= {"schedulerName": "default-scheduler"}
    if made["kind"] == "Service":
        spec |= {"clusterIP": f"10.0.0.{number}", "clusterIPs": [f"10.0.0.{number}"]}
    if made["kind"] == JOB:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": number}}
        spec["template"]["metadata"]["labels"] |= {"controller-uid": number, "job-name": made["metadata"]["name"]}
    return made


def fields_of(value: object, place: tuple[str, ...] = ()) -> Fields:
    parts: dict[str, object] = {}
    key = KEYS.get(place[-1][2:]) if place else None
    if isinstance(value, dict):
        parts = {f"f:{name}": part for name, part in value.items()}
    elif isinstance(value, list) and key:
        parts = {f"k:{json.dumps({name: part.get(name) for name in key})}": part for part in value}
    below = (fields_of(part, (*place, name)) for name, part in parts.items())
    return dict(chain.from_iterable(fields.items() for fields in below)) if parts else {place: value}


def object_of(fields: Mapping[tuple[str, ...], Any], *, listed: bool = False) -> Any:
    """Return the object with these values; ``listed``: as the server lists fields, whose lists are objects."""
    if () in fields:
        return fields[()]
    parts: dict[str, Fields] = {}
    for (first, *rest), value in fields.items():
        parts.setdefault(first, {})[tuple(rest)] = value
    made = {name if listed else name[2:]: object_of(part, listed=listed) for name, part in parts.items()}
    return [*made.values()] if not listed and next(iter(parts)).startswith("k:") else made


def places(listed: Object, place: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    return {below for name, part in listed.items() for below in places(part, (*place, name))} if listed else {place}


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
        if body and method == "PATCH":
            return self._apply(path, body, query)
        if body:
            return self._change(method, path, body)
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
            raise AwayError("test", "gone for a moment")

    def _change(self, method: str, path: str, body: Object) -> Object:
        """Create or replace an object, whose client becomes the manager of each field that it changes."""
        place = path if method == "PUT" else f"{path}/{body['metadata'].get('name')}"
        if method == "POST" and place in self.objects:
            raise ApiError(f"{place} already exists", 409)
        body = copy.deepcopy(body) if method == "PUT" else defaulted(body)
        before = _applicable(self.objects.get(place, {}))
        changed = {at for at, value in _applicable(body).items() if before.get(at, NUMBERS) != value}
        kept = self.objects.get(place, {}).get("metadata", {}).get("managedFields", [])
        managers = {manager: had - changed for manager, had in _managers(body, kept).items()}
        return self._keep(method, place, body, {**managers, ("client", "Update"): changed})

    def _apply(self, place: str, body: Object, query: Mapping[str, object]) -> Object:
        """Apply a manifest as a server does, whose answer is all that comes of it with ``dryRun``."""
        live, given = self.objects.get(place), _applicable(body)
        made = copy.deepcopy(live) if live else defaulted(body)
        own, there = (str(query["fieldManager"]), "Apply"), _applicable(made)
        managers = _managers(made, [])
        if live and not managers:
            managers[SERVER] = {*there}
        had = managers.pop(own, set())
        for manager, fields in managers.items():
            taken = {at for at in fields if any(_holds(at, other) and there[at] != given[other] for other in given)}
            if taken and query.get("force") != "true":
                raise ApiError(f"Apply failed with {len(taken)} conflicts with {manager[0]}", 409)
            managers[manager] = fields - taken
        others = {*chain(*managers.values())}
        left = {at: value for at, value in there.items() if at in others or at not in had | {*given}}
        left = {at: value for at, value in left.items() if not any(_holds(at, other) for other in given)}
        made.update(object_of({**left, **given}))
        if live and live["kind"] == JOB and made["spec"]["template"] != live["spec"].get("template"):
            raise ApiError(f'the server rejects it: Job "{place}": field is immutable', 422, kind="invalid")
        managers[own] = {*given}
        made["metadata"] = {**(live or body)["metadata"], **made["metadata"]}
        if "dryRun" in query:
            return made | {"metadata": {**made["metadata"], "managedFields": _listed(managers)}}
        return self._keep("PATCH", place, made, managers)

    def _keep(self, method: str, place: str, body: Object, managers: "Managers") -> Object:
        self.changes.append(f"{method} {place}")
        kind = body["kind"]
        metadata = {"uid": str(next(NUMBERS)), **body["metadata"], "managedFields": _listed(managers)}
        self.objects[place] = {"status": self.status.get(kind, {}), **body, "metadata": metadata}
        if kind in self.pod:
            template, name = body["spec"]["template"], f"{metadata['name']}-x"
            pod = {"metadata": {"name": name, **template["metadata"]}, "spec": {"nodeName": "n1"}}
            self.objects[self.path("pods", name)] = pod | {"status": self.pod[kind]}
        return self.objects[place]


Managers = dict[tuple[str, str], set[tuple[str, ...]]]


def _applicable(live: Object) -> Fields:
    """Return the fields of an object that clients manage."""
    metadata = {name: live.get("metadata", {}).get(name, {}) for name in ("labels", "annotations")}
    return fields_of({"metadata": metadata, "spec": live.get("spec", {})})


def _managers(live: Object, kept: list[Object]) -> Managers:
    entries = live["metadata"].get("managedFields", kept)
    return {(entry["manager"], entry["operation"]): places(entry["fieldsV1"]) for entry in entries}


def _listed(managers: Managers) -> list[Object]:
    return [
        {"manager": name, "operation": by, "fieldsV1": object_of({place: {} for place in fields}, listed=True)}
        for (name, by), fields in managers.items()
        if fields
    ]


def _holds(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Return whether two places are one, or one is inside of the other."""
    least = min(len(first), len(second))
    return first[:least] == second[:least]


def _has(labels: Mapping[str, str], wanted: list[tuple[str, str, str]]) -> bool:
    return all(label in labels and (not equal or labels[label] == value) for label, equal, value in wanted)
