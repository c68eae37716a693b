"""Scaling as elements of a document: a table for each model and kind, and one of the quality of what was learned."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from analysis.compare.results import Comparison, Estimate, Quality, Scaling
from analysis.compare.scaling import NAMES
from analysis.report.elements import Cell, Element, Head, Heading, Line, Table
from analysis.report.formatting import percent, ratio
from suite.units import count, number

_NOTHING = (
    "Nothing scales: no two jobs agree in all but the number of workers, with equal CPUs and memory for each instance "
    "and an equal batch, global or of a rank; try: bench sweep run scaling"
)
_BETTER = {"slower": "worse", "faster": "better"}
"""The words for quality; a verdict's own are those for speed."""
_CAPTIONS = {
    "strong": "equal global batch; serial share by Karp and Flatt, fitted by Amdahl's law",
    "weak": "equal batch of a rank",
}


def scaling_document(comparison: Comparison) -> Iterator[Element]:
    """Yield how jobs scale, or what that takes."""
    known = comparison.scaling or comparison.quality
    yield from scaling_elements(comparison) if known else (Line(_NOTHING, "strong"),)


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
    for (job, model), ways in groupby(comparison.quality, lambda way: (way.job, way.model)):
        yield Heading(f"{model}: quality of the images", str(job))
        yield _quality_table([*ways], comparison.margin)


def _quality_table(ways: Sequence[Quality], margin: float) -> Table:
    names = list(dict.fromkeys(name for way in ways for name in way.estimates))
    heads = [Head(f"{way.target}, {count(way.workers, 'worker')}, {way.strategy}", way.notes) for way in ways]
    cells = [
        (
            f"{way.batch} / {way.global_batch}",
            f"{way.images_seen:,} / {way.images_seen // way.global_batch:,}",
            *(_better(way.estimates.get(name)) for name in names),
            _losses(way.losses),
        )
        for way in ways
    ]
    columns = map(Head, ("batch / global", "images seen / updates", *names, "last losses"))
    caption = f"over the first of each target; a block is a seed; equivalent: within {percent(margin)}"
    return Table("job", "", tuple(columns), tuple(zip(heads, cells, strict=True)), caption)


def _better(found: Estimate | None) -> Cell:
    """Return ``4.71; 1.050x (0.903 to 1.220), worse``."""
    if found is None:
        return None
    beside = ratio(found)
    for speed, quality in _BETTER.items():
        beside = beside.replace(f", {speed}", f", {quality}")
    return "; ".join(filter(None, (number(found.value), beside)))


def _losses(losses: Mapping[str, float]) -> Cell:
    return ", ".join(f"{loss} {number(value)}" for loss, value in losses.items()) or None


def _text(point: Scaling, name: str) -> Cell:
    """Return ``46 % (44 % to 48 %)``; None for what is not known."""
    if name == "last losses":
        return _losses(point.losses)
    if (found := point.values.get(name)) is None:
        return None
    text = number if name in ("throughput", "speed-up") else percent
    return text(found.value) + (f" ({' to '.join(map(text, found.interval))})" if found.interval else "")
