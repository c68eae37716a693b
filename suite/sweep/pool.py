"""The pool of machines that run a sweep: equal enough for their records to stand in one table.

A block is measured on one machine, so its ratios never mix two. But blocks of unequal machines vary for a reason
that no target has, and their mean is that of no machine.
"""

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from suite import host_compatibility
from suite.errors import RequestError
from suite.host_compatibility import Host
from suite.records.environment import Environment
from suite.results.files import SpecialFileError, read, whole

POOL = "pool.json"


class PoolMember(BaseModel):
    """A machine that may run a block: suite version, image, environment."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    suite_version: str
    image: str | None
    """Digest of the userland."""
    environment: Environment

    @property
    def host(self) -> Host:
        return Host.of(self.environment.model_dump())


def differences(one: PoolMember, other: PoolMember) -> list[str]:
    """Return in what two machines differ, each with both values. Empty when their records may be pooled."""
    found = list(host_compatibility.differences([one.host, other.host]))
    for what, own, its in (("suite", one.suite_version, other.suite_version), ("image", one.image, other.image)):
        if own != its:
            found.append(f"{what}: {one.host.name} {own}, {other.host.name} {its}")
    return found


def join_pool(directory: Path, machine: PoolMember) -> None:
    """Add this machine to the pool that writes ``directory``; the first member sets what the others must be like.

    Raises RequestError that names the differences if this one is unequal. Needs only link(2) of the file system.
    """
    path = directory / POOL
    first = _first(path) or _establish(path, machine)
    if found := differences(first, machine):
        raise RequestError(
            f"{machine.host.name} is unequal to {first.host.name}, which began {directory}: {'; '.join(found)}",
            remedy="use equal machines only (with Slurm: constraint in [engine]), or give another --out for this one",
        )


def _establish(path: Path, machine: PoolMember) -> PoolMember:
    """Write the file unless another machine did in the meantime; return what is in it."""
    with suppress(FileExistsError), whole(path, new=True) as file:  # else another machine was first
        file.write(machine.model_dump_json(indent=1).encode() + b"\n")
    return _first(path) or machine


def _first(path: Path) -> PoolMember | None:
    try:
        return PoolMember.model_validate_json(read(path))
    except FileNotFoundError:
        return None
    except (SpecialFileError, ValidationError) as error:
        raise RequestError(f"{path} was not written by this suite", remedy="give another --out") from error
