"""Servers that were asked at several rates: rates compared inside a block, their picture, and the price of tokens."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from analysis.compare.by import compare_by
from analysis.figures.points import latency_lines
from analysis.figures.rates import rate_lines
from analysis.report.sweeps.by import by_document
from suite.errors import RequestError
from suite.job.serving import Serving
from suite.records.record import MetricValue
from suite.records.usage import Conditions, Resources
from tests.analysis.conftest import Save, bench_compare, judged, known, printed, timeline
from tests.analysis.test_by import on

RATES = (1.0, 2.0, 8.0)
BLOCKS = 6
PRICES = """[[place]]
match = { host = "a" }
currency = "EUR"
source = "a list"
date = 2026-11-01
per_hour = 3.6
"""


def latencies(factor: float, knee: float | None) -> dict[str, MetricValue]:
    values = {"latency-p50": 10 * factor}
    for rate, (percentile, ms) in itertools.product(RATES, (("p50", 10.0), ("p99", 40.0))):
        values[f"latency-{percentile}-at-{rate:g}-per-s"] = ms * rate * factor
    metrics = {name: MetricValue(value=value, unit="ms", better="less") for name, value in values.items()}
    if knee:
        metrics["knee"] = MetricValue(value=knee, unit="requests/s", better="more")
    return metrics


def serve_at(save: Save, targets: Mapping[str, float], knees: Mapping[str, float]) -> None:
    """Save a run of a server whose latency grows with the rate, by target and block."""
    rng = np.random.default_rng(1)
    for block, (target, factor) in itertools.product(range(BLOCKS), targets.items()):
        metrics = latencies(factor * float(np.exp(0.1 * rng.normal())), knees.get(target))
        load = Serving(requests=100, rates=RATES, clients=4)
        save(block=block, target=target, scenario="serve", model="own", serving=load, metrics=metrics)


def test_rates_of_one_trial_are_compared_inside_its_block_on_every_target(save: Save) -> None:
    serve_at(save, {"bare-metal": 1.0, "container": 1.5}, {})
    save(block=BLOCKS, scenario="serve", model="own", serving=Serving(requests=100, rates=RATES, clients=4), failed="x")
    found = compare_by(save.load(), ("rate",))
    rows = [row for row in found.contrasts if row.metric.name == "latency-p99" and row.arm.cell == ("rate=8",)]
    assert {row.target for row in rows} == {"bare-metal", "container"}
    for row in rows:
        assert row.base == ("rate=1",)
        assert row.ratio == pytest.approx(8)
        low, high = known(row.interval)
        assert high / low < 1.001, "the weather of a block is in both rates"
        assert (row.blocks, judged(row).name) == (BLOCKS, "slower")
    assert {row.metric.name for row in found.contrasts} == {"latency-p50", "latency-p99"}
    assert any("1 of 7" in warning.finding for warning in found.warnings), "a failed trial had all rates"


def test_rates_are_answered_by_the_latency_and_refused_where_no_request_was_sent(tmp_path: Path, save: Save) -> None:
    serve_at(save, {"bare-metal": 1.0}, {})
    shown = bench_compare(tmp_path / "run", "--by", "rate", "--force")  # percentiles of no samples
    assert shown.exit_code == 0, shown.output
    assert "rate=8" in shown.output
    narrow = bench_compare(tmp_path / "run", "--by", "rate", "--force", columns=30)
    assert "latency-p99: " in narrow.output, "no value without its metric"
    save("training")
    with pytest.raises(RequestError, match="no record has requests at a rate"):
        compare_by(save.load("training"), ("rate",))


def test_the_answer_on_a_service_says_that_it_is_about_throughput(tmp_path: Path, save: Save) -> None:
    serve_at(save, {"bare-metal": 1.0, "container": 1.5}, {})
    shown = bench_compare(tmp_path / "run", "--force")
    assert shown.stdout.startswith("throughput, container "), shown.output


def test_the_picture_has_a_line_for_each_target_and_percentile_and_the_knees(save: Save) -> None:
    targets = {"bare-metal": 1.0, "container": 1.5}
    serve_at(save, targets, {"bare-metal": 8.0, "container": 2.0})
    (drawing,) = rate_lines(save.compare(), {})
    assert drawing.name == "own-latency-by-rate"
    (axes,) = drawing.chart.axes
    curves = [line for line in axes.lines if np.size(line.get_xdata()) == len(RATES)]
    assert len(curves) == len(targets) * 2
    for curve in curves:
        assert list(np.asarray(curve.get_xdata())) == list(RATES)
        heights = np.asarray(curve.get_ydata())
        assert heights / heights[0] == pytest.approx(RATES)
    knees = [line.get_xdata() for line in axes.lines if line not in curves]
    assert [float(np.asarray(ends)[0]) for ends in knees] == pytest.approx([8.0, 2.0])
    assert {"p50", "p99"} <= {text.get_text() for text in drawing.chart.legends[0].get_texts()}


def test_panels_that_share_an_axis_name_it_once_and_say_which_end_is_slower(save: Save) -> None:
    serve_at(save, {"bare-metal": 1.0, "container": 1.5}, {})
    (drawing,) = latency_lines(save.compare(), {})
    named = [axes.get_ylabel() for axes in drawing.chart.axes]
    assert named == ["ms, log scale\nfaster \N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW} slower", "", "", ""]
    markers = {line.get_marker() for line in drawing.chart.axes[1].lines}
    assert len(markers) == 2, "targets are told apart in print"


def test_one_rate_is_no_curve(save: Save) -> None:
    metrics = {"latency-p50-at-2-per-s": MetricValue(value=1.0, unit="ms", better="less")}
    save(scenario="serve", model="own", metrics=metrics)
    assert not [*rate_lines(save.compare(), {})]


def test_a_million_tokens_have_a_price_and_an_energy_on_every_target(tmp_path: Path, save: Save) -> None:
    spent = Resources(energy_j={"package-0": 500.0}, idle_w=10.0)
    for block, (target, per_s) in itertools.product(range(BLOCKS), (("bare-metal", 100.0), ("container", 80.0))):
        save(
            "r",
            block=block,
            target=target,
            scenario="serve",
            model="own",
            sizes=None,
            steps=None,
            unit="tokens",
            timeline=timeline(8.0, 20.0),
            throughput_per_s=per_s,
            details={"units_answered": 250},
            resources=spent,
            conditions=Conditions(interval_s=20.0),
            **on("a"),
        )
    (tmp_path / "prices.toml").write_text(PRICES)
    words = ("--job", "1 M tokens", "--prices", tmp_path / "prices.toml", "--force")  # trials of one moment
    shown = bench_compare(tmp_path / "r", *words, columns=200)
    assert shown.exit_code == 0, shown.output
    # A million tokens at 100 a second are 10,000 s, at 80 a second 12,500: an hour costs 3.60.
    for part in ("per 1,000,000 tokens", "10.0", "12.5", "EUR", "2000 J"):
        assert part in shown.output, shown.output


def test_loads_of_a_sweep_are_compared_by_their_clients(save: Save) -> None:
    for clients, latency in ((1, 10.0), (8, 30.0)):
        load = Serving(requests=100, rates=RATES, clients=clients)
        for block in range(BLOCKS):
            metrics = {"latency-p50-at-2-per-s": MetricValue(value=latency, unit="ms", better="less")}
            save(f"c{clients}", block=block, scenario="serve", model="own", serving=load, metrics=metrics)
    found = compare_by(save.load("c1", "c8"), ("clients",))
    ratios = {row.arm.cell: row.ratio for row in found.contrasts if row.metric.name == "latency-p50-at-2-per-s"}
    assert ratios["clients=8",] == pytest.approx(3)


def test_many_metrics_are_rows_of_a_table_whose_columns_are_the_values(save: Save) -> None:
    for clients, value in ((1, 10.0), (8, 30.0)):
        load = Serving(requests=100, rates=RATES, clients=clients)
        metrics = {f"m{number}": MetricValue(value=value, unit="ms", better="less") for number in range(9)}
        for block in range(BLOCKS):
            save(f"c{clients}", block=block, scenario="serve", model="own", serving=load, metrics=metrics)
    shown = printed(by_document(compare_by(save.load("c1", "c8"), ("clients",))), width=80)
    assert [line for line in shown.splitlines() if line.split() == ["clients=1", "clients=8"]]
    (row,) = (line for line in shown.splitlines() if line.startswith("m3 "))
    assert row.split()[:5] == ["m3", "10.0", "1.000x", "30.0", "3.000x"]
