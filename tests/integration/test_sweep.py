"""A sweep on real targets, killed while it opens, measures and closes: it comes to the same complete set of records."""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.records.record import TrialRecord
from tests.integration.machine import require, require_root_and_image
from tests.integration.terminal import OnTerminal
from tests.integration.test_run import BENCH, bench

pytestmark = pytest.mark.integration

PLAN = """
name = "killed"
targets = ["bare-metal", "container"]

[matrix]
model = ["alexnet"]

[options]
profile = "smoke"
engine = "runc"
steps = 1
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vb-sweep-", dir="/var/tmp") as made:
        (Path(made) / "plan.toml").write_text(PLAN)
        yield Path(made)


def killed_at(place: Path, phase: str) -> None:
    words = ["sweep", "run", str(place / "plan.toml"), "--out", str(place / "out")]
    sweep = OnTerminal(place / f"{phase}.log", BENCH, *words)
    sweep.wait_until_it_says(f": {phase}")
    time.sleep(0.05)
    sweep.process.kill()
    sweep.process.wait()
    cleaned = bench("clean")
    assert cleaned.returncode == 0, cleaned.stderr


@pytest.mark.thorough
def test_a_sweep_killed_at_three_moments_comes_to_all_records_and_leaves_nothing(place: Path) -> None:
    require_root_and_image()
    require("target", "bare-metal")
    require("engine", "runc")
    kept: dict[Path, bytes] = {}
    for phase in ("opening", "measuring", "closing"):
        killed_at(place, phase)
        now = {path: path.read_bytes() for path in (place / "out").glob("*/trials/*.json")}
        assert kept.items() <= now.items()
        kept = now
    end = bench("sweep", "run", str(place / "plan.toml"), "--out", str(place / "out"))
    assert end.returncode == 0, end.stderr
    found = {path: path.read_bytes() for path in (place / "out").glob("*/trials/*.json")}
    assert kept.items() <= found.items()
    records = [TrialRecord.model_validate_json(content) for content in found.values()]
    assert sorted(record.target for record in records) == ["bare-metal", "container"]
    assert {record.outcome.status for record in records} == {"ok"}
    status = bench("sweep", "status", str(place / "out"), "--json")
    assert json.loads(status.stdout)["state"] == "complete"
    assert [*(place / "out").rglob(".*.tmp"), *(place / "out").rglob(".locks/*.json")] == []
