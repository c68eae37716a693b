import io
from pathlib import Path

import pytest
from rich.console import Console

from commands.sweep.status import SweepDisplay, lines, matrix
from suite.process_identity import ProcessIdentity
from suite.sweep.cells import cells_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.locks import LockHolder, locked
from suite.sweep.status import CellStatus, SweepStatus, TrialCounts
from tests.suite.conftest import make_plan, make_record
from tests.suite.sweep.conftest import make_sweep

ME = ProcessIdentity(host="node1", boot_id="b", pid=7, started_ticks=1.0)


def status(**changes: object) -> SweepStatus:
    arms = {
        "bare-metal": TrialCounts(done=3),
        "container": TrialCounts(done=1, failed=1, running=1),
        "vm": TrialCounts(missing=3),
    }
    cells = (CellStatus(cell_id="a-cell", settings={}, arms=arms),)
    values = {"name": "night", "directory": "out", "state": "running", "cells": cells, "running": ()}
    return SweepStatus.model_validate({**values, "blocks_left": (1, 2), "left_s": 600.0, **changes})


def shown(what: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(what)
    return stream.getvalue()


def test_the_matrix_has_every_target_of_every_cell() -> None:
    widths = {"a-cell": {"resnet50 on container": 0.021, "resnet50 on vm": None, "resnet50 on container-vm": 0.5}}
    text = shown(matrix(status(), widths))
    assert "night: running" in text
    assert text.splitlines()[1].split() == ["cell", "bare-metal", "container", "vm"]
    assert text.splitlines()[2].split() == ["a-cell", "3/3", "1/3,", "1", "failed", "running", "±2.1%", "0/3"]


def test_what_is_run_and_what_is_left_is_told() -> None:
    holder = LockHolder(name="block-001", owner=ME, cell="a-cell", trial="t", number=5, of=9)
    idle = LockHolder(name="sweep", owner=ME)
    assert lines(status(running=(holder, idle))) == [
        "now: trial 5 of 9, t of a-cell, by process 7 on node1",
        "left: 3 trials in 2 blocks, time 10 min",
        "1 trial failed: see their records",
    ]
    assert "time unknown" in lines(status(left_s=None))[0]
    assert lines(status(left_source="rough", blocks_left=(1,)))[0] == "left: 3 trials in 1 block, time 10 min, ROUGH"
    assert lines(status(blocks_left=(), cells=())) == []


def test_the_live_matrix_follows_the_trials_stays_in_the_end_and_writes_nothing_while_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("suite.progress.Allowance.left", lambda _: True)  # on a busy machine, drawing takes too long
    (cell,) = cells_of(sweep := make_sweep(matrix={"model": ["resnet50"]}, blocks=3))
    directory = SweepDirectory(tmp_path)
    directory.accept(sweep, [cell])
    run = directory.cell(cell.cell_id, 0)
    run.begin(plan := make_plan(targets=("bare-metal",), blocks=3))
    stream = io.StringIO()
    display = SweepDisplay(Console(file=stream, force_terminal=True, width=120), tmp_path)
    with locked(tmp_path, "block-000") as lock:
        for number, trial in enumerate(plan.trials(), start=1):
            lock.update(cell=cell.cell_id, trial=trial.trial_id)
            display.trial_started(trial, number, 3)
            display.phase("measuring")
            before = stream.getvalue()
            assert cell.cell_id in before
            assert f"[{number}/3] block {trial.block}, resnet50 on" in before
            assert f"{number - 1}/3 running" in shown(display._matrix)
            # Neither a thread nor a timer: only what is said makes it write.
            assert display._live.auto_refresh is False
            assert stream.getvalue() == before
            record = make_record(trial_id=trial.trial_id, block=trial.block, target="bare-metal", open_s=1.0)
            run.save(record)
            lock.update(cell=None, trial=None)
            display.trial_finished(record)
            assert f"{number}/3" in shown(display._matrix)
            assert f"{number}/3 running" not in shown(display._matrix)
    display.close()
    assert "10.0 images/s" in stream.getvalue()
    assert "3/3" in stream.getvalue().rpartition("images/s")[2], "it stays on the terminal"
