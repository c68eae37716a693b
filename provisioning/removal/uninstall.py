"""Removes everything that the suite keeps on this machine, except results."""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from provisioning import ledger
from provisioning.images.image import PARTS as IMAGE_PARTS
from provisioning.images.tree import BUILDERS, LABEL, Builder
from provisioning.nodes import LocalNode, local_node
from provisioning.paths import MARK, home, runtime
from provisioning.removal.deletion import remove_named
from suite.errors import RequestError
from suite.results import files
from suite.results.contents import is_known_run
from suite.results.runs import find_runs
from suite.selftest import certificate

_FRESH = r"\.?[a-z-]+-[0-9a-f]{12}"
PARTS: Mapping[str, str] = {
    "blocks": r".+-block-\d{3,}",
    "cache": r"base-[a-z]+\.tar|boot-sector\.img|context-(cpu|cuda)[\d.]*|guest-cpu\.json|kvm\.json|web",
    "data": r"\..+\.unfinished",
    "data-disks": r"[0-9a-f]{16}\.img(\.stamp)?",
    "hired": _FRESH,
    "images": "",
    "kept": "secret",
    "ledger": r"[0-9a-f]{16}\.json|\.lock",
    "locks": r".+\.lock",
    "scratch": _FRESH,
    "snapshots": _FRESH,
}
"""The directories of ``home`` that the suite makes, and the names that it gives in them.

Data sets and images are removed by what they hold.
"""
_OWN_NAME = re.compile(r" (localhost/)?virtbench([/-][a-z]+)?(:\S+)?$")


def remove_everything(
    sets: Mapping[Path, Collection[str]],
    stays: Callable[[Path], object],
    unmarked: Callable[[Path], object],
) -> list[str]:
    """Remove images, caches, generated data sets and the images in the engines' stores; return what was removed.

    ``sets`` are the generated data sets with their files. ``stays`` is called with what the suite has not made in its
    marked directories, and ``unmarked`` with each directory that has its name and no mark, which stays, too. Raises
    RequestError if there are results in ``home``, and LedgerError if something is mounted there.
    """
    parts = []
    for name in PARTS:
        part = home() / name
        if part.is_dir():
            parts.append(part)
    runs = list(filter(is_known_run, find_runs(parts)))  # a generated set has a file of the name of a plan, too
    if runs:
        raise RequestError(f"{home()} holds results: {runs[0]}", remedy="move them to another directory first")
    for path in parts:
        ledger.refuse_mounted(path.resolve())
    removed = []
    with local_node((), None) as node:
        for builder in BUILDERS:
            if builder.works(node):
                removed += _remove_images(node, builder)
    for path in parts:
        if (path / MARK).is_file():
            removed += _remove_marked(path, sets, stays)
        else:
            unmarked(path)
    removed += _remove_certificate()
    if (home() / MARK).is_file():
        _remove_home(stays)
    elif home().is_dir():
        unmarked(home())
    with suppress(OSError):  # benches of another home use it
        runtime().rmdir()
    return removed


def _remove_marked(part: Path, sets: Mapping[Path, Collection[str]], stays: Callable[[Path], object]) -> list[str]:
    """Remove what the suite has made in a directory of ``home``; return the directory if all of it went."""
    remaining = _remove_part(part, sets)
    for foreign in remaining:
        stays(foreign)
    return [] if remaining else [str(part)]


def _remove_certificate() -> list[str]:
    path = home() / certificate.FILE
    if certificate.read_certificate(path) is None:
        return []
    path.unlink()
    return [str(path)]


def _remove_home(stays: Callable[[Path], object]) -> None:
    """Remove the home if nothing else is in it."""
    for path in sorted(home().iterdir()):
        if path.name not in (MARK, *PARTS):
            stays(path)
    if os.listdir(home()) == [MARK]:
        shutil.rmtree(home())


def _remove_part(part: Path, sets: Mapping[Path, Collection[str]]) -> list[Path]:
    """Remove what the suite has made in a directory of ``home``, and that if nothing else is in it; return the rest."""
    inside: list[Path] = []
    for path in sorted(part.iterdir()):
        if path.is_symlink():
            continue
        if path in sets:
            inside += _remove_set(path, sets[path])
        elif part.name == "images" and re.fullmatch("[0-9a-f]{12}", path.name):
            inside += remove_named(path, IMAGE_PARTS)
    holding = {path.relative_to(part).parts[0] for path in inside}
    foreign = remove_named(part, PARTS[part.name])
    return inside + [path for path in foreign if path.name not in holding]


def _remove_set(directory: Path, own: Collection[str]) -> list[Path]:
    listed = list(_files(directory))
    foreign = []
    for path in listed:
        name = str(path.relative_to(directory))
        if name not in own:
            foreign.append(path)
    if not foreign:
        shutil.rmtree(directory)
    else:
        for path in set(listed).difference(foreign):
            path.unlink()
    return foreign


def _files(directory: Path) -> Iterator[Path]:
    """Yield files and links below a directory, but no temporary files."""
    for top, folders, names in os.walk(directory):
        links = [name for name in folders if Path(top, name).is_symlink()]
        for name in (*names, *links):
            if not files.is_temporary(name):
                yield Path(top, name)


def _remove_images(node: LocalNode, builder: Builder) -> list[str]:
    """Remove the suite's images from an engine's store: by their names, those they had, and their label."""
    listing = [builder.program, "images", "--no-trunc", "--format"]
    present = node.run([*listing, "{{.ID}} {{.Repository}}"])
    # Of an image whose name went to a newer one; podman alone knows it.
    dangling = node.run([*listing, "{{.ID}} {{.History}}", "--filter", "dangling=true"], check=False)
    labelled = node.run([*listing, "{{.ID}} {{.Repository}}", "--filter", f"label={LABEL}"])
    named = [*present.stdout.splitlines(), *dangling.stdout.splitlines()]
    listed = (*filter(_OWN_NAME.search, named), *labelled.stdout.splitlines())
    own = {}
    for line in listed:
        words = line.split()
        own[words[0]] = words[-1]
    if own:
        node.run([builder.program, "rmi", "--force", *own], timeout_s=600.0)
    return [f"image of {builder.program}: {name}" for name in own.values()]
