"""Jobs, and what holds them whole, from the few values that a test chooses."""

import hashlib
from collections.abc import Mapping
from typing import Any

from suite.job.job import Devices, Job, Layers
from suite.plan import Plan

_OWN = {*Job.model_fields} - {"layers", "devices"}
_LAYERS, _DEVICES = {*Layers.model_fields}, {*Devices.model_fields}
_USUAL = {"scenario": "synthetic", "model": "resnet50", "data": "synthetic", "profile": "smoke"}


def identity(name: str) -> str:
    """Return the identity of a run that tests call so."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def in_job(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with those of a job, of its layers and of its devices put together under ``job``."""
    rest = {name: value for name, value in values.items() if name not in _OWN | _LAYERS | _DEVICES}
    own = {name: value for name, value in values.items() if name in _OWN}
    parts = [{name: values[name] for name in names if name in values} for names in (_LAYERS, _DEVICES)]
    unit = {"unit": "images"} if values.get("sizes") else {}
    return {**rest, "job": Job.model_validate({**_USUAL, **unit, **own, "layers": parts[0], "devices": parts[1]})}


def plan_of(**values: Any) -> Plan:
    """Make a plan of a job for each of ``models``; ``sizes`` are by model, or one for all."""
    models, sizes = values.pop("models", ("resnet50",)), values.pop("sizes", None)
    rest = in_job({**values, "model": models[0]})
    job: Job = rest.pop("job")
    each = sizes if isinstance(sizes, Mapping) else dict.fromkeys(models, sizes)
    units = {model: "images" if each.get(model) else None for model in models}
    jobs = tuple(
        job.model_copy(update={"model": model, "sizes": each.get(model), "unit": units[model]}) for model in models
    )
    usual = {"targets": ("bare-metal",), "trial_timeout_s": 60, "run_id": identity("run")}
    return Plan(jobs=jobs, **{**usual, **rest})
