"""A node that runs commands here, one that plays a script, and the trials they are given."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from suite.errors import CommandError
from suite.interfaces import Completed, Process, Stopwatch
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.record import TrialRecord
from tests.jobs import in_job

REPOSITORY = Path(__file__).parents[2]


class HereProcess:
    """A child of the test."""

    def __init__(self, argv: Sequence[str], stdin: bytes | IO[bytes]) -> None:
        self._argv = argv
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process, see close
        with tempfile.TemporaryFile() if isinstance(stdin, bytes) else stdin as given:
            if isinstance(stdin, bytes):
                given.write(stdin)
                given.seek(0)
            self._popen = subprocess.Popen(argv, stdin=given, stdout=subprocess.PIPE, stderr=self._stderr)

    def lines(self, timeout_s: float) -> Iterator[str]:
        del timeout_s  # pytest has its own
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            yield line.decode().rstrip("\n")

    def wait(self, timeout_s: float) -> int:
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired as late:
            self.kill()
            raise CommandError(self._argv, None, self.output_tail()) from late

    def running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def output_tail(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def close(self) -> None:
        self.kill()
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._stderr.close()


@dataclass
class HereNode:
    """This machine, with the tests' own interpreter in the place of the image's."""

    name: str = "here"
    userland: str | None = None
    backing: "HereNode | None" = None
    python: tuple[str, str] = (sys.executable, str(REPOSITORY))
    cpus: tuple[int, ...] = (0,)
    local: bool = True
    data: str | None = None
    scratch: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    substitutes: tuple[str, ...] = ()
    opening: Stopwatch = field(default_factory=Stopwatch)
    processes: list[HereProcess] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> Completed:
        done = subprocess.run(argv, input=stdin, timeout=timeout_s, capture_output=True, check=check)
        return Completed(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> Process:
        self.processes.append(HereProcess(argv, stdin))
        return self.processes[-1]


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

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> Process:
        assert isinstance(stdin, bytes)
        self.started.append((list(argv), stdin))
        return self.process


@dataclass
class RecordingObserver:
    """Keeps the phases and the notes."""

    phases: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def trial_started(self, trial: Trial, number: int, of: int) -> None: ...
    def trial_finished(self, record: TrialRecord) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, name: str, detail: str = "") -> None:
        self.phases.append((name, detail))


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def here() -> Iterator[HereNode]:
    node = HereNode()
    yield node
    for process in node.processes:
        process.close()


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
    return {
        "workload": "worker.workloads.classifier:ALEXNET",
        "batch": 1,
        "image_px": 64,
        "warmup_steps": 1,
        "steps": 2,
        "threads": 1,
        "recipe": "reference",
        "seed": 3,
        "device": "cpu",
        "devices": 1,
        "parallel": "none",
    }
