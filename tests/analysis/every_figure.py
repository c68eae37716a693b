"""Every kind of figure, made from forged runs that crowd it.

``python -m tests.analysis.every_figure DIRECTORY`` draws all of them, to be looked at.
"""

import functools
import itertools
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.compare.by import compare_by
from analysis.compare.results import ComparedJob, Comparison, TargetSummary
from analysis.costs.job import parse_amount, with_job
from analysis.costs.prices import Prices
from analysis.figures.drawing import column, write
from analysis.figures.history import drawings
from analysis.figures.plots import _charts
from analysis.figures.reference import normalised
from analysis.history.history import History, history_of
from analysis.load.metrics import Metric
from analysis.load.records import load
from analysis.statistics.ratios import NoiseFloor
from suite.job.serving import Serving
from suite.records.record import MetricValue
from suite.results.runs import find_runs
from suite.targets import TARGETS
from tests.analysis import test_by, test_history, test_interference, test_job_costs, test_scaling
from tests.analysis.conftest import Save, a_comparison, a_group, measured
from tests.analysis.test_answer import run
from tests.analysis.test_plots import group, number, summary

BLOCKS = 5
MODELS = ("inception_v3", "resnet50", "alexnet")
SLOWDOWN = dict(zip(TARGETS, (1.0, 1.02, 1.5, 1.6), strict=True))
Forged = Comparison | History


def noise(rng: np.random.Generator, share: float = 0.01) -> float:
    return math.exp(share * rng.normal())


def trainings(save: Save) -> Forged:
    """The models of the paper in its sizes on four targets: values, ranges of its text, a forest, every trial."""
    rng = np.random.default_rng(1)
    for block, model, (target, cost) in itertools.product(range(BLOCKS), MODELS, SLOWDOWN.items()):
        speed = 1234.5 / cost * noise(rng)
        save(block=block, model=model, target=target, profile="paper", **measured(speed))
    return save.compare()


def command(save: Save) -> Forged:
    return run(save, 0.9, blocks=BLOCKS, scenario="command", data="none", models=("train.py",))


def noisy(_: Save) -> Forged:
    """Noise floors that the axis of ratios close to 1 does not hold."""
    numbers = {
        "bare-metal": number(123.4, noise=NoiseFloor(0.45, "a/a", 8)),
        "vm": number(122.0, 0.99, interval=(0.985, 0.995)),
    }
    job = ComparedJob("synthetic", "synthetic", "quick", "reference", "engine=podman, memory=2 GiB, cpus=0-7")
    groups = [
        a_group(job, "resnet50", summary("bare-metal"), summary("vm", "accelerator:tcg"), of=numbers),
        group(job, "alexnet", 1.01),
    ]
    return a_comparison(*groups)


def failing(_: Save) -> Forged:
    """Bars that have no height, each for another reason."""
    numbers = {
        "bare-metal": number(123.4),
        "container": number(99.0, 0.9, blocks=1, trials=1),
        "vm": number(61.7, None),
        "container-vm": {},
    }
    targets = [summary(target) for target in ("bare-metal", "container", "vm")]
    failed = TargetSummary("container-vm", 0, 2, (), ())
    job = ComparedJob("synthetic", "synthetic", "quick", "reference", "")
    groups = [a_group(job, model, *targets, failed, of=numbers) for model in MODELS]
    return a_comparison(*groups)


def probe(_: Save) -> Forged:
    """A probe of ten metrics with long names on four targets."""
    job = ComparedJob("probe", "synthetic", "quick", "reference", "")
    patterns = itertools.product(("random", "sequential"), ("read", "write"), ("latency-p99", "throughput"))
    units = {"latency-p99": ("us", "less"), "throughput": ("MiB/s", "more")}
    metrics = []
    for order, way, what in patterns:
        name = f"{order}-{way}-depth32-{what}"
        unit, better = units[what]
        metrics.append(Metric(name, f"disk/{name}", unit, better, "disk"))  # type: ignore[arg-type]
    of: dict[str, dict[str, Any]] = {}
    for target, cost in SLOWDOWN.items():
        of[target] = {}
        for metric in metrics:
            ends = (cost * 0.97, cost * 1.03) if target != "bare-metal" else None
            floor = NoiseFloor(0.05, "a/a", 8) if target == "bare-metal" else None
            of[target] |= number(1234.5 * cost, cost, metric.name, interval=ends, noise=floor)
    return a_comparison(a_group(job, "disk", *map(summary, TARGETS), metrics=metrics, of=of))


def epochs(save: Save) -> Forged:
    rng = np.random.default_rng(2)
    for block, model, (target, cost) in itertools.product(range(BLOCKS), ("gan", "dcgan"), SLOWDOWN.items()):
        metrics = {"epoch": MetricValue(value=500 * cost * noise(rng), unit="s", better="less")}
        save(block=block, target=target, model=model, scenario="real", data="mnist", metrics=metrics)
    return save.compare()


def shared(save: Save) -> Forged:
    """Four victims on four targets beside three aggressors; the trials of a container were disturbed."""
    rng = np.random.default_rng(3)
    victims = ("inception_v3", "resnet50", "alexnet", "alexnet-small")
    kept = {None: 1.0, "alexnet": 0.6, "disk": 0.8, "memory": 1.004}
    for block, victim, target, (aggressor, share) in itertools.product(range(BLOCKS), victims, TARGETS, kept.items()):
        disturbed = target == "container" and victim != "resnet50"
        speed = 10 * share * noise(rng, 0.5 if disturbed else 0.02)
        other_cpu_s = 9.0 if disturbed else 0.0
        test_interference.victim(save, target, aggressor, speed, block, other_cpu_s, model=victim, profile="paper")
    return save.compare()


def serve(save: Save) -> Forged:
    """Two latencies at four rates, of a server with a knee on each target."""
    rng = np.random.default_rng(4)
    rates = (1.0, 2.0, 8.0, 16.0)
    load_of = Serving(requests=100, rates=rates, clients=4)
    for block, (target, cost) in itertools.product(range(BLOCKS), SLOWDOWN.items()):
        values = {"latency-p50": 10 * cost, "latency-p99": 40 * cost}
        for rate, what, (percentile, ms) in itertools.product(
            rates, ("latency", "first-token"), (("p50", 10.0), ("p99", 40.0))
        ):
            values[f"{what}-{percentile}-at-{rate:g}-per-s"] = ms * rate * cost
        metrics = {
            name: MetricValue(value=value * noise(rng, 0.05), unit="ms", better="less")
            for name, value in values.items()
        }
        metrics["knee"] = MetricValue(value=8.0 / cost, unit="requests/s", better="more")
        save(block=block, target=target, scenario="serve", model="own", serving=load_of, metrics=metrics)
    return save.compare()


def by_rate(save: Save) -> Forged:
    serve(save)
    return compare_by(save.load(), ("rate",))


def scaling(save: Save) -> Forged:
    for workers, speed in {1: 100.0, 2: 160.0, 4: 200.0}.items():
        test_scaling.job(save, workers, speed, batch=test_scaling.STRONG[workers], blocks=range(BLOCKS))
    return load_all(save)


def load_all(save: Save) -> Comparison:
    return save.compare(*sorted(path.name for path in save.path.iterdir()))


def startup(save: Save) -> Forged:
    """Instances that are opened together, with two engines: the settings of a job take two lines."""
    for engine, block, target, number_of in itertools.product(
        ("docker", "podman"), range(BLOCKS), ("bare-metal", "container"), (1, 20)
    ):
        saved: Any = functools.partial(save, engine=engine)
        test_scaling.opened(saved, target, block, number_of, engine)
    return load_all(save)


def data_sets(save: Save) -> Forged:
    test_by.sets(save, np.random.default_rng(5))
    (save.path / "s/sweep.json").write_text("{}")
    records = load(sorted(path for path in (save.path / "s").iterdir() if path.is_dir()))
    return compare_by(records, ("model", "data"), ("gan-published", "mnist"))


def money(save: Save) -> Forged:
    """Nine machines for hire with long names, several of which cost and take the same."""
    rng = np.random.default_rng(6)
    hosts = [f"n{place}-standard-{place}-in-europe-west{place}" for place in range(1, 10)]
    for block, (place, host) in itertools.product(range(BLOCKS), enumerate(hosts)):
        speed = 10.0 * (1 + place // 3) * noise(rng)
        save(host, block=block, **test_by.on(host), **measured(speed))
    prices = [test_job_costs.rented(host, 1.0 + index // 2) for index, host in enumerate(hosts)]
    records = with_job(save.load(*hosts), parse_amount("1e5 images"), Prices(save.path / "prices.toml", tuple(prices)))
    return compare_by(records, ("host",))


def history(save: Save) -> Forged:
    test_history.nights(save.path / "results")
    return history_of(load(find_runs([save.path / "results"])))


def many(save: Save) -> Forged:
    """More rows than a page has room for."""
    models = [f"workload-{index:02d}" for index in range(14)]
    return run(save, 0.9, blocks=BLOCKS, targets=("container", "vm"), models=tuple(models))


FORGES: Mapping[str, Callable[[Save], Forged]] = {
    forge.__name__: forge
    for forge in (
        *(trainings, command, noisy, failing, probe, epochs, shared, serve, by_rate, scaling, startup),
        *(data_sets, money, history, many),
    )
}


REPEATED = re.compile(r"-at-[0-9.e+]+-per-s$|-p50$|-(elapsed|opening)(-relative)?$(?<!figure-10-shared-elapsed)")
"""The figures that look as one of another metric does."""


def charts_of(forged: Forged, width: float | None = None) -> dict[str, Figure]:
    """Return every figure of what was forged, by its name."""
    with column(width):
        if isinstance(forged, History):
            charts = {drawing.name: drawing.chart for drawing in drawings(forged)}
        else:
            charts = dict(_charts(forged, normalised()))
    return {name: chart for name, chart in charts.items() if not REPEATED.search(name)}


def main(directory: Path) -> None:
    for name, forge in FORGES.items():
        forged = forge(Save(directory / "runs" / name))
        for width, formats in ((None, ("png",)), (3.3, ("png", "pdf"))):
            with column(width):
                write(charts_of(forged, width).items(), directory / f"{name}-{width or 'screen'}", formats)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
