"""Docker, through its command line and the daemon that it reaches. In a guest of ours the daemon is started for it."""

import json
from collections.abc import Sequence
from pathlib import Path

from provisioning.engines import cli
from provisioning.engines.archive import layers
from provisioning.engines.base import ContainerSpec, image_reference
from provisioning.nodes import Host, is_guest
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Node

PROGRAM = ("docker",)
DAEMON_READY_S = 180.0
LOADED_WITHIN_S = 1800.0
REMEDY = "start the daemon (systemctl start docker), or choose --engine podman or runc"


class Docker:
    """See ``base.ContainerEngine``."""

    name = "docker"
    rootfs = "overlay"
    commands_are_children = False

    def version(self, node: Node) -> str:
        if is_guest(node):
            _start_daemon(node)
        return cli.server_version(PROGRAM, node, "{{.Server.Version}}", REMEDY)

    def load(self, host: Host, digest: str, archive: Path) -> None:
        """Into the store of its own, where it is not there yet; what the store then holds is compared."""
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

    def layers_at(self, node: Node) -> str:
        return node.run([*PROGRAM, "info", "--format", "{{.DockerRootDir}}"]).stdout.strip()

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        node.run(run_argv(spec), timeout_s=300.0)
        cli.fill(PROGRAM, node, spec)

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        return [*PROGRAM, "exec", "--interactive", spec.name]

    def main_pid(self, node: Node, name: str) -> int:
        return cli.main_pid(PROGRAM, node, name)

    def removal(self, name: str) -> list[list[str]]:
        return [cli.remove_argv(PROGRAM, name)]

    def remove(self, node: Node, name: str) -> None:
        cli.remove(PROGRAM, node, name)

    def remove_local(self, name: str) -> None:
        cli.remove_local(PROGRAM, name)


def _held(node: Node, reference: str) -> list[str]:
    """The digests of the layers of what docker knows under the name; none where it knows nothing."""
    words = ["image", "inspect", "--format", "{{json .RootFS.Layers}}", reference]
    answer = node.run([*PROGRAM, *words], check=False)
    held: list[str] = json.loads(answer.stdout) if answer.returncode == 0 else []
    return held


def _missing(node: Node, reference: str) -> MeasurementError:
    return MeasurementError(
        f"the docker of {node.name} does not hold {reference}", kind="image", remedy="run again: it is loaded before"
    )


def run_argv(spec: ContainerSpec) -> list[str]:
    gpus: Sequence[str] = ("--gpus", f'"device={",".join(spec.gpus)}"') if spec.gpus else ()
    return cli.run_argv(PROGRAM, spec, gpu_words=gpus, image=[spec.reference])


def daemon_argv(data_root: str = "/var/lib/docker") -> list[str]:
    """A daemon that makes containers and nothing else: no bridge, no firewall rules."""
    return [
        *("dockerd", "--data-root", data_root, "--exec-root", "/run/docker", "--pidfile", "/run/docker.pid"),
        *("--storage-driver", "overlay2", "--bridge", "none", "--iptables=false", "--ip6tables=false"),
        *("--ip-forward=false", "--log-level", "warn"),
    ]


def _start_daemon(node: Node) -> None:
    """In a guest of ours, where nobody else would."""
    if node.run([*PROGRAM, "info", "--format", "{{.ID}}"], check=False, timeout_s=60.0).returncode == 0:
        return
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
