"""Scaling as elements of a document: a table for each model and kind."""

from collections.abc import Iterator
from itertools import groupby

from analysis.compare.results import Comparison, Scaling
from analysis.compare.scaling import NAMES
from analysis.report.elements import Cell, Element, Head, Heading, Line, Table
from analysis.report.formatting import number, percent
from suite.units import count

_NOTHING = (
    "Nothing scales: no two jobs agree in all but the number of workers, with equal CPUs and memory for each instance "
    "and an equal batch, global or of a rank; try: bench sweep run scaling"
)
_CAPTIONS = {
    "strong": "equal global batch; serial share by Karp and Flatt, fitted by Amdahl's law",
    "weak": "equal batch of a rank",
}


def scaling_document(comparison: Comparison) -> Iterator[Element]:
    """Yield how jobs scale, or what that takes."""
    yield from scaling_elements(comparison) if comparison.scaling else (Line(_NOTHING, "strong"),)


def scaling_elements(comparison: Comparison) -> Iterator[Element]:
    """Yield the table of each model and kind; nothing if no job scales."""
    for (kind, job, model), rows in groupby(comparison.scaling, lambda row: (row.kind, row.job, row.model)):
        points = [*rows]
        columns = (
            "batch / global",
            *(name for name in NAMES if any(name in point.values for point in points)),
            "last losses",
        )
        heads = [Head(f"{point.target}, {count(point.workers, 'worker')}", point.notes) for point in points]
        cells = [(f"{p.batch} / {p.global_batch}", *(_text(p, name) for name in columns[1:])) for p in points]
        yield Heading(f"{model}: {kind} scaling", str(job))
        yield Table("job", "", tuple(map(Head, columns)), tuple(zip(heads, cells, strict=True)), _CAPTIONS[kind])


def _text(point: Scaling, name: str) -> Cell:
    """Return ``46 % (44 % to 48 %)``; None for what is not known."""
    if name == "last losses":
        return ", ".join(f"{loss} {number(value)}" for loss, value in point.losses.items()) or None
    if (found := point.values.get(name)) is None:
        return None
    text = number if name in ("throughput", "speed-up") else percent
    return text(found.value) + (f" ({' to '.join(map(text, found.interval))})" if found.interval else "")
