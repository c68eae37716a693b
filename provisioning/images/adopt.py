"""Adopts this machine's own tree as an image: its /usr, a Python and its packages, mounted read-only during a run."""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from provisioning import artefacts
from provisioning.engines.runc import PROFILE
from provisioning.images.build import copy_worker, now, workplace
from provisioning.images.image import DESCRIPTION, LISTS, Image, Mount, mounted, sha256
from provisioning.images.needs import gpu_architectures, import_inside
from provisioning.images.tree import EMPTIED, MADE
from provisioning.layers.userland import FIRST_USER, chroot_argv
from provisioning.nodes import IMAGE_PYTHON, LocalNode
from suite import userland
from suite.errors import RequestError
from suite.interfaces import Note
from suite.results.store import write_atomic

NEEDED_BYTES = 1 << 30
MODULES = ("msgspec", "numpy", "PIL", "torch", "worker.training.device:torchvision_version")
"""What every training imports; probes and real data may need more."""
COPIED = ("ld.so.cache", "passwd", "group", "nsswitch.conf", "alternatives")
"""Parts of /etc that the loader, libc and Debian's links read."""
PREFIX = "import os, sys; print(os.path.realpath(sys._base_executable), sys.base_prefix, sep='\\n')"


def adopt(python: Path, sites: tuple[Path, ...], note: Note) -> Image:
    """Describe the machine's tree as an image, with this Python and these directories of packages; nothing is built.

    Raises RequestError without root or Docker's seccomp profile, and if a job could not import what it needs.
    """
    if os.geteuid():
        raise RequestError("bench image adopt needs root", remedy="use sudo")
    missing_paths = (path for path in (python, *sites) if not path.exists())
    missing = next(missing_paths, None)
    if missing:
        raise RequestError(f"{missing} does not exist", remedy="name the machine's Python, and directories of packages")
    with artefacts.making("the image", note), workplace(NEEDED_BYTES) as (node, building):
        tree = building / "tree"
        answer = node.run([str(python), "-I", "-c", PREFIX])
        interpreter, prefix = answer.stdout.splitlines()
        mounts = [_programs(tree)]
        if not prefix.startswith("/usr"):
            mounts.append(Mount(place=prefix.lstrip("/"), sources=(prefix,)))
        for number, site in enumerate(sites):
            mounts.append(Mount(place=f"opt/site{number}", sources=(str(site.resolve()),)))
        _lay_out(tree, mounts)
        image = _described(mounts, interpreter)
        with mounted(image, tree):
            image.gpu_architectures = _check(node, tree, image.python, note)
            note("listing every file of the tree")
            image.digest = _write_manifest(tree)
        write_atomic(building / DESCRIPTION, image.text())
        if image.directory.exists():  # the same tree under another description
            image.save()
        else:
            building.rename(image.directory)
        note(f"image {image.digest[:12]} is ready in {image.directory}")
        return image


def _described(mounts: Sequence[Mount], interpreter: str) -> Image:
    """Return the description of the tree, still without its digest."""
    places = (f"/{mount.place}" for mount in mounts if mount.place.startswith("opt/"))
    paths = ":".join([IMAGE_PYTHON[1], *places])
    recipe = json.dumps([mount.model_dump() for mount in mounts])
    return Image.model_validate(
        {
            "variant": "own",
            "base": interpreter,
            "python": (interpreter, paths),
            "mounts": mounts,
            "created_at": now(),
            "digest": "",
            "recipe_sha256": hashlib.sha256(recipe.encode()).hexdigest(),
            "files": {},
        }
    )


def _programs(tree: Path) -> Mount:
    """Return the mount of /usr, over which the seccomp profile is laid if the machine has none there."""
    if Path("/", PROFILE).is_file():
        return Mount(place="usr", sources=("/usr",))
    runc = Path(shutil.which("runc") or "/")
    profiles = (parent / PROFILE for parent in runc.parents)
    profile = next((path for path in profiles if path.is_file()), None)
    if profile is None:
        package = "golang-github-containers-common"
        raise RequestError(f"/{PROFILE} is missing", remedy=f"install it: apt-get install {package}")
    added = tree.parent / "added"
    (added / PROFILE).parent.mkdir(mode=0o755, parents=True)
    shutil.copyfile(profile, added / PROFILE)
    return Mount(place="usr", sources=("added/usr", "/usr"))


def _lay_out(tree: Path, mounts: list[Mount]) -> None:
    """Make the directories that are mounted over, and copy the worker and the little that is read of /etc."""
    mount_places = (mount.place for mount in mounts)
    for name in ("etc", "var/tmp", *EMPTIED, *MADE, *mount_places):
        (tree / name).mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    for name in COPIED:
        source = Path("/etc", name)
        target = tree / "etc" / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copyfile(source, target)
    texts = {"hostname": "", "resolv.conf": "", "hosts": "127.0.0.1 localhost\n"}
    for name, text in texts.items():
        (tree / "etc" / name).write_text(text)
    copy_worker(tree / IMAGE_PYTHON[1].lstrip("/"))
    for name in ("tmp", "var/tmp"):
        (tree / name).chmod(0o1777)


def _check(node: LocalNode, tree: Path, python: tuple[str, str], note: Note) -> tuple[str, ...]:
    """Import as jobs do, which cannot read files of root alone, and compile the worker for this Python.

    Returns what its torch has code for.
    """
    interpreter, paths = python
    note("importing what jobs import")
    variables = ("/usr/bin/env", "-i", "HOME=/tmp", f"PYTHONPATH={paths}", "PYTHONDONTWRITEBYTECODE=1")
    entered = [*chroot_argv(str(tree), user=FIRST_USER), *variables, interpreter]
    _, failed = import_inside(node, entered, MODULES)
    if failed:
        why = "; ".join(f"{name} ({reason})" for name, reason in failed.items())
        raise RequestError(f"jobs cannot import {why}", remedy="name the directory of the packages with --site")
    modules = IMAGE_PYTHON[1]
    bubble = ["bwrap", "--ro-bind", str(tree), "/", "--bind", f"{tree}{modules}", modules]
    words = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", modules]
    node.run([*bubble, interpreter, *words])
    return gpu_architectures(node, entered)


def _write_manifest(tree: Path) -> str:
    """Write the manifest, with the content of the worker and of the packages' own lists; return its digest."""
    lines = []
    for entry in userland.walk(str(tree), userland.CONTENT_CHECKED_INSIDE):
        listed = entry.kind == "file" and entry.path.endswith(LISTS)
        content = sha256(tree / entry.path) if listed else entry.content
        entry_of_tree = userland.Entry(entry.path, entry.kind, entry.mode, entry.size, content)
        lines.append(entry_of_tree.line())
    text = "".join(lines)
    (tree / userland.MANIFEST).write_text(text, encoding="ascii")
    return hashlib.sha256(text.encode("ascii")).hexdigest()
