"""The suite's image in the nodes' containerd."""

import shutil
import subprocess
import sys
from pathlib import Path

from provisioning.engines.base import image_reference
from provisioning.images.image import Image
from tests.kubernetes_cluster.layout import STORES, ClusterError, Node

COMPLETE = "complete"


def fresh_store(image: Image, node: Node) -> Path:
    """Return the directory for the node's images, with the image or empty; those of other images are removed."""
    store = _store(image, node)
    for other in STORES.glob("*"):
        if other != store.parent:
            shutil.rmtree(other)
    if not _mark(store).exists():
        shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True, exist_ok=True)
    return store


def import_image(image: Image, node: Node, holder: int) -> None:
    """Import the image where the store does not have it; ``holder`` is the first process of the node."""
    mark = _mark(_store(image, node))
    if mark.exists():
        return
    print(f"kubernetes: importing the image into {node.name}, once: 30 to 60 s", file=sys.stderr, flush=True)
    import_archive(node, holder, image.file("oci.tar"), image_reference(image.digest))
    mark.touch()


def import_archive(node: Node, holder: int, archive: Path, reference: str) -> None:
    """Import an archive, and name it as pods may: its own reference names no registry.

    The first name is how containerd completes it, and without that a container can be made under none.
    """
    _ctr(node, holder, "import", str(archive))
    for registry in ("docker.io/library", "localhost"):
        _ctr(node, holder, "tag", "--force", reference, f"{registry}/{reference}")


def forget(node: Node, holder: int, *names: str) -> None:
    """Remove names of images that the node has pulled: its store is kept, and would not be asked to pull them again."""
    _ctr(node, holder, "rm", *names)


def _store(image: Image, node: Node) -> Path:
    return STORES / image.digest[:12] / node.name


def _mark(store: Path) -> Path:
    return store.with_suffix(f".{COMPLETE}")


def _ctr(node: Node, holder: int, *words: str) -> None:
    ctr = ["ctr", "--address", str(node.containerd), "--namespace", "k8s.io", "images", *words]
    argv = ["nsenter", "--target", str(holder), "--mount", *ctr]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise ClusterError(f"{' '.join(argv)}: {ended.stderr.strip()}")
