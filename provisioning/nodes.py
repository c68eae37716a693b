"""Nodes: this machine, and every place that is reached by putting words before a command."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Protocol, runtime_checkable

from provisioning import ledger
from provisioning.cgroup.counters import ControlGroup
from provisioning.cgroup.limits import BlockDevice
from provisioning.paths import runtime
from provisioning.processes import LocalProcess
from suite.errors import BenchError
from suite.interfaces import COMMAND_WITHIN_S, Completed, Node, Process, Resize, Snapshot, Stopwatch
from suite.interruption import uninterrupted

UNDO_WITHIN_S = 10.0
IMAGE_PYTHON = ("/usr/bin/python3", "/opt/virtbench")


@dataclass(kw_only=True)
class NodeState:
    """The parts that nodes have in common. See ``suite.interfaces.Node``."""

    data: str | None = None
    scratch: str | None = None
    backing: Node | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    substitutes: tuple[str, ...] = ()


@dataclass
class LocalNode(NodeState):
    """This machine. Every process it starts carries ``token``."""

    token: str
    cpus: tuple[int, ...]
    userland: str | None
    name: str = "localhost"
    python: tuple[str, str] = IMAGE_PYTHON
    local: bool = True
    directory: str = "/"
    """The working directory of its processes. Some drop files there (conmon, when a container runs out of memory)."""
    opening: Stopwatch = field(default_factory=Stopwatch)
    _started: list[LocalProcess] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_WITHIN_S,
        check: bool = True,
    ) -> Completed:
        process = LocalProcess.start(argv, self.token, stdin, self.directory)
        return process.completed(timeout_s, check=check)

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"", stdout: IO[bytes] | None = None) -> Process:
        """Start and return at once. ``stdin`` and ``stdout`` may be pipes, as ``LocalProcess`` takes them."""
        with uninterrupted():
            process = LocalProcess.start(argv, self.token, stdin, self.directory, stdout)
            self._started.append(process)
        return process

    def close(self) -> None:
        """End what was started and not waited for."""
        for process in reversed(self._started):
            process.close()
        self._started.clear()


@contextmanager
def local_node(
    cpus: tuple[int, ...], userland: str | None, data: str | None = None, python: tuple[str, str] = IMAGE_PYTHON
) -> Iterator[LocalNode]:
    """Open this machine for the length of one trial; at the end no process of it is left."""
    token = uuid.uuid4().hex
    with ledger.directory(runtime(), "node") as directory, ledger.holding("processes", token):
        facts = {"accelerator": "none", "host_cpus": list(cpus)}
        node = LocalNode(
            token,
            cpus,
            userland,
            python=python,
            data=data,
            directory=str(directory),
            facts=facts,
        )
        try:
            yield node
        finally:
            node.close()


@dataclass(frozen=True)
class HostProcesses:
    """The processes of a place on this machine, for the accounting, beside those that carry the token."""

    group: ControlGroup | None = None
    main_pid: int | None = None
    """The first process of a container."""
    by_children: bool = True
    """Whether a command in it is a descendant of what this process starts for it; else of a shim or a daemon."""


def limit_facts(host_processes: HostProcesses | None, limited: Sequence[BlockDevice]) -> dict[str, object]:
    """Return the limits that the control group itself reports for these disks; nothing if there are none."""
    if not (limited and host_processes and host_processes.group):
        return {}
    return {**host_processes.group.disk_limits([disk.number for disk in limited])}


@dataclass
class WrappedNode(NodeState):
    """A place reached through ``parent`` by a longer command: a chroot, a container, a guest over SSH."""

    parent: Node
    wrap: Callable[[Sequence[str]], list[str]]
    name: str
    userland: str | None
    cpus: tuple[int, ...] = ()
    """The CPUs of ``parent`` by default."""
    local: bool = False
    python: tuple[str, str] = ("", "")
    """Its interpreter and PYTHONPATH; by default those of ``parent``, or the image's if that has no worker."""
    host_processes: HostProcesses | None = None
    """None if the layer adds nothing on this machine: it is in a guest, or one process that carries the token."""
    resize: Resize | None = None
    snapshot: Snapshot | None = None

    def __post_init__(self) -> None:
        inherited = self.parent.python if self.parent.python[1] else IMAGE_PYTHON
        self.cpus = self.cpus or self.parent.cpus
        self.python = self.python if self.python[0] else inherited
        self.facts = {**self.parent.facts, **self.facts}
        self.variables = {**self.parent.variables, **self.variables}
        self.substitutes = (*self.parent.substitutes, *self.substitutes)
        self.backing = self.backing or self.parent.backing

    @property
    def opening(self) -> Stopwatch:
        return self.parent.opening

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_WITHIN_S,
        check: bool = True,
    ) -> Completed:
        return self.parent.run(self.wrap(argv), stdin=stdin, timeout_s=timeout_s, check=check)

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> Process:
        return self.parent.start(self.wrap(argv), stdin=stdin)


@runtime_checkable
class UndoesWhenLost(Protocol):
    """A machine that can be told what to do when this process is gone."""

    def undone_when_lost(self, argv: Sequence[str]) -> AbstractContextManager[None]: ...


def is_guest(node: Node) -> bool:
    """Return whether it is a guest of the suite's own, in which nobody else starts daemons."""
    return not node.local and not isinstance(node, UndoesWhenLost)


@contextmanager
def undone_when_lost(node: Node, undo: Sequence[str]) -> Iterator[None]:
    """Make another machine run the command by itself if the connection to it ends before this context does.

    On this machine the ledger answers for it, and in a guest nobody needs to.
    """
    below = node
    while isinstance(below, WrappedNode):
        undo = below.wrap(undo)
        below = below.parent
    with below.undone_when_lost(undo) if isinstance(below, UndoesWhenLost) else nullcontext():
        yield


@contextmanager
def undone(node: Node, argv: Sequence[str]) -> Iterator[None]:
    """Run the command at the end. After a failure its own is not raised: the first one says why."""
    with undone_when_lost(node, argv):
        try:
            yield
        except BaseException:
            with suppress(BenchError), uninterrupted():
                node.run(argv, check=False, timeout_s=UNDO_WITHIN_S)
            raise
        with uninterrupted():
            node.run(argv, timeout_s=UNDO_WITHIN_S)


def write_file(node: Node, path: str, content: bytes) -> None:
    """Write a file on any node, its directory made first."""
    node.run(["mkdir", "-p", "--", path.rpartition("/")[0] or "/"])
    node.run(["dd", f"of={path}", "status=none"], stdin=content)
