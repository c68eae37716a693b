"""How targets look in every figure: colours, hatches and legends."""

import textwrap
from collections.abc import Iterable, Sequence

import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.compare.results import Group
from suite.targets import TARGETS

# Colours of seaborn's colour-blind palette, ordered so that they also differ in lightness; hatches for print in grey.
_COLOURS = {target: sns.color_palette("colorblind")[place] for target, place in zip(TARGETS, (7, 0, 1, 2), strict=True)}
_HATCHES = dict(zip(TARGETS, ("", "///", "\\\\\\", "xxx"), strict=True))


def palette(targets: Sequence[str]) -> dict[str, object]:
    """Return the colour of each target; grey for one that the suite does not know."""
    return {target: _COLOURS.get(target, "0.5") for target in targets}


def hatch(target: str) -> str:
    """Return the hatch of a target, which tells it apart in print."""
    return _HATCHES.get(target, "...")


def targets_of(groups: Sequence[Group]) -> list[str]:
    """Return all targets, those of the paper first and in its order."""
    found = dict.fromkeys(summary.target for group in groups for summary in group.targets)
    return [target for target in TARGETS if target in found] + sorted(set(found) - set(TARGETS))


def legend(groups: Sequence[Group], targets: Sequence[str]) -> list[Patch]:
    """Return one entry per target, which names its substitutes and marks."""
    entries = []
    for target in targets:
        summaries = [summary for group in groups for summary in group.targets if summary.target == target]
        notes = dict.fromkeys(note for summary in summaries for note in summary.notes)
        entries.append(entry(target, notes))
    return entries


def entry(target: str, notes: Iterable[str]) -> Patch:
    """Return the entry of one target."""
    look = {"facecolor": _COLOURS.get(target, "0.5"), "hatch": hatch(target), "edgecolor": "white"}
    return Patch(**look, label="\n".join((target, *(textwrap.fill(note, 40) for note in notes))))


def legend_below(chart: Figure, entries: Sequence[Artist | Container], columns: int) -> None:
    """Put the legend under the figure, in as many columns as its width has room for, and ``columns`` at most."""
    widest = max(len(line) for entry in entries for line in str(entry.get_label()).splitlines())
    fitting = int(chart.get_figwidth() / (0.8 + 0.08 * widest))  # inches of the patch and of a letter at this size
    columns = min(columns, max(fitting, 1))
    chart.legend(handles=entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
