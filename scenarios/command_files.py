"""The directory that a command of the user's own is given in every target, as a data set of the kind ``files``."""

import difflib
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from scenarios.datasets.resolve import check_name, leads_out, progress_of
from suite.errors import RequestError, option
from suite.interfaces import Note
from suite.job.datasets import Dataset
from worker.data.listing import File, hashes
from worker.surroundings import is_apart

NOT_HASHED = ("__pycache__", ".git")
"""Directories that change by themselves, and that no result should depend on."""
_INTERPRETER = re.compile(r"(python[0-9.]*|bash|sh)")


def files_of(directory: Path, note: Note = lambda _: None) -> Dataset:
    """Return the directory with the digest of what it holds; ``note`` hears of long hashing. Raises RequestError."""
    try:
        root = directory.expanduser().resolve(strict=True)
        check_name(root, option("command_files"))
        files, links, ignored = list[File](), list[File](), set(map(os.fsencode, NOT_HASHED))
        for entry, is_link in _below(root):
            (links if is_link else files).append(entry)
        digest = hashlib.sha256()
        kept, linked = ([file for file in some if ignored.isdisjoint(file.path.split(b"/"))] for some in (files, links))
        for name, sha256 in hashes(root, kept, progress_of(str(root), note)):
            digest.update(name + b"\0" + bytes.fromhex(sha256))
        for link in linked:
            digest.update(link.path + b"\0\0" + os.fsencode((root / os.fsdecode(link.path)).readlink()))
    except OSError as error:
        raise RequestError(
            f"cannot read {error.filename or directory}: {error.strerror}", remedy="name a directory that you can read"
        ) from error
    if not (size_bytes := sum(file.size_bytes for file in files)):
        raise RequestError(f"{root} holds no file", remedy="name the directory that holds your program")
    return Dataset(
        kind="files",
        directory=str(root),
        sha256=digest.hexdigest(),
        digest="contents",
        images=len(files) + len(links),
        size_bytes=size_bytes,
    )


def refuse_missing_script(argv: Sequence[str], directory: Path) -> None:
    """Raise RequestError if an interpreter's first argument is the relative path of a script that is not there."""
    interpreter, script = Path(argv[0]).name, Path(*argv[1:2])
    if not _INTERPRETER.fullmatch(interpreter) or script.suffix not in (".py", ".sh") or script.is_absolute():
        return
    if not directory.is_dir() or str(script).startswith("-") or os.path.lexists(directory / script):
        return
    there = {str(path.relative_to(directory)) for path in (directory / script.parent).glob(f"*{script.suffix}")}
    near = difflib.get_close_matches(str(script), sorted(there), n=1, cutoff=0)
    raise RequestError(
        f"{directory.absolute()} has no {script}",
        remedy=f"did you mean {near[0]}?" if near else f"name its directory with {option('command_files')}",
    )


def _below(root: Path) -> Iterator[tuple[File, bool]]:
    """Yield all files below the directory in a fixed order, and whether each is a link; links are not followed.

    Virtual environments and runs are left out: a run would make each next one another job. So is the file that the
    output of this command goes to, which grows.
    """
    _check(root, root.lstat().st_mode, root)
    outputs = [os.fstat(number) for number in (1, 2)]

    def fail(error: OSError) -> None:
        raise error

    for place, directories, files in os.walk(root, onerror=fail):
        directories[:] = sorted(name for name in directories if not is_apart({*os.listdir(Path(place, name))}))
        for path in (Path(place, name) for name in sorted([*directories, *files])):
            info = path.lstat()
            _check(path, info.st_mode, root)
            if not stat.S_ISDIR(info.st_mode) and not any(os.path.samestat(info, output) for output in outputs):
                name = os.fsencode(path.relative_to(root))
                yield File(name, info.st_size, info.st_mtime_ns), stat.S_ISLNK(info.st_mode)


def _check(path: Path, mode: int, root: Path) -> None:
    """Refuse what the targets would see differently: there is no other directory, and the user is another."""
    if stat.S_ISLNK(mode):
        if leads_out(root, path, str(path.readlink())):
            message = f"{path} is a link that leads out of {root}, and so nowhere in a target"
            raise RequestError(message, remedy="copy what is meant: cp -rL")
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise RequestError(
            f"{path} is no file: reading a pipe, socket or device ends perhaps never",
            remedy="move it out of the directory",
        )
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    if mode & wanted != wanted:
        raise RequestError(
            f"{path} cannot be read by everybody, and in the targets the command is a user of its own",
            remedy="let all users read the directory: chmod -R a+rX DIRECTORY",
        )
