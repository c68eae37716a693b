"""Charliecloud: ``ch-run`` mounts the image's tree in user and mount namespaces. All others are the machine's."""

from collections.abc import Mapping
from typing import ClassVar

from provisioning.engines.base import PATH, ContainerSpec
from provisioning.engines.unprivileged import Binds, UnprivilegedEngine
from provisioning.layers.userland import becoming
from suite.errors import BenchError
from suite.interfaces import Node
from suite.job.properties import SHARED_NETWORK

# It refuses to start, even to print its version, without a name of the user.
NAMED = ("env", "--unset=TMPDIR", "USER=virtbench")


class Charliecloud(UnprivilegedEngine):
    name = "charliecloud"
    program = "ch-run"
    network = SHARED_NETWORK
    prints_its_name = False
    replaced = ("etc/machine-id",)
    lacks: ClassVar[Mapping[str, str]] = {
        **UnprivilegedEngine.lacks,
        "host_network": "has the network of the machine already",
    }

    def version_argv(self) -> list[str]:
        return [*NAMED, *super().version_argv()]

    def version(self, node: Node) -> str:
        version = super().version(node)
        if node.run(["unshare", "--map-root-user", "true"], check=False).returncode:
            remedy = "ask for sysctl user.max_user_namespaces above 0 (Ubuntu: an AppArmor profile for ch-run)"
            raise BenchError(f"{self.name} needs user namespaces, which {node.name} does not give", remedy=remedy)
        return version

    def container_argv(self, spec: ContainerSpec, tree: str, binds: Binds, user: int | None) -> list[str]:  # noqa: ARG002
        # Root has mounted a /tmp of the right size. Binds are writable here: what may only be read, root has so.
        begin = ["--private-tmp"] if user is None else []
        begin += [f"--bind={source}:{target}" for source, target, _ in binds]
        clean = ["--no-passwd", "--unset-env=*", f"--set-env={PATH}", *begin, "--cd=/"]
        return [*becoming(user), *NAMED, self.program, *clean, tree, "--"]


CHARLIECLOUD = Charliecloud()
