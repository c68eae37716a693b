"""Metrics that a workload has of its own, times per epoch and latencies: beside those of every training."""

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.compare.results import Comparison
from analysis.figures.bars import time_per_epoch, training_bars
from analysis.figures.points import latency_lines
from analysis.load.records import load
from analysis.report.export import trials_table
from analysis.report.markdown import as_markdown
from analysis.report.rows import rows
from analysis.report.tables import own_table, results_table
from suite.job.profiles import Sizes
from suite.records.record import MetricValue, Steps
from tests.analysis.conftest import Save


def own(value: float, unit: str = "ms", better: Literal["more", "less"] = "less") -> dict[str, MetricValue]:
    return {"slowest-step": MetricValue(value=value, unit=unit, better=better)}


def run(path: Path, save: Any) -> Any:
    """Eight blocks: toy's slowest step takes twice as long in a VM; resnet50 has no metric of its own."""
    rng = np.random.default_rng(1)
    for block in range(8):
        for target, factor in (("bare-metal", 1.0), ("vm", 2.0)):
            save(block=block, target=target, model="toy", metrics=own(30 * factor * math.exp(rng.normal(0, 0.01))))
            save(block=block, target=target)
    return load([path / "run"])


def test_they_have_ratio_interval_and_verdict_in_their_direction(tmp_path: Path, save: Any) -> None:
    comparison = compare(run(tmp_path, save))
    found = {group.model: [metric.name for metric in group.metrics] for group in comparison.groups}
    assert found == {
        "resnet50": ["throughput", "elapsed", "opening", "step-tail"],
        "toy": ["throughput", "elapsed", "opening", "step-tail", "slowest-step"],
    }
    (row,) = (row for row in rows(comparison) if (row.metric, row.target) == ("slowest-step", "vm"))
    assert (row.unit, row.trials, row.blocks, row.verdict) == ("ms", 8, 8, "slower")
    assert isinstance(row.ratio, float)
    assert 1.9 < row.ratio < 2.1
    assert isinstance(row.low, float)
    assert row.low > 1.5
    assert "slowest-step ms" in as_markdown(comparison)


def test_a_metric_without_a_unit_is_shown_by_its_name_alone(tmp_path: Path, save: Any) -> None:
    for target in ("bare-metal", "vm"):
        save(target=target, model="toy", metrics=own(3.2, unit=""))
    records = load([tmp_path / "run"])
    assert "| slowest-step |" in as_markdown(compare(records))
    assert "training/toy/slowest-step" in trials_table(records)


def test_a_metric_that_is_more_is_better_is_faster_when_it_grows(tmp_path: Path, save: Any) -> None:
    for block in range(8):
        for target, value in (("bare-metal", 10.0), ("vm", 20.0 + block / 100)):
            save(block=block, target=target, model="toy", metrics=own(value, "1/s", "more"))
    found = rows(compare(load([tmp_path / "run"])))
    assert [row.verdict for row in found if row.metric == "slowest-step"] == [None, "faster"]


def test_a_workload_and_a_probe_of_one_name_keep_their_metrics_apart(tmp_path: Path, save: Any) -> None:
    for target in ("bare-metal", "vm"):
        save(target=target, model="toy", metrics=own(30.0))
        save(target=target, model="toy", scenario="probe", metrics=own(5.0, "s"))
    records = load([tmp_path / "run"])
    assert not records.warnings
    assert {metric.column: metric.unit for metric in records.metrics[4:]} == {
        "toy/slowest-step": "s",
        "training/toy/slowest-step": "ms",
    }
    assert {"toy/slowest-step [s]", "training/toy/slowest-step [ms]"} <= set(trials_table(records).columns)


def test_each_has_a_figure_of_the_workloads_that_measure_it_alone(tmp_path: Path, save: Any) -> None:
    for target in ("bare-metal", "vm"):
        save(target=target)
        save(target=target, model="toy", metrics=own(30.0))
        save(target=target, model="other", metrics=own(5.0, "s"))
    comparison = compare(load([tmp_path / "run"]))
    charts = {drawing.name: drawing.chart for drawing in training_bars(comparison, {})}
    assert set(charts) == {"throughput", "elapsed", "opening", "toy-slowest-step", "other-slowest-step"}
    (axes,) = charts["toy-slowest-step"].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["toy"]
    assert "failed" not in {text.get_text() for text in axes.texts}


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


LATENCIES = ("latency-p50", "latency-p95", "latency-p50-at-0.5-per-s")


def test_the_figure_has_a_line_for_each_target_and_a_panel_for_each_rate(save: Save, tmp_path: Path) -> None:
    for target, factor in (("bare-metal", 1.0), ("container", 1.5)):
        metrics = {
            name: MetricValue(value=factor * (number + 1), unit="ms", better="less")
            for number, name in enumerate((*LATENCIES, "cold-start"))
        }
        save(target=target, scenario="serve", model="gan", metrics=metrics)
    (drawing,) = latency_lines(compare(load([tmp_path / "run"])), {})
    assert drawing.name == "gan-latency"
    closed, opened = drawing.chart.axes
    drawn = [float(value) for axes in (closed, opened) for line in axes.lines for value in np.asarray(line.get_ydata())]
    assert drawn == pytest.approx([1, 2, 1.5, 3, 3, 4.5])
    assert [text.get_text() for text in closed.get_xticklabels()] == ["p50", "p95"]
    assert "0.5 requests/s" in opened.texts[0].get_text()


def test_a_training_has_no_latencies(save: Save, tmp_path: Path) -> None:
    save()
    assert list(latency_lines(compare(load([tmp_path / "run"])), {})) == []


def test_a_latency_has_the_interval_of_its_ratio_to_bare_metal(save: Save, tmp_path: Path) -> None:
    for block, factor in enumerate((1.4, 1.5, 1.6)):
        for target, value_ms in (("bare-metal", 2.0), ("container", 2.0 * factor)):
            metrics = {"latency-p50": MetricValue(value=value_ms, unit="ms", better="less")}
            save(block=block, target=target, scenario="serve", model="gan", metrics=metrics)
    comparison = compare(load([tmp_path / "run"]))
    (drawing,) = latency_lines(comparison, {})
    (bar,) = drawing.chart.axes[0].collections
    ratio = comparison.groups[0].of_target("container")["latency-p50"]
    (line,) = bar.get_paths()
    assert list(np.asarray(line.vertices)[:, 1]) == pytest.approx([2.0 * end for end in ratio.interval or ()])
