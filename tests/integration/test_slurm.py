"""Sweeps on a real Slurm of two nodes: a node is lost in mid-run, files come back without a common directory."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.plan import Plan
from suite.records import TrialRecord
from tests.integration.machine import require, require_image, require_root
from tests.integration.slurm_cluster import Slurm, slurm_cluster, wait_for

pytestmark = pytest.mark.integration

BENCH = str(Path(sys.executable).with_name("bench"))
SMOKE = Path(__file__).parents[2] / "plans/smoke.toml"
SMALL = """
name = "small"
targets = ["bare-metal"]
blocks = 2
[matrix]
model = ["alexnet"]
[options]
profile = "smoke"
steps = 1
warmup_steps = 1
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    require_root()
    require_image()
    require("target", "container")
    # Not below pytest's own directory: a socket's path has 108 bytes at most.
    with slurm_cluster(Path(tempfile.mkdtemp(prefix="vb-slurm-", dir="/var/tmp"))) as cluster:
        yield cluster


class Sweep:
    """``bench sweep run`` in the background, and what it has said so far."""

    def __init__(self, slurm: Slurm, tmp_path: Path, plan: str, *words: str) -> None:
        self.out = tmp_path / "out"
        self.log = tmp_path / "log"
        self.file = tmp_path / "plan.toml"
        self.file.write_text(plan)
        self.slurm = slurm
        argv = [BENCH, "sweep", "run", str(self.file), "--out", str(self.out), *words]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=log, env={**os.environ, **slurm.env}, start_new_session=True
            )

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

    def records(self) -> dict[str, TrialRecord]:
        paths = self.out.glob("*/trials/*.json")
        found = [(path.parts[-3], TrialRecord.model_validate_json(path.read_bytes())) for path in paths]
        return {f"{cell}/{record.trial_id}": record for cell, record in found}

    def planned(self) -> set[str]:
        """What a run of the same plan on this machine alone would leave."""
        plans = {path.parent.name: Plan.model_validate_json(path.read_bytes()) for path in self.out.glob("*/plan.json")}
        return {f"{cell}/{trial.trial_id}" for cell, plan in plans.items() for trial in plan.trials()}


def engine(**keys: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"kind": "slurm", "poll_s": 0.3, **keys}.items()]
    return "\n".join(["", "[engine]", *lines, ""])


def test_a_node_that_is_lost_in_mid_run_costs_no_trial(slurm: Slurm, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, SMOKE.read_text() + engine())
    sweep.wait_for("[2/4]")
    node = next(name for name in ("vbnode1", "vbnode2") if f"element 0 on {name}" in sweep.said())
    kept = sweep.records()
    assert len(kept) == 1
    slurm.fell_node(node)
    wait_for("the requeue", lambda: "BeginTime" in slurm.queue(), slurm.said)
    slurm.hasten()
    assert sweep.end() == 0, sweep.said()
    assert "restarts 1" in sweep.said()
    records = sweep.records()
    assert set(records) == sweep.planned()
    assert len(records) == 4
    assert all(record.outcome.status == "ok" for record in records.values())
    assert all(records[name] == record for name, record in kept.items())
