"""Whether machines are equal enough for their records to stand in one table.

A block is measured on one machine, so its ratios never mix two. But blocks of unequal machines spread for a reason that
no target has, and their mean is no machine's.
"""

import uuid
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from suite.errors import RequestError
from suite.records import Environment

POOL = "pool.json"
MEMORY_TOLERANCE = 0.02
"""Firmware keeps a little, not everywhere the same."""
_ALIKE = ("kernel", "cpu_model", "cpu_flags", "mitigations", "hypervisor", "transparent_hugepages", "cgroup_version")


class Machine(BaseModel):
    """What an element would be run by, and with."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hostname: str
    suite_version: str
    image: str | None
    """Digest of the userland."""
    environment: Environment


def differences(one: Machine, other: Machine) -> list[str]:
    """In what they are unequal, each with both values: ``kernel 6.1 and 6.2``. Empty when they may be pooled."""
    pairs = [(name, getattr(one.environment, name), getattr(other.environment, name)) for name in _ALIKE]
    pairs.append(("CPUs", _count(one), _count(other)))
    pairs.append(("suite", one.suite_version, other.suite_version))
    pairs.append(("image", one.image, other.image))
    found = [f"{name} {_short(mine, theirs)}" for name, mine, theirs in pairs if mine != theirs]
    mine, theirs = one.environment.memory_bytes or 0, other.environment.memory_bytes or 0
    if abs(mine - theirs) > MEMORY_TOLERANCE * max(mine, theirs):
        found.append(f"memory {mine >> 20} MiB and {theirs >> 20} MiB")
    return found


def _count(machine: Machine) -> int | None:
    return None if machine.environment.cpus is None else len(machine.environment.cpus)


def _short(mine: object, theirs: object) -> str:
    """Of long collections what they do not share."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        return ", ".join(f"{key}: {mine.get(key)} and {theirs.get(key)}" for key in keys[:3])
    if isinstance(mine, list) and isinstance(theirs, list):
        return f"with {sorted({*mine} - {*theirs})[:5]} and with {sorted({*theirs} - {*mine})[:5]}"
    return f"{mine} and {theirs}"


def join_pool(directory: Path, machine: Machine) -> None:
    """Take this machine into the pool that writes ``directory``; the first one sets what the others must be like.

    Raises RequestError where this one is unequal, with what differs. Needs nothing of the file system but link(2).
    """
    path = directory / POOL
    first = _first(path) or _found(path, machine)
    if found := differences(first, machine):
        raise RequestError(
            f"{machine.hostname} is unequal to {first.hostname}, which began {directory}: {'; '.join(found)}",
            remedy="use equal machines only (with Slurm: constraint in [engine]), or give another --out for this one",
        )


def _found(path: Path, machine: Machine) -> Machine:
    """Write the file if nobody did in the meantime; returns what is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{POOL}.{uuid.uuid4().hex}.tmp")
    temporary.write_text(machine.model_dump_json(indent=1) + "\n", encoding="utf-8")
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        pass  # another node was first
    finally:
        temporary.unlink(missing_ok=True)
    return _first(path) or machine


def _first(path: Path) -> Machine | None:
    try:
        return Machine.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RequestError(f"{path} is not of this suite", remedy="give another --out") from error
