"""The published figures of Lin, Pai and Chou (CLOSER 2018, doi 10.5220/0006680603760383), to stand beside measurements.

``closer2018_figures.csv`` holds the values printed above the bars of its Figures 5 to 9; the ranges that its text gives
are those of its claims. The paper's single instance with real data is this suite's scenario ``real``.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from typing import TYPE_CHECKING

from analysis.load.records import read_record
from analysis.warnings.types import AnalysisWarning
from suite.job.job import Job
from suite.job.sharing import PAPERS_VICTIMS
from suite.plan import Plan
from suite.records.reader import job_of
from suite.targets import BASELINE, TARGETS

if TYPE_CHECKING:
    from analysis.compare.results import ComparedJob, Comparison

SOURCE = "Lin, Pai and Chou 2018"
PAPERS_KEY = "closer2018"
"""Its key among the published claims."""
PAPER = "paper"
"""The profile in the sizes of the paper: only its figures have the paper's numbers."""
_FILE = "closer2018_figures.csv"

Key = tuple[str, str, str, str, str]
"""Scenario, data, model, target and the metric's name."""
Reference = Mapping[Key, float]
"""Published ratios to bare metal."""

_FIGURES = {
    ("synthetic", "synthetic", "throughput"): 2,
    ("synthetic", "synthetic", "elapsed"): 3,
    ("real", "real", "throughput"): 4,
    ("real", "real", "elapsed"): 5,
    ("distributed", "synthetic", "throughput"): 6,
    ("distributed", "synthetic", "elapsed"): 7,
    ("distributed", "real", "throughput"): 8,
    ("distributed", "real", "elapsed"): 9,
    ("shared", "synthetic", "elapsed"): 10,
}
"""The number of the paper's figure, by scenario, kind of data and metric."""


def complete_figures(plans: Iterable[Plan]) -> list[int]:
    """Return the numbers of the paper's figures of which the plans measure every bar, in the paper's sizes."""
    bars: defaultdict[int | None, set[tuple[str, str]]] = defaultdict(set)
    for plan in plans:
        for job in plan.jobs:
            if job.sharing and "alexnet" not in job.sharing.aggressors:
                continue
            for metric in ("throughput", "elapsed"):
                bars[figure_number(job, metric)].update(product([job.model], plan.targets))
    return sorted(number for number, measured in bars.items() if number and measured >= _bars_of(number))


def _bars_of(number: int) -> set[tuple[str, str]]:
    """Return the models and targets of a figure; the small AlexNet is in the last one alone."""
    models = PAPERS_VICTIMS if number == 10 else PAPERS_VICTIMS[:-1]
    return set(product(models, TARGETS))


def figure_number(job: "ComparedJob | Job", metric: str) -> int | None:
    """Return the number of the paper's figure that shows this metric of such a job, in the paper's sizes; else None.

    A planned job whose steps would see images again is none of the paper's.
    """
    if job.profile != PAPER:
        return None
    if isinstance(job, Job) and job.repeats_images:
        return None
    return _FIGURES.get((job.scenario, kind_of(job.data), metric))


def figure_of(comparison: "Comparison", metric: str) -> int | None:
    """Return the number of the paper's figure for the one job that a comparison holds, by its records; else None."""
    number = figure_number(comparison.jobs[0], metric)
    if number is None or comparison.trials.empty:
        return number
    first = comparison.trials.drop_duplicates(["run_id", "model"])
    records = [read_record(path) for path in first["path"]]
    jobs = []
    for record in records:
        if not isinstance(record, AnalysisWarning):
            jobs.append(job_of(record.job))
    return None if any(job.repeats_images for job in jobs) else number


def kind_of(data: str) -> str:
    """Return ``synthetic`` or ``real``, as the paper tells data apart: whatever is read is real."""
    return data if data == "synthetic" else "real"


@cache
def normalised() -> Reference:
    """Return each published value over that of bare metal."""
    values: dict[Key, float] = {}
    text = (files("analysis.figures") / _FILE).read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        scenario = line["data"] if line["scenario"] == "single" else line["scenario"]
        values[scenario, line["data"], line["model"], line["target"], line["metric"]] = float(line["value"])
    ratios: dict[Key, float] = {}
    for (scenario, data, model, target, metric), value in values.items():
        ratios[scenario, data, model, target, metric] = value / values[scenario, data, model, BASELINE, metric]
    return ratios
