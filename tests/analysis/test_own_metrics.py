"""Metrics that a workload has of its own: beside those of every training, in the groups of that workload alone."""

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.compare.comparison import compare
from analysis.figures.bars import training_bars
from analysis.load.records import load
from analysis.report.export import trials_table
from analysis.report.markdown import as_markdown
from analysis.report.rows import rows
from suite.records.record import MetricValue


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


def test_a_metric_in_another_unit_is_left_out_and_named(tmp_path: Path, save: Any) -> None:
    save(target="bare-metal", model="toy", metrics=own(30.0))
    save(target="vm", model="toy", metrics=own(0.03, "s"))
    (warning,) = (each for each in load([tmp_path / "run"]).warnings if each.kind == "metric-redefined")
    assert "training/toy/slowest-step is not in ms, or has another direction, in 1 records" in warning.message
