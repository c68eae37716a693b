"""The description of a generated set: its plan, written first, and its manifest, written once the set is whole."""

import os
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scenarios.datasets.pictures import SIZES, Size
from suite.errors import BenchError, RequestError
from suite.results.files import read, whole
from worker.workloads.workload import CLASSES

PLAN, MANIFEST = "plan.json", "manifest.json"
SHA256 = r"^[0-9a-f]{64}$"
Hash = Annotated[str, Field(pattern=SHA256)]


class SetPlan(BaseModel):
    """Everything that decides the bytes of a generated set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    seed: Annotated[int, Field(ge=0)]
    size: Size
    images: Annotated[int, Field(gt=0)]
    classes: Annotated[int, Field(gt=0)]
    """The most there can be: fewer images than classes leave the later ones out."""

    def path_of(self, index: int) -> str:
        """Return an image's path. It does not depend on how many there are: a longer set begins with a shorter one."""
        return f"{self.class_name(index % self.classes)}/{index:08d}.jpg"

    def class_names(self) -> list[str]:
        return [self.class_name(number) for number in range(min(self.classes, self.images))]

    @staticmethod
    def class_name(number: int) -> str:
        return f"class-{number:04d}"

    def text(self) -> str:
        return self.model_dump_json(indent=1, include=set(SetPlan.model_fields)) + "\n"


class Manifest(SetPlan):
    """A whole set, as it was when it was finished."""

    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Hash
    """The digest of its listing; see ``worker.data.listing``."""
    files: dict[str, Hash]
    """SHA-256 of the content of every image, by path."""


_Model = TypeVar("_Model", SetPlan, Manifest)


def make_plan(images: int, size: str, seed: int, classes: int) -> SetPlan:
    """Return the plan of a set. Raises RequestError for numbers that no set can have."""
    for option, value, least in (("--images", images, 1), ("--seed", seed, 0), ("--classes", classes, 1)):
        if value < least:
            raise RequestError(f"{option} {value}", remedy=f"give a number from {least} up")
    if classes > CLASSES:
        raise RequestError(f"--classes {classes}", remedy=f"the models tell {CLASSES} apart: give that or less")
    for known in SIZES:
        if size == known:
            return SetPlan(seed=seed, size=known, images=images, classes=classes)
    raise RequestError(f"--size {size!r} is unknown", remedy=f"choose among {', '.join(SIZES)}")


def read_plan(directory: Path) -> SetPlan | None:
    """Return the plan, or None where there is none. Raises RequestError on one that is not of this suite."""
    return _read(directory / PLAN, SetPlan)


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest, or None for a set that is unfinished or was not generated. Raises RequestError."""
    return _read(directory / MANIFEST, Manifest)


def _read(path: Path, model: type[_Model]) -> _Model | None:
    try:
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
