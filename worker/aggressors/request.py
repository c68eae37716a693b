"""What the worker is asked to load the machine with: ``{"training": {...}}`` or ``{"probe": {...}}``."""

import json

from worker.probes.request import Request, parse_request
from worker.spec import Spec, SpecError, parse_spec

PROBES = ("disk", "memory", "network", "cpu")


def parse(text: str) -> Spec | Request:
    """Raises SpecError that names the key, its value and what would do."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"the specification is not JSON: {error}") from None
    if not isinstance(given, dict) or list(given) not in (["training"], ["probe"]):
        raise SpecError("the specification of an aggressor is an object with one key: training, or probe")
    if "training" in given:
        return _training(given["training"])
    request = parse_request(json.dumps(given["probe"]))
    if request.probe not in PROBES:
        raise SpecError(f"probe is {request.probe!r}; as an aggressor it can be {', '.join(PROBES)}")
    return request


def _training(given: object) -> Spec:
    spec = parse_spec(json.dumps(given))
    if spec.data or spec.cluster or spec.parallel == "ddp":
        raise SpecError("an aggressor trains on drawn data in one process: no data, no cluster, no ddp")
    return spec
