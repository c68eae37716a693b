"""What the worker says that it used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker import environment
from worker.environment import usage, whole_usage


def test_memory_and_disk_are_read_where_the_place_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tpython3\nVmPeak:\t   9 kB\nVmHWM:\t    2048 kB\n")
    (tmp_path / "proc/self/io").write_text("rchar: 1\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 5\n")
    used = whole_usage()
    assert used["peak_memory_bytes"] == 2 << 20
    assert (used["disk_read_bytes"], used["disk_written_bytes"]) == (4096, 0)


def test_what_the_place_hides_is_null_and_not_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    used = whole_usage()
    assert used["peak_memory_bytes"] is used["disk_read_bytes"] is used["disk_written_bytes"] is None
    assert used["cpu_s"] is not None


def children_cpu_s() -> float:
    """As the kernel counts it by the tick, and not by the nanosecond."""
    now = os.times()
    return now.children_user + now.children_system


def test_children_that_have_ended_are_counted() -> None:
    before, by_step_before, children_before = whole_usage()["cpu_s"], usage(), children_cpu_s()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after, by_step_after, children_after = whole_usage()["cpu_s"], usage(), children_cpu_s()
    assert before is not None
    assert after is not None
    by_step = sum(by_step_after[name] - by_step_before[name] for name in ("user_s", "system_s"))
    assert by_step == pytest.approx(after - before, abs=0.1)
    assert after - before == pytest.approx(children_after - children_before, abs=0.1)
    assert after - before > 0.25
