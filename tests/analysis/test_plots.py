from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.text import Annotation

from analysis.plots import draw, figure
from analysis.results import METRICS, Comparison, Estimate, Group, Job, TargetSummary
from analysis.statistics import NoiseFloor
from suite.errors import RequestError
from suite.plan import TARGETS

JOB = Job("synthetic", "synthetic", "smoke", "reference", "")
PNG = b"\x89PNG\r\n\x1a\n"


def summary(target: str, value: float, ratio: float | None, *notes: str) -> TargetSummary:
    return TargetSummary(target, 1, 0, notes, (), {"throughput": Estimate(value, 1, ratio, 1 if ratio else 0)})


def group(job: Job = JOB, model: str = "resnet50", vm: float | None = 0.5) -> Group:
    targets = (summary("bare-metal", 123.4, 1.0), summary("vm", 61.7, vm, "accelerator:tcg"))
    return Group(job, model, targets)


def texts(chart: mpl.figure.Figure) -> set[str]:
    return {text.get_text() for axes in chart.axes for text in axes.texts}


def test_a_figure_per_metric_that_was_measured_is_drawn_as_png_and_svg(tmp_path: Path) -> None:
    paths = draw(Comparison(("run",), (group(),), ()), tmp_path / "new" / "plots")
    assert [path.name for path in paths] == ["synthetic-throughput.png", "synthetic-throughput.svg"]
    assert paths[0].read_bytes().startswith(PNG)
    assert b"<svg" in paths[1].read_bytes()


def test_jobs_of_one_scenario_have_figures_of_their_own_names(tmp_path: Path) -> None:
    other = Job("synthetic", "synthetic", "smoke", "tuned", "engine=docker, memory=2 GiB")
    paths = draw(Comparison(("run",), (group(), group(other)), ()), tmp_path)
    assert [path.stem for path in paths[::2]] == [
        "synthetic-reference-throughput",
        "synthetic-tuned-engine-docker-memory-2-GiB-throughput",
    ]


def test_the_same_comparison_gives_the_same_bytes_and_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    drawn = [[path.read_bytes() for path in draw(Comparison((), (group(),), ()), tmp_path / name)] for name in "ab"]
    assert drawn[0] == drawn[1]
    assert dict(mpl.rcParams) == before


def test_the_measured_value_stands_above_each_bar_whose_height_is_the_ratio() -> None:
    chart = figure([group(), group(model="alexnet")], METRICS[0])
    assert {"123", "61.7"} <= texts(chart)
    heights = [[bar.get_height() for bar in container] for container in chart.axes[0].containers]
    assert heights == [[1.0, 1.0], [0.5, 0.5]]


def test_the_legend_names_the_substitutes() -> None:
    labels = [text.get_text() for text in figure([group()], METRICS[0]).legends[0].get_texts()]
    assert labels == ["bare-metal", "vm\naccelerator:tcg"]


@pytest.mark.parametrize("models", [1, 3])
def test_the_legend_lies_inside_the_figure_however_long_the_notes_are(models: int) -> None:
    noted = tuple(summary(target, 1.0, 1.0, "AVX2 against AVX512", "a substitute " * 9) for target in TARGETS)
    chart = figure([Group(JOB, f"model{number}", noted) for number in range(models)], METRICS[0])
    chart.canvas.draw()
    box = chart.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= chart.bbox.x1


def test_without_bare_metal_the_bars_are_the_values_and_the_axis_says_so() -> None:
    axes = figure([Group(JOB, "resnet50", (summary("vm", 61.7, None),))], METRICS[0]).axes[0]
    assert axes.containers[0][0].get_height() == 61.7
    assert axes.get_ylabel() == "images/s, not normalised"


def test_ratios_far_apart_are_drawn_on_a_named_logarithmic_axis() -> None:
    axes = figure([group(vm=0.001)], METRICS[0]).axes[0]
    assert axes.get_yscale() == "log"
    assert "log scale" in axes.get_ylabel()


def test_a_target_that_failed_or_has_no_ratio_is_said_to_and_not_drawn_as_zero() -> None:
    failed = TargetSummary("container", 0, 2, (), (), {})
    chart = figure([Group(JOB, "resnet50", (*group().targets, failed, summary("container-vm", 5.0, None)))], METRICS[0])
    assert {"failed", "5.00\nnot normalised"} <= texts(chart)


def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot write"):
        draw(Comparison((), (group(),), ()), tmp_path / "file")


def judged(target: str, ratio: float, interval: tuple[float, float]) -> TargetSummary:
    return TargetSummary(target, 8, 0, (), (), {"throughput": Estimate(50.0, 8, ratio, 8, interval)})


def test_intervals_the_noise_floor_and_the_papers_values_are_drawn_and_named() -> None:
    targets = (summary("bare-metal", 123.4, 1.0), judged("vm", 0.8, (0.7, 0.95)))
    one = Group(JOB, "resnet50", targets, {"throughput": NoiseFloor(0.03, "a/a", 8)})
    reference = {("synthetic", "synthetic", "resnet50", "vm", "throughput"): 1.4}
    chart = figure([one], METRICS[0], reference)
    labels = [text.get_text() for text in chart.legends[0].get_texts()]
    assert labels == ["bare-metal", "vm", "95 % interval", "noise floor", "Lin, Pai and Chou 2018"]
    axes = chart.axes[0]
    assert axes.get_ylim()[1] > 1.4
    assert [text.xy[1] for text in axes.texts if isinstance(text, Annotation) and text.get_text() == "50.0"] == [0.95]


def test_values_that_the_paper_does_not_have_leave_no_mark() -> None:
    labels = [text.get_text() for text in figure([group()], METRICS[0], {}).legends[0].get_texts()]
    assert labels == ["bare-metal", "vm\naccelerator:tcg"]
