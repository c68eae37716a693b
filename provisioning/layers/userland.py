"""Bare metal: the image's tree entered in place, in a control group of its own."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from provisioning import ledger
from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.counters import ControlGroup
from provisioning.gpus import NO_EDITS, Edits, edits_for
from provisioning.nodes import HostProcesses, WrappedNode, limit_facts, undone
from provisioning.paths import ROOMS
from provisioning.volumes import MOUNT
from suite.errors import RequestError
from suite.interfaces import Node
from suite.job.envelope import Envelope, format_cpu_list
from suite.job.properties import AS_IT_IS, Properties


def chroot_argv(tree: str, edits: Edits = NO_EDITS, data: tuple[str, bool] | None = None) -> list[str]:
    """Return the words that run a command with ``tree`` as its root, read-only, in a mount namespace of its own.

    bubblewrap does what chroot does and cleans up by itself: its mounts end with the process. It adds no other
    namespace, and the tree's /dev, /proc and /sys are the machine's own. ``data``: the directory of the data volume,
    and whether it may be written.
    """
    mounts = [word for source, target in edits.mounts for word in ("--ro-bind", source, target)]
    if data:
        directory, writable = data
        mounts += ["--bind" if writable else "--ro-bind", directory, MOUNT]
    return [
        # What runs inside has a clean environment, without the token by which it would be found: it dies with us.
        *("bwrap", "--die-with-parent", "--ro-bind", tree, "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"),
        *("--ro-bind", "/sys", "/sys", "--tmpfs", "/tmp", "--tmpfs", "/run", *mounts),  # noqa: S108 (inside, not here)
        *("--chdir", "/", "--"),
    ]


@dataclass(frozen=True)
class UserlandLayer:
    """The tree of the image as the root of every command, under the envelope. Needs root."""

    envelope: Envelope
    gpus: tuple[str, ...] = ()
    properties: Properties = AS_IT_IS
    writable: bool = False
    """Whether the data volume may be written."""

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        tree = node.userland
        if tree is None:
            raise RequestError("no image on this node", remedy="run: bench image build")
        with ExitStack() as stack:
            group = f"virtbench-{secrets.token_hex(6)}"
            if node.local:
                stack.enter_context(ledger.holding("cgroup", group))
            else:
                stack.enter_context(undone(node, cgroups.remove_argv(group)))
            pinned = self.properties.pinned
            disks = cgroups.disks_under((tree, node.data)) if self.properties.disk_limit_bytes_per_s else ()
            enter = cgroups.create(node, group, self.envelope, self.properties, disks)
            if pinned:
                enter += taskset(self.envelope)
            data = (node.data, self.writable) if node.data else None
            enter += chroot_argv(tree, edits_for(node, self.gpus), data)

            host_processes = HostProcesses(group=ControlGroup.named(group))
            inside = WrappedNode(
                parent=node,
                wrap=lambda argv: [*enter, *argv],
                name=f"{node.name}/userland",
                userland="/",
                cpus=node.cpus,
                local=node.local,
                data=MOUNT if node.data else None,
                facts={**({} if pinned else {"host_cpus": None}), **limit_facts(host_processes, disks)},
                host_processes=host_processes,
            )
            with node.opening.running():
                inside.run(["true"])
            yield inside


@dataclass(frozen=True)
class OwnEnvironmentLayer:
    """Bare metal without root: the suite's own Python, pinned. A named substitute: it is not the image's userland."""

    envelope: Envelope

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        inside = own_environment(node, self.envelope)
        with node.opening.running():
            inside.run(["true"])
        yield inside


def own_environment(node: Node, envelope: Envelope) -> WrappedNode:
    """Return the machine with the suite's own Python, on the envelope's CPUs."""
    return WrappedNode(
        parent=node,
        wrap=lambda argv: ["setpriv", "--pdeathsig", "KILL", *taskset(envelope), *argv],
        name=f"{node.name}/own-environment",
        userland=None,
        cpus=node.cpus,
        local=node.local,
        data=node.data,
        python=(sys.executable, str(ROOMS)),
        substitutes=("userland:own-environment", "memory:not-limited"),
    )


def taskset(envelope: Envelope) -> list[str]:
    """Return the words that run a command on the envelope's CPUs."""
    return ["taskset", "--cpu-list", format_cpu_list(envelope.cpus)]
