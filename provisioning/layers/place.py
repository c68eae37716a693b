"""A private directory on a node, for the sockets, keys and logs of one guest; and what is made here for it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from provisioning import ledger
from provisioning.lab.containers import undone
from provisioning.nodes import local_node, write_file
from provisioning.paths import runtime
from suite.errors import BenchError
from suite.interfaces import Node

ELSEWHERE = "/run/virtbench"
"""On other machines; short, for a socket's path has 108 bytes at most."""


@contextmanager
def private(node: Node) -> Iterator[PurePath]:
    """The directory, and at the end nothing of it."""
    name = f"vm-{secrets.token_hex(6)}"
    if node.local:
        place = runtime() / name
        with ledger.holding("directory", str(place)):
            place.mkdir(mode=0o700)
            yield place
        return
    there = f"{ELSEWHERE}/{name}"
    node.run(["mkdir", "-p", "-m", "700", "--", ELSEWHERE])
    with undone(node, ["rm", "-r", "-f", "--", there]):
        node.run(["mkdir", "-m", "700", "--", there])
        yield PurePath(there)


@contextmanager
def made_here(node: Node, directory: PurePath) -> Iterator[tuple[Node, Path]]:
    """A node of this machine, and where to make the files on it that ``directory`` of ``node`` is to hold then."""
    if node.local:
        yield node, Path(directory)
        return
    with local_node((), None) as here:
        place = Path(here.directory) / "files"
        place.mkdir(mode=0o700)
        yield here, place
        for path in sorted(place.iterdir()):
            if path.is_file():
                write_file(node, f"{directory}/{path.name}", path.read_bytes())
                node.run(["chmod", "600", "--", f"{directory}/{path.name}"])


def said(node: Node, path: str) -> str:
    """What a log holds so far."""
    if node.local:
        log = Path(path)
        return log.read_text(errors="replace") if log.exists() else ""
    try:
        return node.run(["cat", "--", path], check=False).stdout
    except BenchError:
        return ""
