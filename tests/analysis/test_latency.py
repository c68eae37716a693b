"""The latencies of a service as a figure."""

from pathlib import Path

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.figures.points import latency_lines
from analysis.load.records import load
from suite.records.record import MetricValue
from tests.analysis.conftest import Save

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
