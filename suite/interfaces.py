"""The axes of the suite, as interfaces.

A node runs commands, a layer opened on a node gives a new node, a scenario measures on a node. Commands are
argument lists everywhere; nothing takes shell text.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from suite.job.profiles import Sizes
from suite.part import Seconds
from suite.plan import Trial
from suite.records.environment import Environment
from suite.records.record import Link, TrialNumbers, TrialRecord, Turn
from suite.records.usage import Conditions, Resources, Usage

Note = Callable[[str], None]
Context = AbstractContextManager[object]
"""Encloses a job from right before its launch until right after its end: an ``Account``, or nothing that counts."""
COMMAND_WITHIN_S = 180.0
"""How long a short command may take, in an emulated guest on a busy machine too: only what hangs takes longer."""


@dataclass(frozen=True)
class Shares:
    """CPUs for an open instance, and its shares of the CPU time and of the memory that it was opened with."""

    cpus: Sequence[int]
    cpu_share: float = 1.0
    memory_share: float = 1.0


Resize = Callable[[Shares], None]
"""Gives an open instance its shares; whole shares are the limits that it was opened with. Raises RequestError if it
cannot."""


@dataclass(frozen=True)
class Completed:
    returncode: int
    stdout: str
    stderr: str

    def complaint(self, otherwise: str = "no answer") -> str:
        """Return the last line on standard error, where programs name their reason."""
        lines = self.stderr.strip().splitlines()
        return lines[-1] if lines else otherwise


class Process(Protocol):
    """A command that is running on a node. Its standard input, or the end that it reads, was given at the start."""

    def lines(self, timeout_s: float) -> Iterator[str]:
        """Yield standard output line by line until it ends. Of a command that waits for input after a line, ask again.

        Raises CommandError after ``timeout_s``, however much is still being said, and MeasurementError of kind
        ``output`` for more than any command of the suite says.
        """

    def wait(self, timeout_s: float) -> int:
        """Return the exit status. Raises CommandError, after killing the command, if it outlives ``timeout_s``."""

    def running(self) -> bool:
        """Return whether it has not ended yet."""

    def kill(self) -> None:
        """Kill the command at once; harmless if it has ended."""

    def output_tail(self) -> str:
        """Return the last lines of its standard error."""


class Stopwatch:
    """Adds up the seconds for which it runs, on the host's monotonic clock, for each part of what it times."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._part: str | None = None
        self._since_s = 0.0

    @property
    def seconds(self) -> float:
        return math.fsum(self.parts.values())

    def paused(self) -> AbstractContextManager[None]:
        """Stop it for as long as the context lasts; it then runs again if it did before."""
        return self.running(None)

    @contextmanager
    def running(self, part: str | None) -> Iterator[None]:
        """Run it for as long as the context lasts; the time is that of the part."""
        before = self._part
        self._switch(part)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, part: str | None) -> None:
        now_s = time.monotonic()
        if self._part is not None:
            before_s = self.parts.get(self._part, 0.0)
            self.parts[self._part] = before_s + now_s - self._since_s
        self._part = part
        self._since_s = now_s


class Node(Protocol):
    """A place that runs commands: this machine, one reached by SSH, a guest, a container."""

    name: str
    userland: str | None
    """The directory, on this node, of the image's unpacked tree, from which the layers on it are made."""
    data: str | None
    """The directory, on this node, of the trial's data volume: its data set, or space to write; None without one."""
    scratch: str | None
    """A directory, on this node, to write to beside the data set; None without one."""

    @property
    def backing(self) -> "Node | None":
        """A further node whose page cache the data volume is read through, or that may see this one's; None without."""

    python: tuple[str, str]
    """The interpreter that runs the worker here, and the PYTHONPATH under which it finds it."""
    cpus: tuple[int, ...]
    """The CPUs of the envelope, in this node's own numbers."""
    local: bool
    """Whether its commands act on this machine's own kernel, so that the ledger must know what they create."""
    facts: Mapping[str, object]
    """Facts that the layers below know and the inside cannot see: fields of ``records.Environment``."""
    variables: Mapping[str, str]
    """Variables that a job needs here: those of its GPUs."""
    substitutes: tuple[str, ...]
    """The substitutes that the layers below had to use, such as ``accelerator:tcg``."""

    @property
    def opening(self) -> Stopwatch:
        """The time that the target itself needs to be ready; one stopwatch for all layers over a machine.

        Layers run it while an engine or a hypervisor starts, and pause it for what the suite asks on its own account.
        """

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_WITHIN_S,
        check: bool = True,
    ) -> Completed:
        """Run to the end. With ``check``, a non-zero exit status raises CommandError."""

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> Process:
        """Start and return at once. ``stdin`` is all of the input, or the reading end of a pipe, then the command's."""


class Snapshot(Protocol):
    """Saves an instance of this machine to a file, with all that runs in it, and loads it again.

    All of its methods raise BenchError.
    """

    method: str
    """How it saves, in words."""

    @property
    def following(self) -> Sequence[str]:
        """The command in the instance that follows the detached one.

        It prints the output of that from its first line on, hands on the lines of its own input, and ends as that does.
        At the end of its input it leaves the other running.
        """

    def detach(self, argv: Sequence[str], first_line: bytes) -> None:
        """Start a command in the instance that needs no connection, and give it a line of input."""

    def save(self) -> Path:
        """Save the instance to a file, and end it. Returns the directory that holds this file alone."""

    def start(self) -> None:
        """Start the hypervisor that is to load the file, and return at once."""

    def connect(self) -> None:
        """Wait until the hypervisor answers: from then on it holds what is sent to the instance."""

    def load(self) -> None:
        """Load the file, and return when the instance runs on."""


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
    service: tuple[str, int] | None = None
    """The address and the port at which its clients ask it, where they are not its own."""
    links: tuple[Link, ...] = ()
    reopen: Callable[[], Node] | None = None
    """Kills the layers over the machine, and opens them again; None where that cannot be done."""
    kill: Callable[[], None] | None = None
    """Kills what of it is no child of this process, at once: a command's client ends before the command does."""
    resize: Resize | None = None
    """Changes its CPUs while it is open; None where that cannot be done."""
    another: Callable[[], AbstractContextManager[Node]] | None = None
    """Opens a further instance like it, with the same CPUs; None where that cannot be done."""
    snapshot: Snapshot | None = None
    """Saves and loads it; None if it cannot be saved."""
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


class Measurement(TrialNumbers):
    """The numbers of one trial that came to its end."""

    elapsed_s: Seconds
    """From the launch to the end. Of steps in turns it holds their waiting, and is not recorded."""
    environment: Environment
    """Seen from inside; of several instances, by the first worker, or by the victim."""
    usage: Usage | None = None
    """What the job used, by its own accounting."""
    substitutes: tuple[str, ...] = ()
    """The substitutes that only the job itself could see, such as ``open-files:4096``."""
    fixed_sizes: Sizes | None = None
    """The sizes of a job with the steps that its worker has chosen, which all trials of it then take; None: planned."""
    models: Mapping[str, bytes] = {}
    """The files of the ``kept`` models by the digest of their weights; they lie beside the records."""

    def changed(self, **fields: object) -> "Measurement":
        return self.model_copy(update=fields)


class Account(Context, Protocol):
    """Counts what the host does during one job: the counters are read when it is entered and when it is left.

    A scenario enters it right before it launches the job and leaves it right after the job has ended, so that neither
    the attestation nor the opening and closing of the target is in it.
    """

    @property
    def conditions(self) -> Conditions | None:
        """The conditions on the host in between; None before it was left."""

    @property
    def resources(self) -> Resources | None:
        """Return what the host counted, without the worker's own figures; None before it was left."""

    def meter(self, instances: Sequence[Instance]) -> "Meter":
        """Return what counts these of the instances that the account was opened for, while it is entered."""


OpenTarget = Callable[[Trial], AbstractContextManager[Sequence[Instance]]]
OpenAccount = Callable[[Trial, Sequence[Instance]], Account]
"""Gives the counters of this host for the opened target of the trial, or for the targets of trials that take turns."""


class TurnTaker(Protocol):
    """The job of a trial that takes turns: between two of these methods it waits, and nothing of it computes.

    All raise MeasurementError when the job does not come so far.
    """

    @property
    def finished(self) -> bool:
        """Whether it has come to its end in one of its turns; False of a job whose turns are counted."""

    def begin(self) -> None:
        """Launch the job, and return when it is ready for its first turn."""

    def turn(self) -> Turn:
        """Let it take one burst of steps, or run for a slice of time."""

    def end(self) -> Measurement:
        """End the job after its last turn. ``Measurement.usage`` is that of its turns."""

    def kill(self) -> None:
        """End the job at once; harmless if it has ended."""


class Meter(Protocol):
    """Counts what the host has spent on one opened target, from when it was made."""

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of everything that serves the target; None if they cannot be read."""


class Scenario(Protocol):
    """A job that is run on targets, and how it is measured."""

    name: str

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Run the trial's job on its opened instances. Raises MeasurementError when it does not come to its end.

        ``account`` is entered right before the job is launched and left right after it has ended; see ``Account``.
        """


@runtime_checkable
class TurnScenario(Protocol):
    """A scenario whose jobs can take turns, too, for the alternating design."""

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        """Prepare the trial's job on its opened instances. Raises MeasurementError where that fails."""
