"""Change points of series, and histories of records: what changed on the machine, and how they are shown."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.history.history import History, Series, history_of
from analysis.load.records import load
from analysis.statistics.change_points import LEAST_RUNS, _best, change_points
from suite.records.environment import Environment, Environments
from suite.results.runs import find_runs
from tests.analysis.conftest import bench, known, measured, record, without_plan

NIGHTS = 30
CHANGED = 18


def environment(kernel: str, host: str = "a") -> Environments:
    place = Environment(hostname=host, kernel=kernel, cpu_model="a CPU")
    inside = Environment(userland_sha256="a" * 64, cpu_model="a CPU", kernel=kernel, torch_cpu_capability="AVX2")
    return Environments(host=place, target=inside)


def night(directory: Path, number: int, speeds: dict[str, float], **changes: Any) -> None:
    """Store one run of two blocks in ``directory``, as the night's number dates it."""
    run = without_plan(directory)
    rng = np.random.default_rng(number)
    for block in range(2):
        for position, (target, speed) in enumerate(speeds.items()):
            now = speed * math.exp(rng.normal(0, 0.01))
            place = {"target": target, "block": block, "position": position}
            started_at = f"2026-01-{number + 1:02d}T02:{10 * block + position:02d}:00+00:00"
            run.save(record(str(directory), **place, started_at=started_at, **measured(now), **changes))


def nights(directory: Path) -> None:
    """Store a month in which the container loses 10 % in one night, with another kernel, suite and image."""
    for number in range(NIGHTS):
        later = number >= CHANGED
        speeds = {"bare-metal": 10.0, "container": 8.1 if later else 9.0}
        machine = {"environment": environment("6.18" if later else "6.1"), "image": ("b" if later else "a") * 64}
        night(directory / f"night-{number:03d}", number, speeds, **machine)


def the(found: History, target: str = "container", metric: str = "throughput", *, normalised: bool = False) -> Series:
    (one,) = [one for one in found.series if (one.target, one.metric, one.normalised) == (target, metric, normalised)]
    return one


def read(directory: Path) -> History:
    return history_of(load(find_runs([directory])))


def test_a_change_is_found_with_what_changed_on_the_machine(tmp_path: Path) -> None:
    nights(tmp_path)
    found = read(tmp_path)
    assert found.runs == NIGHTS
    for series in (the(found), the(found, normalised=True)):
        assert len(series.points) == NIGHTS
        (shift,) = series.shifts
        assert abs(int(shift.run.rpartition("-")[2]) - CHANGED) <= 1
        assert shift.slower == pytest.approx(1 / 0.9 - 1, abs=0.02)
        low, high = known(shift.interval)
        assert low < 0.9 < high
        assert {"kernel 6.1 -> 6.18", f"image {'a' * 12} -> {'b' * 12}"} <= {*shift.machine}
        assert shift.machine_at == str(tmp_path / f"night-{CHANGED:03d}")
    assert the(found, "bare-metal").shifts == ()


def test_runs_are_in_the_order_of_time_whatever_they_are_called(tmp_path: Path) -> None:
    nights(tmp_path)
    (tmp_path / "night-000").rename(tmp_path / "zero")
    points = [(point.started_at, point.run) for point in the(read(tmp_path)).points]
    assert points == sorted(points)
    assert points[0][1] == str(tmp_path / "zero")


def test_firings_of_one_sweep_have_cells_of_the_same_names_and_are_runs_of_their_own(tmp_path: Path) -> None:
    for firing in range(4):
        night(tmp_path / f"firing-{firing}" / "cell", firing, {"bare-metal": 10.0 + firing})
    values = [point.value for point in the(read(tmp_path), "bare-metal").points]
    assert sorted(round(value) for value in values) == [10, 11, 12, 13]


def test_engines_and_machines_are_series_of_their_own(tmp_path: Path) -> None:
    for number, (engine, host) in enumerate((("podman", "a"), ("runc", "a"), ("runc", "b"))):
        where = {"engine": engine, "environment": environment("6.1", host)}
        night(tmp_path / f"night-{number}", number, {"container": 9.0}, **where)
    found = read(tmp_path)
    places = ("engine=podman, a", "engine=runc, a", "engine=runc, b")
    assert {one.place for one in found.series} == {f"resnet50 on container ({place})" for place in places}
    assert {len(one.points) for one in found.series} == {1}


def test_the_command_says_the_change_first_and_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nights(tmp_path / "results")
    done = bench("history")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert text.startswith("4 changes in ")
    assert "The latest: resnet50 on container, " in text
    assert "kernel 6.1 -> 6.18" in text
    assert max(map(len, done.stdout.splitlines())) <= 80
    drawn = {path.name for path in (tmp_path / "results/plots").iterdir()}
    for end in ("throughput.png", "throughput.svg", "throughput-relative.svg"):
        assert any(name.startswith("history-synthetic-") and name.endswith(f"-resnet50-{end}") for name in drawn)


def test_a_history_is_drawn_as_wide_as_a_column(tmp_path: Path) -> None:
    nights(tmp_path / "results")
    done = bench("history", tmp_path / "results", "--figures", "pdf", "--width", "3.3in")
    assert done.exit_code == 0, done.output
    drawn = list((tmp_path / "results/plots").iterdir())
    assert {path.suffix for path in drawn} == {".pdf"}
    widths = {re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", path.read_bytes())[1] for path in drawn}  # type: ignore[index]
    assert [float(width) / 72 for width in widths] == [pytest.approx(3.3, abs=0.01)]
    for words_of_command, message in (
        (("--width", "3.3in"), "--width needs --figures"),
        (("--figures", "pdf", "--html", tmp_path / "page.html"), "--figures has no effect with --html"),
        (("--figures", "pdf", "--json"), "--figures has no effect with --json"),
    ):
        refused = bench("history", tmp_path / "results", *words_of_command)
        assert (refused.exit_code, message in refused.output) == (2, True), refused.output


def test_few_runs_are_said_to_be_too_few_and_a_directory_without_any_is_refused(tmp_path: Path) -> None:
    for number in range(2):
        night(tmp_path / "results" / f"night-{number}", number, {"bare-metal": 10.0})
    done = bench("history", tmp_path / "results")
    assert done.stdout.startswith("No change can be found yet: 3 numbers over 2 runs; a series takes 10 runs.")
    assert done.stderr.count("drawn: ") == 1
    (tmp_path / "empty").mkdir()
    refused = bench("history", tmp_path / "empty")
    assert (refused.exit_code, "holds no run" in refused.stderr) == (2, True)


def noise(n: int, seed: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.random.default_rng(seed).normal(size=n)


@pytest.mark.parametrize(
    ("values", "places"),
    [
        (noise(60) + 8.0 * (np.arange(60) >= 25), [25]),
        (noise(100, 1) + np.repeat([0.0, 9.0, 2.0, 2.0, -7.0], 20), [20, 40, 80]),
        (noise(60, 2) - 1000.0 * (np.arange(60) == 30), []),
    ],
    ids=["one step", "several steps, up and down", "one night, however bad"],
)
def test_clear_steps_are_found_where_they_are(values: Any, places: list[int]) -> None:
    assert change_points(values) == places == change_points(values)


def test_noise_alone_is_no_change() -> None:
    assert sum(bool(change_points(noise(80, seed))) for seed in range(40)) <= 1


def test_weather_of_which_half_stays_is_no_change() -> None:
    found = []
    for seed in range(30):
        values = noise(120, seed)
        for run in range(1, 120):
            values[run] = 0.5 * values[run - 1] + 0.75**0.5 * values[run]
        found += change_points(values)
    assert len(found) <= 1


@pytest.mark.parametrize("n", range(2 * LEAST_RUNS + 2))
def test_few_or_equal_runs_show_no_change(n: int) -> None:
    assert change_points(np.zeros(n)) == []
    assert change_points(np.arange(float(n)) if n < 2 * LEAST_RUNS else np.zeros(n)) == []


def test_the_split_is_the_one_of_the_definition() -> None:
    values = noise(14, 4)
    scaled = {}
    for place in range(LEAST_RUNS, 14 - LEAST_RUNS + 1):
        left, right = values[:place], values[place:]
        between = abs(left[:, None] - right[None, :]).mean()
        within = [abs(one[:, None] - one[None, :])[np.triu_indices(len(one), 1)].mean() for one in (left, right)]
        scaled[place] = (2 * between - sum(within)) * place * (14 - place) / 14
    largest, place = max((energy, place) for place, energy in scaled.items())
    assert _best(values) == pytest.approx((place, largest))
