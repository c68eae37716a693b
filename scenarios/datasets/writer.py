"""Makes a generated set, and verifies one byte by byte.

The plan is written first, then every file, then the manifest, so that making can be stopped at any point and continued.
The SHA-256 of each file by its path is kept all the way: while a set is made, in a journal of lines ``SHA256 PATH``,
and then in the manifest. The journal is hidden, so that it is no part of the data.
"""

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath

from scenarios.datasets.generated import MANIFEST, PLAN, SetManifest, SetPlan, is_unchanged, make_plan, write_readable
from scenarios.datasets.processes import Progress, spread, worker_count
from suite.errors import BenchError, RequestError
from suite.results import files as safe_files
from worker.data.listing import files, listing

JOURNAL = ".made"
_LINE = re.compile(r"([0-9a-f]{64}) (.+)")
_DRAWN_AT_ONCE, _HASHED_AT_ONCE = 16, 256
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

    Files that are there already are kept; more images than before extend a set whose kind grows. While another process
    makes it, call ``note`` and wait. Raises RequestError for a set that cannot be, and BenchError for what went wrong
    on the way.
    """
    plan, count = make_plan(images, name, size, seed, classes), worker_count(workers)
    paths = plan.kind().paths(plan)
    if not directory.exists():
        _check_disk_space(directory, plan, len(paths))
    with _locked(directory, note):
        _refuse_others(directory, plan)
        manifest = SetManifest.read(directory)
        if manifest and manifest.images == images and is_unchanged(directory, manifest):
            return manifest
        digests = {**(manifest.files if manifest else {}), **read_journal(directory)}
        _check_disk_space(directory, plan, sum(not (directory / path).exists() for path in paths))
        try:
            _begin(directory, plan, paths, digests)
            return _finish(directory, plan, _write(directory, plan, paths, digests, count, progress))
        except OSError as error:
            present = sum((directory / path).exists() for path in paths)
            why = "the disk is full" if error.errno in _FULL else f"{error.strerror}: {error.filename}"
            raise BenchError(
                f"{why}; {present} of {len(paths)} files are in {directory}",
                remedy="once that is mended, the same command continues where it was; or remove the directory",
            ) from error


def _begin(directory: Path, plan: SetPlan, paths: Sequence[str], digests: Mapping[str, str]) -> None:
    directory.chmod(0o755)
    folders = sorted({folder for path in paths for folder in PurePath(path).parents} - {PurePath()})
    for name in (PurePath(), *folders):
        safe_files.remove_temporaries(directory / name)  # what a killed process has left
    # Written anew: lines that are appended must not continue half a line.
    write_readable(directory / JOURNAL, "".join(f"{sha256} {path}\n" for path, sha256 in digests.items()))
    # From here until its manifest is written again, a set that was whole is not taken for one.
    (directory / MANIFEST).unlink(missing_ok=True)
    write_readable(directory / PLAN, plan.text())
    for folder in folders:
        with safe_files.directory(directory / folder, directory) as descriptor:
            os.fchmod(descriptor, 0o755)


def read_journal(directory: Path) -> dict[str, str]:
    """Return the digests by path. A line that a crash left half-written does not count."""
    try:
        lines = safe_files.read(directory / JOURNAL).decode(errors="replace").splitlines()
    except (FileNotFoundError, safe_files.SpecialFileError):
        return {}
    return {match[2]: match[1] for match in map(_LINE.fullmatch, lines) if match}


def _write(
    directory: Path, plan: SetPlan, paths: Sequence[str], digests: Mapping[str, str], workers: int, progress: Progress
) -> dict[str, str]:
    numbered = [(number, path, digests.get(path)) for number, path in enumerate(paths)]
    starts = range(0, len(paths), _DRAWN_AT_ONCE)
    tasks = (numbered[start : start + _DRAWN_AT_ONCE] for start in starts)
    done: dict[str, str] = {}
    with (
        open(directory / JOURNAL, "a", encoding="utf-8", opener=safe_files.open_regular) as journal,
        contextlib.closing(spread(partial(_ensure, directory, plan), tasks, min(workers, len(starts)))) as results,
    ):
        for written in results:
            fresh = (f"{sha256} {path}\n" for path, sha256 in written.items() if digests.get(path) != sha256)
            journal.write("".join(fresh))
            journal.flush()
            done |= written
            progress(len(done), len(paths))
    return {path: done[path] for path in paths}


def _ensure(directory: Path, plan: SetPlan, task: Sequence[tuple[int, str, str | None]]) -> dict[str, str]:
    """Draw each file (number, path, digest if written before) that is not there as it was written. Raises OSError."""
    kind, digests = plan.kind(), {}
    for number, path, known in task:
        if known and _hashes(directory, [path])[path] == known:
            digests[path] = known
            continue
        content = kind.content(plan, number)
        write_whole(directory / path, content, directory)
        digests[path] = hashlib.sha256(content).hexdigest()
    return digests


def write_whole(path: Path, content: bytes, directory: Path) -> None:
    """Write a file of the set in ``directory``: a process that stops half-way leaves no half file."""
    with safe_files.whole(path, below=directory, sync=False) as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)


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


def _finish(directory: Path, plan: SetPlan, digests: dict[str, str]) -> SetManifest:
    """Write the manifest, once nothing that it lists can be lost any more. Raises BenchError for files of others."""
    os.sync()
    present = listing(directory)
    if present.files != len(digests) + 1:
        # They would be part of the set's hash, and of the training.
        ours = {PLAN, *digests}
        strangers = [path for name, _ in files(directory) if (path := os.fsdecode(name)) not in ours]
        raise BenchError(
            f"{directory} holds {len(strangers)} files that are no part of the set: {', '.join(strangers[:3])}",
            remedy="remove them and run the same command again",
        )
    manifest = SetManifest(**plan.model_dump(), size_bytes=present.size_bytes, sha256=present.sha256, files=digests)
    write_readable(directory / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    (directory / JOURNAL).unlink()
    return manifest


@contextlib.contextmanager
def _locked(directory: Path, note: Callable[[str], object]) -> Iterator[None]:
    """Make the directory if need be, and lock it against other processes; wait for one that makes the same."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(safe_files.directory(directory))
        except OSError as error:
            why = "is a file" if directory.is_file() else error.strerror
            raise RequestError(f"cannot make {directory}: {why}", remedy="give another directory with --out") from error
        safe_files.lock(descriptor, lambda: note(f"another bench is making {directory}: waiting until it has ended"))
        yield


def _refuse_others(directory: Path, plan: SetPlan) -> None:
    """Raise RequestError unless the directory is empty, or holds this plan or the beginning of it."""
    if (stored := SetPlan.read(directory)) is None:
        _refuse_content(directory)
        return
    names, grows = ("format", "images", "size", "seed", "classes"), plan.kind().grows
    least = stored.model_copy(update={"images": plan.images}) if grows and stored.images < plan.images else stored
    if differing := [name for name in names if getattr(least, name) != getattr(plan, name)]:
        values = stored.model_dump(include=set(names), exclude_none=True)
        was = " ".join(f"--{name} {values[name]}" for name in names if name in values)
        more = "; only --images may grow" if grows else ""
        raise RequestError(
            f"{directory} holds a set of another plan: {', '.join(differing)} differ",
            remedy=f"it was made with {was}{more}; or give another directory with --out",
        )


def _refuse_content(directory: Path) -> None:
    """Raise RequestError unless the directory is empty but for hidden files."""
    names = sorted(p.name for p in directory.iterdir() if not p.name.startswith(".") and p.name != "lost+found")
    if names:
        raise RequestError(
            f"{directory} holds something else: {', '.join(names[:3])}", remedy="give an empty or new directory"
        )


def _check_disk_space(directory: Path, plan: SetPlan, missing: int) -> None:
    """Raise RequestError if ``missing`` more files do not fit where the directory lies or will lie."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
    disk = os.statvfs(existing)
    file_bytes, free = plan.kind().file_bytes(plan), disk.f_bavail * disk.f_frsize
    if missing * file_bytes > free:
        needed = f"{missing:,} files of about {file_bytes / 1e3:.0f} kB are {_size(missing * file_bytes)}"
        raise RequestError(
            f"{needed}; {existing} has {_size(free)} free",
            remedy=f"{free // file_bytes:,} files fit: give fewer images with --images, or a larger disk with --out",
        )
    # Some file systems have no fixed number of files, and report 0.
    if disk.f_files and missing > disk.f_favail:
        raise RequestError(
            f"the set has {missing:,} files to come; {existing} has room for {disk.f_favail:,} more",
            remedy="give fewer with --images, or another disk with --out",
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def verify(directory: Path, workers: int | None = None, progress: Progress = _silent) -> list[str]:
    """Return what is missing, foreign or changed, a line each, sorted; nothing if the set is whole.

    Raises RequestError if there is no finished set, and BenchError if a file cannot be read.
    """
    manifest, count = _finished(directory), worker_count(workers)
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


def _finished(directory: Path) -> SetManifest:
    if manifest := SetManifest.read(directory):
        return manifest
    if SetPlan.read(directory):
        raise RequestError(
            f"{directory} is not finished", remedy="run the bench data make again with which it was begun"
        )
    raise RequestError(f"{directory} holds no {MANIFEST}", remedy="name a set that bench data list shows")


def _changed(directory: Path, wanted: Mapping[str, str], count: int, progress: Progress) -> Iterator[str]:
    """Yield a line for each file that is missing or has another digest than the ``wanted`` one; hash in processes."""
    paths, done = list(wanted), 0
    starts = range(0, len(paths), _HASHED_AT_ONCE)
    tasks = (paths[start : start + _HASHED_AT_ONCE] for start in starts)
    with contextlib.closing(spread(partial(_hashes, directory), tasks, min(count, len(starts)))) as results:
        for digests in results:
            for path, sha256 in digests.items():
                if sha256 != wanted[path]:
                    yield f"{path}: other content" if sha256 else f"{path}: is missing"
            done += len(digests)
            progress(done, len(paths))
