"""The keys of a specification that name a registry's member: its place, and its source if the image lacks it."""

import hashlib
import json
from importlib import import_module
from pathlib import Path

from suite.errors import MeasurementError, RequestError
from suite.interfaces import Node
from suite.plan import Trial
from suite.registry import Registry


def source_sha256(registry: Registry, name: str) -> str | None:
    """Return the digest of the module that declares another package's member; None for one of the suite's own.

    Raises RequestError for a name that is unknown, or a module that has no text.
    """
    return None if name in registry.own else hashlib.sha256(_source(registry, name)).hexdigest()


def member_keys(registry: Registry, name: str, key: str, planned: str | None = None) -> dict[str, object]:
    """Return the keys of a specification that name a member: ``key`` with its place, and ``plugin`` where needed.

    The image holds the suite's own members. Of another package's member, the module travels as text. Raises
    RequestError for a name that is unknown, or a module that has no text, and MeasurementError where the digest of the
    text is not the ``planned`` one.
    """
    place = registry.place(name)
    if name in registry.own:
        return {key: place}
    content, module = _source(registry, name), place.partition(":")[0]
    digest = hashlib.sha256(content).hexdigest()
    if planned not in (None, digest):
        raise MeasurementError(
            f"the {registry.what} {name!r} in {module} is not the one that was planned: its source has changed",
            kind="plan",
            remedy="a changed source is another job: run it again with another --out",
        )
    return {key: place, "plugin": {"module": module, "source": content.decode(), "sha256": digest}}


def turns_key(trial: Trial) -> dict[str, object]:
    """Return the key of a specification that says how the job takes turns; none where it does not."""
    turns = trial.job.turns
    return {"turns": turns.model_dump(include={"rounds", "burst_steps"})} if turns else {}


def member_request(registry: Registry, trial: Trial, node: Node, fio_job: str | None = None) -> bytes:
    """Return what the worker reads from its standard input, to run a probe or an aggressor of ``registry``."""
    asked = {
        **member_keys(registry, trial.job.model, "member", trial.job.workload_sha256),
        "threads": trial.job.envelope.threads,
        "size": trial.job.profile,
        "device": trial.job.devices.device,
        "directory": node.data,
        "job": fio_job,
        **turns_key(trial),
    }
    return json.dumps(asked).encode()


def _source(registry: Registry, name: str) -> bytes:
    registry.get(name)  # a module that cannot be imported here is told as that
    module = registry.place(name).partition(":")[0]
    path = import_module(module).__file__
    if path is None or not path.endswith(".py"):
        raise RequestError(
            f"the {registry.what} {name!r} is in {module}, which is not a Python file: it cannot be sent into a target",
            remedy="declare it in a module of its own, NAME.py",
        )
    return Path(path).read_bytes()
