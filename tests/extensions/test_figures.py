"""Members that other packages add to the registries: each is one file outside the tree, found by an entry point.

Every test uses its toy from the command line, in a process of its own, as a user would.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
RUNS = REPOSITORY / "tests" / "samples" / "runs"


@dataclass
class Package:
    """A package outside the tree."""

    place: Path
    entry_points: dict[str, list[str]] = field(default_factory=dict)

    def add(self, group: str, name: str, source: str) -> None:
        """Add a member in a file of its own, whose object is called ``MEMBER``."""
        module = f"toy_{name.replace('-', '_')}"
        (self.place / f"{module}.py").write_text(source)
        self.entry_points.setdefault(group, []).append(f"{name} = {module}:MEMBER")
        text = "\n".join(line for key, lines in self.entry_points.items() for line in (f"[{key}]", *lines))
        (self.place / "toys-1.0.dist-info/entry_points.txt").write_text(text)

    def bench(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "cli", *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": f"{self.place}{os.pathsep}{REPOSITORY}"},
        )


@pytest.fixture
def package(tmp_path: Path) -> Package:
    info = tmp_path / "toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    return Package(tmp_path)


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
    compared = package.bench("compare", str(RUNS / "synthetic"), "--plots", "plots")
    assert compared.returncode == 0, compared.stderr
    drawn = {path.name for path in (package.place / "plots").iterdir()}
    assert {"synthetic-staircase.svg", "figure-2-synthetic-throughput.svg"} < drawn
    reported = package.bench("report", str(RUNS / "synthetic"), "--html", "page.html")
    assert reported.returncode == 0, reported.stderr
    assert "A toy: one step per trial" in (package.place / "page.html").read_text()
