"""Delivers the image to a node: imported locally or pulled from a registry."""

from pathlib import Path

from provisioning.engines.base import image_reference
from suite.errors import RequestError, option
from suite.interfaces import Node

CONTAINERD = "/run/containerd/containerd.sock"
IMPORTED_WITHIN_S = 1800.0


def ctr(address: str, *words: str) -> list[str]:
    """Return the command that speaks to a containerd about the images of Kubernetes."""
    return ["ctr", "--address", address, "--namespace", "k8s.io", "images", *words]


def local_name(digest: str) -> str:
    """Return the name under which pods ask for an imported image: no registry is asked for it."""
    return f"localhost/{image_reference(digest)}"


def import_image(host: Node, address: str, digest: str, archive: Path) -> None:
    """Import the image into the containerd of this machine, once."""
    reference, name = image_reference(digest), local_name(digest)
    listed = host.run(ctr(address, "ls", "--quiet"), check=False)
    if listed.returncode:
        raise RequestError(
            f"containerd does not answer at {address}: {listed.stderr.strip()[-200:]}",
            remedy=f"name its socket with {option('containerd')}, or a registry that has the image with "
            f"{option('registry')}",
        )
    if name in listed.stdout.split():
        return
    host.run(ctr(address, "import", str(archive)), timeout_s=IMPORTED_WITHIN_S)
    # The first is how containerd completes a name without a registry: without it no name of the image is found.
    for each in (f"docker.io/library/{reference}", name):
        host.run(ctr(address, "tag", "--force", reference, each))
