"""Docker, through its command line and the daemon that it reaches. In a guest of the suite's the daemon is started."""

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from provisioning.engines.base import ContainerSpec, GuestStore, image_reference
from provisioning.engines.command_line import CommandLineEngine
from provisioning.engines.docker_store import NAME, PROGRAM, daemon_argv, docker_store
from provisioning.nodes import is_guest
from suite.errors import CommandError, MeasurementError, RequestError, option
from suite.interfaces import Node

DAEMON_READY_S = 180.0
LOADED_WITHIN_S = 1800.0


class Docker(CommandLineEngine):
    """See ``base.ContainerEngine``."""

    name = "docker"
    program = PROGRAM
    version_field = "{{.Server.Version}}"
    layers_field = "{{.DockerRootDir}}"
    remedy = "start the daemon (systemctl start docker), or choose --engine podman or runc"
    guest_store = GuestStore(NAME, docker_store)

    def gpu_options(self, spec: ContainerSpec) -> Sequence[str]:
        return ["--gpus", f'"device={",".join(spec.gpus)}"'] if spec.gpus else []

    def root_options(self, spec: ContainerSpec) -> Sequence[str]:
        return [spec.reference]

    def version(self, node: Node) -> str:
        if is_guest(node):
            _start_daemon(node)
        return super().version(node)

    def load(self, host: Node, digest: str, archive: Path) -> None:
        """Load the archive into docker's own store if it is not there; then compare what the store holds."""
        wanted, reference = layers(archive), image_reference(digest)
        if _held(host, reference) == wanted:
            return
        argv = [*PROGRAM, "load", "--quiet"]
        with archive.open("rb") as content:
            loading = host.start(argv, stdin=content)
        if status := loading.wait(LOADED_WITHIN_S):
            raise CommandError(argv, status, f"{host.name}: {loading.output_tail()}")
        if _held(host, reference) != wanted:
            raise _missing(host, reference)

    def check(self, node: Node, digest: str) -> None:
        reference = image_reference(digest)
        if not _held(node, reference):
            raise _missing(node, reference)

    def host_network(self, namespace: str | None) -> str:
        if namespace is None:
            return "host"
        # Its containers are children of a daemon that lives in another network.
        raise RequestError(
            f"{option('network')} host: docker cannot start a container in the network of a lab node",
            remedy=f"use {option('engine')} podman or runc, or {option('network')} overlay",
        )


DOCKER = Docker()


def layers(archive: Path) -> list[str]:
    """Return the digests of the image's unpacked layers: docker checks them while loading, and names them after that.

    Raises RequestError for an archive that cannot be read.
    """

    def content(name: str) -> bytes:
        file = tar.extractfile(name)
        return file.read() if file else b""

    try:
        with tarfile.open(archive) as tar:
            (manifest,) = json.loads(content("manifest.json"))
            found: list[str] = json.loads(content(manifest["Config"]))["rootfs"]["diff_ids"]
    except (OSError, tarfile.TarError, ValueError, LookupError) as error:
        raise RequestError(f"{archive} is no image: {error}", remedy="build it again: bench image build") from error
    return found


def _held(node: Node, reference: str) -> list[str]:
    """Return the digests of the layers of the image that docker knows by this name; none if it knows no such image."""
    words = ["image", "inspect", "--format", "{{json .RootFS.Layers}}", reference]
    answer = node.run([*PROGRAM, *words], check=False)
    held: list[str] = json.loads(answer.stdout) if answer.returncode == 0 else []
    return held


def _missing(node: Node, reference: str) -> MeasurementError:
    return MeasurementError(
        f"the docker of {node.name} does not hold {reference}",
        kind="image",
        remedy="run the command again: it loads the image first",
    )


def _start_daemon(node: Node) -> None:
    """Start the daemon in a guest of the suite's, where nobody else would."""
    if node.run([*PROGRAM, "info", "--format", "{{.ID}}"], check=False, timeout_s=60.0).returncode == 0:
        return
    with node.opening.running("daemon"):
        daemon = node.start(daemon_argv())
        waited = node.run(
            ["busybox", "timeout", str(int(DAEMON_READY_S)), "/opt/virtbench/guest/wait-for-docker"],
            check=False,
            timeout_s=DAEMON_READY_S + 10,
        )
    if waited.returncode:
        daemon.kill()
        raise MeasurementError(
            f"dockerd was not ready within {DAEMON_READY_S:.0f} s on {node.name}",
            kind="engine",
            command=daemon_argv(),
            output_tail=daemon.output_tail(),
        )
