"""Figures and a kind of contrast that another package adds, drawn and shown from the command line."""

import csv
import io
import json
import shutil

import pytest

from tests.extensions.conftest import REPOSITORY, Package
from tests.extensions.test_worker import example

RUNS = [REPOSITORY / "tests/samples/runs" / name for name in ("synthetic-podman", "synthetic-podman-later")]
"""Small ones: a history has a figure for every number."""
FIGURE = """
from analysis.figures.drawing import Drawing, canvas

def MEMBER(comparison, reference):
    if comparison.jobs[0].scenario == "synthetic":
        chart = canvas(4, 3)
        chart.subplots().plot(range(len(comparison.trials)))
        yield Drawing("staircase", "A toy: one step per trial", chart)
"""
HISTORY_FIGURE = """
from analysis.figures.drawing import Drawing, canvas

def MEMBER(history):
    chart = canvas(4, 3)
    chart.subplots().plot([len(one.points) for one in history.series])
    yield Drawing("ladder", "A toy: runs of every series", chart)
"""


def bench(package: Package, *words: str) -> str:
    done = package.bench(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_figures_of_another_package_are_drawn_by_compare_report_and_history_in_spite_of_torn_ones(
    package: Package,
) -> None:
    for kind, name, source in (("figures", "staircase", FIGURE), ("history-figures", "ladder", HISTORY_FIGURE)):
        package.add(f"virtbench.{kind}", name, source)
        package.add(f"virtbench.{kind}", "torn", "raise RuntimeError('torn')")
    bench(package, "compare", str(RUNS[0]), "--plots", "plots")
    bench(package, "report", str(RUNS[0]), "--html", "page.html")
    assert "A toy: one step per trial" in (package.place / "page.html").read_text()
    for run in RUNS:
        shutil.copytree(run, package.place / "runs" / run.name)
    bench(package, "history", "runs", "--plots", "plots")
    drawn = {path.name for path in (package.place / "plots").iterdir()}
    assert {"synthetic-staircase.svg", "synthetic-forest.svg", "ladder.svg", "ladder.png"} < drawn
    assert any(name.startswith("history-synthetic-") for name in drawn)


def test_a_kind_of_contrast_is_shown_in_the_table_the_json_and_the_csv(package: Package) -> None:
    package.add("virtbench.contrasts", "over-container", example("A kind of contrast"), "OVER_CONTAINER")
    package.add("virtbench.contrasts", "torn", "raise RuntimeError('torn')")
    table, told, rows_of_csv = (
        bench(package, "compare", str(RUNS[0]), *form)
        for form in (("--verbose", "--plots", "plots"), ("--json",), ("--csv",))
    )
    rows = {(row["kind"], row["target"], row["metric"]): row for row in json.loads(told)["rows"]}
    own, over_base = rows["over-container", "bare-metal", "throughput"], rows["target", "container", "throughput"]
    assert own["ratio"] * over_base["ratio"] == pytest.approx(1)
    assert own["withheld"] == over_base["withheld"], "it is withheld as all others are"
    columns = [row["kind"] for row in csv.DictReader(io.StringIO(rows_of_csv))]
    assert columns.count("over-container") == len([key for key in rows if key[0] == "over-container"]) > 0
    shown = " ".join(table.split())
    assert "over-container in the same blocks, over container" in shown
    assert f"{own['ratio']:.3f}x" in shown
