"""The published figures of Lin, Pai and Chou (CLOSER 2018, doi 10.5220/0006680603760383), to stand beside measurements.

``closer2018_figures.csv`` holds the values printed above the bars of its Figures 5 to 9. The paper's single instance
with real data is this suite's scenario ``real``.
"""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import pandas as pd

from analysis.compare.results import ComparedJob
from analysis.load.computed import computed
from analysis.load.metrics import METRICS
from analysis.load.records import COLUMNS, FLOATS, Records, Text
from suite.job.sharing import SMALL_ALEXNET

SOURCE = "Lin, Pai and Chou 2018"
RUN_ID = "closer2018"
_FILE = "closer2018_figures.csv"
_SCENARIOS = {("single", "real"): "real", ("single", "synthetic"): "synthetic"}

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
}
"""The number of the paper's figure, by scenario, kind of data and metric."""


def figure_number(job: ComparedJob, metric: str) -> int | None:
    """Return the number of the paper's figure that shows this metric of such a job; None where it has none."""
    return _FIGURES.get((job.scenario, kind_of(job.data), metric))


def load_reference() -> Records:
    """Return the paper's numbers as a run: ``compare`` gives its normalised figures."""
    trials: dict[tuple[str, ...], dict[str, object]] = {}
    columns = {metric.name: metric.column for metric in METRICS}
    for line in csv.DictReader((files("analysis.figures") / _FILE).read_text(encoding="utf-8").splitlines()):
        scenario = _SCENARIOS.get((line["scenario"], line["data"]), line["scenario"])
        key = (scenario, line["data"], line["model"], line["target"])
        trial = trials.setdefault(key, _trial(*key))
        trial[columns[line["metric"]]] = float(line["value"])
    table = pd.DataFrame(list(trials.values()), columns=[*COLUMNS, "path"]).drop(columns="metrics")
    table = table.assign(forced="")
    return Records(table.astype(dict.fromkeys((*FLOATS, "memory_bytes"), "float64")), (), ())


def _trial(scenario: str, data: str, model: str, target: str) -> dict[str, object]:
    missing = dict.fromkeys(COLUMNS)
    return missing | {
        "run_id": RUN_ID,
        "trial_id": f"{scenario}-{data}-{model}-{target}",
        "started_at": "2018-03-19",
        "scenario": scenario,
        "data": data,
        "profile": "paper",
        "recipe": "reference",
        "model": model,
        "target": target,
        "replica": 0,
        "block": int(data == "real"),  # a block has one kind of data
        "position": 0,
        "unit": "images",
        "settings": "",
        "computed": computed(0, {}, None),
        "facts": Text(""),
        "warm_up": False,
        "ok": True,
        "substitutes": "",
        "path": _FILE,
    }


def kind_of(data: str) -> str:
    """Return ``synthetic`` or ``real``, as the paper tells data apart: whatever is read is real."""
    return data if data == "synthetic" else "real"


@cache
def normalised() -> Reference:
    """Return each published value over that of bare metal."""
    trials = load_reference().trials.set_index(["scenario", "data", "model", "target"])
    found: dict[Key, float] = {}
    for scenario, data, model, target in trials.index:
        for metric in METRICS:
            column = trials[metric.column]
            ratio = column[scenario, data, model, target] / column[scenario, data, model, "bare-metal"]
            if ratio == ratio:  # not NaN: the paper has it
                found[scenario, data, model, target, metric.name] = float(ratio)
    return found


FIGURE_10 = (
    "bare metal degrades most and the VM least; AlexNet at batch 512 exceeds 30 %, at batch 32 it is below 10 % for "
    "container and VM; the rest stay within 15 to 20 %"
)
"""The statement of the text on shared resources; the figure prints no values."""


def expected_loss(victim: str, target: str) -> tuple[float, float]:
    """Return the range of the share that a victim loses beside AlexNet at its large batch, by the paper's text."""
    if victim == "alexnet":
        return 0.30, 1.0
    return (0.0, 0.10) if victim == SMALL_ALEXNET and target in ("container", "vm") else (0.15, 0.20)
