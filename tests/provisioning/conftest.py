"""A home of the test's own, a node that plays its answers, and images of a few files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from provisioning import ledger, nodes
from provisioning import paths as home_module
from provisioning.images.image import PACKED, Image, stamp
from provisioning.machines.running import RunningQemu
from provisioning.nodes import LocalNode, NodeState, local_node
from suite import userland
from suite.errors import BenchError, CommandError
from suite.interfaces import Completed, Process, Stopwatch

MakeImage = Callable[..., Image]
Program = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The suite's folders, in the test's own directory: no test sees those of this machine."""
    place = tmp_path / "home"
    monkeypatch.setenv("VIRTBENCH_HOME", str(place))
    (tmp_path / "run").mkdir(mode=0o700)
    for module in (ledger, nodes):
        monkeypatch.setattr(module, "runtime", lambda: tmp_path / "run")
    assert home_module.home() == place
    return place


@dataclass
class FakeNode(NodeState):
    """Answers commands from a table by their first words; all others succeed and say nothing."""

    answers: Mapping[tuple[str, ...], Completed] = field(default_factory=dict)
    name: str = "fake"
    userland: str | None = "/tree"
    python: tuple[str, str] = ("python3", "/")
    cpus: tuple[int, ...] = (0, 1)
    local: bool = False
    opening: Stopwatch = field(default_factory=Stopwatch)
    ran: list[list[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> Completed:
        del stdin, timeout_s
        self.ran.append(list(argv))
        answers = (self.answers[tuple(argv[:n])] for n in range(len(argv), 0, -1) if tuple(argv[:n]) in self.answers)
        answer = next(answers, Completed(0, "", ""))
        if check and answer.returncode:
            raise CommandError(argv, answer.returncode, answer.stderr)
        return answer

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> Process:
        raise NotImplementedError("no test starts anything on it")


def fake_node(*given: Any, **more: Any) -> Any:
    """Return a node for whoever takes a kind of its own: ``fake_node({("stat",): Completed(0, "tmpfs", "")})``."""
    return FakeNode(*given, **more)


def running_qemu(process: Process) -> RunningQemu:
    """Return a process in the place of a QEMU, and its console."""
    nothing: Any = None
    machine = RunningQemu(nothing, lambda _: nullcontext(process), ExitStack())
    machine.start(nothing)
    return machine


@contextmanager
def raises(kind: type[BenchError], match: str, remedy: str = "") -> Iterator[None]:
    """Expect an error with this message, and with a remedy that has these words."""
    with pytest.raises(kind, match=match) as caught:
        yield
    assert caught.value.remedy
    assert remedy in caught.value.remedy


@pytest.fixture
def node() -> Iterator[LocalNode]:
    """This machine, for real; at the end no process of it is left."""
    with local_node((min(os.sched_getaffinity(0)),), None) as made:
        yield made


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """``program("crontab", script)``: puts a program of this name first on the search path, and returns its path."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def _put(name: str, script: str) -> Path:
        place = tmp_path / "bin" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)
        return place

    return _put


@pytest.fixture
def make_image(home: Path) -> MakeImage:
    """``make_image(created_at="…")``: a whole image of a few bytes; other content gives another digest."""

    def _make(
        created_at: str = "2026-01-01T00:00:00+00:00",
        content: str = "x",
        variant: str = "cpu",
        files: Mapping[str, str] | None = None,
    ) -> Image:
        building = home / "images/building"
        (building / "tree/opt/virtbench").mkdir(parents=True)
        make(building / "tree", {"file": content, **(files or {})})
        digest = userland.write_manifest(str(building / "tree"))
        for name in PACKED:
            (building / name).write_text(f"{name} of {content}")
        stamps = {name: stamp(building / name) for name in PACKED}
        made = {"digest": digest, "variant": variant, "created_at": created_at, "files": stamps}
        image = Image.model_validate({**made, "recipe_sha256": "0" * 64, "base": "debian"})
        building.rename(image.directory)
        image.save()
        return image

    return _make


def make(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their paths below a directory, which is returned."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root
