"""Metrics of probes and of workloads, times per epoch and latencies: beside those of every training."""

import itertools
import math
from typing import Any, Literal

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.compare.convergence import should_stop_run
from analysis.compare.regression import regress
from analysis.compare.results import Comparison
from analysis.figures.bars import time_per_epoch, training_bars
from analysis.figures.points import latency_lines
from analysis.report.document import document
from analysis.report.export import trials_table
from analysis.report.rows import rows
from analysis.report.tables import own_table, results_table
from analysis.statistics.sequential import EXTRA_BLOCKS
from suite.job.profiles import Sizes
from suite.records.record import MetricValue, Steps
from tests.analysis.conftest import WITHIN_2, Save, as_markdown, known, printed, probe


def own(value: float, unit: str = "ms", better: Literal["more", "less"] = "less") -> dict[str, MetricValue]:
    return {"slowest-step": MetricValue(value=value, unit=unit, better=better)}


def test_they_have_ratio_interval_and_verdict_in_their_direction(save: Save) -> None:
    rng = np.random.default_rng(1)
    for block in range(8):
        for target, factor in (("bare-metal", 1.0), ("vm", 2.0)):
            save(block=block, target=target, model="toy", metrics=own(30 * factor * math.exp(rng.normal(0, 0.01))))
            save(block=block, target=target)
    comparison = save.compare()
    found = {group.model: [metric.name for metric in group.metrics] for group in comparison.groups}
    usual = ["throughput", "elapsed", "opening", "step-tail"]
    assert found == {"resnet50": usual, "toy": [*usual, "slowest-step"]}
    (row,) = (row for row in rows(comparison) if (row.metric, row.target) == ("slowest-step", "vm"))
    assert (row.unit, row.trials, row.blocks, row.verdict) == ("ms", 8, 8, "slower")
    assert row.ratio == pytest.approx(2.0, abs=0.1)
    assert known(row.low) > 1.5
    assert "slowest-step ms" in as_markdown(comparison)


def test_workloads_and_probes_keep_metrics_of_one_name_apart_and_each_workload_has_a_figure(save: Save) -> None:
    for block, target in itertools.product(range(5), ("bare-metal", "vm")):
        trial = {"block": block, "target": target}
        save(**trial)
        save(**trial, model="toy", metrics=own(30.0))
        save(**trial, model="other", metrics=own(5.0, ""))
        save(**trial, model="toy", scenario="probe", metrics=own(5.0, "s"))
        save(**trial, model="disk", scenario="probe", metrics=own(9.0, "s"))
    records = save.load()
    assert not records.warnings
    assert {metric.column: metric.unit for metric in records.metrics[4:]} == {
        "training/toy/slowest-step": "ms",
        "training/other/slowest-step": "",
        "toy/slowest-step": "s",
        "disk/slowest-step": "s",
    }
    names = {"toy/slowest-step [s]", "training/toy/slowest-step [ms]", "training/other/slowest-step"}
    assert names <= set(trials_table(records).columns)
    comparison = compare(records)
    assert "| slowest-step |" in as_markdown(comparison), "without a unit its name alone"
    charts = {drawing.name: drawing.chart for drawing in training_bars(comparison.of(comparison.jobs[0]), {})}
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
def compared(save: Save) -> Comparison:
    """Eight blocks: gan in whole epochs, which take a VM twice as long, and dcgan in a share of one."""
    real = {"scenario": "real", "data": "mnist", "steps": STEPS}
    for block in range(8):
        for target, factor in (("bare-metal", 1.0), ("vm", 2.0 * math.exp(0.001 * (block % 3)))):
            whole = seconds(epoch=10 * factor, first_epoch=30 * factor, checkpoint=0.5)
            save(block=block, target=target, model="gan", sizes=WHOLE, metrics=whole, **real)
            save(block=block, target=target, model="dcgan", metrics=seconds(epoch_scaled=500 * factor), **real)
    return save.compare()


def test_epochs_and_last_losses_of_each_target_are_a_table_of_their_own(compared: Comparison) -> None:
    tables = {group.model: (own_table(group, losses=True), results_table(group)) for group in compared.groups}
    whole = known(tables["gan"][0])
    assert set(map(str, whole.columns)) == {"epoch s", "first-epoch s", "checkpoint s", *LOSSES}
    vm = dict(zip(map(str, whole.columns), whole.rows[1][1], strict=True))
    assert vm["generator"] == "2.00", "the mean over the last steps"
    assert "scaled" not in whole.caption
    scaled, others = known(tables["dcgan"][0]), tables["dcgan"][1]
    assert str(scaled.columns[0]) == "epoch-scaled s"
    assert "scaled from a share" in scaled.caption
    assert not any("epoch" in str(column) for column in others.columns)
    assert "| epoch s |" in as_markdown(compared).replace("|:---", "")


def test_the_figure_has_the_workloads_and_says_which_times_are_scaled(compared: Comparison) -> None:
    (drawing,) = time_per_epoch(compared, {})
    (axes,) = drawing.chart.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["gan", "dcgan\nepoch-scaled"]
    assert {"10.0", "500"} <= {text.get_text() for text in axes.texts}
    assert {other.name for other in training_bars(compared, {})} == {"throughput", "elapsed", "opening"}


def test_a_job_without_epochs_or_requests_has_neither_times_nor_latencies(save: Save) -> None:
    for target in ("bare-metal", "vm"):
        save(target=target)
    comparison = save.compare()
    assert own_table(comparison.groups[0], losses=True) is None
    assert not [*time_per_epoch(comparison, {}), *latency_lines(comparison, {})]


LATENCIES = ("latency-p50", "latency-p95", "latency-p50-at-0.5-per-s")


def test_the_figure_has_a_line_for_each_target_and_a_panel_for_each_rate(save: Save) -> None:
    for block, (target, factor) in itertools.product(range(5), (("bare-metal", 1.0), ("container", 1.5))):
        names = enumerate((*LATENCIES, "cold-start"), start=1)
        metrics = {name: MetricValue(value=factor * n, unit="ms", better="less") for n, name in names}
        save(block=block, target=target, scenario="serve", model="gan", metrics=metrics)
    (drawing,) = latency_lines(save.compare(), {})
    assert drawing.name == "gan-latency"
    closed, opened = drawing.chart.axes
    drawn = [float(value) for axes in (closed, opened) for line in axes.lines for value in np.asarray(line.get_ydata())]
    assert drawn == pytest.approx([1, 2, 1.5, 3, 3, 4.5])
    assert [text.get_text() for text in closed.get_xticklabels()] == ["p50", "p95"]
    assert "0.5 requests/s" in opened.texts[0].get_text()


def test_a_latency_has_the_interval_of_its_ratio_to_bare_metal(save: Save) -> None:
    for block, factor in enumerate((1.4, 1.45, 1.5, 1.55, 1.6)):
        for target, value_ms in (("bare-metal", 2.0), ("container", 2.0 * factor)):
            metrics = {"latency-p50": MetricValue(value=value_ms, unit="ms", better="less")}
            save(block=block, target=target, scenario="serve", model="gan", metrics=metrics)
    comparison = save.compare()
    (drawing,) = latency_lines(comparison, {})
    (bar,) = drawing.chart.axes[0].collections
    ends = known(comparison.groups[0].of_target("container")["latency-p50"].interval)
    (line,) = bar.get_paths()
    assert list(np.asarray(line.vertices)[:, 1]) == pytest.approx([2.0 * end for end in ends])


DISK = {"seq-read-throughput", "seq-write-throughput", "random-read-iops", "random-read-latency-p99"}


def disk(factor: float, rng: np.random.Generator) -> dict[str, Any]:
    noise = [math.exp(rng.normal(0, 0.002)) for _ in range(4)]
    return probe(
        "disk",
        seq_read_throughput=(500 * factor * noise[0], "MiB/s", "more"),
        seq_write_throughput=(300 * noise[1], "MiB/s", "more"),
        random_read_iops=(9000 * factor * noise[2], "1/s", "more"),
        random_read_latency_p99=(80 / factor * noise[3], "us", "less"),
    )


def sweep(save: Save, blocks: int = 8) -> Comparison:
    """Training and two probes in one run; the VM's disk is at 0.8, its memory as bare metal's."""
    rng = np.random.default_rng(0)
    for block in range(blocks):
        for target, factor in (("bare-metal", 1.0), ("vm", 0.8)):
            notes = ["accelerator:tcg"] if target == "vm" else []
            save(block=block, target=target, substitutes=notes, **disk(factor, rng))
            triad = 20 * math.exp(rng.normal(0, 0.002))
            save(block=block, target=target, **probe("memory", triad=(triad, "GB/s", "more")))
            save(block=block, target=target)
    return save.compare()


def test_each_probe_is_a_group_with_metrics_of_its_own(save: Save) -> None:
    comparison = sweep(save)
    found = {group.model: group for group in comparison.groups}
    assert list(found) == ["resnet50", "disk", "memory"]
    assert [metric.name for metric in found["memory"].metrics] == ["triad"]
    vm = found["disk"].of_target("vm")
    assert found["disk"].targets[1].notes == ("accelerator:tcg",)
    verdicts = {name: one.verdict.name for name, one in vm.items() if one.verdict}
    assert verdicts == {**dict.fromkeys(DISK, "slower"), "seq-write-throughput": "equivalent"}
    assert vm["random-read-latency-p99"].ratio == pytest.approx(1 / 0.8, rel=0.01)
    assert known(vm["random-read-iops"].noise).method == "across-blocks"
    assert (comparison.of_kind("models"), comparison.warnings) == ({}, ())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_many_metrics_are_rows_and_few_are_columns(save: Save, width: int) -> None:
    comparison = sweep(save, 2)
    text = printed(document(comparison), width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("random-read-latency-p99", "seq-write-throughput", "accelerator:tcg", "triad"):
        assert word in text
    markdown = as_markdown(comparison)
    assert "| metric | bare-metal | vm (accelerator:tcg) |" in markdown
    assert "| target | triad GB/s | trials |" in markdown


def test_a_probe_of_another_userland_is_refused_and_without_bare_metal_the_advice_names_the_probe(save: Save) -> None:
    rng = np.random.default_rng(0)
    save(**disk(1, rng))
    save(target="vm", userland="b" * 64, **disk(1, rng))
    first, second = save.compare().warnings
    assert (first.kind, second.kind) == ("incomparable", "not-normalised")
    assert second.advice == ("bench run --scenario probe --profile quick --probe disk --target bare-metal --target vm")


def test_a_metric_in_another_unit_is_left_out_and_named(save: Save) -> None:
    save(**probe("memory", triad=(20.0, "GB/s", "more")))
    save(target="vm", **probe("memory", triad=(20_000.0, "MB/s", "more")))
    comparison = save.compare()
    assert comparison.groups[0].of_target("vm") == {}
    (warning,) = (one for one in comparison.warnings if one.kind == "metric-redefined")
    assert "memory/triad is not in GB/s, or has another direction, in 1 records" in warning.message


def test_a_probe_whose_every_trial_failed_and_one_that_gained_a_metric_are_no_error(save: Save) -> None:
    save("failed", scenario="probe", model="disk", failed="fio is missing")
    (group,) = save.compare("failed").groups
    assert (group.metrics, group.targets[0].failed) == ((), 1)
    assert "failed" in as_markdown(save.compare("failed"))
    save(**probe("memory", triad=(20.0, "GB/s", "more")))
    save(target="vm", **probe("memory", triad=(10.0, "GB/s", "more"), copy=(5.0, "GB/s", "more")))
    ratios = {name: one.ratio for name, one in save.compare().groups[0].of_target("vm").items()}
    assert ratios == {"triad": pytest.approx(0.5), "copy": None}


def test_probes_are_stopped_by_their_own_metrics_and_compared_across_time(save: Save) -> None:
    rng = np.random.default_rng(0)
    for block in range(5 + EXTRA_BLOCKS):
        for target in ("bare-metal", "vm"):
            save(block=block, target=target, **disk(1, rng))
    records = save.load()
    assert should_stop_run(records, WITHIN_2, max_blocks=99).stop
    assert {change.metric.name for change in regress(records, records).changes} == DISK
