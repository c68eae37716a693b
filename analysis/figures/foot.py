"""The foot of every figure: where, how often, by which engine and when its numbers were measured."""

import textwrap
from collections.abc import Iterator
from itertools import chain

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from analysis.compare.results import Comparison
from analysis.figures.drawing import letters, on_a_page, points, style
from analysis.report.answers.answer import claims
from suite.units import count

_LINE_INCHES = 0.15
_POINTS = 8
_COLOUR = "0.3"


def foot_of(comparison: Comparison, width: float, more: str = "") -> str:
    """Return the facts of a comparison, and ``more``, in lines for a figure that is so many inches wide."""
    facts = filter(None, (*_facts(comparison), more))
    return textwrap.fill("; ".join(facts), letters(width))


def write_foot(chart: Figure, text: str) -> None:
    """Write the foot under a figure that has none yet, which becomes higher by its lines.

    With a legend it is that one's heading: a layout keeps no room for both at the lower edge.
    """
    if chart.get_supxlabel():
        return
    width, height = chart.get_size_inches()
    lines = text.count("\n") + 1
    with_foot = height + points(_LINE_INCHES) * lines
    chart.set_size_inches(width, on_a_page(with_foot))
    with style():
        for legend in chart.legends:
            legend.set_title(text, prop=FontProperties(size=points(_POINTS)))
            legend.get_title().set_color(_COLOUR)
        if not chart.legends:
            chart.supxlabel(
                text,
                fontsize=points(_POINTS),
                color=_COLOUR,
                x=0.01,
                ha="left",
            )


def _facts(comparison: Comparison) -> Iterator[str]:
    circumstances = [claim.around for claim in claims(comparison)]
    hosts = [around.hosts for around in circumstances if around.hosts]
    yield from dict.fromkeys(f"host {' and '.join(of_claim)}" for of_claim in hosts)
    engines = [around.engine for around in circumstances if around.engine]
    yield from dict.fromkeys(engines)
    # A comparison of the values of a key has contrasts alone.
    blocks = [contrast.blocks for contrast in comparison.contrasts]
    yield count(max(blocks, default=0), "block")
    jobs = dict.fromkeys(contrast.job for contrast in comparison.contrasts)
    first_job = list(comparison.jobs or jobs)[:1]
    yield from map(str, first_job)
    if len(comparison.trials):
        first_start = comparison.trials["started_at"].min()
        yield str(first_start)[:10]
    substitutes = chain.from_iterable(summary.substitutes for summary in comparison.summaries)
    names = dict.fromkeys(substitutes)
    if names:
        yield f"substitutes: {', '.join(names)}"
