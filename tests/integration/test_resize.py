"""The resize probe on bare metal and in containers: what the kernel shows inside, and nothing left of a killed run."""

import time
from pathlib import Path

import pytest

from scenarios.probes.resize import CHANGES
from tests.integration.bench import Running, bench, measured
from tests.integration.machine import require

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.usefixtures("nothing_left")]
RESIZE = ("--scenario", "probe", "--probe", "resize", "--profile", "smoke", "--target", "bare-metal")


@pytest.mark.parametrize("engine", ["runc", "podman"])
def test_the_kernel_shows_every_change_inside(engine: str, tmp_path: Path) -> None:
    require("engine", engine)
    for record in measured(tmp_path / "run", *RESIZE, "--target", "container", "--engine", engine):
        assert {f"{change}-seen" for change in CHANGES} <= set(record.metrics), record.details


def test_nothing_is_left_of_a_run_that_was_killed_while_it_had_less(tmp_path: Path) -> None:
    running = Running(tmp_path / "log", "run", *RESIZE, "--out", str(tmp_path / "run"))
    running.wait_until_it_says("measuring")
    time.sleep(1)
    running.kill()
    bench("clean")
