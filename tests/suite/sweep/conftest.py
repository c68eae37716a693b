"""Plan files, and ``bench`` as a process of its own on fakes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from suite.sweep.file import Sweep, read_sweep
from tests.forked import Forked
from tests.suite import sweeping_machine

REPOSITORY = Path(__file__).parents[3]
PLAN = """
name = "night"
targets = ["bare-metal", "container"]
blocks = 3

[matrix]
model = ["resnet50", "alexnet"]
profile = ["smoke"]

[envelope]
cpus = 1
memory = "1M"
"""


def make_sweep(**changes: Any) -> Sweep:
    values: dict[str, Any] = {
        "name": "night",
        "targets": ["bare-metal", "container"],
        "matrix": {"model": ["resnet50", "alexnet"], "profile": ["smoke"]},
    }
    return read_sweep(values | changes, "night.toml")


@dataclass(frozen=True)
class Machine:
    """A machine of fakes in ``place``; a sweep on it goes to ``out``."""

    place: Path

    @property
    def out(self) -> Path:
        return self.place / "out"

    @property
    def plan(self) -> Path:
        return self.place / "night.toml"

    def with_engine(self, *lines: str) -> None:
        """Write the plan with that table: ``with_engine('kind = "slurm"')``."""
        self.plan.write_text("\n".join([PLAN, "[engine]", *lines, ""]))

    def stand_in(self, **scripts: str) -> dict[str, str]:
        """Return the environment in which scripts are the programs of these names; their calls are in ``calls``."""
        (self.place / "bin").mkdir(exist_ok=True)
        for name, script in scripts.items():
            path = self.place / "bin" / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.place}/calls\n{script}\n')
            path.chmod(0o755)
        return {"PATH": f"{self.place / 'bin'}:{os.environ['PATH']}"}

    def start(self, *words: str, **env: str) -> "Forked | subprocess.Popen[str]":
        # Where Python looks for packages it asks when it starts.
        started = self.program(*words, before=(), stdin=None, **env) if "PYTHONPATH" in env else None
        return started or Forked(sweeping_machine.main, *words, env=self.variables(env))

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, "MEASURED": str(self.place / "measured"), "PYTHONPATH": str(REPOSITORY), **env}

    def program(self, *words: str, before: Sequence[str] = (), stdin: int | None = None, **env: str) -> Any:
        """Start a program of its own; ``before``: words to put before the command."""
        argv = [*before, sys.executable, "-m", "tests.suite.sweeping_machine", *words]
        pipes: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, cwd=REPOSITORY, env=self.variables(env), text=True, **pipes)

    def sweep(self, *words: str, **env: str) -> "Forked | subprocess.Popen[str]":
        return self.start("sweep", "run", str(self.plan), "--out", str(self.out), *words, **env)

    def sweep_to_its_end(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return self.run("sweep", "run", str(self.plan), "--out", str(self.out), *words, **env)

    def measured(self) -> int:
        """How many jobs were begun, also those whose record a kill has prevented."""
        path = self.place / "measured"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*words, **env)
        said, complained = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, int(process.returncode or 0), said, complained)

    def contents(self) -> dict[str, bytes]:
        """Every record's file, by cell and trial."""
        return {str(path.relative_to(self.out)): path.read_bytes() for path in self.out.glob("*/trials/*.json")}

    def records(self) -> dict[str, dict[str, Any]]:
        """Every record of the sweep; a torn one fails here."""
        return {name: json.loads(content) for name, content in self.contents().items()}

    def left(self) -> list[Path]:
        """Temporaries and locks, of which nothing is to stay."""
        return [*self.out.rglob(".*.tmp"), *self.out.rglob(".locks/*.json")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "night.toml").write_text(PLAN)
    return Machine(tmp_path)
