"""Figures: bars beside the published values, and the forest plot; pictures stay as they were looked at."""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Annotation, Text

from analysis.compare.comparison import compare
from analysis.compare.results import ComparedJob, Comparison, Group, TargetSummary
from analysis.figures.bars import probe_bars, training_bars
from analysis.figures.drawing import MARKERS, canvas, direction, entry, legend_below, side_by_side, style
from analysis.figures.forest import forest
from analysis.figures.plots import draw, pictures
from analysis.figures.points import _name_points
from analysis.figures.reference import Reference, normalised
from analysis.load.metrics import Metric
from analysis.load.records import load
from analysis.report.answers.answer import answer, claims
from analysis.report.formatting import TOO_NOISY
from analysis.statistics.ratios import NoiseFloor
from suite.errors import RequestError
from suite.targets import TARGETS
from tests.analysis.conftest import Save, a_comparison, a_group, measured
from tests.analysis.test_answer import run

JOB = ComparedJob("synthetic", "synthetic", "paper", "reference", "")
PNG = b"\x89PNG\r\n\x1a\n"


def summary(target: str, *notes: str) -> TargetSummary:
    return TargetSummary(target, 1, 0, notes, ())


def number(value: float, ratio: float | None = 1.0, metric: str = "throughput", **more: Any) -> dict[str, Any]:
    return {metric: {"value": value, "trials": 5, "ratio": ratio, "blocks": 5 if ratio else 0, **more}}


def group(job: ComparedJob = JOB, model: str = "resnet50", vm: float | None = 0.5) -> Group:
    targets = summary("bare-metal"), summary("vm", "accelerator:tcg")
    return a_group(job, model, *targets, of={"bare-metal": number(123.4), "vm": number(61.7, vm)})


def throughput(groups: Sequence[Group], reference: Reference = MappingProxyType({})) -> Figure:
    return next(training_bars(a_comparison(*groups), reference)).chart


def texts(chart: Figure) -> set[str]:
    return {text.get_text() for axes in chart.axes for text in axes.texts}


def legend_of(chart: Figure) -> list[str]:
    return [text.get_text() for text in chart.legends[0].get_texts()]


def test_a_figure_per_metric_is_drawn_as_png_and_svg_the_same_each_time_and_matplotlib_stays_as_it_was(
    tmp_path: Path,
) -> None:
    before = dict(mpl.rcParams)
    paths, again = (draw(a_comparison(group()), tmp_path / name / "plots") for name in ("new", "again"))
    assert [path.name for path in paths] == [
        "synthetic-forest.png",
        "synthetic-forest.svg",
        "figure-2-synthetic-throughput.png",
        "figure-2-synthetic-throughput.svg",
    ]
    assert all(path.read_bytes().startswith(PNG) for path in paths[::2])
    assert all(b"<svg" in path.read_bytes() for path in paths[1::2])
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert dict(mpl.rcParams) == before


def test_figures_for_print_are_vectors_with_their_fonts_the_same_each_time(tmp_path: Path) -> None:
    paths, again = (
        draw(a_comparison(group()), tmp_path / name / "plots", formats=("pdf",)) for name in ("new", "again")
    )
    assert [path.name for path in paths] == ["synthetic-forest.pdf", "figure-2-synthetic-throughput.pdf"]
    for path in paths:
        assert path.read_bytes().startswith(b"%PDF-")
        assert b"/FontFile2" in path.read_bytes(), "TrueType fonts are embedded"
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_every_picture_has_a_foot_with_blocks_and_job() -> None:
    comparison = a_comparison(group())
    charts = [each.drawing.chart for each in pictures(comparison, JOB, {})]
    feet = [chart.legends[0].get_title().get_text() if chart.legends else chart.get_supxlabel() for chart in charts]
    assert len(feet) == 2
    assert all("block" in foot and str(JOB) in " ".join(foot.split()) for foot in feet), feet


def test_jobs_of_one_scenario_have_figures_of_their_own_names(tmp_path: Path) -> None:
    other = ComparedJob("synthetic", "synthetic", "paper", "tuned", "engine=docker, memory=2 GiB")
    assert [path.stem for path in draw(a_comparison(group(), group(other)), tmp_path)[::2]] == [
        "synthetic-reference-forest",
        "figure-2-synthetic-reference-throughput",
        "synthetic-tuned-engine-docker-memory-2-GiB-forest",
        "figure-2-synthetic-tuned-engine-docker-memory-2-GiB-throughput",
    ]


def test_the_measured_value_stands_above_each_dot_whose_height_is_the_ratio_and_the_legend_names_substitutes() -> None:
    chart = throughput([group(), group(model="alexnet")])
    assert {"123", "61.7"} <= texts(chart)
    axes = chart.axes[0]
    heights = [np.asarray(line.get_ydata()).tolist() for line in axes.lines if line.get_marker() in MARKERS.values()]
    assert heights == [[1.0, 1.0], [0.5, 0.5]]
    low, high = axes.get_ylim()
    assert 0.3 < low < 0.5 < 1 < high, "the axis is fitted to the ratios, and holds 1"
    assert axes.get_ylabel() == "relative to bare-metal\nslower \N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW} faster"
    assert legend_of(chart) == ["bare-metal", "vm\naccelerator:tcg"]


@pytest.mark.parametrize("models", [1, 3])
def test_the_legend_lies_inside_the_figure_however_long_the_notes_are(models: int) -> None:
    noted = [summary(target, "AVX2 against AVX512", "a substitute " * 9) for target in TARGETS]
    of = dict.fromkeys(TARGETS, number(1.0))
    chart = throughput([a_group(JOB, f"model{place}", *noted, of=of) for place in range(models)])
    chart.canvas.draw()
    box = chart.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= chart.bbox.x1


def test_without_bare_metal_the_bars_are_the_values_and_the_axis_says_so() -> None:
    axes = throughput([a_group(JOB, "resnet50", summary("vm"), of={"vm": number(61.7, None)})]).axes[0]
    assert (axes.containers[0][0].get_height(), axes.get_ylabel()) == (61.7, "1/s, not normalised")


def test_ratios_far_apart_are_drawn_on_a_named_logarithmic_axis() -> None:
    axes = throughput([group(vm=0.001)]).axes[0]
    assert (axes.get_yscale(), "log scale" in " ".join(axes.get_ylabel().split())) == ("log", True)


def test_a_target_that_failed_or_has_no_ratio_is_said_to_and_not_drawn_as_zero() -> None:
    targets = (*group().targets, TargetSummary("container", 0, 2, (), ()), summary("container-vm"))
    numbers = {"bare-metal": number(123.4), "vm": number(61.7, 0.5), "container-vm": number(5.0, None)}
    assert {"failed", "5.00\nnot normalised"} <= texts(throughput([a_group(JOB, "resnet50", *targets, of=numbers)]))


def test_what_killed_processes_have_left_is_looked_for_once_for_all_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []

    def remove(directory: Path) -> list[Path]:
        listed.append(directory)
        return []

    for module in ("suite.results.files", "analysis.figures.drawing"):
        monkeypatch.setattr(f"{module}.remove_temporaries", remove)
    assert len(draw(a_comparison(group()), tmp_path)) == 4
    assert listed == [tmp_path]


def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot write"):
        draw(a_comparison(group()), tmp_path / "file")


def test_intervals_the_noise_floor_and_the_papers_values_are_drawn_and_named() -> None:
    base, own = number(123.4, noise=NoiseFloor(0.03, "a/a", 8)), number(50.0, 0.8, interval=(0.7, 0.95))
    one = a_group(JOB, "resnet50", summary("bare-metal"), summary("vm"), of={"bare-metal": base, "vm": own})
    chart = throughput([one], {("synthetic", "synthetic", "resnet50", "vm", "throughput"): 1.4})
    assert legend_of(chart) == ["bare-metal", "vm", "95 % interval", "noise floor", "Lin, Pai and Chou 2018"]
    axes = chart.axes[0]
    assert axes.get_ylim()[1] > 1.4
    assert [text.xy[1] for text in axes.texts if isinstance(text, Annotation) and text.get_text() == "50.0"] == [0.95]


def disk(vm: float | None) -> Group:
    metrics = (
        Metric("random-read-depth1-latency-p99", "disk/latency", "us", "less", "disk"),
        Metric("sequential-read-throughput", "disk/throughput", "MiB/s", "more", "disk"),
    )
    noise = NoiseFloor(0.1, "a/a", 3)
    base = number(500.0, metric=metrics[0].name) | number(500.0, metric=metrics[1].name, noise=noise)
    own = number(250.0, vm, metrics[1].name, interval=(0.49, 0.51) if vm else None)
    targets = summary("bare-metal"), summary("vm", "accelerator:tcg")
    job = ComparedJob("probe", "synthetic", "smoke", "reference", "")
    return a_group(job, "disk", *targets, metrics=metrics, of={"bare-metal": base, "vm": own})


def test_a_probe_is_one_figure_with_its_metrics_side_by_side(tmp_path: Path) -> None:
    paths = draw(a_comparison(disk(0.5), group()), tmp_path)
    assert [path.stem for path in paths[::2]] == ["probe-disk", "synthetic-forest", "figure-2-synthetic-throughput"]
    chart = next(probe_bars(a_comparison(disk(0.5)), {})).chart
    places = [text.get_text() for text in chart.axes[0].get_xticklabels()]
    assert [place.replace("-\n", "-").replace("\n", " ") for place in places] == [
        "random-read-depth1-latency-p99 us, less is better",
        "sequential-read-throughput MiB/s, more is better",
    ]
    assert {"500", "250", "no value"} <= texts(chart)
    assert legend_of(chart) == ["bare-metal", "vm\naccelerator:tcg", "95 % interval", "noise floor"]


def test_a_probe_without_ratios_and_one_without_any_value_are_no_error(tmp_path: Path) -> None:
    failed = a_group(disk(None).job, "cpu", TargetSummary("vm", 0, 2, (), ()), metrics=(), of={})
    paths = draw(a_comparison(disk(None), failed), tmp_path)
    assert [path.name for path in paths] == ["probe-disk.png", "probe-disk.svg"]


def test_every_published_value_is_over_that_of_bare_metal() -> None:
    assert len(normalised()) == 12 + 4 * 12
    assert {ratio for key, ratio in normalised().items() if key[3] == "bare-metal"} == {1.0}
    of_figures = {
        ("real", "real", "alexnet", "container-vm", "elapsed"): 200 / 157,
        ("distributed", "synthetic", "inception_v3", "vm", "throughput"): 44 / 57,
        ("distributed", "synthetic", "inception_v3", "container-vm", "elapsed"): 391 / 261,
    }
    assert {key: normalised()[key] for key in of_figures} == pytest.approx(of_figures)


def test_the_layers_of_the_paper_add_up_nearly_everywhere() -> None:
    ratios = normalised()
    for scenario, data, model, target, metric in ratios:
        if target == "container-vm":
            alone = [ratios[scenario, data, model, layer, metric] for layer in ("container", "vm")]
            assert 0.85 < ratios[scenario, data, model, target, metric] / (alone[0] * alone[1]) < 1.15


SAMPLES = Path(__file__).parents[1] / "samples"
PICTURES = SAMPLES / "pictures"
GRID = (24, 40)


def drawn(comparison: Comparison) -> Figure:
    (drawing,) = forest(comparison, {})
    return drawing.chart


def words_of(chart: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in chart.axes[0].texts).split())


def test_it_has_the_answer_every_row_with_its_verdict_and_where_it_was_measured(save: Save) -> None:
    comparison = run(save, 0.8, blocks=6, targets=("container", "vm"), engine="podman")
    chart = drawn(comparison)
    rows = [label.get_text() for label in chart.axes[0].get_yticklabels()]
    assert rows == ["resnet50: bare-metal", "resnet50: container", "resnet50: vm"]
    assert [words_of(chart).count(words) for words in ("slower", "noise floor")] == [2, 1]
    assert " ".join(chart.get_suptitle().split()) == "; ".join(map(str, answer(comparison).rows))
    assert " %" not in chart.get_suptitle()
    foot = chart.get_supxlabel().replace("\n", " ")
    assert foot == "host node7; podman; 6 blocks; synthetic scenario, synthetic data, quick profile, " + (
        "reference recipe; 2026-01-01"
    )


def test_the_dots_are_the_blocks_of_which_the_ratio_is_the_mean(save: Save) -> None:
    comparison = run(save, 0.8, blocks=6, noise=0.1)
    estimate = comparison.groups[0].of_target("container")["throughput"]
    dots = [line.get_xdata() for line in drawn(comparison).axes[0].lines if line.get_marker() == "."]
    shown = [float(value) for line in dots for value in np.asarray(line)]
    assert len(shown) == 6
    assert estimate.ratio is not None
    assert min(shown) < estimate.ratio < max(shown)


def test_a_row_without_a_verdict_says_why(save: Save) -> None:
    few = words_of(drawn(run(save, 0.9, blocks=2)))
    assert "not yet measured: 2 blocks of 5 no verdict: at least 5 blocks are needed" in few


@pytest.mark.parametrize(("profile", "stamped"), [("smoke", True), ("quick", False)])
def test_no_picture_of_the_smoke_profile_is_without_its_stamp(save: Save, profile: str, stamped: bool) -> None:
    comparison = run(save, 0.8, blocks=3, profile=profile)
    found = list(pictures(comparison, comparison.jobs[0], {}))
    assert found[0].stem == "synthetic-forest"
    for picture in found:
        across = [text.get_text() for text in picture.drawing.chart.texts]
        assert ("smoke run: not a measurement" in across) == stamped, picture.stem
        assert not picture.stem.startswith("figure-")


def test_nothing_is_drawn_of_bare_metal_alone(save: Save) -> None:
    save()
    assert not list(forest(save.compare(), {}))


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


@pytest.mark.parametrize("name", ["synthetic-all", "synthetic"])
def test_pictures_of_sample_runs_look_as_those_that_were_looked_at(name: str) -> None:
    """Fonts differ between machines. After a change, look at the new picture, and store what ``picture_of`` returns."""
    now, stored = (brightness(imread(source)) for source in (io.BytesIO(picture_of(name)), PICTURES / f"{name}.png"))
    assert float(np.sqrt(((now - stored) ** 2).mean())) < 0.04
    assert np.corrcoef(now.ravel(), stored.ravel())[0, 1] > 0.8


def test_notes_of_a_legend_leave_the_axes_their_height() -> None:
    heights = {}
    for notes in (0, 14):
        with style():
            chart = canvas(6.4, 4.2)
            axes = chart.subplots()
            legend_below(chart, [entry("vm", [f"note {number}" for number in range(notes)])], 1)
            chart.canvas.draw()
        heights[notes] = axes.get_window_extent().height
    assert heights[14] > 0.9 * heights[0]


@pytest.mark.parametrize("ratios", [(0.02, 1.0, 40.0), (0.97, 0.99, 1.01)])
def test_no_mark_lies_on_the_frame(save: Save, ratios: tuple[float, ...]) -> None:
    for block, (target, ratio) in itertools.product(
        range(5), zip(("container", "vm", "container-vm"), ratios, strict=True)
    ):
        save(block=block, target="bare-metal")
        save(block=block, target=target, **measured(10.0 * ratio))
    chart = drawn(save.compare())
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
        assert frame.x0 < min(places) - radius < max(places) + radius < frame.x1


@pytest.mark.parametrize("name", ["synthetic-all", "shared", "serve", "distributed-host", "epochs", "probe", "real"])
def test_a_picture_shows_no_number_of_fewer_than_five_blocks_and_the_forest_says_so(name: str) -> None:
    comparison = compare(load([SAMPLES / "runs" / name]))
    found = [picture for job in comparison.jobs for picture in pictures(comparison, job, {})]
    assert {picture.stem.rpartition("-")[2] for picture in found} <= {"forest"}
    for picture in found:
        assert "not yet measured: " in words_of(picture.drawing.chart)
        assert all(line.get_marker() in ("None", "", None) for line in picture.drawing.chart.axes[0].lines)


def test_a_bar_of_too_few_blocks_gives_way_to_its_value_and_what_is_not_yet_known() -> None:
    numbers = {"bare-metal": number(123.4), "vm": number(61.7, 0.5), "container": number(99.0, 0.9, blocks=1, trials=1)}
    targets = [summary(target) for target in numbers]
    chart = throughput([a_group(JOB, "resnet50", *targets, of=numbers)])
    assert {"61.7", "99.0\nnot yet measured: 1 block of 5"} <= texts(chart)


def test_an_interval_beyond_a_factor_of_a_hundred_is_in_no_picture(save: Save) -> None:
    comparison = run(save, 0.9, blocks=5, noise=3.0)
    (claim,) = claims(comparison)
    assert str(claim.value) == TOO_NOISY
    chart = drawn(comparison)
    assert TOO_NOISY in words_of(chart)
    marked = [line for line in chart.axes[0].lines if line.get_marker() in (".", "o", "<", ">")]
    assert not any(np.size(line.get_xdata()) for line in marked)


def test_names_that_are_longer_than_their_places_are_turned_and_others_are_not() -> None:
    for name, rotation in (("short", 0), ("n2_standard_8_in_europe_west4", 30)):
        chart = throughput([group(model=name)])
        chart.draw_without_rendering()
        (tick,) = chart.axes[0].get_xticklabels()
        assert (tick.get_text(), tick.get_rotation()) == (name, rotation)


@pytest.mark.parametrize(
    ("unit", "more", "ends"),
    [("s", False, "faster slower"), ("images/s", True, "slower faster"), ("EUR", False, "better worse")],
)
def test_the_ends_of_an_axis_are_faster_and_slower_for_times_and_rates_alone(unit: str, more: bool, ends: str) -> None:
    low, high = ends.split()
    assert direction(unit, more_is_better=more) == f"{low} \N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW} {high}"


def test_a_job_of_hours_is_shown_in_hours() -> None:
    targets = summary("bare-metal"), summary("vm")
    times = {target: number(seconds, metric="elapsed") for target, seconds in (("bare-metal", 7200), ("vm", 9000))}
    chart = next(training_bars(a_comparison(a_group(JOB, "resnet50", *targets, of=times)), {})).chart
    assert {"2.00", "2.50"} <= texts(chart)
    assert any("above the marks: hours" in text for text in texts(chart))


def test_points_of_several_lines_stand_side_by_side_around_their_number() -> None:
    lines = [side_by_side([1, 4], index, 3, 100.0) for index in range(3)]
    assert lines[1] == [1, 4]
    assert lines[0][0] < lines[1][0] < lines[2][0]
    assert sum(line[0] for line in lines) == pytest.approx(3)


def test_names_of_points_that_are_close_do_not_overprint_each_other_or_a_point() -> None:
    with style():
        chart = canvas(6.4, 4.6)
        axes = chart.subplots()
        places = {"cloud-a": (3.11, 0.31), "cloud-b": (3.13, 0.31), "cloud-c": (3.11, 0.311), "far": (1.0, 1.0)}
        axes.plot(*zip(*places.values(), strict=True), "o")
        _name_points(chart, axes, places)
        chart.draw_without_rendering()
    # Of the text alone, without the line to its point.
    boxes = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}
    assert boxes.keys() == places.keys()
    for one, other in itertools.combinations(boxes.values(), 2):
        assert not one.overlaps(other)
