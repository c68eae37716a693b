"""Allocation as elements of a document: the gain of each job and target, and the times of its stages."""

from collections.abc import Iterator
from itertools import groupby

from analysis.compare.allocation import STAGE_TIME
from analysis.compare.results import Arm, Comparison, Contrast
from analysis.report.document import published_elements
from analysis.report.elements import Element, Head, Heading, Line, Table
from analysis.report.formatting import percent

_GAIN = (
    "Time of the best fixed allocation over that of the best staged one, at equal CPU time. A fixed one gives all "
    "stages the same CPUs, or the same mixture. The other blocks choose the plan of each. Equivalent: within {margin}."
)


def allocation_document(comparison: Comparison) -> Iterator[Element]:
    """Yield what CPUs by stage gain, why a gain has no verdict, the stages of every job, and the judged claims."""
    every = [one for one in comparison.contrasts if one.kind == "allocation"]
    gains = [one for one in every if one.metric != STAGE_TIME]
    yield Heading("CPUs by stage", "1.000x: no gain")
    rows = tuple((Head(_what(one.arm), one.notes), (", ".join(one.members), one)) for one in gains)
    caption = _GAIN.format(margin=percent(comparison.margin))
    yield Table("job", "", (Head("CPUs of each stage"), Head("gain")), rows, caption)
    withheld = dict.fromkeys(why for one in gains if one.verdict for why in one.verdict.withheld)
    yield from [Line("; ".join(withheld), label="why")] if withheld else []
    stages = (one for one in every if one.metric == STAGE_TIME)
    for arm, of_arm in groupby(stages, lambda one: one.arm._replace(cell=())):
        yield Heading(f"{_what(arm)}: seconds of each stage", str(arm.job))
        yield _stages(list(of_arm))
    yield from published_elements(comparison.claims)


def _what(arm: Arm) -> str:
    return f"{arm.model} on {arm.target}" + f" ({arm.job.variant})" * bool(arm.job.variant)


def _stages(contrasts: list[Contrast]) -> Table:
    """Return stages against numbers of CPUs."""
    table: dict[str, dict[str, Contrast]] = {}
    for one in contrasts:
        stage, cpus = one.arm.cell
        table.setdefault(stage.removeprefix("stage="), {})[cpus] = one
    columns = tuple(map(Head, dict.fromkeys(one.arm.cell[1] for one in contrasts)))
    rows = tuple((Head(stage), tuple(cells.values())) for stage, cells in table.items())
    return Table("stage", "", columns, rows, f"s of a trial; x {contrasts[0].base[1]}", compact=True)
