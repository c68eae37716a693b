"""What the worker is asked to load the machine with: ``{"training": {...}}`` or ``{"aggressor": {...}}``."""

import json

from worker.errors import SpecError
from worker.probes.request import Request, parse_request
from worker.spec import Spec, parse_spec


def parse(text: str) -> Spec | Request:
    """Return what is asked for. Raises SpecError that names the key, its value and what would do."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"the specification is not JSON: {error}") from None
    if not isinstance(given, dict) or list(given) not in (["training"], ["aggressor"]):
        raise SpecError("the specification of an aggressor is an object with one key: training, or aggressor")
    if "aggressor" in given:
        return parse_request(json.dumps(given["aggressor"]))
    spec = parse_spec(json.dumps(given["training"]))
    if spec.data or spec.cluster or spec.parallel == "ddp":
        raise SpecError("an aggressor trains on drawn data in one process: no data, no cluster, no ddp")
    return spec
