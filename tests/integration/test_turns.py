"""The alternating design for real: jobs of bare metal and of a container that take turns on the same CPUs."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from analysis.audit.audit import audit
from analysis.load.records import load
from tests.integration.bench import BOTH, Running, bench, measured, records_in, some

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]

TURNS = ("--design", "alternating", "--profile", "smoke", "--model", "alexnet")


def compared(run: Path) -> tuple[dict[str, Any], dict[tuple[str, str], dict[str, Any]]]:
    """Return what the comparison of a run holds whose records the audit lets pass, and its rows of targets."""
    assert audit(load([run])).refused == ()
    told = json.loads(bench("compare", str(run), "--json").stdout)
    return told, {(row["target"], row["metric"]): row for row in told["rows"] if row["kind"] == "target"}


def test_bare_metal_and_a_container_take_turns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = measured(run, *BOTH, *TURNS, "--rounds", "4", "--burst-steps", "3", "--repeat", "2")
    assert [record.outcome.status for record in found] == ["ok"] * 4
    for record in found:
        assert record.elapsed_s is None
        bursts = some(record.alternation).bursts
        assert len(some(record.steps).elapsed_s or ()) == 12
        assert all((burst.cpu_s or 0) > 0 for burst in bursts), "counted from outside, turn by turn"
        waited = sum(burst.waiting_cpu_s or 0.0 for burst in bursts[1:])
        assert waited < 0.1 * sum(burst.cpu_s or 0.0 for burst in bursts), bursts
    told, rows = compared(run)
    assert rows["container", "throughput"]["blocks"] == 2
    assert rows["container", "elapsed"]["value"] is None
    assert told["groups"][0]["turns"][0]["target"] == "container"
    assert {(one["arm"], one["kind"]) for one in told["groups"][0]["same_work"]} == {("container", "weights")}


def test_ctrl_c_closes_all_instances_and_the_block_is_made_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("run", *BOTH, *TURNS, "--rounds", "2000", "--burst-steps", "2", "--out", str(run))
    running = Running(tmp_path / "log", *words)
    running.wait_until_it_says("round 1 of")
    running.process.send_signal(signal.SIGINT)
    running.process.wait(120)
    assert records_in(run) == []


@pytest.mark.thorough
def test_whole_distributed_jobs_take_turns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--scenario", "distributed", *BOTH, "--network", "overlay", "--workers", "2", "--ps", "1")
    found = measured(run, *words, *TURNS, "--image-px", "64", "--rounds", "3", "--burst-steps", "2")
    assert [record.outcome.status for record in found] == ["ok"] * 2
    for record in found:
        assert [burst.steps for burst in some(record.alternation).bursts] == [2, 2, 2]
        assert some(record.alternation).instances == 2
        assert [rank.role for rank in record.ranks] == ["server", "worker", "worker"]
    assert compared(run)[1]["container", "throughput"]["value"] is not None


def test_probes_take_turns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--scenario", "probe", "--probe", "cpu", "--probe", "syscall", *BOTH, "--design", "alternating")
    found = measured(run, *words, "--profile", "smoke", "--rounds", "3")
    assert [record.outcome.status for record in found] == ["ok"] * 4
    for record in found:
        assert len(some(record.alternation).bursts) == 3
        assert {len(metric.samples or []) for metric in record.metrics.values()} == {3}
    assert compared(run)[1]["container", "fork-exec"]["value"]
