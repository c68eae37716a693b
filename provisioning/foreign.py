"""Finds what bears the suite's mark and is not in this ledger: a bench with another home, or another user, made it.

Nothing of it is removed. Whether it is in use is known to the ledger of its own home alone.
"""

import os
import pwd
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import psutil

from provisioning import ledger
from provisioning.cgroup import removal
from provisioning.lab import netns
from provisioning.processes import TOKEN
from suite.registries import ENGINES

HOME = "VIRTBENCH_HOME"
_MARKED = re.compile(r"virtbench-[0-9a-f]{12}|[0-9a-f]{32}")
"""The names of control groups and containers, and the tokens of processes."""


@dataclass(frozen=True)
class ForeignThing:
    kind: str
    """As the ledger calls it."""
    what: str
    whose: str
    """What is known of its owner: ``root, home /data/vb, 2 running``."""

    def __str__(self) -> str:
        return f"{self.kind} {self.what} ({self.whose})"


def foreign_things() -> list[ForeignThing]:
    """Return the groups, network namespaces, mounts, containers and processes that this ledger does not list."""
    names = {entry.what for entry in ledger.listed()}
    for what in list(names):
        names.update(_MARKED.findall(what))
    marked = (*_groups(), *_namespaces(), *_mounts(), *_containers(), *_processes())
    foreign = []
    for thing in marked:
        name = thing.what.rpartition(":")[2]
        file_name = Path(thing.what).name
        if names.isdisjoint({thing.what, name, file_name}):
            foreign.append(thing)
    return foreign


def _groups() -> Iterator[ForeignThing]:
    paths: dict[str, list[Path]] = {}
    for hierarchy in (removal.ROOT, *removal.ROOT.glob("*/")):
        for path in hierarchy.glob("virtbench-*/"):
            paths.setdefault(path.name, []).append(path)
    for name, directories in paths.items():
        if re.fullmatch(ledger.KINDS["cgroup"].form, name):
            pids = set(chain.from_iterable(map(_pids_in, directories)))
            yield ForeignThing("cgroup", name, _whose(directories[0], pids))


def _pids_in(group: Path) -> Iterator[int]:
    for directory, _, _ in os.walk(group):
        with suppress(OSError):
            pids = Path(directory, "cgroup.procs").read_text()
            yield from map(int, pids.split())


def _namespaces() -> Iterator[ForeignThing]:
    for path in netns.NETNS.glob("vb-*"):
        if re.fullmatch(netns.FORM, path.name):
            yield ForeignThing("netns", path.name, _whose(path))


def _mounts() -> Iterator[ForeignThing]:
    """Yield mounts below a folder that is a home of the suite, or is called after it."""
    for mount_point in ledger.mount_points(ledger.MOUNTS.read_text()):
        path = Path(mount_point)
        parents = path.parents
        ours = any(above.name.startswith("virtbench") or (above / "ledger").is_dir() for above in parents)
        if ours and re.fullmatch(ledger.KINDS["mount"].form, mount_point):
            yield ForeignThing("mount", mount_point, _whose(path.parent))


def _containers() -> Iterator[ForeignThing]:
    for engine in ENGINES:
        for name in ENGINES.get(engine).names_here():
            if re.fullmatch(ledger.KINDS["container"].form, f"{engine}:{name}"):
                yield ForeignThing("container", f"{engine}:{name}", "unknown home")


def _processes() -> Iterator[ForeignThing]:
    carriers: dict[str, list[int]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            token = process.environ().get(TOKEN)
            if token and process.pid != os.getpid():
                carriers.setdefault(token, []).append(process.pid)
    for token, pids in carriers.items():
        yield ForeignThing("processes", token, _whose(Path(f"/proc/{pids[0]}"), pids))


def _whose(path: Path, pids: Iterable[int] = ()) -> str:
    """Return the user to whom a path belongs, the home that its processes were given, and how many of them run."""
    facts = []
    with suppress(OSError):
        uid = path.stat().st_uid
        facts.append(_user(uid))
    living = list(pids)
    homes = dict.fromkeys(filter(None, map(_home_of, living)))
    facts += [f"home {home}" for home in homes] or ["unknown home"]
    if living:
        facts.append(f"{len(living)} running")
    return ", ".join(facts)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _home_of(pid: int) -> str | None:
    try:
        return psutil.Process(pid).environ().get(HOME)
    except psutil.Error:
        return None
