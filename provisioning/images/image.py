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
import shutil
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from provisioning.paths import home, state
from suite import userland
from suite.errors import RequestError
from suite.results.store import write_atomic

BUILD = "bench image build"
DESCRIPTION = "image.json"
PACKED = ("disk.img", "oci.tar", "initrd.img")
RECIPES = ("Containerfile", "Dockerfile")
"""The usual names of the files from which engines build images."""
Variant = Literal["cpu", "cuda", "own"]
"""``own`` is made from an image of the user's, and used only where it is named."""


class Stamp(BaseModel):
    """A file as it was when its content was last hashed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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

    @property
    def name(self) -> str | None:
        """Return the name of an image of the user's own: the reference, or the last part of the path."""
        if self.source is None or not self.source.startswith("/"):
            return self.source
        path = Path(self.source)
        return path.parent.name if path.name in RECIPES else path.name

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

        Files that nobody else may write to, and that were not touched since they were last hashed, are believed;
        others are hashed again, gigabytes that each ``bench run`` would wait for: of one that nobody else may write
        to, it is kept. The tree is attested from inside every target, and wholly by ``bench image verify``.
        """
        if not (self.tree / userland.MANIFEST).is_file():
            raise broken(self, "its tree is missing")
        if userland.manifest_digest(str(self.tree)) != self.digest:
            raise broken(self, "its manifest has another digest")
        for name, known in self.files.items():
            path = self.file(name)
            if not path.is_file():
                raise broken(self, f"{name} is missing")
            info = path.stat()
            if info.st_size != known.size_bytes:
                raise broken(self, f"{name} has {info.st_size} bytes instead of {known.size_bytes}")
            believed = info.st_uid in (os.geteuid(), 0) and not info.st_mode & (S_IWGRP | S_IWOTH)
            if believed and info.st_mtime_ns == known.mtime_ns:
                continue
            seen = stamp(path)
            if seen.sha256 != known.sha256:
                raise broken(self, f"{name} has another digest")
            if believed and info.st_uid == os.geteuid():
                self._keep(name, seen)

    def _keep(self, name: str, seen: Stamp) -> None:
        """Write down that a file was hashed, beside what other benches have written of this image meanwhile."""
        self.files = self.files | find(self.digest).files | {name: seen}
        self.save()

    def verify(self) -> list[str]:
        """Hash everything again; returns what differs, empty when nothing does."""
        found = []
        for name, stamp in self.files.items():
            if not self.file(name).is_file():
                found.append(f"{name}: missing")
            elif sha256(self.file(name)) != stamp.sha256:
                found.append(f"{name}: another digest")
        if userland.manifest_digest(str(self.tree)) != self.digest:
            return [*found, "tree: its manifest is missing or has another digest"]
        return found + [f"tree: {line}" for line in userland.differences(str(self.tree), everything=True)]


def broken(image: Image, how: str) -> RequestError:
    how_built = {"cpu": "", "cuda": " --cuda", "own": f" --from {image.source}"}[image.variant]
    return RequestError(
        f"image {image.digest[:12]} is broken: {how}", remedy=f"build it again: {BUILD} --rebuild{how_built}"
    )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp(path: Path) -> Stamp:
    info = path.stat()
    return Stamp(size_bytes=info.st_size, mtime_ns=info.st_mtime_ns, sha256=sha256(path))


def images() -> list[Image]:
    """Return every image of this user, newest first. A directory without a readable description is none."""
    found = []
    for path in state("images").glob(f"*/{DESCRIPTION}"):
        try:
            image = Image.model_validate_json(path.read_bytes())
        except (ValidationError, json.JSONDecodeError):
            continue
        if image.digest[:12] == path.parent.name:
            found.append(image)
    return sorted(found, key=lambda image: image.created_at, reverse=True)


def prune() -> list[Image]:
    """Remove all images but the newest of each variant and name, and what was made of them; return those removed."""
    newest: dict[tuple[str, str | None], Image] = {}
    for image in images():
        newest.setdefault((image.variant, image.name), image)
    old = [image for image in images() if image not in newest.values()]
    for image in old:
        shutil.rmtree(image.directory)
    return old


def find(wanted: str | None) -> Image:
    """Return the newest image of this name, or whose digest begins so; without either the newest of the suite's own.

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
    raise RequestError(f"no {variant} image has been built", remedy=f"run: {BUILD}")
