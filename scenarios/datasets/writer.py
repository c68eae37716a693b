"""Makes a generated set, and verifies one byte by byte.

A set is written into a hidden directory next to its place, and renamed once it is whole: what is stopped leaves
nothing. Its manifest holds the SHA-256 of each file by its path.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath

from scenarios.datasets.generated import MANIFEST, PLAN, SetManifest, SetPlan, changed, is_unchanged, make_plan
from scenarios.datasets.processes import Progress, spread, worker_count
from suite.errors import BenchError, RequestError
from suite.results import files as safe_files
from worker.data.listing import files, listing

_DRAWN_AT_ONCE = 16
_HASHED_AT_ONCE = 256
"""Files of one task: drawing takes a tenth of a second, which is also how long Ctrl-C waits."""
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def _silent(*_: object) -> None: ...


def make(
    directory: Path,
    images: int,
    size: str | None = None,
    seed: int = 0,
    classes: int | None = None,
    workers: int | None = None,
    progress: Progress = _silent,
    note: Callable[[str], object] = _silent,
    name: str = "imagefolder",
) -> SetManifest:
    """Make a set of the kind ``name``; the same bytes whatever the number of workers.

    A set of this plan that is there already is left as it is. While another process makes it, call ``note`` and wait.
    Raises RequestError for a set that cannot be, and BenchError for what went wrong on the way.
    """
    plan = make_plan(images, name, size, seed, classes)
    count = worker_count(workers)
    present = _present(directory, plan)
    if present:
        return present
    _check_disk_space(directory, plan)
    with _unfinished(directory, note) as unfinished:
        present = _present(directory, plan)
        if present:
            return present
        try:
            manifest = _write(unfinished, plan, count, progress)
            os.sync()  # nothing that the manifest lists can be lost any more
            unfinished.rename(directory)
        except OSError as error:
            why = "the disk is full" if error.errno in _FULL else f"{error.strerror}: {error.filename}"
            raise BenchError(
                f"cannot make {directory}: {why}", remedy="mend that, and give the same command again"
            ) from error
    return manifest


def _present(directory: Path, plan: SetPlan) -> SetManifest | None:
    """Return the set that is there; None for an empty directory, or none. Raises RequestError for anything else."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _impossible(directory, error.strerror) from error
    if directory.is_mount():
        raise _impossible(directory, "it is a mount point, and a set is renamed to its place")
    if not names:
        return None
    stored = SetManifest.read(directory)
    if stored is None:
        raise RequestError(
            f"{directory} holds something else: {', '.join(names[:3])}", remedy="give an empty or new directory"
        )
    _refuse_another_plan(directory, stored, plan)
    if not is_unchanged(directory, stored):
        raise changed(directory, stored)
    return stored


def _impossible(directory: Path, why: str | None) -> RequestError:
    return RequestError(f"cannot make {directory}: {why}", remedy="give another directory with --out")


def _refuse_another_plan(directory: Path, stored: SetPlan, plan: SetPlan) -> None:
    names = ("format", "images", "size", "seed", "classes")
    differing = [name for name in names if getattr(stored, name) != getattr(plan, name)]
    if differing:
        values = stored.model_dump(include=set(names), exclude_none=True)
        was = " ".join(f"--{name} {values[name]}" for name in names if name in values)
        raise RequestError(
            f"{directory} holds a set of another plan: {', '.join(differing)} differ",
            remedy=f"it was made with {was}; or give another directory with --out",
        )


@contextlib.contextmanager
def _unfinished(directory: Path, note: Callable[[str], object]) -> Iterator[Path]:
    """Yield an empty hidden directory next to the set's, and remove it unless it was renamed.

    The directory around both is locked: wait for another process that makes a set there.
    """
    path = directory.with_name(f".{directory.name}.unfinished")
    with contextlib.ExitStack() as stack:
        try:
            parent = stack.enter_context(safe_files.directory(directory.parent))
            waiting = f"another bench makes a set in {directory.parent}: waiting until it has ended"
            safe_files.lock(parent, lambda: note(waiting))
            _remove_unfinished(path)
            path.mkdir()
        except OSError as error:
            raise _impossible(directory, error.strerror) from error
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        yield path


def _remove_unfinished(path: Path) -> None:
    """Remove what a killed process has left of a set. Raises RequestError for what is none, and OSError."""
    if not os.path.lexists(path):
        return
    is_set = path.is_dir() and not path.is_symlink()
    if is_set and not (path / PLAN).is_file():  # the first file of a set
        is_set = all(map(safe_files.is_temporary, os.listdir(path)))
    if not is_set:
        raise RequestError(f"{path} is in the way, and no set that was begun", remedy="move it elsewhere")
    shutil.rmtree(path)


def _write(directory: Path, plan: SetPlan, workers: int, progress: Progress) -> SetManifest:
    """Write all files of a set into an empty directory. Raises OSError."""
    directory.chmod(0o755)
    write_readable(directory / PLAN, plan.text().encode())
    paths = plan.kind().paths(plan)
    folders = {folder for path in paths for folder in PurePath(path).parents}
    for folder in sorted(folders - {PurePath()}):
        (directory / folder).mkdir()
        (directory / folder).chmod(0o755)
    numbered = list(enumerate(paths))
    starts = range(0, len(paths), _DRAWN_AT_ONCE)
    tasks = (numbered[start : start + _DRAWN_AT_ONCE] for start in starts)
    drawn: dict[str, str] = {}
    drawing = partial(_draw, directory, plan)
    processes = min(workers, len(starts))
    with contextlib.closing(spread(drawing, tasks, processes)) as results:
        for digests in results:
            drawn |= digests
            progress(len(drawn), len(paths))
    listed = listing(directory)
    in_order = {path: drawn[path] for path in paths}
    fields = plan.model_dump()
    manifest = SetManifest(**fields, size_bytes=listed.size_bytes, sha256=listed.sha256, files=in_order)
    write_readable(directory / MANIFEST, f"{manifest.model_dump_json(indent=1)}\n".encode())
    return manifest


def _draw(directory: Path, plan: SetPlan, task: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Draw each file (number, path), and return the digests by path. Raises OSError."""
    kind = plan.kind()
    digests = {}
    for number, path in task:
        content = kind.content(plan, number)
        write_readable(directory / path, content)
        digests[path] = hashlib.sha256(content).hexdigest()
    return digests


def write_readable(path: Path, content: bytes) -> None:
    """Write a new file that is readable by all, whatever this process's umask is."""
    with path.open("xb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)


def _check_disk_space(directory: Path, plan: SetPlan) -> None:
    """Raise RequestError if the set does not fit where the directory will lie."""
    existing_parents = (path for path in directory.absolute().parents if path.is_dir())
    existing = next(existing_parents)
    disk = os.statvfs(existing)
    kind = plan.kind()
    count = len(kind.paths(plan))
    file_bytes = kind.file_bytes(plan)
    free = disk.f_bavail * disk.f_frsize
    if count * file_bytes > free:
        needed = f"{count:,} files of about {file_bytes / 1e3:.0f} kB are {_size(count * file_bytes)}"
        raise RequestError(
            f"{needed}; {existing} has {_size(free)} free",
            remedy=f"{free // file_bytes:,} files fit: give fewer images with --images, or a larger disk with --out",
        )
    # Some file systems have no fixed number of files, and report 0.
    if disk.f_files and count > disk.f_favail:
        raise RequestError(
            f"the set has {count:,} files; {existing} has room for {disk.f_favail:,} more",
            remedy="give fewer with --images, or another disk with --out",
        )


def _size(size_bytes: int) -> str:
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:,.1f} GB"
    return f"{size_bytes / 1e6:,.1f} MB"


def verify(directory: Path, workers: int | None = None, progress: Progress = _silent) -> list[str]:
    """Return what is missing, foreign or changed, a line each, sorted; nothing if the set is whole.

    Raises RequestError if there is no finished set, and BenchError if a file cannot be read.
    """
    count = worker_count(workers)
    manifest = SetManifest.read(directory)
    if manifest is None:
        raise RequestError(f"{directory} holds no {MANIFEST}", remedy="name a set that bench data list shows")
    try:
        present = (os.fsdecode(path) for path, _ in files(directory))
        lines = [f"{path}: is no part of the set" for path in present if path not in manifest.files and path != PLAN]
        if not (directory / PLAN).exists():
            lines.append(f"{PLAN}: is missing")
        elif (directory / PLAN).read_text(errors="replace") != manifest.text():
            lines.append(f"{PLAN}: other content")
        return sorted([*lines, *_changed(directory, manifest.files, count, progress)])
    except OSError as error:
        raise BenchError(
            f"cannot read {error.filename or directory}: {error.strerror}", remedy="mend it, and verify again"
        ) from error


def _hashes(directory: Path, paths: Sequence[str]) -> dict[str, str | None]:
    """Return the SHA-256 of each file's content; None if there is no file."""
    digests: dict[str, str | None] = dict.fromkeys(paths)
    for path in paths:
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError, safe_files.SpecialFileError),
            open(directory / path, "rb", opener=safe_files.open_regular) as file,
        ):
            digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _changed(directory: Path, wanted: Mapping[str, str], count: int, progress: Progress) -> Iterator[str]:
    """Yield a line for each file that is missing or has another digest than the ``wanted`` one; hash in processes."""
    paths = list(wanted)
    done = 0
    starts = range(0, len(paths), _HASHED_AT_ONCE)
    tasks = (paths[start : start + _HASHED_AT_ONCE] for start in starts)
    hashing = partial(_hashes, directory)
    processes = min(count, len(starts))
    with contextlib.closing(spread(hashing, tasks, processes)) as results:
        for digests in results:
            for path, sha256 in digests.items():
                if sha256 != wanted[path]:
                    yield f"{path}: other content" if sha256 else f"{path}: is missing"
            done += len(digests)
            progress(done, len(paths))
