"""Field management as an API server does it: who set which field, server-side apply, and its conflicts.

As structured-merge-diff has it (https://kubernetes.io/docs/reference/using-api/server-side-apply). An object is flat
here: its labels, annotations and specification as values by path, whose parts are those of ``fieldsV1``.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from provisioning.kubernetes.cluster import Object
from provisioning.kubernetes.refusals import ApiError, refusal

Path = tuple[str, ...]
Flat = dict[Path, Any]
KEYS = {
    "containers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("port", "containerPort", "protocol"),
}
"""The lists whose items have an identity, by its keys; every other list is one value."""
ONE_VALUE = {"f:selector", "f:podSelector", "f:nodeSelector"}
IMMUTABLE = {
    "Job": ("template", "selector"),
    "Deployment": ("selector",),
    "Service": ("clusterIP", "clusterIPs"),
}
"""The fields of a specification that no request changes."""


def flat(made: Object) -> Flat:
    """Return the managed fields of an object."""
    metadata = {key: made["metadata"][key] for key in ("labels", "annotations") if key in made["metadata"]}
    return dict(_fields({"metadata": metadata, "spec": made["spec"]}))


def _fields(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    name = path[-1] if path else ""
    if isinstance(value, Mapping) and value and name not in ONE_VALUE:
        for key, below in value.items():
            yield from _fields(below, (*path, f"f:{key}"))
    elif isinstance(value, list) and value and name[2:] in KEYS and all(isinstance(item, Mapping) for item in value):
        for item in value:
            identity = {key: item[key] for key in KEYS[name[2:]] if key in item}
            yield from _fields(item, (*path, f"k:{json.dumps(identity, sort_keys=True)}"))
    else:
        yield path, value


def nested(fields: Flat) -> Object:
    """Return the object of these fields."""
    tree: Object = {}
    for path, value in fields.items():
        at = tree
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = copy.deepcopy(value)
    return dict(_plain(tree))


def _plain(tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    if any(key.startswith("k:") for key in tree):
        return [_plain(item) for item in tree.values()]
    return {key.removeprefix("f:"): _plain(below) for key, below in tree.items()}


def updated(live: Object | None, wanted: Object, manager: str) -> Object:
    """Return an object as a request of this manager replaces it, or makes it."""
    before, after = flat(live) if live else {}, flat(wanted)
    gone = before.keys() - after.keys()
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    owned = owners(live)
    for paths in owned.values():
        paths -= gone | changed
    owned.setdefault((manager, "Update"), set()).update(changed)
    return with_owners(wanted, owned)


def applied(live: Object | None, manifest: Object, manager: str, request: str) -> Object:
    """Return an object as server-side apply without force leaves it. Raises ApiError for a conflict."""
    before, after = flat(live) if live else {}, flat(manifest)
    owned = owners(live)
    mine = owned.pop((manager, "Apply"), set())
    conflicts = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{other}" using v1', "field": _shown(path)}
        for path, value in after.items()
        for (other, _), paths in owned.items()
        if path in paths and before[path] != value
    ]
    if conflicts:
        count = f"{len(conflicts)} conflict{'s' * (len(conflicts) > 1)}"
        raise refused(request, 409, f"Apply failed with {count}: {conflicts[0]['message']}", conflicts)
    left = mine - after.keys() - set().union(*owned.values())
    parents = {path[:depth] for path in after for depth in range(len(path))}  # an empty list or object gets members
    kept = {path: value for path, value in before.items() if path not in left | parents | after.keys()}
    made = nested(after | kept)  # lists in the order of the manifest
    metadata = {**(live or manifest)["metadata"], **made["metadata"]}
    owned[manager, "Apply"] = {*after}
    return with_owners({**(live or {}), **manifest, "metadata": metadata, "spec": made["spec"]}, owned)


def demand_mutable(live: Object, wanted: Object, request: str) -> None:
    """Raise ApiError, as a server does, for a change of what cannot be changed."""
    for field in IMMUTABLE.get(live["kind"], ()):
        if live["spec"].get(field) != wanted["spec"].get(field):
            why = f"Invalid value: core.PodTemplateSpec{{{'x' * 4000}}}: field is immutable"
            cause = {"reason": "FieldValueInvalid", "message": why, "field": f"spec.{field}"}
            named = f'{live["kind"]} "{live["metadata"]["name"]}" is invalid'
            raise refused(request, 422, f"{named}: spec.{field}: {why}", [cause])


def refused(request: str, status: int, message: str, causes: list[Object]) -> ApiError:
    method, _, path = request.partition(" ")
    answer = {"kind": "Status", "status": "Failure", "message": message, "details": {"causes": causes}, "code": status}
    return refusal(method, path, status, json.dumps(answer))


def owners(live: Object | None) -> dict[tuple[str, str], set[Path]]:
    """Return the paths that each manager has set, by its name and its way of it."""
    entries = (live or {"metadata": {}})["metadata"].get("managedFields", ())
    return {(entry["manager"], entry["operation"]): {*_leaves(entry["fieldsV1"])} for entry in entries}


def with_owners(made: Object, owned: Mapping[tuple[str, str], set[Path]]) -> Object:
    entries = []
    for (manager, operation), paths in owned.items():
        tree: Object = {}
        for path in paths:
            at = tree
            for part in path:
                at = at.setdefault(part, {})
        if tree:
            entries.append({"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": tree})
    return {**made, "metadata": {**made["metadata"], "managedFields": entries}}


def _leaves(tree: Object, path: Path = ()) -> Iterator[Path]:
    for key, below in tree.items():
        if below:
            yield from _leaves(below, (*path, key))
        else:
            yield (*path, key)


def _shown(path: Path) -> str:
    return "".join(f".{part[2:]}" if part.startswith("f:") else f"[{part[2:]}]" for part in path)
