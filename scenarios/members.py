"""What a specification says of a member of a registry: where it is declared, and its text if the image lacks it."""

import hashlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from suite.errors import RequestError
from suite.registry import Registry


def member_keys(registry: Registry, name: str, key: str) -> dict[str, object]:
    """Return the keys of a specification that name a member: ``key`` with its place, and ``plugin`` where needed.

    The image holds the suite's own members. Of another package's member, the module travels as text. Raises
    RequestError for a name that is unknown, or a module that has no text.
    """
    place = registry.place(name)
    if name in registry.own:
        return {key: place}
    registry.get(name)  # a module that cannot be imported here is told as that
    module = place.partition(":")[0]
    path = import_module(module).__file__
    if path is None or not path.endswith(".py"):
        raise RequestError(
            f"the {registry.what} {name!r} is in {module}, which is not a Python file: it cannot be sent into a target",
            remedy="declare it in a module of its own, NAME.py",
        )
    content = Path(path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {key: place, "plugin": {"module": module, "source": content.decode(), "sha256": digest}}


def sent_digest(spec: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return ``name`` with the digest of the module that a specification carries; empty where it carries none."""
    plugin = spec.get("plugin")
    return {name: plugin["sha256"]} if plugin else {}
