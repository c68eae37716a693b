"""Requests to the worker that name a registry's member: its place, and its source if the image lacks it."""

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Literal, cast

import msgspec

from suite.errors import MeasurementError, RequestError
from suite.interfaces import Node
from suite.plan import Trial
from suite.registry import Registry
from worker.members import Plugin
from worker.spec import Request, Turns


def source_sha256(registry: Registry, name: str) -> str | None:
    """Return the digest of a foreign member's module; None for one of the suite's own. Raises RequestError."""
    if name in registry.own:
        return None
    source = _source(registry, name).read_bytes()
    return hashlib.sha256(source).hexdigest()


def plugin_of(registry: Registry, name: str, planned: str | None = None) -> Plugin | None:
    """Return the source of a member that the image lacks; None for one of the suite's own.

    Raises RequestError for a name that is unknown, or a module that has no text, and MeasurementError if the digest of
    the text is not the ``planned`` one.
    """
    location = registry.place(name)
    if name in registry.own:
        return None
    path = _source(registry, name)
    module = location.partition(":")[0]
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if planned not in (None, digest):
        raise MeasurementError(
            f"the {registry.what} {name!r} in {module} is not the one that was planned: its source has changed",
            kind="plan",
            remedy="a changed source is another job: run it again with another --out",
        )
    return Plugin(module, content.decode(), digest, path.name)


def member_request(registry: Registry, trial: Trial, node: Node) -> Request:
    """Return the request to run a probe or an aggressor of ``registry``."""
    return Request(
        member=registry.place(trial.job.model),
        plugin=plugin_of(registry, trial.job.model, trial.job.workload_sha256),
        threads=trial.job.envelope.threads,
        size=cast(Literal["smoke", "quick", "paper"], trial.job.profile),
        device=trial.job.devices.device,
        directory=node.data,
        turns=msgspec.convert(trial.job.turns, Turns | None, from_attributes=True),
    )


def _source(registry: Registry, name: str) -> Path:
    registry.get(name)  # a module that cannot be imported here is told as that
    module = registry.place(name).partition(":")[0]
    path = import_module(module).__file__
    if path is None or not path.endswith(".py"):
        raise RequestError(
            f"the {registry.what} {name!r} is in {module}, which is not a Python file: it cannot be sent into a target",
            remedy="declare it in a module of its own, NAME.py",
        )
    return Path(path)
