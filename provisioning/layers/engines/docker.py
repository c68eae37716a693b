"""Docker, through its command line and the daemon that it reaches. In a guest of ours the daemon is started for it."""

from collections.abc import Sequence

from provisioning.layers.engines import cli
from provisioning.layers.engines.base import ContainerSpec, image_reference
from suite.errors import MeasurementError
from suite.interfaces import Node

PROGRAM = ("docker",)
DAEMON_READY_S = 180.0
REMEDY = "start the daemon (systemctl start docker), or choose --engine podman or runc"


class Docker:
    """See ``base.ContainerEngine``."""

    name = "docker"
    rootfs = "overlay"
    commands_are_children = False

    def version(self, node: Node) -> str:
        if not node.local:
            _start_daemon(node)
        return cli.server_version(PROGRAM, node, "{{.Server.Version}}", REMEDY)

    def prepare(self, node: Node, digest: str, archive: str | None) -> None:
        reference = image_reference(digest)
        if node.run([*PROGRAM, "image", "inspect", reference], check=False).returncode == 0:
            return
        if archive is None:
            raise MeasurementError(
                f"the docker of {node.name} does not hold {reference}", kind="image", remedy="bench image build"
            )
        node.run([*PROGRAM, "load", "--quiet", "--input", archive], timeout_s=1800.0)

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
