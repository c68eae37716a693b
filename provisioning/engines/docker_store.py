"""The image in the store of the guest's docker, as a disk: made once, natively, by the tree's own docker daemon.

Loading a gigabyte inside an emulated guest would take minutes at every start.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from provisioning import artefacts
from provisioning.engines.base import image_reference
from provisioning.images.image import Image, find, stamp
from provisioning.images.pack import disk
from provisioning.nodes import LocalNode, local_node
from suite.errors import MeasurementError, RequestError, option

PROGRAM = ("docker",)
NAME = "docker.img"
READY_S = 60.0


def docker_store(image: Image, note: Callable[[str], None]) -> Path:
    """Return the disk, made if it is missing. Raises RequestError without root."""
    target = image.file(NAME)
    if NAME in image.files and target.is_file():
        return target
    if os.geteuid() != 0:
        raise RequestError(
            "docker in a VM needs a disk with its store, which only root can make",
            remedy=f"run it once as root, or use {option('engine')} podman or runc for container-vm",
        )
    with ExitStack() as stack:
        stack.enter_context(artefacts.making(f"the docker store of image {image.digest[:12]}", note))
        image.files |= find(image.digest).files  # another bench may have made it meanwhile
        if NAME in image.files and target.is_file():
            return target
        note("making the disk with the store of the guest's docker (once per image)")
        node = stack.enter_context(local_node((), str(image.tree)))
        building = Path(stack.enter_context(artefacts.workshop(node, str(image.directory))))
        store, sockets = building / "store", building / "run"
        store.mkdir()
        sockets.mkdir()
        _load(node, image, store, sockets)
        made = building / NAME
        disk(node, store, made)
        artefacts.put(node, str(made), str(target))
        image.files[NAME] = stamp(target)
        image.save()
    return target


def daemon_argv() -> list[str]:
    """Return the command of a daemon that makes containers and nothing else: no bridge, no firewall rules."""
    return [
        *("dockerd", "--data-root", "/var/lib/docker", "--exec-root", "/run/docker", "--pidfile", "/run/docker.pid"),
        *("--storage-driver", "overlay2", "--bridge", "none", "--iptables=false", "--ip6tables=false"),
        *("--ip-forward=false", "--log-level", "warn"),
    ]


def _load(node: LocalNode, image: Image, store: Path, sockets: Path) -> None:
    """Start the tree's docker on the store, load the archive and end it; its mounts end with its namespaces."""
    inside = [
        *("bwrap", "--ro-bind", str(image.tree), "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--tmpfs", "/etc/docker", "--bind", str(sockets), "/run"),  # noqa: S108 (inside)
        *("--ro-bind", str(image.directory), "/mnt", "--chdir", "/"),
    ]
    private = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    state = ["--cap-add", "ALL", "--bind", "/sys", "/sys", "--bind", str(store), "/var/lib/docker", "--"]
    # This daemon, whatever DOCKER_HOST may say of another one.
    client = [*inside, "--", *PROGRAM, "--host", "unix:///run/docker.sock"]
    daemon = node.start([*private, *inside, *state, *daemon_argv()])
    deadline = time.monotonic() + READY_S
    while node.run([*client, "version"], check=False).returncode:
        if not daemon.running() or time.monotonic() > deadline:
            raise MeasurementError(
                "the tree's own docker daemon did not start", kind="image", output_tail=daemon.output_tail()
            )
        time.sleep(0.2)
    node.run([*client, "load", "--quiet", "--input", "/mnt/oci.tar"], timeout_s=1800.0)
    node.run([*client, "image", "inspect", "--format", "{{.ID}}", image_reference(image.digest)])
    daemon.kill()
