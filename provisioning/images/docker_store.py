"""The image in the store of the guest's docker, as a disk: made once, natively, by the tree's own docker daemon.

Loading a gigabyte inside an emulated guest would take minutes at every start.
"""

from pathlib import Path

from provisioning.images.image import Image


def docker_store(image: Image) -> Path:
    """The disk. Made when it is missing."""
    return image.file("docker.img")
