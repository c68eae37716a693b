"""The rehearsal of the GPU day: its first stage and its check of the truth, in calls that go on where one ended."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import pytest

from provisioning import ledger
from tests.integration.machine import require, require_root

pytestmark = pytest.mark.integration
SCRIPT = str(Path(__file__).parents[2] / "benchmarks/gpu_day.py")


@pytest.mark.timeout(900)
def test_a_day_is_rehearsed_stage_by_stage_and_goes_on_where_a_call_ended(tmp_path: Path) -> None:
    require_root()
    require("engine", "runc")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    state, out = tmp_path / "state", tmp_path / "out"

    def call(minutes: str, stages: str) -> tuple[str, dict[str, dict[str, Any]]]:
        places = ("--state", str(state), "--out", str(out), "--site", sysconfig.get_path("purelib"))
        argv = [sys.executable, SCRIPT, "--rehearse", *places, "--minutes", minutes, "--stages", stages]
        ended = subprocess.run(argv, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr + (out / "log").read_text()[-3000:]
        return ended.stdout, json.loads((out / "facts.json").read_text())["stages"]

    _, first = call("2", "A")
    assert first["A"]["nvml"]["PowerUsage"] == "100000"
    assert first["A"]["nvml"]["EccMode"] == "error: Not Supported"
    assert first["A"]["libcuda in container: cuInit, uid"] == "[0, 0]"
    result, user = json.loads(first["A"]["libcuda in bare-metal: cuInit, uid"])
    assert result == 0
    assert user >= 0x7000_0000, "the confined user reaches it"

    printed, second = call("0.1", "AG")
    assert "G is left for the next call" in printed
    assert second == first, "what was done is not done again"

    _, third = call("8", "AG")
    assert third["A"] == first["A"]
    assert third["G"]["energy counter / integrated power"] == pytest.approx(1, abs=0.2)
    assert third["G"]["strangers"], "the planted process is named"
    assert third["G"]["wrong requests that were accepted"] == 0
    assert "wrong requests that were accepted = 0" in (out / "summary.md").read_text()
    with tarfile.open(out / "records.tar.gz") as archive:
        trials = [name for name in archive.getnames() if "/trials/" in name]
    assert len(trials) == third["G"]["trials beside an intruder"] == 4
    assert third["G"]["trials that do not name an intruder"] == "rehearsed: it takes a GPU"
    assert {len(rates) for rates in third["G"]["rates beside the sampler"].values()} == {1}
    assert not any(ledger.is_mounted(tree) for tree in state.glob("home/images/*/tree"))
