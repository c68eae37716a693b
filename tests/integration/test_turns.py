"""The alternating design for real: jobs of bare metal and of a container that take turns on the same CPUs."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.audit.audit import audit
from analysis.load.records import load
from tests.integration.machine import require, require_root_and_image
from tests.integration.test_run import NOTHING, Running, bench, measured, ours
from tests.integration.trials import records_in

pytestmark = pytest.mark.integration

TARGETS = ("--target", "bare-metal", "--target", "container", "--engine", "runc")
TURNS = ("--design", "alternating", "--profile", "smoke", "--model", "alexnet")


@pytest.fixture(autouse=True)
def _machine() -> Iterator[None]:
    require_root_and_image()
    require("engine", "runc")
    assert ours() == NOTHING, "an earlier test, or a bench that is running now, left something"
    yield
    assert ours() == NOTHING


def test_bare_metal_and_a_container_take_turns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = measured(run, *TARGETS, *TURNS, "--rounds", "4", "--burst-steps", "3", "--repeat", "2")
    assert [record.outcome.status for record in found] == ["ok"] * 4
    for record in found:
        assert record.elapsed_s is None
        assert record.steps is not None
        assert len(record.steps.elapsed_s or ()) == 12
        assert record.alternation is not None
        assert all((burst.cpu_s or 0) > 0 for burst in record.alternation.bursts), "counted from outside, turn by turn"
        waited = sum(burst.waiting_cpu_s or 0.0 for burst in record.alternation.bursts[1:])
        taken = sum(burst.cpu_s or 0.0 for burst in record.alternation.bursts)
        assert waited < 0.1 * taken, record.alternation.bursts
    assert audit(load([run])).refused == ()
    told = json.loads(bench("compare", str(run), "--json").stdout)
    rows = {(row["target"], row["metric"]): row for row in told["rows"] if row["kind"] == "target"}
    assert rows["container", "throughput"]["blocks"] == 2
    assert rows["container", "elapsed"]["value"] is None
    assert told["groups"][0]["turns"][0]["target"] == "container"
    assert {(one["arm"], one["kind"]) for one in told["groups"][0]["same_work"]} == {("container", "weights")}


def test_ctrl_c_closes_all_instances_and_the_block_is_made_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (*TARGETS, *TURNS, "--rounds", "2000", "--burst-steps", "2", "--out", str(run))
    running = Running(tmp_path / "log", *words)
    running.wait_until_it_says("round 1 of")
    os.kill(running.process.pid, signal.SIGINT)
    running.process.wait(120)
    assert ours() == NOTHING
    assert records_in(run) == []


@pytest.mark.thorough
def test_whole_distributed_jobs_take_turns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--scenario", "distributed", *TARGETS, "--network", "overlay", "--workers", "2", "--ps", "1")
    found = measured(run, *words, *TURNS, "--image-px", "64", "--rounds", "3", "--burst-steps", "2")
    assert [record.outcome.status for record in found] == ["ok"] * 2
    for record in found:
        assert record.alternation is not None
        assert [burst.steps for burst in record.alternation.bursts] == [2, 2, 2]
        assert record.alternation.instances == 2
        assert [rank.role for rank in record.ranks] == ["server", "worker", "worker"]
    assert audit(load([run])).refused == ()
    told = json.loads(bench("compare", str(run), "--json").stdout)
    rows = {(row["target"], row["metric"]): row for row in told["rows"] if row["kind"] == "target"}
    assert rows["container", "throughput"]["value"] is not None


def test_probes_take_turns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--scenario", "probe", "--probe", "cpu", "--probe", "syscall", *TARGETS, "--design", "alternating")
    found = measured(run, *words, "--profile", "smoke", "--rounds", "3")
    assert [record.outcome.status for record in found] == ["ok"] * 4
    for record in found:
        assert record.alternation is not None
        assert len(record.alternation.bursts) == 3
        assert {len(metric.samples or []) for metric in record.metrics.values()} == {3}
    assert audit(load([run])).refused == ()
    told = json.loads(bench("compare", str(run), "--json").stdout)
    assert {row["metric"] for row in told["rows"] if row["target"] == "container" and row["value"]} >= {"fork-exec"}
