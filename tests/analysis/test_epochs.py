"""Times per epoch: whole, first and scaled ones stand apart, in tables, figures, exports and comparisons alike."""

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.comparison import compare
from analysis.compare.results import Comparison
from analysis.figures.bars import time_per_epoch, training_bars
from analysis.load.records import load
from analysis.report.export import trials_table
from analysis.report.markdown import as_markdown
from analysis.report.rows import rows
from analysis.report.tables import own_table, results_table
from suite.job.profiles import Sizes
from suite.records.record import MetricValue, Steps

LOSSES = {"generator": [1.0, 2.0, 3.0], "discriminator-real": [0.5, 0.5, 0.5]}
STEPS = Steps(elapsed_s=[0.2] * 3, data_s=[0.0] * 3, compute_s=[0.2] * 3, losses=LOSSES)
WHOLE = Sizes(batch=2, image_px=32, warmup_steps=0, steps=3, epochs=3)


def seconds(**values: float) -> dict[str, MetricValue]:
    return {name.replace("_", "-"): MetricValue(value=value, unit="s", better="less") for name, value in values.items()}


@pytest.fixture
def compared(tmp_path: Path, save: Any) -> Comparison:
    """Eight blocks: gan in whole epochs, which take a VM twice as long, and dcgan in a share of one."""
    real = {"scenario": "real", "data": "mnist", "steps": STEPS}
    for block in range(8):
        for target, factor in (("bare-metal", 1.0), ("vm", 2.0 * math.exp(0.001 * (block % 3)))):
            whole = seconds(epoch=10 * factor, first_epoch=30 * factor, checkpoint=0.5)
            save(block=block, target=target, model="gan", sizes=WHOLE, metrics=whole, **real)
            save(block=block, target=target, model="dcgan", metrics=seconds(epoch_scaled=500 * factor), **real)
    return compare(load([tmp_path / "run"]))


def test_epochs_and_last_losses_of_each_target_are_a_table_of_their_own(compared: Comparison) -> None:
    tables = {group.model: (own_table(group, losses=True), results_table(group)) for group in compared.groups}
    whole, _ = tables["gan"]
    assert whole
    assert set(map(str, whole.columns)) == {"epoch s", "first-epoch s", "checkpoint s", *LOSSES}
    vm = dict(zip(map(str, whole.columns), whole.rows[1][1], strict=True))
    assert vm["generator"] == "2.00", "the mean over the last steps"
    assert "scaled" not in whole.caption
    scaled, others = tables["dcgan"]
    assert scaled
    assert str(scaled.columns[0]) == "epoch-scaled s"
    assert "scaled from a share" in scaled.caption
    assert not any("epoch" in str(column) for column in others.columns)
    assert "| epoch s |" in as_markdown(compared).replace("|:---", "")


def test_they_have_ratio_interval_and_verdict_like_any_other_metric(compared: Comparison) -> None:
    (row,) = (row for row in rows(compared) if (row.model, row.target, row.metric) == ("gan", "vm", "epoch"))
    assert (row.unit, row.verdict, row.blocks) == ("s", "slower", 8)
    assert row.ratio == pytest.approx(2.0, rel=0.01)
    assert row.low
    assert 1.9 < row.low < 2.0


def test_whole_and_scaled_times_are_never_put_together(compared: Comparison, tmp_path: Path) -> None:
    names = {model: {row.metric for row in rows(compared) if row.model == model} for model in ("gan", "dcgan")}
    assert "epoch" in names["gan"]
    assert "epoch" not in names["dcgan"]
    assert "epoch-scaled" not in names["gan"]
    exported = trials_table(load([tmp_path / "run"]))
    assert {"training/gan/epoch [s]", "training/dcgan/epoch-scaled [s]"} <= set(exported.columns)


def test_the_figure_has_the_workloads_and_says_which_times_are_scaled(compared: Comparison) -> None:
    (drawing,) = time_per_epoch(compared, {})
    (axes,) = drawing.chart.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["gan", "dcgan\nepoch-scaled"]
    assert {"10.0", "500"} <= {text.get_text() for text in axes.texts}
    assert {other.name for other in training_bars(compared, {})} == {"throughput", "elapsed", "opening"}


def test_a_job_without_epochs_has_neither(tmp_path: Path, save: Any) -> None:
    for target in ("bare-metal", "vm"):
        save(target=target)
    comparison = compare(load([tmp_path / "run"]))
    assert own_table(comparison.groups[0], losses=True) is None
    assert not list(time_per_epoch(comparison, {}))
