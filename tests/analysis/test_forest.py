"""The forest plot: it can be looked at alone, and pictures of sample runs stay as they were looked at."""

import io
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from analysis.compare.comparison import compare
from analysis.compare.results import Comparison
from analysis.figures.drawing import style
from analysis.figures.forest import forest
from analysis.figures.plots import pictures
from analysis.load.records import load
from analysis.report.answers.answer import answer
from tests.analysis.conftest import Save, measured
from tests.analysis.test_answer import run

SAMPLES = Path(__file__).parents[1] / "samples"
PICTURES = SAMPLES / "pictures"
GRID = (24, 40)


def drawn(comparison: Comparison) -> Figure:
    (drawing,) = forest(comparison, {})
    return drawing.chart


def texts(chart: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in chart.axes[0].texts).split())


def test_it_has_the_answer_every_row_with_its_verdict_and_where_it_was_measured(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.8, blocks=6, targets=("container", "vm"), engine="podman")
    chart = drawn(comparison)
    rows = [label.get_text() for label in chart.axes[0].get_yticklabels()]
    assert rows == ["resnet50: bare-metal", "resnet50: container", "resnet50: vm"]
    assert texts(chart).count("slower") == 2
    assert "noise floor" in texts(chart)
    assert " ".join(chart.get_suptitle().split()) == "; ".join(map(str, answer(comparison).rows))
    assert " %" not in chart.get_suptitle()
    foot = chart.get_supxlabel().replace("\n", " ")
    assert foot == "host node7; podman; 6 blocks; synthetic scenario, synthetic data, quick profile, " + (
        "reference recipe; 2026-01-01"
    )


def test_the_dots_are_the_blocks_of_which_the_ratio_is_the_mean(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.8, blocks=4, noise=0.1)
    estimate = comparison.groups[0].of_target("container")["throughput"]
    dots = [line.get_xdata() for line in drawn(comparison).axes[0].lines if line.get_marker() == "."]
    shown = [float(value) for line in dots for value in np.asarray(line)]
    assert len(shown) == 4
    assert math.exp(float(np.log(shown).mean())) == pytest.approx(estimate.ratio)


def test_a_row_without_a_verdict_says_why_and_an_interval_that_goes_on_has_an_arrow(tmp_path: Path, save: Any) -> None:
    chart = drawn(run(save, tmp_path, 0.9, blocks=2, noise=0.5))
    assert "no verdict: at least 5 blocks are needed" in texts(chart)
    assert {">", "<"} & {line.get_marker() for line in chart.axes[0].lines}


@pytest.mark.parametrize(("profile", "stamped"), [("smoke", True), ("quick", False)])
def test_no_picture_of_the_smoke_profile_is_without_its_stamp(
    tmp_path: Path, save: Any, profile: str, stamped: bool
) -> None:
    comparison = run(save, tmp_path, 0.8, blocks=3, profile=profile)
    found = list(pictures(comparison, comparison.jobs[0], {}))
    assert found[0].stem == "synthetic-forest"
    for picture in found:
        across = [text.get_text() for text in picture.drawing.chart.texts]
        assert ("smoke run: not a measurement" in across) == stamped, picture.stem
        assert not picture.stem.startswith("figure-")


def test_nothing_is_drawn_of_bare_metal_alone(tmp_path: Path, save: Any) -> None:
    save()
    assert not list(forest(compare(load([tmp_path / "run"])), {}))


def brightness(image: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the mean brightness of a picture in each cell of a grid: letters blur, whatever their font."""
    grey = image[..., :3].mean(axis=2)
    rows = np.array_split(grey, GRID[0])
    return np.array([[cell.mean() for cell in np.array_split(row, GRID[1], axis=1)] for row in rows])


def picture_of(name: str) -> bytes:
    comparison = compare(load([SAMPLES / "runs" / name]))
    (first, *_) = pictures(comparison, comparison.jobs[0], {})
    out = io.BytesIO()
    with style():
        first.drawing.chart.savefig(out, format="png", dpi=40, metadata={"Software": None})
    return out.getvalue()


@pytest.mark.parametrize("name", ["synthetic-all", "shared"])
def test_pictures_of_sample_runs_look_as_those_that_were_looked_at(name: str) -> None:
    """Fonts differ between machines. After a change, look at the new picture, and store what ``picture_of`` returns."""
    now, stored = (brightness(imread(source)) for source in (io.BytesIO(picture_of(name)), PICTURES / f"{name}.png"))
    assert float(np.sqrt(((now - stored) ** 2).mean())) < 0.04
    assert np.corrcoef(now.ravel(), stored.ravel())[0, 1] > 0.8


@pytest.mark.parametrize("ratios", [(0.02, 1.0, 40.0), (0.97, 0.99, 1.01)])
def test_no_mark_lies_on_the_frame(save: Save, tmp_path: Path, ratios: tuple[float, ...]) -> None:
    for block, (target, ratio) in itertools.product(
        range(5), zip(("container", "vm", "container-vm"), ratios, strict=True)
    ):
        save(block=block, target="bare-metal")
        save(block=block, target=target, **measured(10.0 * ratio))
    chart = drawn(compare(load([tmp_path / "run"])))
    (axes,) = chart.axes
    chart.canvas.draw()
    frame = axes.get_window_extent()
    marked = [
        line for line in axes.lines if line.get_marker() in (".", "s", "o", "^", "D") and np.size(line.get_xdata())
    ]
    assert len(marked) >= 6
    for line in marked:
        radius = line.get_markersize() / 72 * chart.dpi / 2
        places = axes.transData.transform([(x, 0) for x in np.asarray(line.get_xdata())])[:, 0]
        assert min(places) - radius > frame.x0
        assert max(places) + radius < frame.x1
