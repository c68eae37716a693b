"""Allocation as elements of a document: the gain of each job and target, and the times of its stages."""

from collections.abc import Iterator
from itertools import groupby

from analysis.compare.results import Comparison
from analysis.report.document import published_elements
from analysis.report.elements import Element, Head, Heading, Line, Table
from analysis.report.formatting import percent
from analysis.report.sweeps.by import job_on, tables_of, withheld

_GAIN = (
    "Time of the best fixed allocation over that of the best staged one, at equal CPU time. A fixed one gives all "
    "stages the same CPUs, or the same mixture. Every third block chooses the plan. Equivalent: within {margin}."
)


def allocation_document(comparison: Comparison) -> Iterator[Element]:
    """Yield what CPUs by stage gain, why a gain has no verdict, the stages of every job, and the judged claims."""
    every = [contrast for contrast in comparison.contrasts if contrast.kind == "allocation"]
    gains = [contrast for contrast in every if contrast.members]
    yield Heading("CPUs by stage", "1.000x: no gain")
    rows = tuple((Head(job_on(gain.arm), gain.notes), (", ".join(gain.members), gain)) for gain in gains)
    caption = _GAIN.format(margin=percent(comparison.margin))
    yield Table("job", "", (Head("CPUs of each stage"), Head("gain")), rows, caption)
    if reasons := withheld(gains):
        yield Line("; ".join(reasons), label="no verdict")
    stages = (contrast for contrast in every if contrast.arm.cell)
    for arm, of_arm in groupby(stages, lambda contrast: contrast.arm._replace(cell=())):
        contrasts = list(of_arm)
        yield Heading(f"{job_on(arm)}: seconds of each stage", str(arm.job), contrasts[0].notes)
        yield from tables_of(contrasts)
    yield from published_elements(comparison.claims)
