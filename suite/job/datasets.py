"""Data sets as plans and records know them. ``scenarios.datasets`` makes and checks them."""

import re
from typing import Annotated, Literal

from pydantic import Field

from suite.errors import RequestError
from suite.part import Part
from suite.registries import DATA_KINDS

PageCache = Literal["cold", "warm"]
"""``cold``: nothing of the data set is in a page cache of the target or the host. ``warm``: it was read once."""
MOST_COLD = 0.01
LEAST_WARM = 0.95
"""The share of the data set's pages that the cache of the target holds right before the launch."""
MOST_STILL_MAPPED = 0.02
"""The share of the pages of a userland that may stay in memory: its running programs keep what they have mapped.

Those are the interpreter that looks, the shell of a guest and its SSH server: 0.7 to 1.0 % of an image with torch.
"""
DigestKind = Literal["contents", "manifest", "sampled"]
"""How a data set is identified: by the hashes of all files; by those in the manifest of a generated set, of which some
files are hashed again; or by names, sizes, times and parts of some files."""
SYNTHETIC = "synthetic"
GENERATED = "generated"
FILES = "files"
"""The kind of the directory that a command of the user's own is given."""


class Dataset(Part):
    """One data set on this machine."""

    kind: Annotated[str, Field(pattern=r"^[\w-]+$")]
    """A member of ``DATA_KINDS``; or ``FILES``."""
    kind_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The digest of the source of a kind that another package provides."""
    directory: Annotated[str, Field(exclude=True)] = ""
    """The directory that holds it. It is a path of the user's and no part of what the data set is: written nowhere."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The digest that identifies it."""
    digest: DigestKind = "contents"
    listing_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The digest of a line ``SIZE PATH`` for every file, sorted by path: cheap, so that each target takes it again. The
    files of a command have none."""
    images: Annotated[int, Field(gt=0)]
    """The images to train on."""
    frame_stride: Annotated[int, Field(gt=0)] | None = None
    """The number of frames of a video of which one is taken; None for a set without videos."""
    size_bytes: Annotated[int, Field(gt=0)]
    device: str | None = None
    """The block device of the user's that holds it, and that every target then reads in place of the directory."""

    @property
    def label(self) -> str:
        """Return kind, size and digest: ``imagefolder of 1,000 images, digest 0a1b2c3d``."""
        return f"{self.kind} of {self.images:,} images, digest {self.sha256[:8]}"


def shape_of(kind: str) -> dict[str, int]:
    """Return the shape of the images of a kind, for the workloads that take any."""
    declared = DATA_KINDS.get(kind)
    return {"channels": declared.channels, **({"image_px": declared.image_px} if declared.image_px else {})}


def parse_data(text: str) -> tuple[str, str | None]:
    """Return (kind, directory) of ``imagefolder:/data/pets``, ``synthetic`` or ``generated``. Raises RequestError."""
    kind, colon, directory = text.partition(":")
    if kind == SYNTHETIC and not colon:
        return kind, None
    if kind == GENERATED and (directory or not colon):
        return kind, directory or None
    if kind in DATA_KINDS and directory:
        return kind, directory
    raise RequestError(
        f"{re.sub(r'[^ -~]', '?', text)[:100]} is not a data set",
        remedy=f"write generated, or one of {', '.join(f'{each}:DIR' for each in (GENERATED, *DATA_KINDS))}",
    )
