"""The base of the engines of clusters: a program without root or daemon that starts a container per command.

It sets no limits. With root the container is in a control group of the suite's and runs as a user without a name;
without root the limits are those of the scheduler or of systemd.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.counters import ControlGroup
from provisioning.engines.base import ContainerEngine, ContainerSpec, is_root
from provisioning.layers.userland import OPEN_TO_ALL, SHARED_MEMORY, TEMPORARY, taskset, unnamed_user
from provisioning.nodes import HostProcesses, WrappedNode, limit_facts
from provisioning.processes import build_of, check_answer, installing, version_in
from suite.errors import RequestError
from suite.interfaces import Node
from suite.job.envelope import MEMORY_NOT_LIMITED, Envelope, parse_cpu_list
from suite.job.properties import AS_IT_IS, DISK_LIMITS, Properties

PLACE = "/mnt"
"""Where root shows the tree and the data: a user without a name cannot reach them in the suite's folders."""


Binds = Sequence[tuple[str, str, bool]]
"""The source of each, its place in the container, and whether it may be written."""


class UnprivilegedEngine(ContainerEngine):
    program: str
    rootfs = "directory"
    commands_are_children = True
    by_default = False
    in_guests = False
    takes_gpus = False
    late_networks = "gives its containers no network that is made later"
    prints_its_name = True
    """Whether the program prints its name before its version."""
    replaced: tuple[str, ...] = ()
    """Files of an image that the program covers by the machine's, which would be another userland: bound once more."""
    lacks: ClassVar[Mapping[str, str]] = {"seccomp": "has no system call filter", "data_in_layer": "keeps no layers"}
    """Why a property cannot be switched, by its name."""

    def container_argv(self, spec: ContainerSpec, tree: str, binds: Binds, user: int | None) -> list[str]:
        """Return the words before a command that run it in a container, as ``user``: None without root."""
        raise NotImplementedError

    def version_argv(self) -> list[str]:
        return [self.program, "--version"]

    def version(self, node: Node) -> str:
        answer = self.answer(node, self.version_argv(), installing(self.program))
        if self.prints_its_name or not answer[:1].isdigit():
            check_answer(self.program, answer, node.name)
        return version_in(answer) or build_of(self.program, node)

    def hindrance(self, properties: Properties) -> str | None:
        for name, lack in self.lacks.items():
            if getattr(properties, name) != getattr(AS_IT_IS, name):
                return f"{self.name} {lack}"
        return None

    def exec_argv(self, spec: ContainerSpec) -> list[str]:  # noqa: ARG002 (other engines are asked)
        return []

    def entered(self, node: Node, spec: ContainerSpec) -> Node:
        pinned = []
        if not spec.by_count:
            pinned = taskset(parse_cpu_list(spec.cpus))
        host_processes = None
        substitutes = tuple[str, ...]()
        replaced = (f"{spec.tree}/{path}" for path in self.replaced)
        of_image = node.run(["find", *replaced, "-type", "f"], check=False)
        files = of_image.stdout.splitlines()
        if is_root(node):
            user = unnamed_user()
            limited = _limited(node, spec)
            shown = _shown(node, spec, user, files)
            words = [*limited, *pinned, *shown]
            place = PLACE
            tree = f"{PLACE}/tree"
            sources = [_shown_at(target) for _, target, _ in spec.binds]
            host_processes = HostProcesses(ControlGroup.named(spec.name))
        else:
            user = None
            words = ["setpriv", "--pdeathsig", "KILL", *pinned]
            place = _copied(node, files)
            tree = spec.tree
            sources = [source for source, _, _ in spec.binds]
            substitutes = (MEMORY_NOT_LIMITED,)
        binds = []
        for file in files:
            copy = f"{place}/{PurePath(file).name}"
            binds.append((copy, file.removeprefix(spec.tree), False))
        for source, (_, target, writable) in zip(sources, spec.binds, strict=True):
            binds.append((source, target, writable))
        words += self.container_argv(spec, tree, binds, user)
        inside = WrappedNode(
            parent=node,
            wrap=lambda argv: [*words, *argv],
            name=f"{node.name}/{self.name}",
            userland="/",
            local=node.local,
            substitutes=substitutes,
            facts=limit_facts(host_processes, spec.limited_disks),
            host_processes=host_processes,
        )
        with node.opening.running("container"):
            inside.run(["true"])
        return inside

    def removal(self, name: str) -> list[list[str]]:
        return [cgroups.remove_argv(name)]


def _limited(node: Node, spec: ContainerSpec) -> Sequence[str]:
    """Make the control group of the container and return the words that start a command in it."""
    cpus = parse_cpu_list(spec.cpus)
    envelope = Envelope(cpus=cpus, memory_bytes=spec.memory_bytes, threads=len(cpus))
    disks: dict[str, Any] = {DISK_LIMITS[unit]: limit for _, unit, limit in spec.disk_limits}
    properties = Properties(
        pinned=not spec.by_count,
        cpu_share=spec.cpu_share,
        memory_limited=spec.memory_limited,
        **disks,
    )
    return cgroups.create(node, spec.name, envelope, properties, spec.limited_disks)


def _shown_at(path: str) -> str:
    """Return where root shows a file or directory to a user without a name."""
    return f"{PLACE}/{PurePath(path).name}"


def _copied(node: Node, files: Sequence[str]) -> str:
    """Copy files of the tree, which the program covers there, to the private directory of an open node of this machine.

    Raises RequestError on other machines, where no user but root has such a place.
    """
    if not node.local:
        raise RequestError(f"containers on {node.name} need root there", remedy="log in as root, or run bench there")
    place = node.run(["pwd"]).stdout.strip()
    copied = ["cp", "--preserve=mode", "--target-directory", place, "--", *files]
    node.run(copied, check=bool(files))
    return place


def _shown(node: Node, spec: ContainerSpec, user: int, files: Sequence[str]) -> list[str]:
    """Return the words that show tree, data and ``files`` at ``PLACE``, and file systems in memory by size."""
    tree = f"{PLACE}/tree"
    binds = ["--perms", "0755", "--dir", tree, "--ro-bind", spec.tree, tree]
    for file in files:
        binds += ["--ro-bind", file, _shown_at(file)]
    for source, target, writable in spec.binds:
        binds += ["--bind" if writable else "--ro-bind", source, _shown_at(target)]
        if writable:
            node.run(["chown", "-R", f"{user}:{user}", "--", source])
    in_memory: list[str] = []
    for path in (SHARED_MEMORY, TEMPORARY):
        in_memory += ["--size", str(spec.tmpfs_bytes), *OPEN_TO_ALL, path]
    seen = ["--dev-bind", "/", "/", *in_memory, "--perms", "0755", "--tmpfs", PLACE, *binds]
    return ["bwrap", "--die-with-parent", *seen, "--"]
