"""``bench sweep schedule`` and one firing of it. The sweep itself is answered by the test."""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import cli
from commands.sweep import firing as scheduled
from provisioning import foreground
from suite.results.store import Run, StoreError
from suite.sweep.directory import Accepted
from suite.sweep.locks import WHOLE, locked
from tests.analysis.conftest import measured, record, without_plan
from tests.commands.conftest import Bench, ended_well, refused
from tests.jobs import identity
from tests.suite.sweep.conftest import make_sweep


@pytest.fixture
def bench(bench: Bench, tmp_path: Path) -> Bench:
    shutil.copy(Path(cli.__file__).parent / "plans/smoke.toml", tmp_path / "night.toml")
    return partial(bench, "sweep")


@pytest.fixture(autouse=True)
def sweeps(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the next sweep comes to: its exit code, and the images per second of its cell (None writes nothing)."""
    coming: dict[str, Any] = {"code": 0, "images_per_s": 10.0, "argv": []}

    def run(argv: Sequence[str]) -> int:
        coming["argv"].append(list(argv))
        if coming["images_per_s"]:
            cell(Path(argv[-1]), coming["images_per_s"])
        return int(coming["code"])

    monkeypatch.setattr(foreground, "run", run)
    return coming


def cell(sweep: Path, images_per_s: float, day: int = 1) -> None:
    """Write a sweep with one cell."""
    for block in range(6):
        one = record(run_id=identity(str(sweep)), block=block, **measured(images_per_s + block / 100))
        at = {"started_at": f"2026-01-{day:02}T00:{10 * block:02}:00+00:00"}
        without_plan(sweep / "cell").save(one.model_copy(update=at))
    accepted = Accepted.of(make_sweep(), (), "ab" * 8).model_copy(update={"cells": {"cell": {}}})
    (sweep / "sweep.json").write_text(accepted.text())


def fire(bench: Bench, *words: str) -> tuple[int, dict[str, Any]]:
    done = bench("schedule-run", "night.toml", "--into", "results/night", *words)
    return done.exit_code, json.loads(done.stdout)


def test_a_firing_is_a_directory_of_its_own_with_its_result(bench: Bench, sweeps: dict[str, Any]) -> None:
    code, result = fire(bench)
    assert (code, result["outcome"]) == (0, "ok")
    assert sweeps["argv"][0][-6:] == ["sweep", "run", "night.toml", "--wait", "--out", result["directory"]]
    assert json.loads((Path(result["directory"]) / "schedule.json").read_text()) == result


@pytest.mark.parametrize(
    ("images_per_s", "outcome", "code"), [(9.8, "ok", 0), (5.0, "slower", 3), (20.0, "ok", 0), (9.53, "cannot tell", 4)]
)
def test_a_firing_is_compared_with_the_baseline(
    bench: Bench, sweeps: dict[str, Any], tmp_path: Path, images_per_s: float, outcome: str, code: int
) -> None:
    cell(tmp_path / "good", 10.0)
    sweeps["images_per_s"] = images_per_s
    told = tmp_path / "told"
    words = ("--baseline", "good", "--fail-above", "5%", "--notify", f"tee '{told}'")
    found, result = fire(bench, *words)
    assert (found, result["outcome"]) == (code, outcome)
    judged = [change["metric"] for change in result["gate"]["changes"] if change["outcome"]]
    assert judged == ["throughput", "elapsed"]
    assert result["exit_code"] == code
    assert told.exists() == bool(code)
    if code:
        assert json.loads(told.read_text()) == result


def test_a_sweep_that_fails_is_told_and_not_called_a_regression(
    bench: Bench, sweeps: dict[str, Any], tmp_path: Path
) -> None:
    cell(tmp_path / "good", 10.0)
    for images_per_s in (5.0, None):
        sweeps |= {"code": 1, "images_per_s": images_per_s}
        code, result = fire(bench, "--baseline", "good", "--fail-above", "5%")
        assert (code, result["outcome"]) == (1, "failed")
        assert "exit code 1" in result["reason"]


def test_a_firing_that_lacks_a_cell_of_the_baseline_is_incomplete_or_has_failed(bench: Bench, tmp_path: Path) -> None:
    without_plan(tmp_path / "other/cell").save(record(model="alexnet"))
    code, result = fire(bench, "--baseline", "other", "--fail-above", "5%")
    assert (code, result["outcome"]) == (1, "failed")
    assert "no cell in common" in result["reason"]
    cell(tmp_path / "good", 10.0)
    later = {"started_at": "2026-01-01T00:05:00+00:00"}
    Run(tmp_path / "good/cell").save(record(model="alexnet").model_copy(update=later))
    code, result = fire(bench, "--baseline", "good", "--fail-above", "5%")
    assert (code, result["outcome"]) == (1, "incomplete")
    assert [one["name"].split()[0] for one in result["gate"]["missing"]] == ["alexnet"]


def test_a_firing_never_goes_into_its_baseline_or_beside_another(
    bench: Bench, sweeps: dict[str, Any], tmp_path: Path
) -> None:
    cell(tmp_path / "results/night", 10.0)
    for baseline in ("results/night", "results", "."):
        words = ("--into", "results/night", "--baseline", baseline, "--fail-above", "5%")
        refused(bench("schedule-run", "night.toml", *words), "compared with itself")
    assert sweeps["argv"] == [], "it was refused before anything was run"
    with Run(tmp_path / "results/night").exclusive():
        refused(bench("schedule-run", "night.toml", "--into", "results/night"))
    assert sweeps["argv"] == []


def test_a_result_that_cannot_be_written_is_told_all_the_same(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled, "write_atomic", Mock(side_effect=StoreError("No space left on device")))
    code, result = fire(bench, "--notify", f"tee '{tmp_path / 'told'}'")
    assert (code, result["outcome"]) == (1, "failed")
    assert "No space left" in json.loads((tmp_path / "told").read_text())["reason"]


def test_a_program_to_notify_that_fails_is_an_error(bench: Bench, sweeps: dict[str, Any]) -> None:
    sweeps["code"] = 1
    done = bench("schedule-run", "night.toml", "--into", "out", "--notify", "false")
    assert done.exit_code == 1
    assert "false ended with exit status 1" in done.stderr
    done = bench("schedule-run", "night.toml", "--into", "out", "--notify", "/no/such/program")
    assert "cannot start /no/such/program" in done.stderr


def test_older_firings_are_removed_and_named_and_baselines_links_and_other_runs_stay(
    bench: Bench, tmp_path: Path
) -> None:
    place = tmp_path / "results/night"
    for name in ("a-baseline", "b-old", "c-newest", "d-not-a-firing"):
        cell(place / name, 10.0)
    cell(tmp_path / "elsewhere", 10.0)
    (place / "a-link").symlink_to(tmp_path / "elsewhere")
    (place / "a-users").mkdir()
    (place / "a-users/notes").write_text("mine")
    for firing in ("a-baseline", "a-link", "a-users", "b-old", "c-newest"):
        (place / firing / "schedule.json").write_text("{}")
    words = ("--baseline", "results/night/a-baseline", "--fail-above", "5%", "--keep", "2")
    _, result = fire(bench, *words)
    assert result["removed"] == [str(Path("results/night/b-old"))]
    left = {path.name for path in place.iterdir() if path.is_dir()}
    assert left == {"a-baseline", "a-link", "a-users", "c-newest", "d-not-a-firing", Path(result["directory"]).name}
    assert (tmp_path / "elsewhere/cell").is_dir()


def test_without_a_baseline_a_firing_is_compared_with_the_last_ones_that_were_not_slower(
    bench: Bench, sweeps: dict[str, Any], tmp_path: Path
) -> None:
    gate = ("--fail-above", "5%", "--keep", "3")
    assert "gate" not in fire(bench, *gate, "--into", "results/first")[1], "there is no older firing"
    ok, slower, undecided, failed = ({"sweep_exit_code": code // 5, "exit_code": code} for code in (0, 3, 4, 5))
    results = {"0": ok, "1": ok, "2": ok, "3": slower, "4": undecided, "5": failed, "6": {}, "7": []}
    place = Path("results/night")
    for day, (name, result) in enumerate(results.items(), start=2):
        cell(tmp_path / place / name, 10.0 if name != "4" else 10.02, day)
        (tmp_path / place / name / "schedule.json").write_text(json.dumps(result) if name != "7" else "torn")
    sweeps["images_per_s"] = 5.0
    code, result = fire(bench, *gate)
    assert (code, result["outcome"], result["gate"]["spread_unknown"]) == (3, "slower", False)
    assert result["baselines"] == [str(place / name) for name in "124"]
    assert result["removed"] == [str(place / name) for name in "035"]


def test_a_firing_that_a_sweep_holds_is_not_removed(bench: Bench, tmp_path: Path) -> None:
    held = tmp_path / "results/night/20200101T000000-1"
    cell(held, 10.0)
    (held / "schedule.json").write_text("{}")
    with locked(held, WHOLE, take_over=False):
        assert fire(bench, "--keep", "1")[1]["removed"] == []
    assert str(Path("results/night/20200101T000000-1")) in fire(bench, "--keep", "1")[1]["removed"]


def test_a_dry_run_shows_exactly_what_would_be_installed_and_does_nothing(bench: Bench, tmp_path: Path) -> None:
    cell(tmp_path / "good", 10.0)
    words = ("--every", "02:00 daily", "--baseline", "good", "--fail-above", "5%", "--notify", "mail me", "--dry-run")
    shown = bench("schedule", "night.toml", "--with", "cron", *words, "--keep", "7").stdout
    assert shown.startswith("# night would run at 02:00 daily, by cron; nothing is installed.\n")
    assert shown.splitlines()[2].startswith(f"0 2 * * * cd {tmp_path} && exec /usr/bin/env PATH=")
    into = f"{tmp_path}/results/night-scheduled"
    wanted = f"sweep schedule-run {tmp_path}/night.toml --into {into} --baseline {tmp_path}/good"
    assert f"{wanted} --fail-above 5% --notify 'mail me' --keep 7".replace("%", r"\%") in shown
    assert "OnCalendar=*-*-* 02:00:00" in bench("schedule", "night.toml", "--with", "systemd", *words).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "night.toml", "runtime"]


def test_the_baseline_may_be_the_sweeps_own_directory_but_never_where_firings_go(bench: Bench, tmp_path: Path) -> None:
    cell(tmp_path / "results/night", 10.0)
    words = ("schedule", "night.toml", "--every", "1h", "--with", "cron", "--dry-run", "--fail-above", "5%")
    done = ended_well(bench(*words, "--baseline", "results/night"))
    assert f"--into {tmp_path}/results/night-scheduled " in done.stdout
    for into in ("results/night", "results/night/firings"):
        refused(bench(*words, "--baseline", "results/night", "--into", into), "compared with itself")
