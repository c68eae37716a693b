"""The userland's manifest: what the image's tree holds, and whether the tree seen from a place is that one.

Standard library only: this file is part of the image, where the worker runs the same check from inside.

The manifest has one line per path below the root, sorted by its bytes: type, permissions, size, SHA-256 of the content
(of a file) or the target (of a link), path; fields separated by tabs, the last two escaped as JSON. Owners and times
are not part of it: an unprivileged unpacking cannot keep them, and no training sees them. Its own SHA-256 is the
userland's digest.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

MANIFEST = "opt/virtbench/manifest.tsv"

# What a runtime mounts over a tree that it runs, or writes into it; and what a file system brings of its own.
EXCLUDED = frozenset(
    (
        *("dev", "proc", "run", "sys", "tmp", "var/tmp", "mnt/data", "lost+found", ".dockerenv"),
        *("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab"),
        *("var/log", "var/lib/containers", "var/lib/docker", "etc/docker"),
    )
)
CONTENT_CHECKED_INSIDE = "opt/virtbench/"


@dataclass(frozen=True)
class Entry:
    """One line of the manifest. ``content`` is a SHA-256, a link's target, or empty."""

    path: str
    kind: str
    mode: int
    size: int
    content: str

    def line(self) -> str:
        return f"{self.kind}\t{self.mode:o}\t{self.size}\t{json.dumps(self.content)}\t{json.dumps(self.path)}\n"


def parse_line(line: str) -> Entry:
    """Parse one line of a manifest. Raises ValueError on a line that is none."""
    kind, mode, size, content, path = line.rstrip("\n").split("\t")
    return Entry(json.loads(path), kind, int(mode, 8), int(size), json.loads(content))


def walk(root: str, contents: str | None = "", closed: list[str] | None = None) -> Iterator[Entry]:
    """Every entry of the tree, sorted; files whose path begins with ``contents`` are hashed, others have no content.

    Directories that may not be read are added to ``closed``. Raises PermissionError for one where that is None.
    """
    paths: list[tuple[str, os.DirEntry[str]]] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            scanned = os.scandir(os.path.join(root, prefix))
        except PermissionError:
            if closed is None:
                raise
            closed.append(prefix)
            continue
        with scanned as entries:
            for entry in entries:
                path = prefix + entry.name
                if path in EXCLUDED or path == MANIFEST:
                    continue
                paths.append((path, entry))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path + "/")
    for path, entry in sorted(paths, key=lambda pair: os.fsencode(pair[0])):
        yield _listed(path, entry, hashed=contents is not None and path.startswith(contents))


def _listed(path: str, entry: "os.DirEntry[str]", *, hashed: bool) -> Entry:
    info = entry.stat(follow_symlinks=False)
    kind = _KINDS.get(stat.S_IFMT(info.st_mode), "other")
    if kind == "link":
        # A link's permissions differ between kernels and mean nothing.
        return Entry(path, kind, 0, 0, os.readlink(entry.path))
    mode = stat.S_IMODE(info.st_mode)
    if kind == "file":
        return Entry(path, kind, mode, info.st_size, _sha256(entry.path) if hashed else "")
    return Entry(path, kind, mode, 0, "")


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(root: str) -> str:
    """Hash the whole tree, write its manifest into it, return the digest."""
    text = "".join(entry.line() for entry in walk(root))
    with open(os.path.join(root, MANIFEST), "w", encoding="ascii") as file:
        file.write(text)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def manifest_digest(root: str) -> str | None:
    """Return the digest of the tree's own manifest; None where there is none: it is not a tree of the image."""
    try:
        return _sha256(os.path.join(root, MANIFEST))
    except FileNotFoundError:
        return None


def differences(root: str, *, everything: bool) -> list[str]:
    """Paths in which the tree departs from its manifest, each with how; empty when it agrees.

    Every path, type, permission, size and link target is compared; the contents of all files with ``everything``, else
    of the suite's own files only (hashing a gigabyte takes minutes on an emulated CPU). What this user may not see in
    the tree no job of this user can see either, and is left out.
    """
    closed: list[str] | None = None if everything else []
    with open(os.path.join(root, MANIFEST), encoding="ascii") as file:
        expected = {entry.path: entry for entry in map(parse_line, file)}
    differing = []
    for entry in walk(root, "" if everything else CONTENT_CHECKED_INSIDE, closed):
        planned = expected.pop(entry.path, None)
        if planned is None:
            differing.append(f"/{entry.path} is not in the manifest")
        elif how := _how(planned, entry):
            differing.append(f"/{entry.path}: {how}")
    return differing + [f"/{path} is missing" for path in expected if not path.startswith(tuple(closed or ()))]


def _how(planned: Entry, seen: Entry) -> str:
    if planned.kind != seen.kind:
        return f"a {seen.kind} instead of a {planned.kind}"
    if planned.mode != seen.mode:
        return f"permissions {seen.mode:o} instead of {planned.mode:o}"
    if planned.size != seen.size:
        return f"{seen.size} bytes instead of {planned.size}"
    if seen.content and planned.content != seen.content:
        return f"other {'target' if seen.kind == 'link' else 'content'}"
    return ""
