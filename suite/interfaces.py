"""The axes of the suite, as interfaces.

A node runs commands, a layer opened on a node gives a new node, a scenario measures on a node. Commands are
argument lists everywhere; nothing takes shell text.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from suite.plan import Trial
from suite.records.environment import Environment
from suite.records.record import AggressorInstance, DataUse, Link, Metric, Rank, Steps, Timeline, TrialRecord
from suite.records.usage import Conditions, Resources, Usage


@dataclass(frozen=True)
class Completed:
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str


class Process(Protocol):
    """A command that is running on a node. Its standard input was given at the start and is closed."""

    def lines(self, timeout_s: float) -> Iterator[str]:
        """Yield standard output line by line until it ends. Raises CommandError after ``timeout_s``."""

    def wait(self, timeout_s: float) -> int:
        """Return the exit status. Raises CommandError, after killing the command, if it outlives ``timeout_s``."""

    def running(self) -> bool:
        """Return whether it has not ended yet."""

    def kill(self) -> None:
        """Kill the command at once; harmless if it has ended."""

    def output_tail(self) -> str:
        """Return the last lines of its standard error."""


class Stopwatch:
    """Adds up the seconds for which it runs, on the host's monotonic clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since_s: float | None = None

    def running(self) -> AbstractContextManager[None]:
        """Run it for as long as the context lasts."""
        return self._switched(on=True)

    def paused(self) -> AbstractContextManager[None]:
        """Stop it for as long as the context lasts; it then runs again if it did before."""
        return self._switched(on=False)

    @contextmanager
    def _switched(self, *, on: bool) -> Iterator[None]:
        before = self._switch(on=on)
        try:
            yield
        finally:
            self._switch(on=before)

    def _switch(self, *, on: bool) -> bool:
        now_s, since_s = time.monotonic(), self._since_s
        self.seconds += 0.0 if since_s is None else now_s - since_s
        self._since_s = now_s if on else None
        return since_s is not None


class Node(Protocol):
    """A place that runs commands: this machine, one reached by SSH, a guest, a container."""

    name: str
    userland: str | None
    """The directory, on this node, of the image's unpacked tree, from which the layers on it are made."""
    data: str | None
    """The directory, on this node, of the trial's data volume: its data set, or space to write; None without one."""

    @property
    def backing(self) -> "Node | None":
        """A further node whose page cache the data volume is read through; None if there is none."""

    python: tuple[str, str]
    """The interpreter that runs the worker here, and the PYTHONPATH under which it finds it."""
    cpus: tuple[int, ...]
    """The CPUs of the envelope, in this node's own numbers."""
    local: bool
    """Whether its commands act on this machine's own kernel, so that the ledger must know what they create."""
    facts: Mapping[str, object]
    """Facts that the layers below know and the inside cannot see: fields of ``records.Environment``."""
    substitutes: tuple[str, ...]
    """The substitutes that the layers below had to use, such as ``accelerator:tcg``."""

    @property
    def opening(self) -> Stopwatch:
        """The time that the target itself needs to be ready; one stopwatch for all layers over a machine.

        Layers run it while an engine or a hypervisor starts, and pause it for what the suite asks on its own account.
        """

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> Completed:
        """Run to the end. With ``check``, a non-zero exit status raises CommandError."""

    def start(self, argv: Sequence[str], *, stdin: bytes = b"") -> Process:
        """Start and return at once."""


@dataclass(frozen=True)
class Instance:
    """One opened instance of a trial's target.

    Most trials have one. A distributed job has one for each rank, in order; jobs that share the machine have one each,
    the victim first.
    """

    node: Node
    address: str | None = None
    """The address at which the other instances reach it; None if there are no others."""
    interface: str | None = None
    """The interface that has the address, as the inside of the instance calls it."""
    node_address: str | None = None
    """The address of the node below, if ``address`` is that of a container behind it."""
    port: int | None = None
    """A free port of the address that the others reach: the ranks can meet there."""
    links: tuple[Link, ...] = ()
    """The ways to the other instances."""
    clock_offset_s: float | None = None
    """How many seconds its machine's time of day is ahead of this one's; None on this machine."""


class Layer(Protocol):
    """Something opened on a node that gives a new node; closing it leaves nothing behind."""

    def opened(self, node: Node) -> AbstractContextManager[Node]:
        """Open on ``node``. A half start cleans up after itself before the error leaves."""


@contextmanager
def open_stack(node: Node, layers: Sequence[Layer]) -> Iterator[Node]:
    """Open each layer on the node that the one before it gave; close in the opposite order."""
    with ExitStack() as stack:
        for layer in layers:
            node = stack.enter_context(layer.opened(node))
        yield node


class Observer(Protocol):
    """Follows a run. It may print only what these methods tell it, and nothing while a job is measured."""

    def trial_started(self, trial: Trial, number: int, of: int) -> None: ...
    def phase(self, name: str, detail: str = "") -> None: ...
    def trial_finished(self, record: TrialRecord) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Measurement:
    """The numbers of one trial that came to its end."""

    elapsed_s: float
    throughput_images_per_s: float | None
    steps: Steps | None
    timeline: Timeline | None
    environment: Environment
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    data_use: DataUse | None = None
    ranks: Sequence[Rank] = ()
    """The ranks of a distributed job; ``environment`` is then that of the first worker."""
    aggressors: Sequence[AggressorInstance] = ()
    """The aggressors beside a victim, by instance; ``environment`` is that of the victim."""
    clock_ratio: float | None = None
    """Measured time on the target's clock over the same on the host's; 1 when the clocks agree."""
    usage: Usage | None = None
    """What the job used, by its own accounting."""
    details: Mapping[str, object] = field(default_factory=dict)


class Account(AbstractContextManager[object], Protocol):
    """Counts what the host does during one job: the counters are read when it is entered and when it is left.

    A scenario enters it right before it launches the job and leaves it right after the job has ended, so that neither
    the attestation nor the opening and closing of the target is in it.
    """

    @property
    def conditions(self) -> Conditions | None:
        """The conditions on the host in between; None before it was left."""

    @property
    def resources(self) -> Resources | None:
        """What the host counted, without the worker's own figures; None before it was left."""


class Scenario(Protocol):
    """A job that is run on targets, and how it is measured."""

    name: str

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: AbstractContextManager[object],
    ) -> Measurement:
        """Run the trial's job on its opened instances. Raises MeasurementError when it does not come to its end.

        ``account`` is entered right before the job is launched and left right after it has ended; see ``Account``.
        """
