"""Generated sets: their plan, written first, their manifest, written once they are whole, and where they are."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from suite.errors import BenchError, RequestError
from suite.part import Part
from suite.registries import DATA_KINDS
from suite.results.files import read, whole
from worker.data.kinds.kind import PICTURE_SIZES, DataKind, PictureSize
from worker.data.listing import listing
from worker.workloads.workload import CLASSES

PLAN, MANIFEST = "plan.json", "manifest.json"
_MOST_BYTES = 1 << 29
"""A set of a few million files has a line of about 100 bytes for each in its manifest."""
_USUAL_FORMAT = "imagefolder"
_MAKE = "make one with: bench data make --images 1000"
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SetPlan(Part):
    """Everything that decides the bytes of a generated set."""

    file: ClassVar[str] = PLAN

    schema_version: Literal[1] = 1
    seed: Annotated[int, Field(ge=0)]
    format: str = _USUAL_FORMAT
    """A member of ``DATA_KINDS``. Sets of older suites lack it."""
    size: PictureSize | None = None
    images: Annotated[int, Field(gt=0)]
    """The images to train on."""
    classes: Annotated[int, Field(gt=0)] | None = None
    """The most there can be: fewer images than classes leave the later ones out."""

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return what a directory has in its file, or None without one. Raises RequestError on one of others."""
        path = directory / cls.file
        try:
            if path.stat().st_size > _MOST_BYTES:
                told = f"{path} has more than {_MOST_BYTES >> 20} MiB"
                raise RequestError(told, remedy="no set of ours has such a one")
            return cls.model_validate_json(read(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            raise RequestError(
                f"{path} was not written by this version of bench data make", remedy="give another directory with --out"
            ) from error
        except OSError as error:
            raise RequestError(f"cannot read {path}: {error.strerror}", remedy="see who may read it") from error

    def text(self) -> str:
        # What an older suite has left out stays out: its files must not differ from what was written.
        return self.model_dump_json(indent=1, include=set(SetPlan.model_fields), exclude_unset=True) + "\n"

    def kind(self) -> DataKind:
        """Return the kind that draws the set. Raises RequestError for one that is unknown here, or cannot draw."""
        kind: DataKind = DATA_KINDS.get(self.format)
        if not kind.can_be_generated:
            can = [name for name in DATA_KINDS if DATA_KINDS.get(name).can_be_generated]
            raise RequestError(f"--format {self.format} cannot be generated", remedy=f"choose among {', '.join(can)}")
        return kind


class SetManifest(SetPlan):
    """A whole set, as it was when it was finished; a set that is unfinished, or was not generated, has none."""

    file = MANIFEST
    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Hash
    """The digest of its listing; see ``worker.data.listing``."""
    files: dict[str, Hash]
    """SHA-256 of the content of every file, by path."""


@dataclass(frozen=True)
class GeneratedSet:
    """A generated set. ``manifest`` is None for one that was begun and is not finished."""

    directory: Path
    plan: SetPlan
    manifest: SetManifest | None


def make_plan(images: int, name: str, size: str | None, seed: int, classes: int | None) -> SetPlan:
    """Return the plan of a set of the kind ``name``. Raises RequestError for numbers that no set can have."""
    kind = SetPlan(seed=0, format=name, images=1).kind()
    if kind.sized:
        size, classes = size or PICTURE_SIZES[0], CLASSES if classes is None else classes
    for option, value in (("--size", size), ("--classes", classes)):
        if value is not None and not kind.sized:
            raise RequestError(
                f"{option} with --format {name}, which has sizes and labels of its own", remedy="leave it out"
            )
    for option, number, least in (("--images", images, kind.least_images), ("--seed", seed, 0)):
        if number < least:
            raise RequestError(f"{option} {number}", remedy=f"give a number from {least} up")
    if classes is not None and not 1 <= classes <= CLASSES:
        raise RequestError(f"--classes {classes}", remedy=f"give 1 to {CLASSES}: the models tell {CLASSES} apart")
    if size not in (None, *PICTURE_SIZES):
        raise RequestError(f"--size {size!r} is unknown", remedy=f"choose among {', '.join(PICTURE_SIZES)}")
    values = {"format": name, "size": size, "images": images, "classes": classes}
    return SetPlan.model_validate({"schema_version": 1, "seed": seed, **values})


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


def data_folder(home: Path) -> Path:
    return home / "data"


def generated_sets(home: Path) -> list[GeneratedSet]:
    """Return the sets: finished ones first, and of these the newest. Directories that hold no set are left out."""
    dated = []
    for path in data_folder(home).glob(f"*/{PLAN}"):
        # A set of another version can be neither used nor continued.
        with suppress(RequestError):
            if plan := SetPlan.read(path.parent):
                generated = GeneratedSet(path.parent, plan, SetManifest.read(path.parent))
                finished = generated.manifest is not None
                written_ns = path.with_name(MANIFEST if finished else PLAN).stat().st_mtime_ns
                dated.append(((finished, written_ns, str(path.parent)), generated))
    return [generated for _, generated in sorted(dated, reverse=True, key=lambda pair: pair[0])]


def newest(home: Path, images: int = 0, listing_sha256: str | None = None) -> Path:
    """Return the newest finished imagefolder that has so many ``images``, or else the one that has most.

    With a digest, return the set of this listing, of any format, if it is still here.
    Raises RequestError if there is no finished imagefolder.
    """
    sets = generated_sets(home)
    if not sets:
        raise RequestError(f"no data set has been generated in {data_folder(home)}", remedy=_MAKE)
    of_listing = [candidate for candidate in sets if candidate.manifest and candidate.manifest.sha256 == listing_sha256]
    if of_listing:
        return of_listing[0].directory
    folders = [candidate for candidate in sets if candidate.plan.format == _USUAL_FORMAT]
    if not folders:
        formats = ", ".join(sorted({candidate.plan.format for candidate in sets}))
        message = f"the generated sets in {data_folder(home)} are no imagefolder: {formats}"
        raise RequestError(message, remedy=f"{_MAKE}; or name one as generated:DIR")
    if folders[0].manifest is None:
        raise _unfinished(folders[0].directory, folders[0].plan)
    return _large_enough(folders, images).directory


def _large_enough(folders: Sequence[GeneratedSet], images: int) -> GeneratedSet:
    """Return the first finished set with so many images, or else the first of those with most."""
    largest = folders[0]
    for candidate in folders:
        if candidate.manifest and candidate.plan.images >= images:
            return candidate
        if candidate.manifest and candidate.plan.images > largest.plan.images:
            largest = candidate
    return largest


def is_unchanged(directory: Path, manifest: SetManifest) -> bool:
    """Return whether every file is there with its size. ``writer.verify`` compares the contents."""
    return listing(directory).sha256 == manifest.sha256


def finished(directory: Path) -> SetManifest:
    """Return the manifest of a set that is whole by its sizes. Raises RequestError for any other directory."""
    manifest, plan = SetManifest.read(directory), SetPlan.read(directory)
    if manifest is None and plan:
        raise _unfinished(directory, plan)
    if manifest is None:
        raise RequestError(
            f"{directory} is no generated data set", remedy=f"{_MAKE}, or name your own as imagefolder:{directory}"
        )
    if not is_unchanged(directory, manifest):
        raise changed(directory, manifest)
    return manifest


def changed(directory: Path, plan: SetPlan) -> RequestError:
    return RequestError(
        f"{directory} has changed since it was made",
        remedy=f"bench data verify {directory} lists the differences; {_continuing(directory, plan)} mends it",
    )


def _unfinished(directory: Path, plan: SetPlan) -> RequestError:
    return RequestError(
        f"the making of {directory} was interrupted", remedy=f"{_continuing(directory, plan)} continues it"
    )


def _continuing(directory: Path, plan: SetPlan) -> str:
    """Return the command that makes this very set."""
    usual = {"format": _USUAL_FORMAT, "size": "imagenet", "seed": 0, "classes": 1000}
    values = {name: getattr(plan, name) for name in usual}
    options = [f"--{name} {value}" for name, value in values.items() if value not in (usual[name], None)]
    return " ".join(["bench data make --images", str(plan.images), *options, "--out", str(directory)])
