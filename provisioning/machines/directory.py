"""A private directory on a node, for the sockets and keys of one guest."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from provisioning import ledger
from provisioning.nodes import local_node, undone, write_file
from provisioning.paths import runtime
from suite.interfaces import Node

ELSEWHERE = "/run/virtbench"
"""The parent directory on other machines; short, because the path of a socket has at most 108 bytes."""


@contextmanager
def private_directory(node: Node) -> Iterator[PurePath]:
    """Make the directory; at the end nothing of it is left."""
    name = ledger.fresh("vm")
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
def written_here(node: Node, directory: PurePath) -> Iterator[tuple[Node, Path]]:
    """Write files on this machine that are to be in ``directory`` of ``node``.

    Yields a node of this machine and the place for the files; they are copied at the end.
    """
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
