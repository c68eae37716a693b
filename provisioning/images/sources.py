"""The sources of an image: the wheels by their digests, the Debian packages by their versions; and how two differ."""

from dataclasses import asdict
from pathlib import Path

from provisioning.images.image import Image, sha256
from suite.differ import differ
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
    tables = [(read(one.tree), read(other.tree)) for read in (packages, _manifest)]
    found, entries = (sorted(differ(*pair), key=lambda fact: fact.path) for pair in tables)
    versions = [f"package {name}: {left or 'absent'}, {right or 'absent'}" for name, left, right, _ in found]
    paths = [_entry(name, left, right) for name, left, right, _ in entries]
    more = [f"and {len(paths) - MOST_PATHS} more paths"] if len(paths) > MOST_PATHS else []
    return [*versions, *paths[:MOST_PATHS], *more]


def _entry(path: str, left: Entry | None, right: Entry | None) -> str:
    if left is None or right is None:
        return f"/{path}: only in {'the first' if left else 'the second'}"
    return f"/{path}: another {', another '.join(fact.path for fact in differ(asdict(left), asdict(right)))}"


def _manifest(tree: Path) -> dict[str, Entry]:
    with (tree / MANIFEST).open(encoding="ascii") as file:
        return {entry.path: entry for entry in map(parse_line, file)}
