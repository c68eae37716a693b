"""Images that were built: their files, their place, and the check that they are whole.

HOME/images/DIGEST12/image.json   this description
                     tree/        the unpacked root filesystem
                     disk.img     the same as an ext4 file system, the root of every VM
                     oci.tar      the same as an OCI image that docker and podman load
                     initrd.img   what finds the disk when a VM starts
                     docker.img   the same in the store of the guest's docker; made when first asked for
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from provisioning import ledger, processes
from provisioning.nodes import IMAGE_PYTHON
from provisioning.paths import home, state
from provisioning.removal.deletion import remove_named
from suite import userland
from suite.differ import differ
from suite.errors import CommandError, RequestError
from suite.part import Part
from suite.results.store import write_atomic

BUILD = "bench image build"
ADOPT = "bench image adopt"
DESCRIPTION = "image.json"
PACKED = ("disk.img", "oci.tar", "initrd.img")
PARTS = (
    r"image\.json|tree|(disk|docker)\.img(\.stamp)?|oci\.tar|initrd\.img|suite-[0-9a-f]{12}\.tar"
    r"|.+\.TRANSIENT-.+|\.making-.+"
)
"""The names of the parts of an image in its directory."""
PACKAGES = "var/lib/dpkg/status"
"""The list of Debian's package manager, in the tree."""
MOST_PATHS = 50
RECIPES = ("Containerfile", "Dockerfile")
"""The usual names of the files from which engines build images."""
Variant = Literal["cpu", "cuda", "own"]
"""``own`` is made from an image of the user's or of this machine's tree, and used only where it is named."""
MOUNTED_WITHIN_S = 60.0
LISTS = ".dist-info/RECORD"
"""The end of the path of a Python package's list of its files with their digests."""
_SITES = tuple(f"usr/{place}/python3*/*-packages" for place in ("local/lib", "lib"))


class Mount(Part):
    """A part of a tree that is mounted read-only during a run: a directory, or several as an overlay, the first above.

    Relative sources are in the directory of the image.
    """

    place: str
    sources: tuple[str, ...]

    def argv(self, tree: Path) -> list[str]:
        """Return the command that mounts it below a tree."""
        sources = [str(tree.parent / source) for source in self.sources]
        target = str(tree / self.place)
        if len(sources) == 1:
            return ["mount", "--bind", "-o", "ro", "--", sources[0], target]
        lower = ":".join(sources)
        return ["mount", "-t", "overlay", "-o", f"ro,lowerdir={lower}", "overlay", target]


class Stamp(Part):
    """A file as it was when its content was last hashed."""

    size_bytes: int
    mtime_ns: int
    sha256: str


class Image(BaseModel):
    """One built image. ``digest`` is the SHA-256 of the tree's manifest: what trials record as the userland."""

    model_config = ConfigDict(extra="forbid")

    digest: str
    variant: Variant
    recipe_sha256: str
    created_at: str
    base: str
    files: dict[str, Stamp]
    source: str | None = None
    """What an image of the user's own was built from: a reference, or an absolute path."""
    python: tuple[str, str] = IMAGE_PYTHON
    """The interpreter of the jobs, and its PYTHONPATH."""
    mounts: tuple[Mount, ...] = ()
    """The parts of the tree that are this machine's own."""
    gpu_architectures: tuple[str, ...] = ()
    """What its torch has code for: ``sm_90`` for a GPU of capability 9.0 or a later 9, ``compute_90`` for any later."""

    @property
    def name(self) -> str | None:
        """Return the name of an image of the user's own: the reference, or the last part of the path."""
        if self.source is None or not self.source.startswith("/"):
            return self.source
        path = Path(self.source)
        if path.name in RECIPES:
            return path.parent.name
        return path.name

    @property
    def cuda(self) -> str | None:
        """Return the version of CUDA that its torch is built with; empty for none, None if no torch is found."""
        # The directories of Python packages, where they are before anything is mounted.
        sites: list[Path] = []
        for mount in self.mounts:
            sites += map(Path, mount.sources)
        root = Path("/") if self.mounts else self.tree
        for pattern in _SITES:
            sites += root.glob(pattern)
        for site in sites:
            file = site / "torch/version.py"
            if file.is_file():
                built = re.search(r"^cuda\b.*= *'([\d.]+)'", file.read_text(), re.MULTILINE)
                return built[1] if built else ""
        return None

    @property
    def directory(self) -> Path:
        # Without links, as ``home``: the folder of images may be one.
        return (home() / "images").resolve() / self.digest[:12]

    @property
    def tree(self) -> Path:
        return self.directory / "tree"

    def file(self, name: str) -> Path:
        return self.directory / name

    def text(self) -> str:
        return self.model_dump_json(indent=2) + "\n"

    def save(self) -> None:
        write_atomic(self.directory / DESCRIPTION, self.text())

    def check(self) -> None:
        """Raise RequestError unless the packed files are those that were built.

        Files that nobody else may write to, and that were not touched since they were last hashed, are trusted; others
        are hashed again. The new hash of a file that nobody else may write to is kept, so that the next ``bench run``
        need not wait for it. The tree is attested from inside every target, and wholly by ``bench image verify``.
        """
        if not (self.tree / userland.MANIFEST).is_file():
            raise broken(self, "its tree is missing")
        if userland.manifest_digest(str(self.tree)) != self.digest:
            raise broken(self, "its manifest has another digest")
        for name, expected in self.files.items():
            path = self.file(name)
            if not path.is_file():
                raise broken(self, f"{name} is missing")
            info = path.stat()
            if info.st_size != expected.size_bytes:
                raise broken(self, f"{name} has {info.st_size} bytes instead of {expected.size_bytes}")
            writable_by_others = info.st_mode & (S_IWGRP | S_IWOTH)
            trusted = info.st_uid in (os.geteuid(), 0) and not writable_by_others
            if trusted and info.st_mtime_ns == expected.mtime_ns:
                continue
            current_stamp = stamp(path)
            if current_stamp.sha256 != expected.sha256:
                raise broken(self, f"{name} has another digest")
            if trusted and info.st_uid == os.geteuid():
                # Other benches may have written hashes of this image meanwhile.
                self.files = self.files | find(self.digest).files | {name: current_stamp}
                self.save()

    def verify(self) -> list[str]:
        """Hash everything again; return the differences."""
        differences = []
        for name, stamp in self.files.items():
            if not self.file(name).is_file():
                differences.append(f"{name}: missing")
            elif sha256(self.file(name)) != stamp.sha256:
                differences.append(f"{name}: another digest")
        if userland.manifest_digest(str(self.tree)) != self.digest:
            return [*differences, "tree: its manifest is missing or has another digest"]
        with mounted(self, self.tree):
            changed = userland.differences(str(self.tree), everything=not self.mounts)
            if self.mounts:
                changed += self._other_lists()
        return differences + [f"tree: {line}" for line in changed]

    def _other_lists(self) -> list[str]:
        """Return the lists of packages that have changed: of a mounted tree the manifest has no other contents."""
        entries = _manifest(self.tree).values()
        listed = [entry for entry in entries if entry.path.endswith(LISTS) and entry.content]
        odd = (entry for entry in listed if sha256(self.tree / entry.path) != entry.content)
        return [f"/{entry.path}: other content" for entry in odd]


def build_command(variant: str, source: str | None = None) -> str:
    return BUILD + {"cpu": "", "cuda": " --cuda", "own": f" --from {source}"}[variant]


def broken(image: Image, how: str) -> RequestError:
    if image.mounts:
        command = f"{ADOPT} --python {image.python[0]}"
        for mount in image.mounts:
            if mount.place.startswith("opt/"):
                command += f" --site {mount.sources[0]}"
    else:
        command = f"{build_command(image.variant, image.source)} --rebuild"
    return RequestError(f"image {image.digest[:12]} is broken: {how}", remedy=f"build it again: {command}")


@contextmanager
def mounted(image: Image, tree: Path) -> Iterator[None]:
    """Mount the parts of a tree that are this machine's own; the ledger unmounts them if this process is killed.

    The tree is mounted over itself first: one command undoes all, and several benches have a layer each.
    """
    if not image.mounts or ledger.holds("mount", str(tree)):
        yield
        return
    with ledger.holding("mount", str(tree)):
        itself = ["mount", "--bind", "--make-private", "--", str(tree), str(tree)]
        of_parts = [mount.argv(tree) for mount in image.mounts]
        for argv in (itself, *of_parts):
            answer = processes.run_apart(argv, MOUNTED_WITHIN_S)
            if answer.returncode:
                raise CommandError(argv, answer.returncode, answer.stderr)
        yield


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp(path: Path) -> Stamp:
    info = path.stat()
    digest = sha256(path)
    return Stamp(size_bytes=info.st_size, mtime_ns=info.st_mtime_ns, sha256=digest)


def images() -> list[Image]:
    """Return every image of this user, newest first; directories without a readable description are ignored."""
    readable = []
    for path in state("images").glob(f"*/{DESCRIPTION}"):
        try:
            image = Image.model_validate_json(path.read_bytes())
        except (ValidationError, json.JSONDecodeError):
            continue
        if image.digest[:12] == path.parent.name:
            readable.append(image)
    return sorted(readable, key=lambda image: image.created_at, reverse=True)


def prune() -> list[Image]:
    """Remove all images but the newest of each variant and name, and what was made of them; return those removed."""
    newest: dict[tuple[str, str | None], Image] = {}
    for image in images():
        newest.setdefault((image.variant, image.name), image)
    outdated = [image for image in images() if image not in newest.values()]
    return remove(outdated)


def remove(unwanted: list[Image]) -> list[Image]:
    """Remove images; return them. Raises RequestError for a mounted one, and at the end if other files stay in one."""
    foreign = []
    for image in unwanted:
        if image.mounts and ledger.is_mounted(image.tree):
            raise RequestError(f"{image.tree} is mounted", remedy="run: bench clean")
        foreign += remove_named(image.directory, PARTS)
    if foreign:
        raise RequestError(f"{foreign[0]} is no part of an image and stays", remedy="move it elsewhere")
    return unwanted


def find(wanted: str | None) -> Image:
    """Return the newest image with this name or beginning of a digest; for None the newest of the suite's own.

    Raises RequestError if there is none.
    """
    if wanted is None:
        return current()
    for image in images():
        if image.name == wanted or (len(wanted) >= 6 and image.digest.startswith(wanted)):
            return image
    raise RequestError(f"no image {wanted!r}", remedy="bench image list shows them")


def current(variant: str = "cpu") -> Image:
    """Return the newest image. Raises RequestError if there is none."""
    for image in images():
        if image.variant == variant:
            return image
    raise RequestError(f"no {variant} image has been built", remedy=f"run: {build_command(variant)}")


def packages(tree: Path) -> dict[str, str]:
    """Return the versions of the Debian packages in a tree, by name; empty for a tree of another system."""
    if (tree / PACKAGES).is_file():
        text = (tree / PACKAGES).read_text(errors="replace")
    else:
        text = ""
    versions = {}
    for stanza in text.split("\n\n"):
        lines = [line for line in stanza.splitlines() if ": " in line and line[0].isalpha()]
        fields = dict(line.split(": ", 1) for line in lines)
        if "Package" in fields:
            versions[fields["Package"]] = fields.get("Version", "")
    return versions


def difference(first: Image, second: Image) -> list[str]:
    """Return the differences of two images: packages first, then paths; empty for the same tree."""
    tables = [(read(first.tree), read(second.tree)) for read in (packages, _manifest)]
    programs, entries = (sorted(differ(*pair), key=lambda fact: fact.path) for pair in tables)
    versions = [f"package {fact.path}: {fact.first or 'absent'}, {fact.second or 'absent'}" for fact in programs]
    paths = [_entry(fact.path, fact.first, fact.second) for fact in entries]
    more = []
    if len(paths) > MOST_PATHS:
        more = [f"and {len(paths) - MOST_PATHS} more paths"]
    return [*versions, *paths[:MOST_PATHS], *more]


def _entry(path: str, first: userland.Entry | None, second: userland.Entry | None) -> str:
    if first is None or second is None:
        return f"/{path}: only in {'the first' if first else 'the second'}"
    return f"/{path}: another {', another '.join(fact.path for fact in differ(asdict(first), asdict(second)))}"


def _manifest(tree: Path) -> dict[str, userland.Entry]:
    with (tree / userland.MANIFEST).open(encoding="ascii") as file:
        return {entry.path: entry for entry in map(userland.parse_line, file)}
