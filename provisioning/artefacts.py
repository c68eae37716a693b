"""Artefacts that the benches of one home share: made by one at a time, whole or not at all, checked before use."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pydantic import ValidationError

from provisioning import ledger
from provisioning.images.image import Stamp
from provisioning.nodes import undone, write_file
from provisioning.paths import state
from suite.interfaces import Node
from suite.results import files

HASHED_WITHIN_S = 6 * 3600.0
"""At 50 MB/s this is a terabyte."""


@contextmanager
def making(name: str, note: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock of an artefact. While another bench of this home makes it, say so once, and wait.

    What is looked at before may have changed by then: look whether the artefact is there inside.
    """
    path = state("locks") / f"{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.lock"
    with files.locked(path, lambda: note(f"another bench is making {name}: waiting until it has ended")):
        mask = os.umask(0o022)  # jobs read what is made, whatever the mask of this session
        try:
            yield
        finally:
            os.umask(mask)


@contextmanager
def workshop(node: Node, parent: str, prefix: str = ".making") -> Iterator[str]:
    """Make a private directory beside where an artefact is to be, for what is half made; at the end nothing is left.

    On this machine it is in the ledger; another machine removes it by itself when the connection is lost.
    """
    directory = f"{parent}/{ledger.fresh(prefix)}"
    removing: AbstractContextManager[object]
    if node.local:
        removing = ledger.holding("directory", directory)
    else:
        removing = undone(node, ["rm", "-r", "-f", "--", directory])
    with removing:
        node.run(["mkdir", "-m", "700", "--", directory])
        yield directory


def put(node: Node, content: str, final: str) -> None:
    """Rename what was made to its place, once its content is on the disk."""
    node.run(["sync", "--", content], timeout_s=HASHED_WITHIN_S)
    node.run(["mv", "-T", "--", content, final])
    node.run(["sync", "--", final.rpartition("/")[0]])


def put_stamped(node: Node, content: str, final: str, sha256: str) -> None:
    """Put a file in its place, and a stamp with its digest beside it, for ``digest_of``."""
    size_bytes, _, mtime_ns = _stat(node, content)
    stamp = Stamp(sha256=sha256, size_bytes=size_bytes, mtime_ns=mtime_ns)
    write_file(node, f"{content}.stamp", stamp.model_dump_json().encode())
    put(node, content, final)
    put(node, f"{content}.stamp", f"{final}.stamp")


def digest_of(node: Node, path: str) -> str | None:
    """Return the SHA-256 of a file that was put there with its stamp; None if it is not that file, or none is there.

    A file of this user's that nobody else may write to is trusted if size and time agree, so that gigabytes are not
    hashed before each run. Any other is hashed again.
    """
    tested = node.run(["test", "-f", path, "-a", "!", "-L", path], check=False)
    if tested.returncode:
        return None
    written = node.run(["cat", "--", f"{path}.stamp"], check=False)
    try:
        stamp = Stamp.model_validate_json(written.stdout)
    except ValidationError:
        return None
    size_bytes, mode, mtime_ns = _stat(node, path)
    if size_bytes != stamp.size_bytes:
        return None
    owned = node.run(["test", "-O", path], check=False)
    writable_by_others = mode & 0o022
    trusted = owned.returncode == 0 and not writable_by_others and mtime_ns == stamp.mtime_ns
    if trusted or sha256_on(node, path) == stamp.sha256:
        return stamp.sha256
    return None


def _stat(node: Node, path: str) -> tuple[int, int, int]:
    """Return the size, the permissions, and the time of the last change in nanoseconds."""
    answer = node.run(["stat", "--format=%s %a %.9Y", "--", path])
    size_bytes, mode, mtime_s = answer.stdout.split()
    return int(size_bytes), int(mode, 8), int(mtime_s.replace(".", ""))


def sha256_on(node: Node, path: str) -> str:
    answer = node.run(["sha256sum", "--", path], timeout_s=HASHED_WITHIN_S)
    return answer.stdout.split()[0].lstrip("\\")
