"""Podman: no daemon, rootless where the user is not root. Its containers are the unpacked tree under an overlay."""

from pathlib import Path

from provisioning.engines import cli
from provisioning.engines.base import ContainerSpec
from provisioning.nodes import Host
from suite.interfaces import Node

PROGRAM = ("podman",)
# At once: what sleeps as process 1 heeds no SIGTERM, and podman would wait ten seconds for it.
AT_ONCE = ("--time", "0")
REMEDY = "install podman (and, without root, uidmap and slirp4netns), or choose --engine docker or runc"


class Podman:
    """See ``base.ContainerEngine``."""

    name = "podman"
    rootfs = "overlay"
    commands_are_children = False

    def version(self, node: Node) -> str:
        return cli.server_version(PROGRAM, node, "{{.Client.Version}}", REMEDY)

    def load(self, host: Host, digest: str, archive: Path) -> None:
        """Nothing: ``--rootfs`` takes the tree as it lies there."""

    def check(self, node: Node, digest: str) -> None:
        """Nothing: the tree is the image."""

    def layers_at(self, node: Node) -> str:
        return node.run([*PROGRAM, "info", "--format", "{{.Store.GraphRoot}}"]).stdout.strip()

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        node.run(run_argv(spec), timeout_s=300.0)
        cli.fill(PROGRAM, node, spec)

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        return [*PROGRAM, "exec", "--interactive", spec.name]

    def main_pid(self, node: Node, name: str) -> int:
        return cli.main_pid(PROGRAM, node, name)

    def removal(self, name: str) -> list[list[str]]:
        return [cli.remove_argv(PROGRAM, name, AT_ONCE)]

    def remove(self, node: Node, name: str) -> None:
        cli.remove(PROGRAM, node, name, AT_ONCE)

    def remove_local(self, name: str) -> None:
        cli.remove_local(PROGRAM, name, AT_ONCE)


def run_argv(spec: ContainerSpec) -> list[str]:
    gpus = [word for gpu in spec.gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]
    # ":O" puts a throw-away overlay on the tree, as an image of podman's own store would have.
    return cli.run_argv(PROGRAM, spec, gpu_words=gpus, image=["--rootfs", f"{spec.tree}:O"])
