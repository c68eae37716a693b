"""What further instances add, from forged trials of known slopes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from suite.records.record import MetricValue
from tests.analysis.conftest import Save


def forged(save: Save, target: str, block: int, number: int, **changes: tuple[float, str]) -> None:
    """Ready after 0.1 s and 0.05 s for each instance, 1 % more in every block; 10 MB together and 3 MB for each."""
    ready = (0.1 + 0.05 * number) * (1 + 0.01 * block) * (2 if target == "container" else 1)
    values = {"ready-median": (ready, "s"), "memory-per-instance": (10 / number + 3, "MB"), **changes}
    metrics = {name: MetricValue(value=value, unit=unit, better="less") for name, (value, unit) in values.items()}
    model = f"{number}-instance{'s' * (number > 1)}"
    save("r", scenario="startup", model=model, target=target, block=block, metrics=metrics, sizes=None, steps=None)


def test_the_slope_of_each_block_is_found_and_a_failure_is_told(tmp_path: Path, save: Save) -> None:
    for block in range(6):
        for target in ("bare-metal", "container"):
            for number in (1, 5, 20):
                failed = {"failed-instances": (2.0, "")} if (target, number) == ("container", 20) else {}
                forged(save, target, block, number, **failed)
    words = ["compare", str(tmp_path / "r"), "--force", "--plots", str(tmp_path / "plots")]
    rows = json.loads(CliRunner().invoke(cli.main, [*words, "--json"]).stdout)["rows"]
    slopes = {(row["target"], row["metric"]): row for row in rows if row["kind"] == "growth"}
    mean = 1 + 0.01 * 2.5
    assert slopes["bare-metal", "ready-median"]["value"] == pytest.approx(0.05 * mean)
    assert slopes["container", "ready-median"]["value"] == pytest.approx(0.10 * mean)
    assert slopes["container", "memory-per-instance"]["value"] == pytest.approx(3)
    done = CliRunner().invoke(cli.main, words)
    text = " ".join(done.stdout.split())
    assert "each further instance of bare-metal: 0.0513 s (0.0503 to 0.0522), 3.00 MB (3.00 to 3.00)" in text, text
    assert "2.00 did" in text
    assert {"startup-together.png", "startup-together.svg"} <= {path.name for path in (tmp_path / "plots").iterdir()}


def test_without_bare_metal_the_command_with_it_has_the_numbers(tmp_path: Path, save: Save) -> None:
    for number in (1, 5):
        forged(save, "vm", 0, number)
    shown = CliRunner().invoke(
        cli.main, ["compare", str(tmp_path / "r"), "--verbose", "--force", "--plots", str(tmp_path)]
    )
    assert "--instances 1,5" in " ".join((shown.stdout + shown.stderr).split())


def test_one_number_of_instances_has_no_slope(tmp_path: Path, save: Save) -> None:
    for block in range(3):
        forged(save, "bare-metal", block, 5)
        forged(save, "container", block, 5)
    shown = CliRunner().invoke(cli.main, ["compare", str(tmp_path / "r"), "--force", "--plots", str(tmp_path / "p")])
    assert "opened together" in shown.stdout
    assert "each further" not in shown.stdout
