"""The description of a generated set: its plan, written first, and its manifest, written once the set is whole."""

import os
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scenarios.datasets.pictures import SIZES, Size
from suite.errors import BenchError, RequestError
from suite.registries import DATA_FORMATS
from suite.results.files import read, whole
from worker.workloads.workload import CLASSES

PLAN, MANIFEST = "plan.json", "manifest.json"
SHA256 = r"^[0-9a-f]{64}$"
_MOST_BYTES = 1 << 29
"""A file of a few million has a line in the manifest, of about 100 bytes."""
Hash = Annotated[str, Field(pattern=SHA256)]


class SetPlan(BaseModel):
    """Everything that decides the bytes of a generated set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    seed: Annotated[int, Field(ge=0)]
    format: str = "imagefolder"
    """A member of ``DATA_FORMATS``. Sets of older suites do not say it."""
    size: Size | None = None
    images: Annotated[int, Field(gt=0)]
    """The images to train on."""
    classes: Annotated[int, Field(gt=0)] | None = None
    """The most there can be: fewer images than classes leave the later ones out."""

    def text(self) -> str:
        # What an older suite has left out stays out: its files must not differ from what was written.
        return self.model_dump_json(indent=1, include=set(SetPlan.model_fields), exclude_unset=True) + "\n"


class SetManifest(SetPlan):
    """A whole set, as it was when it was finished."""

    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Hash
    """The digest of its listing; see ``worker.data.listing``."""
    files: dict[str, Hash]
    """SHA-256 of the content of every file, by path."""


_Model = TypeVar("_Model", SetPlan, SetManifest)


def make_plan(images: int, name: str, size: str | None, seed: int, classes: int | None) -> SetPlan:
    """Return the plan of a set in the format ``name``. Raises RequestError for numbers that no set can have."""
    form = DATA_FORMATS.get(name)
    given = [option for option, value in (("--size", size), ("--classes", classes)) if value is not None]
    if given and not form.sized:
        raise RequestError(
            f"{given[0]} with --format {name}, which has sizes and labels of its own", remedy="leave it out"
        )
    if form.sized:
        size, classes = size or SIZES[0], 1000 if classes is None else classes
    numbers = (("--images", images, form.least_images), ("--seed", seed, 0), ("--classes", classes, 1))
    for option, value, least in numbers:
        if value is not None and value < least:
            raise RequestError(f"{option} {value}", remedy=f"give a number from {least} up")
    if classes and classes > CLASSES:
        raise RequestError(f"--classes {classes}", remedy=f"the models tell {CLASSES} apart: give that or less")
    known = next((each for each in SIZES if each == size), None)
    if size and not known:
        raise RequestError(f"--size {size!r} is unknown", remedy=f"choose among {', '.join(SIZES)}")
    return SetPlan(schema_version=1, seed=seed, format=name, size=known, images=images, classes=classes)


def read_plan(directory: Path) -> SetPlan | None:
    """Return the plan, or None where there is none. Raises RequestError on one that is not of this suite."""
    return _read(directory / PLAN, SetPlan)


def read_manifest(directory: Path) -> SetManifest | None:
    """Return the manifest, or None for a set that is unfinished or was not generated. Raises RequestError."""
    return _read(directory / MANIFEST, SetManifest)


def _read(path: Path, model: type[_Model]) -> _Model | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise RequestError(f"{path} has more than {_MOST_BYTES >> 20} MiB", remedy="no set of ours has such a one")
        return model.model_validate_json(read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        raise RequestError(
            f"{path} was not written by this version of bench data make", remedy="give another directory with --out"
        ) from error
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}", remedy="see who may read it") from error


def write_readable(path: Path, text: str) -> None:
    """Write a file whole or not at all, and readable by all, whatever this process's umask is."""
    try:
        with whole(path) as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), 0o644)
    except OSError as error:
        raise BenchError(
            f"cannot write {path}: {error.strerror}",
            remedy="free some space, or see who may write there; the same command continues",
        ) from error
