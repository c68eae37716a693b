"""Making a set: the plan first, then every file, then the manifest. At any point it can be stopped and continued."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path, PurePath

from scenarios.datasets.images import (
    JOURNAL,
    Task,
    append,
    begin_journal,
    ensure,
    format_of,
    known_files,
    paths_of,
)
from scenarios.datasets.manifest import (
    MANIFEST,
    PLAN,
    SetManifest,
    SetPlan,
    make_plan,
    read_manifest,
    read_plan,
    write_readable,
)
from scenarios.datasets.parallel import Progress, spread, worker_count
from suite.errors import BenchError, RequestError
from suite.results.files import directory as opened
from suite.results.files import lock, open_regular, remove_temporaries
from worker.data.listing import files, listing

_AT_ONCE = 16
"""Files of one task: a tenth of a second, which is also how long Ctrl-C waits."""
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def make(
    directory: Path,
    images: int,
    size: str | None = None,
    seed: int = 0,
    classes: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    note: Callable[[str], object] | None = None,
    name: str = "imagefolder",
) -> SetManifest:
    """Make a set in the format ``name``; the same bytes whatever the number of workers.

    What is there already is kept; more images than before extend a set whose format grows. While another process makes
    it, wait, after telling ``note``. Raises RequestError for a set that cannot be, and BenchError for what went wrong
    on the way.
    """
    plan, count = make_plan(images, name, size, seed, classes), worker_count(workers)
    if not directory.exists():
        _check_disk_space(directory, plan, format_of(plan).files(plan))
    with _locked(directory, note):
        _refuse_others(directory, plan)
        manifest = read_manifest(directory)
        if manifest and manifest.images == images and is_unchanged(directory, manifest):
            return manifest
        known, paths = known_files(directory, manifest), paths_of(plan)
        _check_disk_space(directory, plan, sum(not (directory / path).exists() for path in paths))
        try:
            _begin(directory, plan, paths, known)
            hashes = _write(directory, plan, known, count, progress)
            return _finish(directory, plan, paths, hashes)
        except OSError as error:
            there = sum((directory / path).exists() for path in paths)
            why = "the disk is full" if error.errno in _FULL else f"{error.strerror}: {error.filename}"
            raise BenchError(
                f"{why}; {there} of {len(paths)} files are in {directory}",
                remedy="once that is mended, the same command continues where it was; or remove the directory",
            ) from error


def is_unchanged(directory: Path, manifest: SetManifest) -> bool:
    """Return whether every file is there with its size. For the contents see ``scenarios.datasets.verify``."""
    return listing(directory).sha256 == manifest.sha256


def _begin(directory: Path, plan: SetPlan, paths: Sequence[str], known: Mapping[int, str]) -> None:
    directory.chmod(0o755)
    folders = sorted({folder for path in paths for folder in PurePath(path).parents} - {PurePath()})
    for place in (directory, *(directory / folder for folder in folders)):
        remove_temporaries(place)  # what a killed process has left
    begin_journal(directory, known)
    # From here until its manifest is written again, a set that was whole is not taken for one.
    (directory / MANIFEST).unlink(missing_ok=True)
    write_readable(directory / PLAN, plan.text())
    for folder in folders:
        with opened(directory / folder, directory) as held:
            os.fchmod(held, 0o755)


def _write(
    directory: Path, plan: SetPlan, known: Mapping[int, str], workers: int, progress: Progress | None
) -> dict[int, str]:
    """Write every file. Returns their hashes, by index."""
    files = format_of(plan).files(plan)
    starts = range(0, files, _AT_ONCE)
    spans = (range(start, min(start + _AT_ONCE, files)) for start in starts)
    tasks = (Task(directory, plan, tuple((index, known.get(index)) for index in span)) for span in spans)
    hashes: dict[int, str] = {}
    with (
        open(directory / JOURNAL, "a", encoding="ascii", opener=open_regular) as journal,
        closing(spread(ensure, tasks, min(workers, len(starts)))) as done,
    ):
        for made in done:
            append(journal, made)
            hashes |= {each.index: each.sha256 for each in made}
            if progress:
                progress(len(hashes), files)
    return hashes


def _finish(directory: Path, plan: SetPlan, paths: Sequence[str], hashes: Mapping[int, str]) -> SetManifest:
    """Write the manifest, once nothing that it lists can be lost any more. Raises BenchError for files of others."""
    os.sync()
    found = listing(directory)
    if found.files != len(paths) + 1:
        # They would be part of the set's hash, and of the training.
        ours = {PLAN, *paths}
        strangers = [path for each, _ in files(directory) if (path := os.fsdecode(each)) not in ours]
        raise BenchError(
            f"{directory} holds {len(strangers)} files that are no part of the set: {', '.join(strangers[:3])}",
            remedy="remove them and run the same command again",
        )
    by_path = {path: hashes[index] for index, path in enumerate(paths)}
    manifest = SetManifest(**plan.model_dump(), size_bytes=found.size_bytes, sha256=found.sha256, files=by_path)
    write_readable(directory / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    (directory / JOURNAL).unlink()
    return manifest


@contextmanager
def _locked(directory: Path, note: Callable[[str], object] | None) -> Iterator[None]:
    """Make the directory if need be, and lock it against other processes; wait for one that makes the same."""

    def waiting() -> None:
        if note:
            note(f"another bench is making {directory}: waiting until it has ended")

    with ExitStack() as held:
        try:
            handle = held.enter_context(opened(directory))
        except OSError as error:
            why = "is a file" if directory.is_file() else error.strerror
            raise RequestError(f"cannot make {directory}: {why}", remedy="give another directory with --out") from error
        lock(handle, waiting)
        yield


def _refuse_others(directory: Path, plan: SetPlan) -> None:
    """Raise RequestError unless the directory is empty, or holds this plan or the beginning of it."""
    stored = read_plan(directory)
    if stored is None:
        found = sorted(p.name for p in directory.iterdir() if not p.name.startswith(".") and p.name != "lost+found")
        if found:
            raise RequestError(
                f"{directory} holds something else: {', '.join(found[:3])}", remedy="give an empty or new directory"
            )
        return
    of_all = ("format", "seed", "size", "classes")
    differing = [name for name in of_all if getattr(stored, name) != getattr(plan, name)]
    grows = format_of(plan).grows
    if differing or stored.images > plan.images or (stored.images < plan.images and not grows):
        values = {name: getattr(stored, name) for name in ("format", "images", "size", "seed", "classes")}
        was = " ".join(f"--{name} {value}" for name, value in values.items() if value is not None)
        more = "; only --images may grow" if grows else ""
        raise RequestError(
            f"{directory} holds a set of another plan: {', '.join(differing or ['images'])} differ",
            remedy=f"it was made with {was}{more}; or give another directory with --out",
        )


def _check_disk_space(directory: Path, plan: SetPlan, missing: int) -> None:
    """Raise RequestError when ``missing`` more files do not fit where the directory lies or will lie."""
    place = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
    disk = os.statvfs(place)
    each, free = format_of(plan).file_bytes(plan), disk.f_bavail * disk.f_frsize
    if missing * each > free:
        asked = f"{missing:,} files of about {each / 1e3:.0f} kB are {_size(missing * each)}"
        raise RequestError(
            f"{asked}; {place} has {_size(free)} free",
            remedy=f"{free // each:,} files fit: give fewer images with --images, or a larger disk with --out",
        )
    # Some file systems have no fixed number of files, and say 0.
    if disk.f_files and missing > disk.f_favail:
        raise RequestError(
            f"the set has {missing:,} files to come; {place} has room for {disk.f_favail:,} more",
            remedy="give fewer with --images, or another disk with --out",
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
