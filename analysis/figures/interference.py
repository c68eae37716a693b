"""Victims beside aggressors: the paper's figure 10, and the heat map of all of them."""

from collections.abc import Iterator, Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.compare.interference import SHARED_METRICS
from analysis.compare.results import Comparison, Interference, known_first
from analysis.figures.axes import WIDTH, grouped, label, middles
from analysis.figures.drawing import Drawing, canvas, style
from analysis.figures.reference import SOURCE, Reference, expected_loss
from analysis.figures.style import entry, hatch, legend_below
from analysis.load.metrics import Metric
from suite.job.sharing import aggressor_names, victim_names
from suite.targets import TARGETS

_PAPERS_AGGRESSOR = "alexnet"
_MOST_SAID = 0.6
"""Where the paper says only that a loss exceeds a share, its mark ends here at least."""


def loss_bars(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield the paper's figure 10: what each victim loses beside AlexNet, by throughput and by elapsed time."""
    found = [one for one in _as_they_are(comparison) if one.aggressor == _PAPERS_AGGRESSOR]
    for metric in SHARED_METRICS[:2]:
        if any(metric.name in one.effects for one in found):
            title = f"Figure 10: {metric.name} beside AlexNet, shared scenario"
            yield Drawing(metric.name, title, _losses(found, metric, title), 10)


def heat_map(comparison: Comparison, _: Reference) -> Iterator[Drawing]:
    """Yield the per cent of throughput lost: victims down, aggressors across, a panel for each target on one scale."""
    found = _as_they_are(comparison)
    if any("throughput" in one.effects for one in found):
        title = "Interference: throughput that victims lose beside aggressors"
        yield Drawing("interference", title, _map(found, title))


def _as_they_are(comparison: Comparison) -> list[Interference]:
    return [one for one in comparison.interference if not one.ablation]


def _losses(found: Sequence[Interference], metric: Metric, title: str) -> Figure:
    """Draw bars by target, the ranges that the paper's text gives as outlines."""
    victims, targets = _order(found)
    bars = pd.DataFrame(_bar(one, metric) for one in found if metric.name in one.effects)
    bars["x"] = middles(bars, "victim", victims, targets)
    with style():
        chart = canvas(max(6.4, 2.0 + 0.9 * len(victims) * len(targets)), 4.8)
        axes = chart.subplots()
        _draw(axes, bars, victims, targets)
        if metric.more_is_faster:  # the paper's figure is of what a job achieves
            _paper(axes, bars, WIDTH / len(targets))
        axes.margins(y=0.12)  # room for what is written above the bars
        job = found[0].job
        label(axes, title, str(job), f"{metric.name} lost, %", normalised=False)
        axes.axhline(0, color="0.2", linewidth=1)
        outline = Rectangle((0, 0), 1, 1, fill=False, linestyle=":", edgecolor="black", label=f"{SOURCE},\nby its text")
        entries = [*(entry(target, _notes(found, target)) for target in targets), outline]
        legend_below(chart, entries, len(entries))
    return chart


def _map(found: Sequence[Interference], title: str) -> Figure:
    victims, targets = _order(found)
    aggressors = sorted({one.aggressor for one in found}, key=lambda name: known_first(aggressor_names(), name))
    cells = {
        (one.target, one.model, one.aggressor): 100 * _lost(one.effects["throughput"].ratio, more=True)
        for one in found
        if "throughput" in one.effects
    }
    top = max(10.0, *cells.values())
    with style():
        chart = canvas(2.0 + (1.2 + 0.9 * len(aggressors)) * len(targets), 2.4 + 0.6 * len(victims))
        for place, target in enumerate(targets):
            axes = chart.add_subplot(1, len(targets), place + 1)
            table = pd.DataFrame(
                [[cells.get((target, victim, name)) for name in aggressors] for victim in victims],
                index=pd.Index(victims),
                columns=pd.Index(aggressors),
                dtype=float,
            )
            last = place == len(targets) - 1
            sns.heatmap(
                table,
                ax=axes,
                vmin=0.0,  # who gains beside another has lost nothing: the number says by how much
                vmax=top,
                cmap="rocket_r",
                annot=True,
                fmt=".0f",
                cbar=last,
                cbar_kws={"label": "throughput lost, %"},
                yticklabels=place == 0,
                linewidths=1,
            )
            axes.set_title("\n".join((target, *_notes(found, target))), fontsize=10)
        chart.suptitle(f"{title}\n{found[0].job}", fontsize=10, x=0.01, ha="left")
    return chart


def _order(found: Sequence[Interference]) -> tuple[list[str], list[str]]:
    victims = sorted({one.model for one in found}, key=lambda name: known_first(victim_names(), name))
    return victims, sorted({one.target for one in found}, key=lambda name: known_first(TARGETS, name))


def _lost(ratio: float, *, more: bool) -> float:
    """Return the share of the performance that is gone: of images per second, or of the speed that a time means."""
    return 1 - (ratio if more else 1 / ratio)


def _bar(one: Interference, metric: Metric) -> dict[str, object]:
    effect = one.effects[metric.name]
    ends = effect.interval or (float("nan"), float("nan"))
    lost = sorted(100 * _lost(end, more=metric.more_is_faster) for end in ends)
    height = 100 * _lost(effect.ratio, more=metric.more_is_faster)
    return {"victim": one.model, "target": one.target, "lost": height, "low": lost[0], "high": lost[1]}


def _draw(axes: Axes, bars: pd.DataFrame, victims: Sequence[str], targets: Sequence[str]) -> None:
    grouped(axes, bars, "victim", "lost", victims, targets)
    for place, target in enumerate(targets):
        for patch in axes.containers[place]:
            patch.set_hatch(hatch(target))
    known = bars[bars["low"].notna()]
    if len(known):
        errors = [known["lost"] - known["low"], known["high"] - known["lost"]]
        axes.errorbar(known["x"], known["lost"], errors, fmt="none", ecolor="0.1", elinewidth=1.2, capsize=3)
    for bar in bars.to_dict("records"):
        top = max(bar["lost"], bar["high"]) if bar["high"] == bar["high"] else bar["lost"]  # not NaN
        axes.annotate(
            f"{bar['lost']:.0f} %",
            (bar["x"], max(top, 0)),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
        )


def _paper(axes: Axes, bars: pd.DataFrame, width: float) -> None:
    for bar in bars.to_dict("records"):
        low, high = expected_loss(str(bar["victim"]), str(bar["target"]))
        shown = min(high, max(_MOST_SAID, bar["lost"] / 100))
        box = (bar["x"] - width / 2, 100 * low)
        axes.add_patch(
            Rectangle(
                box, width, 100 * (shown - low), fill=False, linestyle=":", edgecolor="black", linewidth=1.6, zorder=4
            )
        )
    axes.autoscale_view()


def _notes(found: Sequence[Interference], target: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for one in found if one.target == target for note in one.notes))
