"""Builds the image from its recipe with podman or docker, upon a base from a registry or a Debian mirror."""

import datetime
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning import artefacts
from provisioning.images import needs, pack
from provisioning.images.image import DESCRIPTION, PACKED, Image, Variant, images, sha256, stamp
from provisioning.images.tree import Builder, settle, unpack, working_builder
from provisioning.nodes import IMAGE_PYTHON, LocalNode, local_node
from provisioning.paths import RECIPE, ROOMS, state
from suite import userland
from suite.errors import CommandError, RequestError
from suite.interfaces import Note
from suite.results.store import write_atomic

BASE = "debian:bookworm-slim"
BASE_SUITE = "bookworm"
TARGET_PYTHON = "3.11"  # of the base; the wheels must fit it, whatever Python the host has
NEEDED_BYTES = 12 << 30
NEEDED_BYTES_CUDA = 48 << 30
SPACE_REMEDY = "remove older images (bench image prune), or set VIRTBENCH_HOME to a directory on another disk"
# The parts of the suite that run inside: the worker and its attestation.
INSIDE = (
    *("suite/__init__.py", "suite/errors.py", "suite/userland.py"),
    *("suite/untrusted/__init__.py", "suite/untrusted/grid.py", "worker"),
)


def build(variant: Variant, note: Note, *, rebuild: bool = False, cuda: str = "") -> Image:
    """Build the image, or return the one that its recipe has already given.

    ``cuda`` is the version of CUDA for which torch is built; empty for the one of its release.
    Raises RequestError when a tool or space is missing, CommandError when a step fails; nothing half-built stays.
    """
    began_at = now()
    needed_bytes = NEEDED_BYTES_CUDA if variant == "cuda" else NEEDED_BYTES
    with artefacts.making("the image", note):
        recipe = recipe_sha256(variant, cuda)
        image = built_of(recipe)
        # Another bench may have built it while this one waited.
        if image and (not rebuild or image.created_at > began_at):
            note(f"image {image.digest[:12]} is up to date")
            return image
        with workplace(needed_bytes) as (node, building):
            builder = working_builder(node)
            base = _base(node, builder, note)
            context = state("cache", f"context-{variant}{cuda}")
            _fetch_wheels(node, variant, cuda, context, note)
            for name in ("suite", "worker", "guest"):
                shutil.rmtree(context / name, ignore_errors=True)
            copy_worker(context)
            # Every step of the recipe is run if it is to be built anew.
            tag = f"virtbench-build:{variant}"
            note("running docker/Dockerfile (some minutes the first time; steps that did not change are cached)")
            first = tag if variant == "cpu" else f"{tag}-base"
            builder.build(node, RECIPE / "Dockerfile", context, first, fresh=rebuild, BASE=base)
            # The first stage has run; with a name it can be found again, and removed.
            parts = ("--target", "parts")
            builder.build(node, RECIPE / "Dockerfile", context, f"{tag}-parts", fresh=False, more=parts, BASE=base)
            if variant == "cuda":
                note("running docker/Dockerfile.cuda")
                builder.build(node, RECIPE / "Dockerfile.cuda", context, tag, fresh=rebuild, CPU_IMAGE=first)
            note("unpacking the tree")
            unpack(node, builder, tag, building / "tree")
            settle(building / "tree")
            return finish(node, building, note, variant=variant, recipe=recipe, base=base)


@contextmanager
def workplace(needed_bytes: int) -> Iterator[tuple[LocalNode, Path]]:
    """Open this machine, and make a directory for an image that is half made, with an empty ``tree``.

    Raises RequestError when space is missing.
    """
    parent = state("images")
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise RequestError(
            f"{parent} has {free >> 30} GiB free, an image needs {needed_bytes >> 30} GiB while it is built",
            remedy=SPACE_REMEDY,
        )
    with local_node((), None) as node, artefacts.workshop(node, str(parent)) as directory:
        building = Path(directory)
        building.chmod(0o755)
        (building / "tree").mkdir()
        yield node, building


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def built(variant: Variant) -> Image | None:
    """Return the image of the recipe as it is now; None if the recipe has changed or was never built."""
    return built_of(recipe_sha256(variant))


def built_of(recipe: str) -> Image | None:
    """Return the newest image that a recipe of this digest has given; None if there is none."""
    return next((image for image in images() if image.recipe_sha256 == recipe), None)


def requirements(cuda: str) -> str:
    """Return what the image takes from the package index, with torch's builds for a version of CUDA if there is one."""
    text = (RECIPE / "requirements.txt").read_text()
    built_for = ""
    if cuda:
        built_for = f"+cu{cuda.replace('.', '')}"
    return re.sub(r"^(torch(?:vision)?==\S+)$", rf"\1{built_for}", text, flags=re.MULTILINE)


def recipe_sha256(variant: Variant, cuda: str = "") -> str:
    """Return the digest of every file that decides what the image holds, and of the version of CUDA."""
    digest = hashlib.sha256(f"{variant}{cuda}".encode())
    names = ["Dockerfile", *(["Dockerfile.cuda"] if variant == "cuda" else []), "requirements.txt"]
    of_guest = sorted((RECIPE / "guest").glob("*"))
    recipe = [RECIPE / name for name in names] + of_guest
    # Named as in the repository wherever they lie, so that a checkout and a wheel of it agree on the image.
    files = {f"docker/{path.relative_to(RECIPE)}": path for path in recipe}
    for name in INSIDE:
        path = ROOMS / name
        files_inside = (file for file in path.rglob("*") if file.suffix in (".py", ".fio"))
        inside = sorted(files_inside)
        shipped_files = inside if path.is_dir() else [path]
        files |= {str(file.relative_to(ROOMS)): file for file in shipped_files}
    for name, path in files.items():
        if not path.is_file():
            raise RequestError(f"{path} is missing", remedy="it is part of virtbench: install that again")
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _base(node: LocalNode, builder: Builder, note: Note) -> str:
    """Return the base image: the ordinary one if a registry is in reach, else one made from the Debian mirror."""
    local = f"virtbench-base:{BASE_SUITE}"
    inspected = node.run([builder.program, "image", "inspect", local], check=False)
    if inspected.returncode == 0:
        return f"{builder.local_prefix}{local}"
    note(f"fetching {BASE}")
    try:
        node.run([builder.program, "pull", "--quiet", BASE], timeout_s=120.0)
    except CommandError:
        note("no container registry is in reach: making the base from the Debian mirror")
    else:
        # By its digest: the name means another image after the next security update, also while this one is built.
        return builder.inspect(node, BASE, "{{index .RepoDigests 0}}")
    if not shutil.which("mmdebstrap"):
        raise RequestError(
            "no container registry is in reach, and mmdebstrap is not installed",
            remedy="install it: apt-get install mmdebstrap",
        )
    archive = state("cache") / f"base-{BASE_SUITE}.tar"
    if not archive.exists():
        with artefacts.workshop(node, str(archive.parent)) as half_made:
            target = f"{half_made}/base.tar"
            options = ["--variant=minbase", "--include=ca-certificates"]
            node.run(["mmdebstrap", *options, BASE_SUITE, target], timeout_s=1800.0)
            artefacts.put(node, target, str(archive))
    node.run([builder.program, "import", str(archive), local], timeout_s=600.0)
    return f"{builder.local_prefix}{local}"


def copy_worker(inside: Path) -> None:
    """Copy the parts of the suite that run in targets, and what a guest starts with, to a directory."""
    shipped = [*((ROOMS / name, name) for name in INSIDE), (RECIPE / "guest", "guest")]
    for source, name in shipped:
        copy_tree(source, inside / name)
    # The same permissions whatever those of the checkout are: they are part of the digest.
    for path in inside.rglob("*"):
        executable = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if executable else 0o644)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a file, or a directory without the bytecode in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)


def _fetch_wheels(node: LocalNode, variant: Variant, cuda: str, context: Path, note: Note) -> None:
    """Fetch the wheels unless they are there, by the host's own pip, with its mirrors and certificates."""
    wheels = context / "wheels"
    wanted = requirements(cuda)
    kept = context / "requirements"
    lock = context / "requirements.locked"
    if kept.exists() and kept.read_text() == wanted:
        if lock.exists() and lock.read_text() == locked(wheels):
            return
        note("the kept wheels have other digests than when they were fetched, or have no recorded digests")
    note("fetching torch and torchvision")
    kept.unlink(missing_ok=True)  # its presence means that all wheels are there
    shutil.rmtree(wheels, ignore_errors=True)
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    argv += ["--only-binary=:all:", "--python-version", TARGET_PYTHON]
    listed = context / "requirements.txt"
    listed.write_text(wanted)
    argv += ["--dest", str(wheels), "--requirement", str(listed)]
    try:
        node.run(argv, timeout_s=3600.0)
    except CommandError as error:
        if not cuda:
            raise
        raise RequestError(
            f"pip finds no torch for CUDA {cuda}: {(error.output_tail.strip().splitlines() or ['no output'])[-1]}",
            remedy="add an index with PyTorch's builds for it (pip config set global.extra-index-url URL)",
        ) from error
    if variant == "cuda" and (cpu_wheels := list(wheels.glob("torch-*+cpu-*.whl"))):
        raise RequestError(
            f"this host's pip gives {cpu_wheels[0].name}, which supports no GPU",
            remedy="unset the index or the links (pip config list) that name a CPU build of torch",
        )
    lock.write_text(locked(wheels))
    kept.write_text(wanted)


def locked(wheels: Path) -> str:
    """Return the requirements that are met by these wheels alone, as ``pip --require-hashes`` takes them."""
    # PEP 427: name and version are without a hyphen.
    sorted_wheels = sorted(wheels.glob("*.whl"))
    parts = ((*wheel.name.split("-")[:2], sha256(wheel)) for wheel in sorted_wheels)
    return "".join(f"{name}=={version} --hash=sha256:{digest}\n" for name, version, digest in parts)


def _gpu_architectures(node: LocalNode, tree: Path, variant: Variant) -> tuple[str, ...]:
    """Return what the torch of a tree has code for; the suite's own image for CPUs is not asked."""
    if variant == "cpu":
        return ()
    return needs.gpu_architectures(node, [*needs.without_capabilities(tree), IMAGE_PYTHON[0], "-I"])


def finish(
    node: LocalNode,
    building: Path,
    note: Note,
    *,
    variant: Variant,
    recipe: str,
    base: str,
    source: str | None = None,
) -> Image:
    """Pack the tree and put the image in its place; an image that is there with the same tree is kept."""
    tree = building / "tree"
    note("hashing every file of the tree")
    digest = userland.write_manifest(str(tree))
    about = {
        "variant": variant,
        "recipe_sha256": recipe,
        "base": base,
        "source": source,
        "created_at": now(),
        "gpu_architectures": _gpu_architectures(node, tree, variant),
    }
    same = (image for image in images() if image.digest == digest)
    existing = next(same, None)
    if existing and not existing.verify():
        # The same tree came of another recipe (a comment in the Dockerfile). Another bench may be using it.
        renewed = existing.model_copy(update=about)
        renewed.save()
        note(f"image {digest[:12]} is the same as before, in {existing.directory}")
        return renewed
    note("packing the VM's disk")
    pack.disk(node, tree, building / "disk.img")
    note("packing the OCI image")
    pack.oci_archive(tree, building / "oci.tar", digest)
    pack.initramfs(node, tree, building / "initrd.img")
    files = {name: stamp(building / name) for name in PACKED}
    image = Image.model_validate({**about, "digest": digest, "files": files})
    write_atomic(building / DESCRIPTION, image.text())
    os.sync()  # a power cut must not leave a name without its content
    shutil.rmtree(image.directory, ignore_errors=True)  # it was broken
    building.rename(image.directory)
    node.run(["sync", "--", str(image.directory.parent)])
    note(f"image {digest[:12]} is ready in {image.directory}")
    return image
