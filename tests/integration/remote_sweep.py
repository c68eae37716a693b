"""A sweep that is run by the command, in the background, most onto other machines."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from suite.plan import Plan
from suite.records.record import TrialRecord
from tests.integration.bench import BENCH, REPOSITORY
from tests.integration.machine import wait_for

FAST = """
name = "fast"
targets = ["bare-metal", "container"]
blocks = {blocks}
warmup_blocks = 0
[matrix]
model = ["alexnet", "resnet50"]
[options]
profile = "smoke"
"""


def fake_bench(place: Path, slow_s: float, *before: str) -> str:
    """A command ``bench`` on a machine that is all fakes; everything between the machines stays real.

    ``before``: words to put before the command.
    """
    own = [f"MEASURED={place}/measured", f"SLOW_S={slow_s}", f"PYTHONPATH={REPOSITORY}"]
    return _command(place, ["env", *own, *before, sys.executable, "-m", "tests.suite.sweeping_machine"])


def true_bench(place: Path) -> str:
    """The command ``bench`` of this repository, for whoever comes without this environment."""
    return _command(place, ["env", f"PYTHONPATH={REPOSITORY}", BENCH])


def _command(place: Path, words: list[str]) -> str:
    place.mkdir(parents=True, exist_ok=True)
    command = place / "bench"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    command.chmod(0o755)
    return str(command)


class RemoteSweep:
    """``bench sweep run`` in the background, and what it has said so far."""

    def __init__(
        self, tmp_path: Path, plan: str, env: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> None:
        """``before`` are words to put before the command."""
        self.before = before
        self.out = tmp_path / "out"
        self.log = tmp_path / "log"
        self.file = tmp_path / "plan.toml"
        tmp_path.mkdir(exist_ok=True)
        self.file.write_text(plan)
        self.env = {**os.environ, **(env or {})}
        self.start()

    def start(self) -> None:
        """Begin, or go on."""
        argv = [*self.before, BENCH, "sweep", "run", str(self.file), "--out", str(self.out)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=self.env, start_new_session=True)

    def bench(self, command: str) -> "subprocess.CompletedProcess[str]":
        words = [BENCH, "sweep", command, str(self.out)]
        return subprocess.run(words, check=False, capture_output=True, text=True, env=self.env, timeout=180)

    def said(self) -> str:
        logs = sorted((self.out / "logs").glob("*.log"))
        return "\n".join([self.log.read_text(), *(f"== {path.name}\n{path.read_text()}" for path in logs)])

    def wait_for(self, what: str, within_s: float = 120) -> None:
        wait_for(what, lambda: what in self.said() or self.process.poll() is not None, self.said, within_s)
        assert what in self.said(), self.said()

    def end(self, within_s: float = 240) -> int:
        try:
            return self.process.wait(within_s)
        finally:
            self.process.kill()

    def end_complete(self, kept: Mapping[str, TrialRecord] = MappingProxyType({})) -> dict[str, TrialRecord]:
        """Wait for the end: every planned trial has a record that is ok, and those that were kept are the same."""
        assert self.end() == 0, self.said()
        records = self.records()
        assert set(records) == self.planned()
        assert all(record.outcome.status == "ok" for record in records.values())
        assert all(records[name] == record for name, record in kept.items())
        return records

    def records(self) -> dict[str, TrialRecord]:
        paths = self.out.glob("*/trials/*.json")
        found = [(path.parts[-3], TrialRecord.model_validate_json(path.read_bytes())) for path in paths]
        return {f"{cell}/{record.trial_id}": record for cell, record in found}

    def planned(self) -> set[str]:
        """What a run of the same plan on this machine alone would leave."""
        plans = {path.parent.name: Plan.model_validate_json(path.read_bytes()) for path in self.out.glob("*/plan.json")}
        return {f"{cell}/{trial.trial_id}" for cell, plan in plans.items() for trial in plan.trials()}
