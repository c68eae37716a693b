"""gVisor: runsc on runc's bundle. A kernel in user space, the sentry, answers a container's system calls."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from provisioning.engines.base import ContainerSpec
from provisioning.engines.runc import RUN, Runc
from suite.errors import BenchError, CommandError, option
from suite.interfaces import Node
from suite.job.properties import AS_IT_IS, DISK_LIMITS, Properties

PREFERRED = ("systrap", "ptrace")
PROBED_WITHIN_S = 20.0
# Its memory is a file of the sentry, which has filters of its own, mounts no overlay of the bundle, and reads files
# through the page cache, also those that are opened for direct access.
NOT_SWITCHED = {
    "huge_pages": "huge pages",
    "seccomp": "the system call filter",
    "data_in_layer": "the layer of the data",
    **dict.fromkeys(DISK_LIMITS.values(), "the limit of disks"),
}


@dataclass(frozen=True)
class Gvisor(Runc):
    chosen: str | None = None
    name = "gvisor"
    program = "runsc"
    commands_are_children = False
    by_default = False
    in_guests = False
    takes_gpus = False
    late_networks = "takes devices over only when it starts, and these come later"

    def update_argv(self, name: str, cpus: str, quota_us: int, memory_bytes: int | None) -> list[str]:  # noqa: ARG002 (runc has the command)
        return []

    def configured(self, given: Mapping[str, str]) -> "Gvisor":
        return replace(self, chosen=given.get("gvisor_platform"))

    def platform(self, node: Node) -> str:
        """Return the chosen platform, or the preferred one that this runsc has. Raises BenchError for another."""
        flags = node.run([self.program, "flags"])  # printed as an error by some versions
        listed = re.search(r"which platform to use: (.+)", flags.stdout + flags.stderr)
        known = set(re.findall(r"[a-z]+", listed[1] if listed else ""))
        platform = self.chosen or next((name for name in PREFERRED if name in known), "")
        if platform not in known:
            remedy = f"install a newer runsc, or choose another {option('gvisor_platform')}"
            raise BenchError(f"runsc on {node.name} has no platform {platform or PREFERRED[0]}", remedy=remedy)
        return platform

    def version(self, node: Node) -> str:
        version = super().version(node)
        if self.platform(node) == "kvm":  # its device proves nothing: without hardware virtualisation it hangs
            argv = self.command("--platform", "kvm", "--network", "none", "do", "true")
            try:
                node.run(argv, timeout_s=PROBED_WITHIN_S)
            except CommandError as error:
                remedy = f"leave {option('gvisor_platform')} out"
                raise BenchError(f"gVisor does not start on platform kvm on {node.name}", remedy=remedy) from error
        return version

    def hindrance(self, properties: Properties) -> str | None:
        switched = (NOT_SWITCHED[name] for name in NOT_SWITCHED if getattr(properties, name) != getattr(AS_IT_IS, name))
        return next((f"gVisor cannot switch {name}" for name in switched), None)

    def seccomp_sha256(self, node: Node, tree: str) -> str | None:
        """Return None: the sentry's own filter stands before the kernel."""

    def starting(self, node: Node, spec: ContainerSpec) -> list[str]:
        return self.command("--platform", self.platform(node), "--network", "host" if spec.network else "none", "run")

    def removal(self, name: str) -> list[list[str]]:
        end, delete, group, bundle = super().removal(name)
        # Deleting waits some seconds for the sentry, which a busy machine exceeds: the group is ended first. The files
        # of a container whose start was cut short stay.
        files = [f"{RUN}/{self.program}/{name}_sandbox:{name}.{kind}" for kind in ("lock", "state")]
        return [end, group, delete, [*bundle, *files]]


GVISOR = Gvisor()
