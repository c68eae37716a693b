"""An image of the user's own as the userland of all targets: found or built, completed, checked and packed."""

import ast
import hashlib
import re
import shutil
import ssl
import sys
import tarfile
from pathlib import Path

from provisioning import artefacts, ledger
from provisioning.engines.runc import ARCHITECTURE, PROFILE
from provisioning.images import needs
from provisioning.images.build import NEEDED_BYTES, build, built, built_of, finish, workplace
from provisioning.images.image import RECIPES, Image
from provisioning.images.tree import EMPTIED, MADE, Builder, settle, unpack, working_builder
from provisioning.nodes import IMAGE_PYTHON, LocalNode, local_node
from provisioning.paths import state
from suite.errors import CommandError, RequestError
from suite.interfaces import Note
from suite.userland import MANIFEST, walk

ADDED = ("boot", "usr/lib/modules", "usr/bin/busybox", "etc/inittab", "opt/virtbench", PROFILE)
"""What comes of the suite's own image: the guest's kernel and start-up, the worker with its attestation, a profile.

An image must not bring the filter of system calls that its own containers run under.
"""
OF_THE_OTHER = shutil.ignore_patterns(Path(MANIFEST).name, "requirements", "__pycache__")
MERGED = ("bin", "lib")
"""The guest's kernel modules and its first process are found below /usr: these directories are links to it."""
PLATFORM = f"linux/{ARCHITECTURE}"
COPIES = 5
"""The tree, its export, the VM's disk, the OCI image and its layer are on the disk while an image is packed."""
BASE = "localhost/virtbench/base"
"""The suite's image in a recipe: ``FROM localhost/virtbench/base``."""
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy")
PIP_AT = "/etc/xdg/pip"
"""A directory in which pip looks for its configuration first; files of the image prevail."""
MOST_NAMED = 5
MOST_SAID = 300
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


def build_own(source: str, note: Note, *, rebuild: bool = False) -> Image:
    """Build the image from a reference, an archive, an OCI layout or a Dockerfile, or return what that has given.

    Raises RequestError for what is no image, or lacks something; nothing half-built stays.
    """
    suite_image = build("cpu", note)  # the kernel and the worker are taken from it
    with artefacts.making("the image", note), local_node((), None) as node:
        builder = working_builder(node)
        is_path = Path(source).exists() or source.startswith(("/", "./", "../"))
        source = str(Path(source).absolute()) if is_path else source
        identity = find_source(node, builder, source, note, fresh=rebuild)
        platform, size_bytes = builder.inspect(node, identity, "{{.Os}}/{{.Architecture}} {{.Size}}").split()
        if platform != PLATFORM:
            raise RequestError(
                f"{source} is an image for {platform}, and the targets are {PLATFORM}",
                remedy=f"build it for this platform, or name that of its variants: --platform {PLATFORM}",
            )
        recipe = hashlib.sha256(f"{suite_image.digest} {identity} {ADDED}".encode()).hexdigest()
        if not rebuild and (image := built_of(recipe)):
            image.source = source  # it may have another name now
            image.save()
            note(f"image {image.digest[:12]} is up to date")
            return image
        bytes_needed = max(NEEDED_BYTES, COPIES * int(size_bytes))
        with workplace(bytes_needed) as (_, building):
            note("unpacking the tree")
            unpack(node, builder, identity, building / "tree")
            refuse_unsafe(building / "tree", source)
            complete(building / "tree", suite_image.tree)
            note("looking for what the targets need")
            needs.check(node, building / "tree", suite_image.tree, source)
            compile_worker(node, building / "tree", building / "compiled")
            return finish(
                node,
                building,
                note,
                variant="own",
                recipe=recipe,
                base=identity,
                source=source,
            )


def find_source(node: LocalNode, builder: Builder, source: str, note: Note, *, fresh: bool) -> str:
    """Return the identity of the image in the builder's store, brought there first. ``source``: see ``Image``.

    Raises RequestError for what is no image, and for one that cannot be had.
    """
    try:
        if source.startswith("/"):
            return _built_or_loaded(node, builder, Path(source), note, fresh=fresh)
        if not _REFERENCE.fullmatch(source):
            raise RequestError(f"{source!r} is no name of an image", remedy="write it as registry/name:tag")
        inspected = node.run([builder.program, "image", "inspect", "--", source], check=False)
        if inspected.returncode:
            note(f"fetching {source}")
            node.run([builder.program, "pull", "--quiet", "--", source], timeout_s=3600.0)
        return _identity(node, builder, source)
    except CommandError as error:
        complaints = [line for line in error.output_tail.splitlines() if line.startswith("Error")]
        lines = complaints or [error.message]
        by_hand = f"try {' '.join(error.command[:2])} by hand: the archive may be damaged, or the name unknown"
        is_recipe = error.command[1] == "build"
        refusal = RequestError(
            f"{source} gives no image: {shorten(lines[-1] if is_recipe else lines[0])}",
            remedy="correct the step whose output is above" if is_recipe else by_hand,
        )
        refusal.output_tail = error.output_tail if is_recipe else ""
        raise refusal from error


def _built_or_loaded(node: LocalNode, builder: Builder, path: Path, note: Note, *, fresh: bool) -> str:
    if not path.exists():
        raise RequestError(f"{path} does not exist", remedy="name an image, an archive of one, or a Dockerfile")
    if (path / "oci-layout").exists() or (path.is_file() and tarfile.is_tarfile(path)):
        note(f"loading {path} into the store of {builder.program}")
        answer = node.run([builder.program, "load", "--input", str(path)], timeout_s=1800.0)
        loaded = answer.stdout
        return _identity(node, builder, _only(loaded, path))
    recipe = _recipe(path, builder)
    note(f"running {recipe}")
    if BASE in recipe.read_text(errors="replace"):
        _offer_base(node, builder)
    tag = "virtbench-build:own"
    with ledger.directory(state("scratch"), "build") as place:
        more: list[str] = []
        if builder.mounts:
            more = host_access(node, place)
        builder.build(node, recipe, recipe.parent, tag, fresh=fresh, more=more)
    return _identity(node, builder, f"{builder.local_prefix}{tag}")


def _recipe(path: Path, builder: Builder) -> Path:
    """Return the recipe at a path, or in a directory. Raises RequestError if there is none."""
    recipes = [path / name for name in RECIPES] if path.is_dir() else [path]
    for recipe in recipes:
        if recipe.is_file() and any(name in recipe.name for name in RECIPES):
            return recipe
    raise RequestError(
        f"{path} is no archive of an image, no Dockerfile, and no directory with one or with an OCI layout",
        remedy=f"make an archive: {builder.program} save --output image.tar NAME",
    )


def _offer_base(node: LocalNode, builder: Builder) -> None:
    """Bring the suite's image into the builder's store under the name ``BASE``."""
    suite_image = built("cpu")
    if suite_image:
        name = f"{BASE}:{suite_image.digest[:12]}"
        inspected = node.run([builder.program, "image", "inspect", "--", name], check=False)
        if inspected.returncode:
            archive = suite_image.file("oci.tar")
            answer = node.run([builder.program, "load", "--input", str(archive)], timeout_s=1800.0)
            loaded = answer.stdout
            node.run([builder.program, "tag", _only(loaded, archive), name])
        node.run([builder.program, "tag", name, BASE])


def host_access(node: LocalNode, place: Path) -> list[str]:
    """Return the options of podman that give pip in a step this host's certificates and the indexes of its own pip.

    They are files in ``place``, mounted while a step runs. Indexes in local directories are left out.
    """
    answer = node.run([sys.executable, "-m", "pip", "config", "list"], check=False)
    listed = answer.stdout.splitlines()
    # ``global.index-url='https://...'``; ``:env:.index-url`` of the environment comes first, and prevails.
    pairs = (line.partition("=") for line in reversed(listed) if "='" in line)
    settings = {key.rpartition(".")[2]: str(ast.literal_eval(value)) for key, _, value in pairs}
    lines = ["[global]"]
    for name in PIP_SETTINGS:
        named = settings.get(name, "").split()
        words = [word for word in named if not word.startswith(("/", "file:"))]
        lines += [f"{name} = {' '.join(words)}"] if words else []
    certificates = settings.get("cert") or ssl.get_default_verify_paths().cafile
    if certificates and Path(certificates).is_file():
        shutil.copyfile(certificates, place / "certificates.crt")
        lines.append(f"cert = {PIP_AT}/certificates.crt")
    (place / "pip.conf").write_text("\n".join(lines) + "\n")
    return ["--volume", f"{place}:{PIP_AT}:ro"]


def shorten(text: str) -> str:
    """Return the begin and the end of a text: engines print first what they were doing, and last why it failed."""
    if len(text) <= MOST_SAID:
        return text
    return f"{text[: MOST_SAID // 3]} ... {text[-MOST_SAID * 2 // 3 :]}"


def _identity(node: LocalNode, builder: Builder, reference: str) -> str:
    return builder.inspect(node, reference, "{{.Id}}").removeprefix("sha256:")


def _only(loaded: str, source: Path) -> str:
    """Return the name of the image that ``load`` has printed. Raises RequestError if there are several."""
    names = []
    for line in loaded.splitlines():
        if line.startswith("Loaded image"):
            names.append(line.partition(": ")[2].strip())
    if len(names) != 1:
        raise RequestError(
            f"{source} holds {len(names)} images: {', '.join(names)}",
            remedy=f"they are loaded now: name one of them, --from {names[0] if names else 'NAME'}",
        )
    return names[0]


def refuse_unsafe(tree: Path, source: str) -> None:
    """Raise RequestError for a tree in which the suite would write through links, or that holds devices."""
    separate = [name for name in MERGED if (tree / name).resolve() != (tree / "usr" / name).resolve()]
    if separate:
        raise RequestError(
            f"{source} has a directory /{separate[0]}, and no link to usr/{separate[0]}",
            remedy="use an image of a system that has all programs below /usr: Debian 12, Ubuntu 20.04, and newer",
        )
    written = {Path(name) for name in (*MADE, *EMPTIED)}
    parents = (Path(name).parents for name in (*MADE, *EMPTIED, *ADDED))
    written = written.union(*parents)
    odd = [f"/{path} is no directory" for path in sorted(written) if _is_other(tree / path)]
    odd += [f"/{item.path} is a device, a pipe or a socket" for item in walk(str(tree), None) if item.kind == "other"]
    if odd:
        more = ""
        if len(odd) > MOST_NAMED:
            more = f"; and {len(odd) - MOST_NAMED} more"
        raise RequestError(
            f"{source} cannot be the image of the targets: {'; '.join(odd[:MOST_NAMED])}{more}",
            remedy="replace them in its Dockerfile: RUN rm ...",
        )


def _is_other(path: Path) -> bool:
    """Return whether a path exists and is no directory, or is a link."""
    return path.is_symlink() or (path.exists() and not path.is_dir())


def complete(tree: Path, suite_tree: Path) -> None:
    """Replace ``ADDED`` in the tree by those of the suite's own tree."""
    for name in ADDED:
        source = suite_tree / name
        target = tree / name
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=OF_THE_OTHER)
        else:
            shutil.copy2(source, target)
    settle(tree)


def compile_worker(node: LocalNode, tree: Path, scratch: Path) -> None:
    """Compile the worker for the tree's own Python: the tree is read-only wherever it runs.

    That Python writes to a copy, ``scratch``, from which only the bytecode is taken.
    """
    interpreter, path = IMAGE_PYTHON
    worker = tree / path.lstrip("/")
    shutil.copytree(worker, scratch)
    argv = [interpreter, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", path]
    confined = needs.without_capabilities(tree, "--bind", str(scratch), path)
    node.run([*confined, *argv], timeout_s=600.0)
    for source in sorted(worker.rglob("*.py")):
        written = scratch / source.relative_to(worker).parent / "__pycache__"
        for compiled in [] if written.is_symlink() else written.glob(f"{source.stem}.*.pyc"):
            if compiled.is_file() and not compiled.is_symlink():
                target = source.parent / "__pycache__" / compiled.name
                target.parent.mkdir(exist_ok=True)
                target.parent.chmod(0o755)
                target.write_bytes(compiled.read_bytes())
                target.chmod(0o644)
    shutil.rmtree(scratch)
