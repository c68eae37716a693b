"""Every trial as a dot: what the bars of a mean cannot show."""

from collections.abc import Iterator, Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from analysis.compare.results import Comparison, Group
from analysis.figures.drawing import Drawing, canvas, style
from analysis.figures.reference import Reference
from analysis.figures.style import label, legend, legend_below, palette, scale, targets_of
from analysis.load.metrics import METRICS
from suite.targets import BASELINE

_MOST_VECTORS = 2000
"""More dots than these are drawn as one image inside an SVG, which would otherwise grow by 100 bytes for each."""


def every_trial(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield the throughput of each finished trial over the geometric mean of bare metal, so that outliers show.

    Nothing is drawn for probes, and of models that have no bare metal.
    """
    metric, groups = METRICS[0], comparison.groups
    base = {
        group.model: summary.estimates[metric.name].value
        for group in groups
        for summary in group.targets
        if summary.target == BASELINE and metric.name in summary.estimates
    }
    if not base or comparison.trials.empty or comparison.jobs[0].traits.probes:
        return
    trials = comparison.trials[comparison.trials["model"].isin(list(base))]
    dots = pd.DataFrame({"model": trials["model"].astype(str), "target": trials["target"].astype(str)})
    dots["ratio"] = trials[metric.column] / dots["model"].map(base)
    with style():
        chart = _chart(dots, groups, [group.model for group in groups if group.model in base])
    text = "throughput of every single trial relative to bare metal's mean, one dot per trial"
    yield Drawing("trials", "Every trial", chart, description=text)


def _chart(dots: pd.DataFrame, groups: Sequence[Group], models: list[str]) -> Figure:
    targets = [target for target in targets_of(groups) if target in set(dots["target"])]
    chart = canvas(max(6.4, 2.0 + 0.75 * len(models) * len(targets)), 4.2)
    axes = chart.subplots()
    order = {"x": "model", "y": "ratio", "hue": "target", "order": models, "hue_order": targets}
    # Not jittered: the same records give the same picture, and equal values are to lie on each other.
    look = {"dodge": True, "jitter": False, "alpha": 0.6, "size": 6, "legend": False}
    sns.stripplot(dots, **order, **look, palette=palette(targets), rasterized=len(dots) > _MOST_VECTORS, ax=axes)
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
