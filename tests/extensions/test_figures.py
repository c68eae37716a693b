"""Figures that another package adds, drawn from the command line."""

import shutil

from tests.extensions.conftest import REPOSITORY, Package

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


def test_a_figure_of_another_package_is_drawn_by_compare_and_report(package: Package) -> None:
    package.add("virtbench.figures", "staircase", FIGURE)
    package.add("virtbench.figures", "torn", "raise RuntimeError('torn')")
    compared = package.bench("compare", str(RUNS[0]), "--plots", "plots")
    assert compared.returncode == 0, compared.stderr
    drawn = {path.name for path in (package.place / "plots").iterdir()}
    assert {"synthetic-staircase.svg", "synthetic-throughput.svg"} < drawn
    reported = package.bench("report", str(RUNS[0]), "--html", "page.html")
    assert reported.returncode == 0, reported.stderr
    assert "A toy: one step per trial" in (package.place / "page.html").read_text()


HISTORY_FIGURE = """
from analysis.figures.drawing import Drawing, canvas

def MEMBER(history):
    chart = canvas(4, 3)
    chart.subplots().plot([len(one.points) for one in history.series])
    yield Drawing("ladder", "A toy: runs of every series", chart)
"""


def test_a_figure_of_another_package_is_drawn_by_history(package: Package) -> None:
    package.add("virtbench.history-figures", "ladder", HISTORY_FIGURE)
    package.add("virtbench.history-figures", "torn", "raise RuntimeError('torn')")
    for run in RUNS:
        shutil.copytree(run, package.place / "runs" / run.name)
    shown = package.bench("history", "runs", "--plots", "plots")
    assert shown.returncode == 0, shown.stderr
    drawn = {path.name for path in (package.place / "plots").iterdir()}
    assert {"ladder.svg", "ladder.png"} < drawn
    assert any(name.startswith("history-synthetic-") for name in drawn)
