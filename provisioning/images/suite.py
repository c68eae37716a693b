"""The image of the suite itself: what a cluster's pod needs to run bench, as one more layer upon the image of targets.

The layer holds the suite as it is installed here, the libraries that it needs in the versions of this environment, and
the description of the targets' image. No builder is needed for it.
"""

import hashlib
import re
import shutil
import sys
import tarfile
from importlib import metadata
from pathlib import Path

from provisioning import artefacts
from provisioning.images.build import TARGET_PYTHON, copy_tree, workplace
from provisioning.images.image import DESCRIPTION, Image
from provisioning.images.pack import pack_image
from provisioning.kubernetes.pod import USER
from provisioning.nodes import LocalNode
from provisioning.paths import RECIPE, ROOMS
from suite import userland
from suite.interfaces import Note

INSTALLED = ("cli.py", "suite", "worker", "scenarios", "provisioning", "analysis", "commands")
AT = "opt/virtbench-suite"
HOME = "var/lib/virtbench"
BENCH = f"""\
#!/bin/sh
export PYTHONPATH=/{AT} VIRTBENCH_HOME=/{HOME} HOME=/{HOME}
exec /usr/bin/python3 /{AT}/cli.py "$@"
"""
LIBRARIES = ("virtbench", "kubernetes")


def build_suite(base: Image, note: Note) -> tuple[str, Path]:
    """Build the image that runs bench upon that of the targets; return its reference and its archive.

    What these sources and libraries have given is kept. Raises RequestError without space, CommandError for a step.
    """
    pins = _pins()
    digest = _digest(base, pins)
    reference = f"virtbench-suite:{digest[:12]}"
    archive = base.file(f"suite-{digest[:12]}.tar")
    with artefacts.making("the image", note):
        if archive.exists():
            note(f"image {reference} is up to date")
            return reference, archive
        archive_bytes = base.file("oci.tar").stat().st_size
        with workplace(archive_bytes * 3) as (node, building):
            layer = building / "layer"
            note("fetching the libraries of the suite")
            _install(node, layer / AT, pins)
            # bench reads the description of the pods' image, and the manifest of its tree.
            image_directory = layer / HOME / "images" / base.digest[:12]
            manifest = image_directory / "tree" / userland.MANIFEST
            manifest.parent.mkdir(parents=True)
            shutil.copyfile(base.tree / userland.MANIFEST, manifest)
            described = base.model_copy(update={"files": {}})
            (image_directory / DESCRIPTION).write_text(described.text())
            bench = layer / "usr/local/bin/bench"
            bench.parent.mkdir(parents=True)
            bench.write_text(BENCH)
            bench.chmod(0o755)
            note("packing the image")
            packed = building / archive.name
            pack_image(layer, packed, reference, _owned, base.file("oci.tar"))
            for old in archive.parent.glob("suite-*.tar"):
                old.unlink()
            packed.rename(archive)
    return reference, archive


def _pins() -> list[str]:
    """Return the libraries that bench needs and the targets' image lacks, in the versions of this environment."""
    requirements = (RECIPE / "requirements.txt").read_text().splitlines()
    names = [line.partition("==")[0] for line in requirements]
    excluded = {*needed(*names), "virtbench"}
    versions = needed(*LIBRARIES)
    return [f"{name}=={version}" for name, version in versions.items() if name not in excluded]


def _install(node: LocalNode, target: Path, pins: list[str]) -> None:
    """Copy the suite, and install the libraries that the targets' image lacks, for its Python."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    argv += ["--no-deps", "--no-compile", "--only-binary=:all:", "--python-version", TARGET_PYTHON]
    argv += ["--target", str(target)]
    node.run([*argv, *pins], timeout_s=3600.0)
    for name in INSTALLED:
        copy_tree(ROOMS / name, target / name)


def needed(*roots: str) -> dict[str, str]:
    """Return the versions, in this environment, of these libraries and of all that they need, by name."""
    versions: dict[str, str] = {}
    names = [*roots]
    while names:
        name = re.sub("[-_.]+", "-", names.pop()).lower()  # PEP 503
        if name in versions:
            continue
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # of another system
            continue
        for line in metadata.requires(name) or ():
            requirement, _, marker = line.partition(";")
            if "extra" not in marker:
                words = re.split(r"[^A-Za-z0-9._-]", requirement)
                names.append(words[0])
    return versions


def _digest(base: Image, pins: list[str]) -> str:
    identity = " ".join([base.digest, BENCH, *sorted(pins)])
    digest = hashlib.sha256(identity.encode())
    paths = []
    for name in INSTALLED:
        top = ROOMS / name
        paths += [top, *top.rglob("*")]
    sources = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    for path in sorted(sources):
        digest.update(f"{path.relative_to(ROOMS)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Give bench's home to the user that the pod runs as, and all else to root; times are those of no host."""
    owner = USER if info.name.startswith(HOME) else 0
    info.uid = owner
    info.gid = owner
    info.uname = ""
    info.gname = ""
    info.mtime = 0
    return info
