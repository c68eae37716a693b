"""The sources of an image: the wheels by their digests, the Debian packages by their versions; and how two differ."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from provisioning.images.image import Image, sha256
from suite.userland import MANIFEST, Entry, parse_line

PACKAGES = "var/lib/dpkg/status"
"""The list of Debian's package manager, in the tree."""
MOST_PATHS = 50


def locked(wheels: Path) -> str:
    """Return the requirements that are met by these wheels alone, as ``pip --require-hashes`` takes them."""
    lines = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]  # PEP 427: both without a hyphen
        lines.append(f"{name}=={version} --hash=sha256:{sha256(wheel)}\n")
    return "".join(lines)


def packages(tree: Path) -> dict[str, str]:
    """Return the versions of the Debian packages in a tree, by name; none of a tree that is of no Debian."""
    found: dict[str, str] = {}
    if not (tree / PACKAGES).is_file():
        return found
    for stanza in (tree / PACKAGES).read_text(errors="replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0].isalpha())
        if "Package" in fields:
            found[fields["Package"]] = fields.get("Version", "")
    return found


def difference(one: Image, other: Image) -> list[str]:
    """Return what tells two images apart: packages first, then paths; empty for the same tree."""
    mine, theirs = packages(one.tree), packages(other.tree)
    told = [
        f"package {name}: {mine.get(name, 'absent')}, {theirs.get(name, 'absent')}"
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]
    paths = list(_paths(one.tree, other.tree))
    more = [f"and {len(paths) - MOST_PATHS} more paths"] if len(paths) > MOST_PATHS else []
    return [*told, *paths[:MOST_PATHS], *more]


def _paths(one: Path, other: Path) -> Iterator[str]:
    mine, theirs = _manifest(one), _manifest(other)
    for path in sorted(mine.keys() | theirs.keys()):
        left, right = mine.get(path), theirs.get(path)
        if left is None or right is None:
            yield f"/{path}: only in {'the first' if left else 'the second'}"
        elif left != right:
            pairs = ((each.name, getattr(left, each.name), getattr(right, each.name)) for each in fields(Entry))
            yield f"/{path}: another {', another '.join(name for name, here, there in pairs if here != there)}"


def _manifest(tree: Path) -> dict[str, Entry]:
    with (tree / MANIFEST).open(encoding="ascii") as file:
        return {entry.path: entry for entry in map(parse_line, file)}
