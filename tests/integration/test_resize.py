"""The resize probe on bare metal and in containers: what the kernel shows inside, and nothing left of a killed run."""

import time
from pathlib import Path

import pytest

from scenarios.probes.resize import CHANGES
from tests.integration.machine import require, require_root_and_image
from tests.integration.test_run import NOTHING, Running, bench, measured, ours

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
RESIZE = ("--scenario", "probe", "--probe", "resize", "--profile", "smoke", "--target", "bare-metal")


@pytest.fixture(autouse=True)
def _machine() -> None:
    require_root_and_image()


@pytest.mark.parametrize("engine", ["runc", "podman"])
def test_the_kernel_shows_every_change_inside(engine: str, tmp_path: Path) -> None:
    require("engine", engine)
    for record in measured(tmp_path / "run", *RESIZE, "--target", "container", "--engine", engine):
        assert {f"{change}-seen" for change in CHANGES} <= set(record.metrics), record.details
    assert ours() == NOTHING


def test_nothing_is_left_of_a_run_that_was_killed_while_it_had_less(tmp_path: Path) -> None:
    running = Running(tmp_path / "log", *RESIZE, "--out", str(tmp_path / "run"))
    running.wait_until_it_says("measuring")
    time.sleep(1)
    running.kill()
    assert bench("clean").returncode == 0
    assert ours() == NOTHING
