"""Data sets as plans and records know them. ``scenarios.datasets`` makes and checks them."""

import re
from typing import Annotated, Literal

from pydantic import Field

from suite.errors import RequestError
from suite.part import Part

Kind = Literal["imagenet", "imagefolder", "cifar10", "mnist", "files"]
"""``files`` is no data set to train on: the directory that a command of the user's own is given."""
PageCache = Literal["cold", "warm"]
"""``cold``: nothing of the data set is in a page cache of the target or the host. ``warm``: it was read once."""
MOST_COLD, LEAST_WARM = 0.01, 0.95
"""The share of the data set's pages that the cache of the target holds right before the launch."""
SYNTHETIC, GENERATED = "synthetic", "generated"
KINDS: tuple[Kind, ...] = ("imagenet", "imagefolder", "cifar10", "mnist")


class Dataset(Part):
    """One data set on this machine."""

    kind: Kind
    directory: Annotated[str, Field(exclude=True)] = ""
    """The directory that holds it. It is a path of the user's and no part of what the data set is: written nowhere."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The digest of its listing: a line ``SIZE PATH`` of every file, sorted by path. Cheap: a target takes it again."""
    images: Annotated[int, Field(gt=0)]
    size_bytes: Annotated[int, Field(gt=0)]
    device: str | None = None
    """The block device of the user's that holds it, and that every target then reads in place of the directory."""


def parse_data(text: str) -> tuple[str, str | None]:
    """Return (kind, directory) of ``"imagefolder:/data/pets"``; ``"synthetic"`` and ``"generated"`` need no directory.

    Raises RequestError on anything else.
    """
    kind, colon, directory = text.partition(":")
    if kind == SYNTHETIC and not colon:
        return kind, None
    if kind == GENERATED and (directory or not colon):
        return kind, directory or None
    if kind in KINDS and directory:
        return kind, directory
    raise RequestError(
        f"{re.sub(r'[^ -~]', '?', text)[:100]} is not a data set",
        remedy=f"write generated, or one of {', '.join(f'{each}:DIR' for each in KINDS)}",
    )
