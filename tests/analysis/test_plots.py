from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from analysis.compare.results import ComparedJob, Comparison, Estimate, Group, TargetSummary
from analysis.figures.bars import metric_chart, probe_chart
from analysis.figures.plots import draw, pictures
from analysis.figures.reference import Reference, normalised
from analysis.load.metrics import METRICS, Metric, in_units
from analysis.statistics.ratios import NoiseFloor
from suite.errors import RequestError
from suite.targets import TARGETS

JOB = ComparedJob("synthetic", "synthetic", "paper", "reference", "")
PNG = b"\x89PNG\r\n\x1a\n"


def summary(target: str, value: float, ratio: float | None, *notes: str) -> TargetSummary:
    return TargetSummary(target, 1, 0, notes, (), {"throughput": Estimate(value, 1, ratio, 1 if ratio else 0)})


def group(job: ComparedJob = JOB, model: str = "resnet50", vm: float | None = 0.5) -> Group:
    targets = (summary("bare-metal", 123.4, 1.0), summary("vm", 61.7, vm, "accelerator:tcg"))
    return Group(job, model, targets)


def throughput(groups: Sequence[Group], reference: Reference = MappingProxyType({})) -> Figure:
    return metric_chart(groups, in_units(METRICS, "images")[0], "Throughput", reference)


def texts(chart: Figure) -> set[str]:
    return {text.get_text() for axes in chart.axes for text in axes.texts}


def test_a_figure_per_metric_that_was_measured_is_drawn_as_png_and_svg(tmp_path: Path) -> None:
    paths = draw(Comparison(("run",), (group(),), ()), tmp_path / "new" / "plots")
    assert [path.name for path in paths] == [
        "synthetic-forest.png",
        "synthetic-forest.svg",
        "figure-2-synthetic-throughput.png",
        "figure-2-synthetic-throughput.svg",
    ]
    assert all(path.read_bytes().startswith(PNG) for path in paths[::2])
    assert all(b"<svg" in path.read_bytes() for path in paths[1::2])


def test_jobs_of_one_scenario_have_figures_of_their_own_names(tmp_path: Path) -> None:
    other = ComparedJob("synthetic", "synthetic", "paper", "tuned", "engine=docker, memory=2 GiB")
    paths = draw(Comparison(("run",), (group(), group(other)), ()), tmp_path)
    assert [path.stem for path in paths[::2]] == [
        "synthetic-reference-forest",
        "figure-2-synthetic-reference-throughput",
        "synthetic-tuned-engine-docker-memory-2-GiB-forest",
        "figure-2-synthetic-tuned-engine-docker-memory-2-GiB-throughput",
    ]


def test_the_same_comparison_gives_the_same_bytes_and_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    drawn = [[path.read_bytes() for path in draw(Comparison((), (group(),), ()), tmp_path / name)] for name in "ab"]
    assert drawn[0] == drawn[1]
    assert dict(mpl.rcParams) == before


def test_the_measured_value_stands_above_each_bar_whose_height_is_the_ratio() -> None:
    chart = throughput([group(), group(model="alexnet")])
    assert {"123", "61.7"} <= texts(chart)
    heights = [[bar.get_height() for bar in container] for container in chart.axes[0].containers]
    assert heights == [[1.0, 1.0], [0.5, 0.5]]


def test_the_legend_names_the_substitutes() -> None:
    labels = [text.get_text() for text in throughput([group()]).legends[0].get_texts()]
    assert labels == ["bare-metal", "vm\naccelerator:tcg"]


@pytest.mark.parametrize("models", [1, 3])
def test_the_legend_lies_inside_the_figure_however_long_the_notes_are(models: int) -> None:
    noted = tuple(summary(target, 1.0, 1.0, "AVX2 against AVX512", "a substitute " * 9) for target in TARGETS)
    chart = throughput([Group(JOB, f"model{number}", noted) for number in range(models)])
    chart.canvas.draw()
    box = chart.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= chart.bbox.x1


def test_without_bare_metal_the_bars_are_the_values_and_the_axis_says_so() -> None:
    axes = throughput([Group(JOB, "resnet50", (summary("vm", 61.7, None),))]).axes[0]
    assert axes.containers[0][0].get_height() == 61.7
    assert axes.get_ylabel() == "images/s, not normalised"


def test_ratios_far_apart_are_drawn_on_a_named_logarithmic_axis() -> None:
    axes = throughput([group(vm=0.001)]).axes[0]
    assert axes.get_yscale() == "log"
    assert "log scale" in axes.get_ylabel()


def test_a_target_that_failed_or_has_no_ratio_is_said_to_and_not_drawn_as_zero() -> None:
    failed = TargetSummary("container", 0, 2, (), (), {})
    chart = throughput([Group(JOB, "resnet50", (*group().targets, failed, summary("container-vm", 5.0, None)))])
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
    chart = throughput([one], reference)
    labels = [text.get_text() for text in chart.legends[0].get_texts()]
    assert labels == ["bare-metal", "vm", "95 % interval", "noise floor", "Lin, Pai and Chou 2018"]
    axes = chart.axes[0]
    assert axes.get_ylim()[1] > 1.4
    assert [text.xy[1] for text in axes.texts if isinstance(text, Annotation) and text.get_text() == "50.0"] == [0.95]


def test_values_that_the_paper_does_not_have_leave_no_mark() -> None:
    labels = [text.get_text() for text in throughput([group()], {}).legends[0].get_texts()]
    assert labels == ["bare-metal", "vm\naccelerator:tcg"]


@pytest.mark.parametrize(
    ("scenario", "data", "metric", "stem"),
    [
        ("synthetic", "synthetic", "throughput", "figure-2-synthetic-throughput"),
        ("synthetic", "synthetic", "elapsed", "figure-3-synthetic-elapsed"),
        ("real", "imagenet", "throughput", "figure-4-real-throughput"),
        ("real", "generated", "elapsed", "figure-5-real-elapsed"),
        ("distributed", "synthetic", "throughput", "figure-6-distributed-throughput"),
        ("distributed", "imagenet", "elapsed", "figure-9-distributed-elapsed"),
        ("synthetic", "synthetic", "opening", "synthetic-opening"),
    ],
)
def test_files_and_captions_have_the_number_of_the_papers_figure(
    scenario: str, data: str, metric: str, stem: str
) -> None:
    job = ComparedJob(scenario, data, "paper", "reference", "")
    targets = (TargetSummary("bare-metal", 1, 0, (), (), {metric: Estimate(1.0, 1, 1.0, 1)}),)
    (found,) = pictures(Comparison((), (Group(job, "resnet50", targets),), ()), job, {})
    assert found.stem == stem
    number = stem.split("-")[1] if stem.startswith("figure") else None
    assert found.caption.startswith(f"Figure {number}: ") == bool(number)
    assert found.drawing.chart.axes[0].get_title(loc="left").startswith(f"Figure {number}: ") == bool(number)


def test_the_papers_figure_5_is_marked_on_real_data_of_any_name() -> None:
    def elapsed(target: str, ratio: float) -> TargetSummary:
        return TargetSummary(target, 3, 0, (), (), {"elapsed": Estimate(10.0, 3, ratio, 3)})

    job = ComparedJob("real", "generated", "quick", "reference", "page_cache=cold")
    targets = tuple(elapsed(target, 1.0) for target in TARGETS)
    (found,) = pictures(Comparison((), (Group(job, "alexnet", targets),), ()), job, normalised())
    labels = [text.get_text() for text in found.drawing.chart.legends[0].get_texts()]
    assert labels[-1] == "Lin, Pai and Chou 2018"
    (marks,) = [drawn for drawn in found.drawing.chart.axes[0].collections if drawn.get_label() == labels[-1]]
    assert sorted(np.asarray(marks.get_offsets())[:, 1]) == pytest.approx([160 / 157, 184 / 157, 200 / 157])


def disk(vm: float | None) -> Group:
    metrics = (
        Metric("random-read-depth1-latency-p99", "disk/latency", "us", "less", "disk"),
        Metric("sequential-read-throughput", "disk/throughput", "MiB/s", "more", "disk"),
    )
    base = {metric.name: Estimate(500.0, 3, 1.0, 3) for metric in metrics}
    own = {metrics[1].name: Estimate(250.0, 3, vm, 3 if vm else 0, (0.49, 0.51) if vm else None)}
    targets = (
        TargetSummary("bare-metal", 3, 0, (), (), base),
        TargetSummary("vm", 3, 0, ("accelerator:tcg",), (), own),
    )
    floors = {metrics[1].name: NoiseFloor(0.1, "a/a", 3)}
    return Group(ComparedJob("probe", "synthetic", "smoke", "reference", ""), "disk", targets, floors, metrics=metrics)


def test_a_probe_is_one_figure_with_its_metrics_side_by_side(tmp_path: Path) -> None:
    paths = draw(Comparison((), (disk(0.5), group()), ()), tmp_path)
    assert [path.name for path in paths if path.suffix == ".png"] == [
        "probe-disk.png",
        "synthetic-forest.png",
        "figure-2-synthetic-throughput.png",
    ]
    chart = probe_chart(disk(0.5))
    places = [text.get_text() for text in chart.axes[0].get_xticklabels()]
    assert [place.replace("\n", "") for place in places] == [
        "random-read-depth1-latency-p99us, less is better",
        "sequential-read-throughputMiB/s, more is better",
    ]
    assert {"500", "250", "failed"} <= texts(chart)
    labels = [text.get_text() for text in chart.legends[0].get_texts()]
    assert labels == ["bare-metal", "vm\naccelerator:tcg", "95 % interval", "noise floor"]


def test_a_probe_without_ratios_and_one_without_any_value_are_no_error(tmp_path: Path) -> None:
    failed = Group(disk(None).job, "cpu", (TargetSummary("vm", 0, 2, (), (), {}),), metrics=())
    assert [path.name for path in draw(Comparison((), (disk(None), failed), ()), tmp_path)] == [
        "probe-disk.png",
        "probe-disk.svg",
    ]
