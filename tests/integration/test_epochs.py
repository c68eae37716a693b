"""Epochs of GANs on real data, on bare metal and in a container: whole ones with checkpoints, and a scaled share."""

import json
import time
from pathlib import Path

import pytest

from tests.integration.machine import require_root_and_image
from tests.integration.test_run import NOTHING, RUNC, Running, bench, measured, ours
from tests.integration.trials import records_in

pytestmark = pytest.mark.integration
IMAGES, BATCH, EPOCHS = 42, 4, 2
TARGETS = ("--target", "bare-metal", "--target", "container")
PREEMPTED = ("--model", "gan", "--profile", "smoke", "--steps", "400", "--checkpoint", "on", "--checkpoint-every", "20",
             "--preempt", "mean=4s")  # fmt: skip


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "mnist"
    made = bench("data", "make", "--format", "mnist", "--images", str(IMAGES), "--out", str(place))
    assert made.returncode == 0, made.stderr
    return place


def compared(run: Path) -> dict[tuple[str, str], set[str]]:
    done = bench("compare", str(run), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[tuple[str, str], set[str]] = {}
    for row in json.loads(done.stdout)["rows"]:
        if row["value"] is not None:
            found.setdefault((row["model"], row["target"]), set()).add(row["metric"])
    return found


@pytest.mark.parametrize("model", ["gan", pytest.param("dcgan", marks=pytest.mark.thorough)])
def test_whole_epochs_and_their_checkpoints_are_measured(model: str, mnist: Path, tmp_path: Path) -> None:
    require_root_and_image()
    words = ("--model", model, "--scenario", "real", "--data", f"mnist:{mnist}", "--profile", "smoke", *TARGETS, *RUNC)
    run = tmp_path / "run"
    for record in measured(run, *words, "--epochs", str(EPOCHS), "--checkpoint", "fsync"):
        assert record.epochs
        assert record.epochs.checkpoints
        assert record.steps
        assert record.epochs.steps == IMAGES // BATCH
        assert len(record.epochs.seconds) == len(record.epochs.checkpoints.seconds) == EPOCHS
        assert record.epochs.checkpoints.filesystem
        assert len(record.steps.elapsed_s or ()) == EPOCHS * record.epochs.steps
        assert {"first-epoch", "epoch", "checkpoint"} == set(record.metrics)
    audited = bench("audit", str(run))
    assert audited.returncode == 0, audited.stdout
    assert all({"epoch", "first-epoch", "checkpoint"} < metrics for metrics in compared(run).values())


def test_a_share_of_an_epoch_is_scaled_on_every_target(mnist: Path, tmp_path: Path) -> None:
    require_root_and_image()
    run, data = tmp_path / "run", ("--scenario", "real", "--data", f"mnist:{mnist}")
    records = measured(run, "--model", "gan", *data, "--profile", "smoke", *TARGETS, *RUNC)
    assert [record.epochs and record.epochs.scaled_share for record in records] == [0.2, 0.2]
    found = compared(run)
    assert set(found) == {("gan", "bare-metal"), ("gan", "container")}
    assert all("epoch-scaled" in metrics and "epoch" not in metrics for metrics in found.values())


@pytest.mark.thorough
def test_a_preempted_training_ends_with_the_weights_of_the_undisturbed_one_on_every_target(tmp_path: Path) -> None:
    require_root_and_image()
    found = measured(tmp_path / "run", *PREEMPTED, *TARGETS, *RUNC)
    assert len(found) == 2
    for record in found:  # it fails if its weights differ
        assert record.metrics["makespan"].value > 0
    assert any(record.metrics["openings"].value > 1 for record in found)


@pytest.mark.thorough
def test_nothing_is_left_of_a_preempted_run_that_was_killed_and_it_goes_on(tmp_path: Path) -> None:
    require_root_and_image()
    run = tmp_path / "run"
    words = (*PREEMPTED, "--target", "container", *RUNC, "--out", str(run))
    running = Running(tmp_path / "log", *words)
    running.wait_until_it_says("measuring")
    time.sleep(8)  # the undisturbed training takes less: it is killed in one that is preempted
    running.kill()
    assert bench("clean").returncode == 0
    assert ours() == NOTHING
    assert bench("run", *words).returncode == 0
    (record,) = records_in(run)
    assert record.metrics["openings"].value > 1
    assert ours() == NOTHING
