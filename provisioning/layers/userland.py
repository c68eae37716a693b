"""Bare metal: the image's tree entered in place, in a control group of its own."""

import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning import ledger
from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.counters import ControlGroup
from provisioning.gpus import NO_EDITS, Edits, edits_for
from provisioning.nodes import HostProcesses, WrappedNode, limit_facts, undone
from provisioning.paths import ROOMS
from provisioning.volumes import MOUNT, SCRATCH
from suite.errors import BenchError, CommandError, RequestError
from suite.interfaces import Node
from suite.job.envelope import MEMORY_NOT_LIMITED, Envelope, format_cpu_list
from suite.job.properties import AS_IT_IS, Properties
from suite.measurable import OWN_USERLAND

TEMPORARY = "/tmp"  # noqa: S108 (inside, not here)
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (as above)
OPEN_TO_ALL = ("--perms", "1777", "--tmpfs")
NO_PRIVILEGES = ("--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs")
FIRST_USER = 0x7000_0000
USERS = 1 << 24
"""UIDs that no other program uses: they follow those that systemd gives to containers (its UIDS-GIDS.md)."""
HELD_WITHIN_S = 30.0
_LIBRARIES = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")


def unnamed_user() -> int:
    return FIRST_USER + secrets.randbelow(USERS)


def chroot_argv(
    tree: str | Sequence[str],
    edits: Edits = NO_EDITS,
    data: tuple[str, bool] | None = None,
    user: int | None = None,
    tmpfs_bytes: int | None = None,
    scratch: str | None = None,
) -> list[str]:
    """Return the words that run a command with ``tree`` as its root, read-only, in a mount namespace of its own.

    bubblewrap does what chroot does and cleans up by itself: its mounts end with the process. ``data``: the directory
    of the data volume, and whether it may be written; ``scratch``: one to write to beside it. A sequence in place of a
    tree names what is seen of this machine, at the same places. ``user`` is the number of the user and of its group
    that the command runs as, without capabilities or devices but those of a container; without one it stays root and
    has all.
    """
    root: list[str] = []
    mounts: list[str] = []
    if isinstance(tree, str):
        root = ["--ro-bind", tree, "/"]
    else:
        mounts += _seen(tree)
    for source, target in edits.mounts:
        mounts += ["--ro-bind", source, target]
    if data:
        directory, writable = data
        mounts += ["--bind" if writable else "--ro-bind", directory, MOUNT]
    if scratch:
        mounts += ["--bind", scratch, SCRATCH]
    size = ["--size", str(tmpfs_bytes)] if tmpfs_bytes else []
    in_memory: list[str] = []
    for path in (SHARED_MEMORY, TEMPORARY):
        in_memory += [*size, *OPEN_TO_ALL, path]
    places = ["--dev-bind", "/dev", "/dev", *in_memory]
    if user is not None:
        places = ["--dev", "/dev", *in_memory, *_devices(edits)]
    return [
        # What runs inside has a clean environment, without the token by which it would be found: it dies with us.
        *("bwrap", "--die-with-parent", *root, "--proc", "/proc", "--ro-bind", "/sys", "/sys"),
        *("--tmpfs", "/run", *places, *mounts, "--chdir", "/", "--", *becoming(user, edits.groups)),
    ]


def becoming(user: int | None, groups: Sequence[int] = ()) -> list[str]:
    """Return the words that run a command as a user without privileges; none if it is to stay who it is.

    ``groups`` are those of its devices, of which it becomes a member.
    """
    if user is None:
        return []
    joined = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={user}", joined, *NO_PRIVILEGES, "--"]


def _devices(edits: Edits) -> Iterator[str]:
    # bubblewrap makes the folders of what it binds for root alone.
    parents = (device.path.rpartition("/")[0] for device in edits.devices)
    for folder in dict.fromkeys(parents):
        if folder != "/dev":
            yield from ("--perms", "0755", "--dir", folder)
    for device in edits.devices:
        yield from ("--dev-bind", device.path, device.path)


def _seen(paths: Sequence[str]) -> Iterator[str]:
    # By itself bubblewrap makes the directories above a mount for root alone.
    above: dict[str, None] = {}
    for path in paths:
        parents = reversed(Path(path).parents)
        above |= dict.fromkeys(map(str, parents))
    for directory in above:
        yield from ("--dir", directory)
    for path in paths:
        yield from ("--ro-bind-try", path, path)


@contextmanager
def namespaces(node: Node, tree: str, enter: Sequence[str]) -> Iterator[list[str]]:
    """Make the process and IPC namespaces that all commands of a target share; yields the words that enter them.

    bubblewrap is their first process: it reaps processes that lose their parent, and all end with it.
    """
    holder = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL", "--ro-bind", tree]
    process = node.start([*enter, *holder, "/", "--json-status-fd", "1", "--", "sleep", "infinity"])
    try:
        status = next(process.lines(HELD_WITHIN_S), None)
        if status is None:
            raise CommandError(holder, process.wait(HELD_WITHIN_S), process.output_tail())
        first = json.loads(status)["child-pid"]
        # nsenter waits for the command outside the namespaces: it must not outlive the suite.
        entering = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--target={first}", "--pid", "--ipc", "--"]
        # bubblewrap, which makes no process namespace here, shows the /proc that is mounted: it has to be this one's.
        yield [*entering, "unshare", "--mount-proc", "--"]
    finally:
        process.kill()


def own_python_argv(readable: Sequence[str], memory_bytes: int, *, network: bool = False) -> list[str]:
    """Return the words that start the suite's own Python on this machine, for a program that reads a job's files.

    If this user is root, it is confined as the jobs of bare metal are, sees ``readable`` and its own libraries alone,
    and has no ``network`` unless it serves. ``memory_bytes`` is the limit of each of its processes.
    """
    argv = ["prlimit", f"--data={memory_bytes}", "--"]
    if os.geteuid() == 0:
        imported = (path for path in sys.path if Path(path) != ROOMS)
        own = [*_LIBRARIES, sys.prefix, sys.base_prefix, *imported]
        seen = [*own, f"{ROOMS}/worker", f"{ROOMS}/suite", *readable]
        readable_paths = [path for path in seen if path]
        bubble, *words = chroot_argv(readable_paths, user=unnamed_user())
        argv += [bubble, "--unshare-pid", "--unshare-ipc"]
        if not network:
            argv.append("--unshare-net")
        argv += words
    # Libraries may be in the user's home, which Python would look for elsewhere.
    places = filter(None, sys.path)
    modules = os.pathsep.join([str(ROOMS), *places])
    settings = {
        "PYTHONPATH": modules,
        "PATH": os.defpath,
        "HOME": TEMPORARY,
        "USER": "nobody",
    }
    variables = (f"{name}={value}" for name, value in settings.items())
    return [*argv, "/usr/bin/env", "-i", *variables, sys.executable]


@dataclass(frozen=True)
class UserlandLayer:
    """The tree of the image as the root of every command, under the envelope. Needs root.

    Commands run as an unprivileged user, unless the properties are not confined: a job reads files of strangers.
    """

    envelope: Envelope
    gpus: tuple[str, ...] = ()
    properties: Properties = AS_IT_IS
    writable: bool = False

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        tree = node.userland
        if tree is None:
            raise RequestError("no image on this node", remedy="run: bench image build")
        with ExitStack() as stack:
            group = ledger.fresh("virtbench")
            stack.enter_context(_removing(node, group))
            pinned = self.properties.pinned
            disks = cgroups.disks_under((tree, node.data)) if self.properties.disk_limits else ()
            enter = cgroups.create(node, group, self.envelope, self.properties, disks)
            if pinned:
                enter += taskset(self.envelope.cpus)
            host_processes = HostProcesses(group=ControlGroup.named(group))
            memory_bytes = self.envelope.memory_bytes if self.properties.memory_limited else None
            cpu_count = len(self.envelope.cpus)
            limits = cgroups.Opened(cpu_count, memory_bytes, self.properties.cpu_share, pinned)
            resize = cgroups.of_group(node, group, limits, cpuset=pinned)
            edits = edits_for(node, self.gpus)
            data = (node.data, self.writable) if node.data else None

            def place(words: Sequence[str], user: int | None, backing: Node | None = None) -> WrappedNode:
                """Return the tree as this user sees it, entered by these words."""
                begin = [*words, *chroot_argv(tree, edits, data, user, self.envelope.tmpfs_bytes, node.scratch)]
                facts = limit_facts(host_processes, disks)
                if not pinned:
                    facts = {"host_cpus": None, **facts}
                return in_tree(
                    node,
                    begin,
                    edits,
                    facts=facts,
                    backing=backing,
                    host_processes=host_processes,
                    resize=resize,
                )

            as_root = place(enter, None)
            inside = as_root
            if self.properties.confined:
                user = unnamed_user()
                # What was written before the instance was opened again had another owner.
                written = (node.data if self.writable else None, node.scratch)
                for directory in filter(None, written):
                    node.run(["chown", "-R", f"{user}:{user}", "--", directory])
                with node.opening.running("tree"):
                    entered = stack.enter_context(namespaces(node, tree, enter))
                # The kernel shows the page cache of a file to its owner only: root queries it.
                inside = place([*enter, *entered], user, as_root)
            with node.opening.running("tree"):
                inside.run(["true"])
            yield inside


def _removing(node: Node, group: str) -> AbstractContextManager[object]:
    """Return the context at whose end the control group is removed, by the ledger or by the other machine."""
    if node.local:
        return ledger.holding("cgroup", group)
    return undone(node, cgroups.remove_argv(group))


@dataclass(frozen=True)
class UnlimitedLayer:
    """Bare metal without root: the image's tree in user and mount namespaces, pinned; its memory is not limited.

    Where no namespaces can be had, or no image is, it is the suite's own Python: a named substitute for the userland.
    """

    envelope: Envelope
    gpus: tuple[str, ...] = ()
    writable: bool = False

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        cpus = self.envelope.cpus
        tree = node.userland
        if tree and enterable(node, tree):
            edits = edits_for(node, self.gpus)
            data = (node.data, self.writable) if node.data else None
            bubble = chroot_argv(tree, edits, data, tmpfs_bytes=self.envelope.tmpfs_bytes, scratch=node.scratch)
            argv = [*taskset(cpus), *bubble]
            inside = in_tree(node, argv, edits, substitutes=(MEMORY_NOT_LIMITED,))
        else:
            edits_of_gpus = edits_for(node, self.gpus, place=None)
            inside = own_environment(node, cpus, edits_of_gpus)
        with node.opening.running("tree"):
            inside.run(["true"])
        yield inside


def enterable(node: Node, tree: str) -> bool:
    """Return whether this user may enter the tree: bubblewrap is there, and the kernel gives it user namespaces."""
    try:
        node.run([*chroot_argv(tree), "true"])
    except BenchError:
        return False
    return True


def in_tree(node: Node, begin: Sequence[str], edits: Edits, **further: Any) -> WrappedNode:  # noqa: ANN401
    """Return the image's tree on the node, which these words enter; ``further``: what else is known of it."""
    return WrappedNode(
        parent=node,
        wrap=lambda argv: [*begin, *argv],
        name=f"{node.name}/userland",
        userland="/",
        cpus=node.cpus,
        local=node.local,
        data=MOUNT if node.data else None,
        scratch=SCRATCH if node.scratch else None,
        variables=edits.variables,
        facts={**further.pop("facts", {}), **edits.facts},
        **further,
    )


def own_environment(node: Node, cpus: Sequence[int], edits: Edits = NO_EDITS) -> WrappedNode:
    """Return the machine with the suite's own Python, on these CPUs."""
    return WrappedNode(
        parent=node,
        wrap=lambda argv: ["setpriv", "--pdeathsig", "KILL", *taskset(cpus), *argv],
        name=f"{node.name}/own-environment",
        userland=None,
        cpus=node.cpus,
        local=node.local,
        data=node.data,
        scratch=node.scratch,
        python=(sys.executable, str(ROOMS)),
        facts=edits.facts,
        variables=edits.variables,
        substitutes=(OWN_USERLAND, MEMORY_NOT_LIMITED),
    )


def taskset(cpus: Sequence[int]) -> list[str]:
    return ["taskset", "--cpu-list", format_cpu_list(cpus)]
