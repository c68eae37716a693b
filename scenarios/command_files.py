"""The directory that a command of the user's own is given in every target, as a data set of the kind ``files``.

It lives: editors, loggers and schedulers write into it while a run is measured. So a snapshot is taken once, and all
targets are given that. Files that change meanwhile are read again; those that never rest are left out, and named.
"""

import difflib
import errno
import hashlib
import os
import re
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scenarios.datasets.resolve import check_name, progress_of
from suite.errors import RequestError, option
from suite.interfaces import Note
from suite.job.datasets import FILES, Dataset
from suite.results.store import LOCK, LOG
from suite.units import count

NOT_HASHED = ".git"
"""A directory that changes with every look at it, and that no result should depend on."""
CACHES = frozenset(("__pycache__", ".ipynb_checkpoints"))
CACHE_MARK = "CACHEDIR.TAG"
"""The file by which a directory declares itself a cache (bford.info/cachedir)."""
ENVIRONMENT_MARKS = frozenset(("pyvenv.cfg", "conda-meta"))
READINGS = 4
PAUSE_S = 0.25
"""How often a file that changes is read, and the pause before it is read again."""
NAMED = 3
"""The paths that a note names."""
_REPLACED = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP))
"""The errors at a path that has gone, or become another kind of file, since its folder was listed."""
_CHUNK_BYTES = 1 << 20
_READABLE = 0o644
_EXECUTABLE = 0o755
_INTERPRETER = re.compile(r"(python[0-9.]*|bash|sh)")


class NoFilesError(RequestError):
    """The directory of a command is empty."""


def files_of(
    directory: Path, note: Note = lambda _: None, copy: Path | None = None, most_bytes: int | None = None
) -> Dataset:
    """Return the directory with the digest of its contents; with ``copy``, make that new directory a snapshot of it.

    The snapshot keeps times and modes, and the job's own user can read all of it: its parent must be private. ``note``
    is called with the progress of long reading and, for a snapshot, with the omissions. Raises RequestError; for files
    of more than ``most_bytes`` in all before any is read.
    """
    try:
        root = directory.expanduser().resolve(strict=True)
        check_name(root, option("command_files"))
        tree = _Tree(root)
        tree.walk()
        if most_bytes is not None and tree.size_bytes > most_bytes:
            raise _too_large(tree)
        snapshot = _Snapshot(tree, copy, note)
        snapshot.take()
    except OSError as error:
        raise RequestError(
            f"cannot read {error.filename or directory}: {error.strerror}", remedy="name a directory that you can read"
        ) from error
    if copy:
        tree.note_left_out(note)
    size_bytes = sum(file.size_bytes for file in snapshot.files.values())
    if not size_bytes:
        raise NoFilesError(f"{root} holds no file", remedy="name the directory that holds your program")
    return Dataset(
        kind=FILES,
        directory=str(copy or root),
        sha256=snapshot.sha256(),
        digest="contents",
        images=len(snapshot.files) + len(tree.links),
        size_bytes=size_bytes,
    )


def _too_large(tree: "_Tree") -> RequestError:
    files = count(len(tree.files), "file")
    return RequestError(
        f"{tree.root} holds {tree.size_bytes / 1e9:,.0f} GB in {files}, all of which would be read and copied",
        remedy="start it in the directory of your program, or name what it needs; "
        f"if that is all of it: {option('command_files')} {tree.root}",
    )


def refuse_missing_script(argv: Sequence[str], directory: Path) -> None:
    """Raise RequestError if an interpreter's first argument is the relative path of a script that is not there."""
    interpreter = Path(argv[0]).name
    script = Path(*argv[1:2])
    if not _INTERPRETER.fullmatch(interpreter) or script.suffix not in (".py", ".sh") or script.is_absolute():
        return
    if not directory.is_dir() or str(script).startswith("-") or os.path.lexists(directory / script):
        return
    scripts = (directory / script.parent).glob(f"*{script.suffix}")
    there = {str(path.relative_to(directory)) for path in scripts}
    near = difflib.get_close_matches(str(script), sorted(there), n=1, cutoff=0)
    raise RequestError(
        f"{directory.absolute()} has no {script}",
        remedy=f"did you mean {near[0]}?" if near else f"name its directory with {option('command_files')}",
    )


@contextmanager
def _unless_replaced() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _REPLACED:
            raise


@dataclass
class _Tree:
    """The content of a directory: its folders, files and links, by their path relative to it.

    Links are not followed. Environments, caches and runs are left out: they are no part of a program, and a run would
    make each next one another job. So is the file that the output of this command goes to, which grows.
    """

    root: Path
    folders: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    links: dict[Path, str] = field(default_factory=dict)
    """The relative target of each link."""
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The paths that are left out, by the reason."""
    size_bytes: int = 0
    """The size of all files when they were found."""

    def walk(self) -> None:
        """Find everything, in a fixed order. Raises RequestError for a link that leads out, and OSError."""
        outputs = [os.fstat(number) for number in (1, 2)]

        def fail(error: OSError) -> None:
            with _unless_replaced():
                raise error

        for folder, subfolders, names in os.walk(self.root, onerror=fail):
            relative = Path(folder).relative_to(self.root)
            kept = [name for name in sorted(subfolders) if not self._is_apart(relative / name)]
            listed = len(self.folders)
            for name in sorted([*kept, *names]):
                with _unless_replaced():
                    self._add(relative / name, outputs)
            subfolders[:] = [path.name for path in self.folders[listed:]]

    def _is_apart(self, path: Path) -> bool:
        """Return whether a folder is left out, and note why."""
        path_in_tree = self.root / path
        entries = set[str]()
        if path_in_tree.is_symlink():
            return False
        with _unless_replaced():
            entries.update(os.listdir(path_in_tree))
        why = _apart(path.name, entries)
        if why:
            self.left_out[why].append(str(path))
        return why is not None

    def _add(self, path: Path, outputs: Sequence[os.stat_result]) -> None:
        path_in_tree = self.root / path
        info = path_in_tree.lstat()
        if stat.S_ISLNK(info.st_mode):
            self.links[path] = _inner_target(self.root, path_in_tree)
        elif stat.S_ISDIR(info.st_mode):
            self.folders.append(path)
        elif not stat.S_ISREG(info.st_mode):
            self._leave_special(path)
        elif not any(os.path.samestat(info, output) for output in outputs):
            self.files.append(path)
            self.size_bytes += info.st_size

    def note_left_out(self, note: Note) -> None:
        for why, paths in self.left_out.items():
            others = ""
            if len(paths) > NAMED:
                others = f" and {count(len(paths) - NAMED, 'other')}"
            note(f"left out of the command's files ({why}): {', '.join(sorted(paths)[:NAMED])}{others}")

    def _leave_special(self, path: Path) -> None:
        """Note a pipe, socket or device, which reading might wait for without an end; those of git belong to it."""
        if not _is_git(path):
            self.left_out["a pipe, socket or device"].append(str(path))


def _apart(name: str, entries: set[str]) -> str | None:
    """Return what a folder is that is no part of a program; None for any other."""
    if name in CACHES or CACHE_MARK in entries:
        return "a cache"
    if ENVIRONMENT_MARKS & entries:
        return "an environment: the targets have the image's"
    waits = bool(entries) and entries <= {LOG, LOCK}
    # One that was interrupted in its first trial has a lock and no trials.
    if waits or ("plan.json" in entries and {"trials", LOCK} & entries):
        return "a run"
    return None


def _inner_target(root: Path, link: Path) -> str:
    """Return where a link leads, relative to its folder. Raises RequestError for one that leads out of the root."""
    target = os.path.normpath(link.parent / link.readlink())
    if not Path(target).is_relative_to(root):
        target = os.path.realpath(target)  # the root may be named by way of a link
    if not Path(target).is_relative_to(root):
        message = f"{link} is a link that leads out of {root}, and so nowhere in a target"
        raise RequestError(message, remedy="copy what is meant: cp -rL")
    return os.path.relpath(target, link.parent)


@dataclass(frozen=True)
class _Content:
    """A file as it was read."""

    sha256: bytes
    size_bytes: int
    mtime_ns: int


@dataclass
class _Snapshot:
    """Reads all files of a tree, until none has changed since it was read."""

    tree: _Tree
    copy: Path | None
    note: Note
    files: dict[Path, _Content] = field(default_factory=dict)

    def take(self) -> None:
        """Read, and copy if there is a place for copies. Files that change in every reading are left out."""
        self._make_folders()
        pending = self.tree.files
        for reading in range(READINGS):
            if reading and pending:
                time.sleep(PAUSE_S)
            self._read_all(pending)
            pending = [path for path in pending if self._has_changed(path)]
        for path in pending:
            self._leave_out(path)
        self._finish()

    def sha256(self) -> str:
        """Return the digest of all names, contents and links."""
        digest = hashlib.sha256()
        for path, content in sorted(self.files.items()):
            if not _is_git(path):
                digest.update(os.fsencode(path) + b"\0" + content.sha256)
        for path, target in sorted(self.tree.links.items()):
            if not _is_git(path):
                digest.update(os.fsencode(path) + b"\0\0" + os.fsencode(target))
        return digest.hexdigest()

    def _make_folders(self) -> None:
        if self.copy:
            self.copy.mkdir()
            for folder in self.tree.folders:
                (self.copy / folder).mkdir()
            for link, target in self.tree.links.items():
                (self.copy / link).symlink_to(target)

    def _read_all(self, paths: Sequence[Path]) -> None:
        progress = progress_of(str(self.tree.root), self.note)
        sizes = {path: self._size_bytes(path) for path in paths}
        total_bytes = sum(sizes.values())
        done_bytes = 0
        for path in paths:
            self._read(path)
            done_bytes += sizes[path]
            progress(done_bytes, total_bytes)

    def _size_bytes(self, path: Path) -> int:
        with _unless_replaced():
            return (self.tree.root / path).lstat().st_size
        return 0

    def _read(self, path: Path) -> None:
        """Read one file, and copy it; one that is gone by now is forgotten."""
        self.files.pop(path, None)
        with _unless_replaced():
            # A pipe that has taken the file's place is not waited for.
            opening = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.tree.root / path, opening)
            self._read_open(path, descriptor)

    def _read_open(self, path: Path, descriptor: int) -> None:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            return
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            digest = hashlib.sha256()
            with (self.copy / path if self.copy else Path(os.devnull)).open("wb") as copied:
                left_bytes = info.st_size
                while left_bytes and (chunk := file.read(min(_CHUNK_BYTES, left_bytes))):
                    digest.update(chunk)
                    copied.write(chunk)
                    left_bytes -= len(chunk)
        self.files[path] = _Content(digest.digest(), info.st_size, info.st_mtime_ns)
        if self.copy:
            mode = _EXECUTABLE if info.st_mode & stat.S_IXUSR else _READABLE
            (self.copy / path).chmod(mode | (info.st_mode & 0o777))
            os.utime(self.copy / path, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _has_changed(self, path: Path) -> bool:
        content = self.files.get(path)
        if content is None:
            return os.path.lexists(self.tree.root / path)
        with _unless_replaced():
            info = (self.tree.root / path).lstat()
            stamp = (info.st_size, info.st_mtime_ns)
            return stamp != (content.size_bytes, content.mtime_ns)
        return False  # what was read of it stands

    def _leave_out(self, path: Path) -> None:
        self.files.pop(path, None)
        self.tree.left_out["it keeps changing"].append(str(path))

    def _finish(self) -> None:
        """Remove what was left out from the copy, and give folders their times, the innermost first."""
        if not self.copy:
            return
        for path in self.tree.files:
            if path not in self.files:
                (self.copy / path).unlink(missing_ok=True)
        for folder in (*reversed(self.tree.folders), Path()):
            with _unless_replaced():
                shutil.copystat(self.tree.root / folder, self.copy / folder)
            (self.copy / folder).chmod(_EXECUTABLE)


def _is_git(path: Path) -> bool:
    return NOT_HASHED in path.parts
