"""Checks of manifests against Kubernetes' own schemas: that of 1.20, and today's as the official client has it.

``samples/kubernetes-1.20.json`` holds the definitions of the objects in ``KINDS`` and what they refer to, without their
descriptions, from ``api/openapi-spec/swagger.json`` of the source that ``tests.kubernetes_cluster`` builds.
``python -m tests.kubernetes_schema SWAGGER`` writes it again.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes

PUBLISHED = Path(__file__).parent / "samples/kubernetes-1.20.json"
API = "io.k8s.api."
KINDS = (
    *("batch.v1.Job", "batch.v1beta1.CronJob", "apps.v1.Deployment", "networking.v1.NetworkPolicy", "core.v1.Pod"),
    *("rbac.v1.ClusterRole", "rbac.v1.ClusterRoleBinding", "rbac.v1.Role", "rbac.v1.RoleBinding", "core.v1.Service"),
    *("core.v1.ConfigMap", "core.v1.Namespace", "core.v1.PersistentVolumeClaim", "core.v1.ServiceAccount"),
)
NEWER = {"podFailurePolicy", "timeZone"}
"""What 1.20 does not know, drops without a word, and is sent all the same for newer servers."""
TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "number": float}


def invalid(manifest: dict[str, Any]) -> list[str]:
    """Return what is wrong with a manifest by either schema: an unknown field, a wrong type, a missing field."""
    definitions = json.loads(PUBLISHED.read_text())
    found: list[str] = []
    group, _, version = manifest["apiVersion"].rpartition("/")
    named = f"{group.partition('.')[0] or 'core'}.{version}.{manifest['kind']}"
    if named in KINDS:  # 1.20 has no CronJob of v1
        found += _wrong(manifest, {"$ref": f"#/definitions/{API}{named}"}, definitions, manifest["kind"])
    if manifest["apiVersion"] != "batch/v1beta1":  # today's servers have v1 alone
        found += _unknown_today(manifest)
    return found


def _wrong(value: Any, schema: dict[str, Any], definitions: dict[str, Any], place: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    kind = schema.get("type")
    if schema.get("format") == "int-or-string":
        kind = "integer" if isinstance(value, int) else "string"
    if kind and (not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{place}: {value!r} is no {kind}"
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _wrong(each, schema["items"], definitions, f"{place}[{number}]")
    elif isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{place}.{key} is missing" for key in schema.get("required", ()) if key not in value)
        for key, each in value.items():
            below = known.get(key, rest)
            if below is not None:
                yield from _wrong(each, below, definitions, f"{place}.{key}")
            elif key not in NEWER:
                yield f"{place}.{key} is unknown to 1.20"


def _unknown_today(manifest: dict[str, Any]) -> list[str]:
    """Return the fields that the official client does not take; it refuses wrong types itself."""
    version = manifest["apiVersion"].rpartition("/")[2]
    model = getattr(kubernetes.client, f"{version.capitalize()}{manifest['kind']}")
    api: Any = kubernetes.client.ApiClient()
    taken = api.sanitize_for_serialization(model.from_dict(manifest))
    return [f"{place} is unknown today" for place in _lost(manifest, taken, manifest["kind"])]


def _lost(sent: Any, taken: Any, place: str) -> Iterator[str]:
    if isinstance(sent, dict) and isinstance(taken, dict):
        for key, value in sent.items():
            if key not in taken:
                yield f"{place}.{key}"
            else:
                yield from _lost(value, taken[key], f"{place}.{key}")
    elif isinstance(sent, list) and isinstance(taken, list):
        for number, (one, other) in enumerate(zip(sent, taken, strict=True)):
            yield from _lost(one, other, f"{place}[{number}]")


def reduced(swagger: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions of ``KINDS``, and of all that these refer to, without descriptions."""
    found: dict[str, Any] = {}
    left = [f"{API}{name}" for name in KINDS]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = _plain(swagger["definitions"][name])
            left += re.findall('#/definitions/([^"]+)"', json.dumps(found[name]))
    return dict(sorted(found.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        texts = [key for key, each in value.items() if key == "description" and isinstance(each, str)]
        return {key: _plain(each) for key, each in value.items() if key not in texts and not key.startswith("x-")}
    return [_plain(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    found = reduced(json.loads(Path(sys.argv[1]).read_text()))
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    PUBLISHED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
