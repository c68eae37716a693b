"""Making a set: the plan first, then every image, then the manifest. At any point it can be stopped and continued."""

import errno
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from scenarios.datasets.directory import check_disk_space, locked, refuse_others
from scenarios.datasets.images import Made, Task, ensure
from scenarios.datasets.journal import JOURNAL, append, begin_journal, known_images
from scenarios.datasets.manifest import (
    MANIFEST,
    PLAN,
    Manifest,
    SetPlan,
    make_plan,
    read_manifest,
    write_readable,
)
from scenarios.datasets.parallel import Progress, spread, worker_count
from suite.errors import BenchError
from worker.data.listing import Listing, files, listing

_AT_ONCE = 16
"""Images of one task: a tenth of a second, which is also how long Ctrl-C waits."""
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def make(
    directory: Path,
    images: int,
    size: str = "imagenet",
    seed: int = 0,
    classes: int = 1000,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make a folder of JPEG files, one folder for each class; the same bytes whatever the number of workers.

    What is there already is kept; more images than before extend a set. Raises RequestError for a set that cannot be,
    and BenchError for what went wrong on the way.
    """
    plan, count = make_plan(images, size, seed, classes), worker_count(workers)
    if not directory.exists():
        check_disk_space(directory, plan, images)
    with locked(directory):
        refuse_others(directory, plan)
        manifest = read_manifest(directory)
        if manifest and manifest.images == images and is_unchanged(directory, manifest):
            return manifest
        known = known_images(directory, manifest)
        check_disk_space(
            directory, plan, sum(not (directory / plan.path_of(index)).exists() for index in range(images))
        )
        try:
            _begin(directory, plan, known)
            hashes = _write(directory, plan, known, count, progress)
            return _finish(directory, plan, hashes)
        except OSError as error:
            raise _stopped(directory, plan, error) from error


def is_unchanged(directory: Path, manifest: Manifest) -> bool:
    """Return whether every file is there with its size. For the contents see ``scenarios.datasets.verify``."""
    return listing(directory).sha256 == manifest.sha256


def _begin(directory: Path, plan: SetPlan, known: Mapping[int, str]) -> None:
    directory.chmod(0o755)
    begin_journal(directory, known)
    # From here until its manifest is written again, a set that was whole is not taken for one.
    (directory / MANIFEST).unlink(missing_ok=True)
    write_readable(directory / PLAN, plan.text())
    for name in plan.class_names():
        (directory / name).mkdir(exist_ok=True)
        (directory / name).chmod(0o755)


def _write(
    directory: Path, plan: SetPlan, known: Mapping[int, str], workers: int, progress: Progress | None
) -> dict[int, str]:
    """Write every image. Returns their hashes, by index."""
    starts = range(0, plan.images, _AT_ONCE)
    spans = (range(start, min(start + _AT_ONCE, plan.images)) for start in starts)
    tasks = (Task(directory, plan, tuple((index, known.get(index)) for index in span)) for span in spans)
    hashes: dict[int, str] = {}
    with (directory / JOURNAL).open("a") as journal, closing(spread(ensure, tasks, min(workers, len(starts)))) as done:
        for made in done:
            append(journal, made)
            hashes |= _hashes(made)
            if progress:
                progress(len(hashes), plan.images)
    return hashes


def _hashes(made: list[Made]) -> dict[int, str]:
    return {each.index: each.sha256 for each in made}


def _finish(directory: Path, plan: SetPlan, hashes: Mapping[int, str]) -> Manifest:
    """Write the manifest, once nothing that it lists can be lost any more."""
    os.sync()
    found = listing(directory)
    _refuse_strangers(directory, plan, found)
    by_path = {plan.path_of(index): hashes[index] for index in sorted(hashes)}
    manifest = Manifest(**plan.model_dump(), size_bytes=found.size_bytes, sha256=found.sha256, files=by_path)
    write_readable(directory / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    (directory / JOURNAL).unlink()
    return manifest


def _refuse_strangers(directory: Path, plan: SetPlan, found: Listing) -> None:
    """Raise BenchError for other files in the set: they would be part of its hash, and of the training."""
    if found.files != plan.images + 1:
        ours = {PLAN, *(plan.path_of(index) for index in range(plan.images))}
        strangers = [path for each, _ in files(directory) if (path := os.fsdecode(each)) not in ours]
        raise BenchError(
            f"{directory} holds {len(strangers)} files that are no part of the set: {', '.join(strangers[:3])}",
            remedy="remove them and run the same command again",
        )


def _stopped(directory: Path, plan: SetPlan, error: OSError) -> BenchError:
    there = sum((directory / plan.path_of(index)).exists() for index in range(plan.images))
    why = "the disk is full" if error.errno in _FULL else f"{error.strerror}: {error.filename}"
    return BenchError(
        f"{why}; {there} of {plan.images} images are in {directory}",
        remedy="once that is mended, the same command continues where it was; or remove the directory",
    )
