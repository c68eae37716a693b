"""A node that runs commands here, one that plays a script, and the trials they are given."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from provisioning.nodes import LocalNode
from provisioning.processes import LocalProcess
from scenarios.events import Silent
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Completed, Process
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Sizes
from suite.plan import Trial
from tests.jobs import in_job
from tests.worker.forked import ForkedProcess
from tests.worker.judged import JOB

REPOSITORY = Path(__file__).parents[2]


def failure(measure: Callable[..., object], *words: Any, **more: Any) -> MeasurementError:
    """Return the error by which what is measured fails."""
    with pytest.raises(MeasurementError) as raised:
        measure(*words, **more)
    return raised.value


def fails(error: type[Any], kind: str, match: str | None = None) -> "pytest.RaisesExc[Any]":
    """Expect an error of this kind, whose message matches."""
    return pytest.raises(error, match=match, check=lambda raised: raised.kind == kind)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def fill(root: Path, *names: str, content: bytes = b"xy") -> Path:
    """Write files of this content below a directory, and return it."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@dataclass
class HereNode(LocalNode):
    """This machine, with the tests' own interpreter in the place of the image's."""

    token: str = "a test's"
    cpus: tuple[int, ...] = (0,)
    userland: str | None = None
    name: str = "here"
    python: tuple[str, str] = (sys.executable, str(REPOSITORY))
    forks: bool = True
    """Whether workers are forked from a process that has imported torch, which takes seconds of each that starts."""

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"", stdout: IO[bytes] | None = None) -> Process:
        if not self.forks or "worker" not in argv or {"--command", "--server"} & {*argv}:
            return super().start(argv, stdin=stdin, stdout=stdout)
        self._started.append(process := ForkedProcess(argv, stdin))
        return process

    @property
    def processes(self) -> list[LocalProcess]:
        return self._started


@dataclass
class ScriptedProcess:
    """Says the lines it was given; a number among them is a pause, and None is silence until the time is up."""

    script: Sequence[str | float | None]
    status: int = 0
    tail: str = "the last words"
    killed: bool = False

    def lines(self, timeout_s: float) -> Iterator[str]:
        for item in self.script:
            if item is None:
                raise CommandError(["worker"], None, f"silent for {timeout_s} s")
            if isinstance(item, str):
                yield item
            else:
                time.sleep(item)

    def wait(self, timeout_s: float) -> int:
        del timeout_s
        return self.status

    def running(self) -> bool:
        return not self.killed

    def kill(self) -> None:
        self.killed = True

    def output_tail(self) -> str:
        return self.tail


@dataclass
class ScriptedNode(HereNode):
    """Attests what it was given and starts the process it was given."""

    process: ScriptedProcess = field(default_factory=lambda: ScriptedProcess([]))
    attestation: str = "{}"
    started: list[tuple[list[str], bytes]] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> Completed:
        del argv, stdin, timeout_s, check
        return Completed(0, self.attestation, "")

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"", **_: Any) -> Process:
        assert isinstance(stdin, bytes)
        self.started.append((list(argv), stdin))
        return self.process


@dataclass
class Account:
    """Looks when a job is entered, and when it is left."""

    look: Callable[[], Any]
    seen: list[Any] = field(default_factory=list)

    def __enter__(self) -> None:
        self.seen.append(self.look())

    def __exit__(self, *_: object) -> None:
        self.seen.append(self.look())


@dataclass
class RecordingObserver(Silent):
    """Keeps the phases and the notes."""

    phases: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, name: str, detail: str = "") -> None:
        self.phases.append((name, detail))


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def here() -> Iterator[HereNode]:
    with closing(HereNode()) as node:
        yield node


@pytest.fixture
def scripted() -> Callable[..., ScriptedNode]:
    """``scripted(line, line, status=1)``: a node whose worker says those lines; ``node=`` has the node's own fields."""

    def make(*script: str | float | None, node: Mapping[str, Any] | None = None, **process: Any) -> ScriptedNode:
        return ScriptedNode(process=ScriptedProcess(script, **process), **(node or {}))

    return make


@pytest.fixture
def trial() -> Trial:
    sizes = Sizes(batch=2, image_px=64, warmup_steps=2, steps=3)
    envelope = Envelope(cpus=(0,), memory_bytes=2 * GIB, threads=1)
    return Trial(
        trial_id="synthetic-alexnet-bare-metal-b000",
        **in_job({"model": "alexnet", "sizes": sizes, "envelope": envelope}),
        target="bare-metal",
        block=0,
        position=0,
        seed=7,
        trial_timeout_s=120,
    )


@pytest.fixture
def spec() -> dict[str, Any]:
    """A job of a second on one core."""
    return dict(JOB)
