"""The founding paper: a forged sweep of its plan with the values that it prints is drawn on its marks, and confirms it.

What its figures do not print (2, 3, 4 and 10) is forged within what its text says.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patches import Rectangle

from analysis.compare.comparison import compare
from analysis.compare.published import judge_claims
from analysis.compare.results import Comparison
from analysis.figures.plots import Picture, pictures
from analysis.figures.reference import PAPERS_KEY, kind_of, normalised
from analysis.load.records import load
from analysis.report.answers.answer import answer
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob
from suite.job.lab import LabSpec
from suite.job.profiles import PROFILES
from suite.job.sharing import Sharing, sizes_of
from suite.records.environment import Environment
from suite.records.record import AggressorInstance
from suite.sweep.cells import cells_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import load_sweep
from suite.targets import TARGETS
from tests.analysis.conftest import Save, save_in
from tests.analysis.test_interference import beside

PLAN = Path(__file__).parents[2] / "plans/paper.toml"
ALONE = {
    ("synthetic", "throughput"): (1.0, 0.99, 0.93, 0.90),
    ("synthetic", "elapsed"): (1.0, 1.01, 1.12, 1.18),
    ("real", "throughput"): (1.0, 1.0, 0.97, 0.95),
}
"""Ratios to bare metal by target, of figures without numbers."""
ADDED = {
    "inception_v3": (0.19, 0.15, 0.10, 0.135),
    "resnet50": (0.19, 0.15, 0.10, 0.135),
    "alexnet": (0.685, 0.5, 0.35, 0.42),
    "alexnet-small": (0.16, 0.09, 0.05, 0.08),
}
"""What each victim's elapsed time grows by beside AlexNet, by target."""
LAB = LabSpec.model_validate({"nodes": 3, "rate": "1gbit"})
BASE = {"inception_v3": 57.0, "resnet50": 52.0, "alexnet": 284.0, "alexnet-small": 284.0}
REAL_BASE = {"inception_v3": 54.0, "resnet50": 46.0, "alexnet": 282.0}
"""The throughput of bare metal in figures 6 and 8."""


def ratio(job: Mapping[str, Any], target: str, metric: str) -> float:
    scenario = job["scenario"]
    key = (scenario, kind_of(job["data"]), job["model"], target, metric)
    return normalised().get(key) or ALONE.get((scenario, metric), (1.0,) * 4)[TARGETS.index(target)]


def job_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a job in which the cells of the plan differ."""
    scenario, data = settings["scenario"], settings.get("data", "synthetic")
    images = Dataset(kind="generated", sha256="d" * 64, images=10_000, size_bytes=10**9)
    more: dict[str, Any] = {"dataset": images, "page_cache": "warm"} if data != "synthetic" else {}
    if scenario == "distributed":
        given = DistributedJob(strategy=settings["strategy"], workers=2, servers=1, network="host", lab=LAB)
        more["distributed"] = given
    if scenario == "shared":
        aggressor = settings["aggressor"]
        more["sharing"] = Sharing(
            aggressors=(aggressor,), workloads={aggressor: sizes_of(PROFILES["paper"], aggressor, {})}
        )
    sizes = sizes_of(PROFILES["paper"], settings["model"], {})
    return {"scenario": scenario, "model": settings["model"], "data": data, "profile": "paper", "sizes": sizes, **more}


def forge(directory: Path, save: Save, *scenarios: str, blocks: int = 5) -> Path:
    """Save the records of a sweep of the plan, every cell a run of one model; return its directory."""
    sweep = load_sweep(PLAN)
    cells = [cell for cell in cells_of(sweep) if cell.settings["scenario"] in scenarios]
    SweepDirectory(directory / "paper").accept(sweep, cells)
    for cell in cells:
        job = job_of(cell.settings)
        base = (REAL_BASE if job["data"] != "synthetic" else BASE)[job["model"]]
        for block in range(blocks):
            drift = math.exp(0.3 * math.sin(block))  # of the machine, which the cells of a block share
            for target in TARGETS:
                noise = math.exp(1e-4 * math.sin(block * len(target + cell.cell_id)))
                speed = base * ratio(job, target, "throughput") * drift * noise
                elapsed_s = 200 * ratio(job, target, "elapsed") / drift / noise
                for aggressor in (None, *(job["sharing"].aggressors if "sharing" in job else ())):
                    grown = 1 + ADDED[job["model"]][TARGETS.index(target)] if aggressor else 1.0
                    values: dict[str, Any] = {"throughput_per_s": speed / grown, "elapsed_s": elapsed_s * grown}
                    if "sharing" in job:
                        idle = AggressorInstance(environment=Environment())
                        values["aggressors"] = [beside(10.0, 5.0) if aggressor else idle]
                    name = f"{target}-{aggressor or ''}-{block}"
                    run = f"paper/{cell.cell_id}"
                    save(run, trial_id=name, block=block, target=target, aggressor=aggressor, **values, **job)
    return directory / "paper"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("founding")
    everything = forge(place, save_in(place), "synthetic", "real", "distributed", "shared")
    return judge_claims(compare(load([everything])))


def test_every_claim_of_the_paper_is_confirmed_by_its_printed_values(comparison: Comparison) -> None:
    of_paper = [judged for judged in comparison.claims if judged.claim.paper.startswith(PAPERS_KEY)]
    assert len(of_paper) == 17
    found = {
        one.claim.paper: [(item.what, item.text) for item in one.evidence if item.verdict != "confirmed"]
        for one in of_paper
    }
    assert {paper: items for paper, items in found.items() if items} == {}
    assert {judged.verdict for judged in of_paper} == {"confirmed"}


def test_models_and_victims_are_combined_across_the_cells_of_a_sweep(comparison: Comparison) -> None:
    over_models = {
        (one.job.scenario, one.job.data, one.target): one
        for one in comparison.contrasts
        if one.kind == "models" and one.metric.name == "throughput"
    }
    kinds = (
        ("synthetic", "synthetic"),
        ("real", "generated"),
        ("distributed", "synthetic"),
        ("distributed", "generated"),
    )
    assert {key for key in over_models if key[0] != "shared"} == {
        (*kind, target) for kind in kinds for target in TARGETS[1:]
    }
    vm = over_models["distributed", "synthetic", "vm"]
    assert (len(vm.members), vm.blocks) == (3, 5)
    assert vm.ratio == pytest.approx((44 / 57 * 39 / 52 * 247 / 284) ** (1 / 3), rel=1e-3)
    ranked = [one for one in comparison.contrasts if one.kind == "isolation"]
    assert [one.target for one in ranked] == ["vm", "container-vm", "container", "bare-metal"]
    assert {(len(one.members), one.blocks) for one in ranked} == {(4, 5)}


def test_runs_alone_share_no_blocks(tmp_path: Path, save: Save) -> None:
    directory = forge(tmp_path, save, "shared")
    assert answer(compare(load([directory]))).rows, "a shared sweep alone is answered"
    (directory / "sweep.json").unlink()
    found = compare(load([path for path in directory.iterdir() if path.is_dir()]))
    assert len(found.of_kind("aggressor")) == 16
    assert not [one for one in found.contrasts if one.kind in ("models", "isolation") and one.ratio]


def marks(axes: Axes) -> list[tuple[float, float]]:
    points = (np.asarray(one.get_offsets()) for one in axes.collections if isinstance(one, PathCollection))
    return [(float(x), float(y)) for drawn in points for x, y in drawn]


def patches(axes: Axes, *, dotted: bool) -> list[Rectangle]:
    found = [one for one in axes.patches if isinstance(one, Rectangle) and one.get_width() and one.get_height()]
    return [one for one in found if (one.get_linestyle() == ":") == dotted]


def test_figures_2_to_10_show_the_printed_values_on_the_papers_marks(comparison: Comparison) -> None:
    drawn: dict[int, Picture] = {}
    for job in comparison.jobs:
        drawn |= {one.drawing.number: one for one in pictures(comparison, job, normalised()) if one.drawing.number}
    assert sorted(drawn) == list(range(2, 11))
    marked, outlined = {}, {}
    for number, picture in drawn.items():
        axes = picture.drawing.chart.axes[0]
        bars = {one.get_x() + one.get_width() / 2: one.get_height() for one in patches(axes, dotted=False)}
        for x, y in marks(axes):
            assert min(abs(x - middle) + abs(y - height) for middle, height in bars.items()) < 0.1, (number, x, y)
        for box in patches(axes, dotted=True):
            height = next(
                height for middle, height in bars.items() if box.get_x() < middle < box.get_x() + box.get_width()
            )
            assert box.get_y() < height < box.get_y() + box.get_height(), (number, box)
        marked[number], outlined[number] = len(marks(axes)), len(patches(axes, dotted=True))
        labels = {text.get_text() for legend in picture.drawing.chart.legends for text in legend.get_texts()}
        assert any("by its text" in text for text in labels) == bool(outlined[number])
        assert ("Lin, Pai and Chou 2018" in labels) == bool(marked[number])
    assert marked == {number: 9 if 5 <= number <= 9 else 0 for number in range(2, 11)}
    assert outlined == {2: 9, 3: 9, 4: 0, 5: 0, 6: 0, 7: 0, 8: 0, 9: 0, 10: 14}
