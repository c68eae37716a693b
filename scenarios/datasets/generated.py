"""Generated sets: their plan, their manifest, and where they are."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.part import Part
from suite.registries import DATA_KINDS
from suite.results.files import read
from worker.data.kinds.kind import PICTURE_SIZES, DataKind, PictureSize
from worker.data.listing import listing
from worker.workloads.workload import CLASSES

PLAN = "plan.json"
MANIFEST = "manifest.json"
_MOST_BYTES = 1 << 29
"""A set of a few million files has a line of about 100 bytes for each in its manifest."""
USUAL_FORMAT = "imagefolder"
_MAKE = "make one with: bench data make --images 1000"
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SetPlan(Part):
    """Everything that decides the bytes of a generated set."""

    schema_version: Literal[1] = 1
    seed: Annotated[int, Field(ge=0)]
    format: str = USUAL_FORMAT
    """A member of ``DATA_KINDS``."""
    size: PictureSize | None = None
    images: Annotated[int, Field(gt=0)]
    """The images to train on."""
    classes: Annotated[int, Field(gt=0)] | None = None
    """The most there can be: fewer images than classes leave the later ones out."""

    def text(self) -> str:
        return self.model_dump_json(indent=1, include=set(SetPlan.model_fields)) + "\n"

    def kind(self) -> DataKind:
        """Return the kind that draws the set. Raises RequestError for one that is unknown here, or cannot draw."""
        kind: DataKind = DATA_KINDS.get(self.format)
        if not kind.can_be_generated:
            can = [name for name in DATA_KINDS if DATA_KINDS.get(name).can_be_generated]
            raise RequestError(f"--format {self.format} cannot be generated", remedy=f"choose among {', '.join(can)}")
        return kind


class SetManifest(SetPlan):
    """A whole set, as it was when it was made."""

    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Hash
    """The digest of its listing; see ``worker.data.listing``."""
    files: dict[str, Hash]
    """SHA-256 of the content of every file, by path."""

    @classmethod
    def read(cls, directory: Path) -> "SetManifest | None":
        """Return the manifest of a directory, or None without one. Raises RequestError for one of others."""
        path = directory / MANIFEST
        try:
            if path.stat().st_size > _MOST_BYTES:
                message = f"{path} has more than {_MOST_BYTES >> 20} MiB"
                raise RequestError(message, remedy="no set of ours has such a one")
            return cls.model_validate_json(read(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            raise RequestError(
                f"{path} was not written by this version of bench data make", remedy="give another directory with --out"
            ) from error
        except OSError as error:
            raise RequestError(f"cannot read {path}: {error.strerror}", remedy="see who may read it") from error


@dataclass(frozen=True)
class GeneratedSet:
    """A generated set of this machine."""

    directory: Path
    manifest: SetManifest

    def files(self) -> frozenset[str]:
        """Return the files of the set by path."""
        return frozenset({PLAN, MANIFEST, *self.manifest.files})


def make_plan(images: int, name: str, size: str | None, seed: int, classes: int | None) -> SetPlan:
    """Return the plan of a set of the kind ``name``. Raises RequestError for numbers that no set can have."""
    kind = SetPlan(seed=0, format=name, images=1).kind()
    if kind.sized:
        size = size or PICTURE_SIZES[0]
        classes = CLASSES if classes is None else classes
    for option, value in (("--size", size), ("--classes", classes)):
        if value is not None and not kind.sized:
            raise RequestError(
                f"{option} with --format {name}, which has sizes and labels of its own", remedy="leave it out"
            )
    limits = (("--images", images, kind.least_images), ("--seed", seed, 0))
    for option, number, least in limits:
        if number < least:
            raise RequestError(f"{option} {number}", remedy=f"give a number from {least} up")
    if classes is not None and not 1 <= classes <= CLASSES:
        raise RequestError(f"--classes {classes}", remedy=f"give 1 to {CLASSES}: the models tell {CLASSES} apart")
    if size not in (None, *PICTURE_SIZES):
        raise RequestError(f"--size {size!r} is unknown", remedy=f"choose among {', '.join(PICTURE_SIZES)}")
    values = {
        "format": name,
        "size": size,
        "images": images,
        "classes": classes,
    }
    return SetPlan.model_validate({"schema_version": 1, "seed": seed, **values})


def data_folder(home: Path) -> Path:
    return home / "data"


def generated_sets(home: Path) -> list[GeneratedSet]:
    """Return the sets, the newest first. Directories that hold no set are left out."""
    dated = []
    for path in data_folder(home).glob(f"[!.]*/{MANIFEST}"):
        # A set of another version cannot be used.
        with suppress(RequestError):
            manifest = SetManifest.read(path.parent)
            if manifest:
                stored = GeneratedSet(path.parent, manifest)
                dated.append((path.stat().st_mtime_ns, str(path), stored))
    newest = sorted(dated, reverse=True, key=lambda item: item[:2])
    return [generated for *_, generated in newest]


def newest(home: Path, images: int = 0, listing_sha256: str | None = None) -> Path:
    """Return the newest imagefolder that has so many ``images``, or else the one that has most.

    With a digest, return the set of this listing, of any format, if it is still here.
    Raises RequestError if there is no imagefolder.
    """
    sets = generated_sets(home)
    if not sets:
        raise RequestError(f"no data set has been generated in {data_folder(home)}", remedy=_MAKE)
    of_listing = [candidate for candidate in sets if candidate.manifest.sha256 == listing_sha256]
    if of_listing:
        return of_listing[0].directory
    folders = [candidate for candidate in sets if candidate.manifest.format == USUAL_FORMAT]
    if not folders:
        formats_of_sets = {candidate.manifest.format for candidate in sets}
        formats = ", ".join(sorted(formats_of_sets))
        message = f"the generated sets in {data_folder(home)} are no imagefolder: {formats}"
        raise RequestError(message, remedy=f"{_MAKE}; or name one as generated:DIR")
    large_enough = [candidate for candidate in folders if candidate.manifest.images >= images]
    if large_enough:
        return large_enough[0].directory
    return max(folders, key=lambda candidate: candidate.manifest.images).directory


def has_images(home: Path, images: int) -> bool:
    """Return whether there is a generated imagefolder of so many images."""
    sets = (candidate.manifest for candidate in generated_sets(home))
    return any(manifest.format == USUAL_FORMAT and manifest.images >= images for manifest in sets)


def is_unchanged(directory: Path, manifest: SetManifest) -> bool:
    """Return whether every file is there with its size. ``writer.verify`` compares the contents."""
    return listing(directory).sha256 == manifest.sha256


def finished(directory: Path) -> SetManifest:
    """Return the manifest of a set that is whole by its sizes. Raises RequestError for any other directory."""
    manifest = SetManifest.read(directory)
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
        remedy=f"bench data verify {directory} lists the differences; remove the directory, and make it again: "
        f"{_command(directory, plan)}",
    )


def _command(directory: Path, plan: SetPlan) -> str:
    """Return the command that makes this very set."""
    usual = {
        "format": USUAL_FORMAT,
        "size": "imagenet",
        "seed": 0,
        "classes": 1000,
    }
    values = {name: getattr(plan, name) for name in usual}
    options = [f"--{name} {value}" for name, value in values.items() if value not in (usual[name], None)]
    return " ".join(["bench data make --images", str(plan.images), *options, "--out", str(directory)])
