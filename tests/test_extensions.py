"""For each registry, another package adds a member by one file and an entry point, and the command line uses it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
RUNS = Path(__file__).parent / "samples" / "runs"
Install = Callable[[str, str, str], None]
Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Installs a package of one file, ``toys.py``, whose ``MEMBER`` an entry point adds to a group by a name."""

    def _install(group: str, name: str, source: str) -> None:
        (tmp_path / "toys.py").write_text(source)
        described = tmp_path / "toys-1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(f"[{group}]\n{name} = toys:MEMBER\n")

    return _install


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Runs the command line in a process of its own, which sees what ``install`` has installed."""

    def _bench(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
        return subprocess.run(
            [sys.executable, "-m", "cli", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return _bench


FIGURE = """
from analysis.figures.drawing import Drawing, canvas

def MEMBER(comparison, reference):
    if comparison.jobs[0].scenario == "synthetic":
        chart = canvas(4, 3)
        chart.subplots().plot(range(len(comparison.trials)))
        yield Drawing("staircase", "A toy: one step per trial", chart)
"""


def test_a_figure_of_another_package_is_drawn_by_compare_and_report(
    tmp_path: Path, install: Install, bench: Bench
) -> None:
    install("virtbench.figures", "staircase", FIGURE)
    compared = bench("compare", str(RUNS / "synthetic"), "--plots", "plots")
    assert compared.returncode == 0, compared.stderr
    assert (tmp_path / "plots" / "synthetic-staircase.svg").exists()
    reported = bench("report", str(RUNS / "synthetic"), "--html", "page.html")
    assert reported.returncode == 0, reported.stderr
    assert "A toy: one step per trial" in (tmp_path / "page.html").read_text()


def test_a_figure_that_cannot_be_loaded_disturbs_no_other(tmp_path: Path, install: Install, bench: Bench) -> None:
    install("virtbench.figures", "staircase", "raise RuntimeError('torn')")
    compared = bench("compare", str(RUNS / "synthetic"), "--plots", "plots")
    assert compared.returncode == 0, compared.stderr
    assert (tmp_path / "plots" / "figure-2-synthetic-throughput.svg").exists()
