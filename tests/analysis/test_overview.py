"""The overview of a comparison: four cells on one screen, and every warning at the number that it touches."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.compare.results import Comparison
from analysis.load.records import load
from analysis.report.document import document, more_options
from analysis.report.formatting import floor
from suite.records.environment import Environment, Environments
from suite.records.usage import Conditions
from suite.targets import TARGETS
from tests.analysis.conftest import printed
from tests.analysis.test_stored_runs import RUNS

SCREEN = (80, 24)
HOST = Environment(userland_sha256="a" * 64, torch_cpu_capability="AVX2", cpu_model="a CPU", hostname="node7")
MODELS = ("inception_v3", "resnet50", "alexnet")


def shown(comparison: Comparison, width: int = 80, *, verbose: bool = False) -> list[str]:
    """Return the lines that ``bench compare`` prints."""
    return printed(document(comparison, "full" if verbose else "overview"), width).splitlines()


def cells(save: Any, path: Path, targets: tuple[str, ...], **changes: Any) -> Comparison:
    """Compare four cells: three models of one recipe and one of another."""
    rng = np.random.default_rng(3)
    factors = {"bare-metal": 1.0, "container": 0.98, "vm": 0.0081, "container-vm": 0.0079}
    for recipe, models in (("reference", MODELS), ("tuned", MODELS[:1])):
        for block in range(6):
            for model in models:
                for target in targets:
                    speed = 12 * factors[target] * math.exp(rng.normal(0, 0.01))
                    substitutes = ["accelerator:tcg"] if "vm" in target else []
                    numbers = {"throughput_per_s": speed, "elapsed_s": 200 / speed, "substitutes": substitutes}
                    place = {"environment": Environments(host=HOST, target=HOST), "engine": "podman"}
                    save(recipe, block=block, model=model, target=target, recipe=recipe, **numbers | place | changes)
    return compare(load([path / "reference", path / "tuned"]))


@pytest.mark.parametrize("targets", [TARGETS[:2], TARGETS[:3]])
def test_four_cells_fit_one_screen_with_the_answer_first_and_once(
    tmp_path: Path, save: Any, targets: tuple[str, ...]
) -> None:
    busy = Conditions(interval_s=20, other_cpu_s=0.05 * 2 * 20)
    comparison = cells(save, tmp_path, targets, conditions=busy)
    assert len(comparison.groups) == 4
    lines = shown(comparison)
    assert len(lines) <= SCREEN[1]
    assert max(map(len, lines)) <= SCREEN[0]
    text = " ".join(lines)
    assert [text.count(word) for word in ("why: ", "next: ", "host node7")] == [1, 1, 1]
    assert ("8 comparisons" in text) == (len(targets) == 3)


def test_the_line_of_a_target_has_value_ratio_interval_and_verdict(tmp_path: Path, save: Any) -> None:
    lines = shown(cells(save, tmp_path, TARGETS[:3]))
    (head,) = (line for line in lines if "images/s" in line)
    assert head.split()[-6:] == ["images/s", "ratio", "95", "%", "interval", "verdict"], (
        "behind the columns without room"
    )
    own = lines[lines.index(head) + 2]
    assert own.split()[0] == "container"
    assert "0.9" in own
    assert " to " in own
    assert [line.split(":")[0] for line in lines if ": bare-metal" in line] == [
        *(f"{model}, reference" for model in MODELS),
        "inception_v3, tuned",
    ]


def test_where_there_is_room_the_times_are_shown_too(tmp_path: Path, save: Any) -> None:
    save()
    save(target="container")
    lines = shown(compare(load([tmp_path / "run"])))
    (head,) = (line for line in lines if "images/s" in line)
    assert head.split()[-2:] == ["elapsed", "opening"]
    assert next(line for line in lines if line.startswith("  container")).endswith("20.0 s 0.500 s")


def test_a_warning_that_touches_a_number_stands_at_it(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(3)
    for block in range(6):
        for target in ("bare-metal", "container", "vm"):
            speed = 12 * math.exp(rng.normal(0, 0.01))
            busy = Conditions(interval_s=20, other_cpu_s=0.05 * 2 * 20) if target == "vm" else None
            save(block=block, target=target, throughput_per_s=speed, conditions=busy)
    save(block=6, target="container", failed="no memory")
    lines = shown(compare(load([tmp_path / "run"])))
    rows = [line.split() for line in lines if line.startswith("  ")]
    at = {words[0]: words[1] for words in rows if words[0] in TARGETS}
    assert at["container"] == "[1]"
    (first,) = (line for line in lines if line.startswith("[1] "))
    assert "1 of 7 trials on container failed" in first
    finding = "vm: the CPUs were busy with other work, within bounds (over 2 % of the CPU time in 6 of 6 trials)"
    assert " ".join(" ".join(lines).split()).count(finding) == 1, "a finding of the answer has no note"
    assert not any(line.startswith("warning") for line in lines)


def test_a_warning_about_no_number_is_told_below(tmp_path: Path, save: Any) -> None:
    save()
    (tmp_path / "run/trials/torn.json").write_text("{")
    lines = shown(compare(load([tmp_path / "run"])))
    assert any(line.startswith("warning: ") for line in lines)
    assert "torn.json" in "".join(lines)


@pytest.mark.parametrize(("share", "text"), [(0.0123, "1.23 %"), (1.0, "100 %"), (1.01, "too noisy to say")])
def test_a_noise_floor_above_100_per_cent_is_too_noisy_to_say(share: float, text: str) -> None:
    assert floor(share) == text


def test_a_floor_without_a_meaning_is_no_number_anywhere(tmp_path: Path, save: Any) -> None:
    for block, speed in enumerate((1e-4, 1e4, 1e-4)):
        save(block=block, throughput_per_s=speed)
        save(block=block, target="container", throughput_per_s=speed)
    comparison = compare(load([tmp_path / "run"]))
    for verbose in (False, True):
        text = " ".join(" ".join(shown(comparison, verbose=verbose)).split())
        assert ("too noisy to say" in text) == verbose
        assert "e+" not in text


@pytest.mark.parametrize(("width", "told"), [(200, True), (80, False)])
def test_the_legend_speaks_of_the_expected_ratio_only_where_a_column_shows_it(
    tmp_path: Path, save: Any, width: int, told: bool
) -> None:
    comparison = cells(save, tmp_path, TARGETS)
    text = "\n".join(shown(comparison, width, verbose=True))
    heads = [line for line in text.splitlines() if line.startswith("target")]
    assert ("expected" in heads[0]) == told
    assert ("expected: ratio of the mean times" in " ".join(text.split())) == told


def test_what_was_asked_for_is_shown_and_costs_and_the_legend_on_request(tmp_path: Path, save: Any) -> None:
    cells(save, tmp_path, TARGETS[:2])
    for block in range(6):
        place = {"environment": Environments(host=HOST, target=HOST), "engine": "podman"}
        save("reference", block=block, target="container", ablation="seccomp", **place)
        save("reference", block=block, replica=1, **place)
    comparison = compare(load([tmp_path / "reference"]))
    short, full = ("\n".join(shown(comparison, verbose=verbose)) for verbose in (False, True))
    assert "geometric mean" not in short
    assert "container, seccomp off" in short
    assert "bare metal against itself (A/A): throughput " in short
    assert more_options(comparison, "overview", costs=False) == "; more: --verbose, --costs, --explain"
    assert "geometric mean" in full
    assert "seccomp off" in full


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_every_line_fits_every_terminal(tmp_path: Path, save: Any, width: int) -> None:
    lines = shown(cells(save, tmp_path, TARGETS), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)


def test_each_workload_has_its_own_unit(tmp_path: Path, save: Any) -> None:
    for model, unit in (("resnet50", "images"), ("talker", "tokens")):
        save(model=model, unit=unit)
        save(model=model, unit=unit, target="container", throughput_per_s=5.0)
    comparison = compare(load([tmp_path / "run"]))
    assert [group.metrics[0].unit for group in comparison.groups] == ["images/s", "tokens/s"]
    lines = shown(comparison)
    assert any("resnet50" in line and "10.0 images/s" in line for line in lines), lines
    assert any("talker" in line and "10.0 tokens/s" in line for line in lines), lines


def test_trials_of_two_units_are_two_jobs(tmp_path: Path, save: Any) -> None:
    save(unit="images")
    save(target="container", unit="samples", throughput_per_s=5.0)
    warnings = [one.message for one in compare(load([tmp_path / "run"])).warnings]
    assert any("no ratio is formed: unit samples against images" in message for message in warnings), warnings


def test_one_comparison_takes_eight_lines_and_what_finds_no_room_is_named(tmp_path: Path, save: Any) -> None:
    lines = shown(compare(load([RUNS / "synthetic-podman"])))
    assert len(lines) == 8, lines
    assert ("elapsed" in lines[5], "opening" in lines[5]) == (True, True)
    many = cells(save, tmp_path, TARGETS)
    for width in (60, 120, 200):
        text = " ".join(" ".join(shown(many, width)).split())
        assert ("elapsed" in text, "opening" in text) == (True, True)
        assert ("elapsed, opening: COLUMNS=160" in text) == ("elapsed opening" not in text)
