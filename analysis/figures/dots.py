"""Every trial as a dot: what the bars of a mean cannot show."""

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.compare.pairing import plain
from analysis.compare.results import Group
from analysis.figures.axes import label, scale
from analysis.figures.style import legend, legend_below, palette, style, targets_of
from analysis.load.metrics import METRICS, PROBE
from suite.plan import BASELINE


def spread(groups: Sequence[Group], trials: pd.DataFrame) -> Figure | None:
    """The throughput of every finished trial over bare metal's geometric mean: one dot each, so that outliers show.

    ``trials`` as in ``load.Records``. None where no model has bare metal, and for probes.
    """
    metric, job = METRICS[0], groups[0].job
    base = {
        group.model: summary.estimates[metric.name].value
        for group in groups
        for summary in group.targets
        if summary.target == BASELINE and metric.name in summary.estimates
    }
    mine = plain(trials[trials["ok"] & trials["model"].isin(list(base))])
    for key in ("scenario", "data", "profile", "recipe"):
        mine = mine[mine[key] == getattr(job, key)]
    if mine.empty or job.scenario == PROBE:
        return None
    dots = pd.DataFrame({"model": mine["model"].astype(str), "target": mine["target"].astype(str)})
    dots["ratio"] = mine[metric.column] / dots["model"].map(base)
    with style():
        return _spread(dots, groups, [group.model for group in groups if group.model in base])


def _spread(dots: pd.DataFrame, groups: Sequence[Group], models: list[str]) -> Figure:
    targets = [target for target in targets_of(groups) if target in set(dots["target"])]
    chart = Figure(figsize=(max(6.4, 2.0 + 0.75 * len(models) * len(targets)), 4.2), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.subplots()
    order = {"x": "model", "y": "ratio", "hue": "target", "order": models, "hue_order": targets}
    # Not jittered: the same records give the same picture, and equal values are to lie on each other.
    look = {"dodge": True, "jitter": False, "alpha": 0.6, "size": 6, "legend": False}
    sns.stripplot(dots, **order, **look, palette=palette(targets), ax=axes)
    scale(axes, dots["ratio"])
    if axes.get_yscale() == "linear":
        margin = 0.1 * (dots["ratio"].max() - dots["ratio"].min()) or 0.1
        axes.set_ylim(dots["ratio"].min() - margin, dots["ratio"].max() + margin)
    below = f"{groups[0].job}\none dot per trial, over the geometric mean of {BASELINE}"
    label(axes, "Every trial: throughput", below, f"relative to {BASELINE}", normalised=True)
    entries = legend(groups, targets)
    for entry in entries:
        entry.set_hatch("")
    legend_below(chart, entries, len(targets))
    return chart
