"""Scaling as elements of a document: a table for each model and kind, and one of the quality of what was learned."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from analysis.compare.results import Arm, Comparison, Contrast, Measured
from analysis.compare.scaling import SCALED
from analysis.report.elements import Cell, Element, Head, Heading, Line, Table
from analysis.report.formatting import notes_of, percent, ratio
from suite.units import count, number

_NOTHING = (
    "Nothing scales: no two jobs agree in all but the number of workers, with equal CPUs and memory for each instance "
    "and an equal batch, global or of a rank; try: bench sweep run scaling"
)
_BETTER = {"slower": "worse", "faster": "better"}
"""The words for quality; a verdict's own are those for speed."""
_KINDS = {
    "strong": ("strong scaling", "equal global batch; serial share by Karp and Flatt, fitted by Amdahl's law"),
    "weak": ("weak scaling", "equal batch of a rank"),
    "division": (
        "quality of the images",
        "over the first of each target; a block is a seed; equivalent: within {margin}",
    ),
}
"""The heading and the caption of each kind."""


def scaling_document(comparison: Comparison) -> Iterator[Element]:
    """Yield how jobs scale, or what that takes."""
    yield from [*scaling_elements(comparison)] or [Line(_NOTHING, "strong")]


def scaling_elements(comparison: Comparison) -> Iterator[Element]:
    """Yield the table of each kind, job and model; nothing if no job scales."""
    for kind, (title, caption) in _KINDS.items():
        for (job, model), arms in groupby(comparison.of_kind(kind).items(), lambda item: item[0][:2]):
            yield Heading(f"{model}: {title}", str(job))
            yield _table(dict(arms), caption.format(margin=percent(comparison.margin)), seen=kind == "division")


def _table(arms: Mapping[Arm, Measured], caption: str, *, seen: bool) -> Table:
    every = dict.fromkeys(name for measured in arms.values() for name in measured)
    names = [*every] if seen else [name for name in SCALED if name in every]
    rows = []
    for arm, measured in arms.items():
        if way := arm.division:
            images = way.images_seen or 0
            before = [f"{way.batch} / {way.global_batch}", f"{images:,} / {images // way.global_batch:,}"]
            head = f"{arm.target}, {count(way.workers, 'worker')}{f', {way.strategy}' * seen}"
            losses = ", ".join(f"{loss} {number(value)}" for loss, value in way.losses)
            cells = (*before[: 1 + seen], *(_text(measured.get(name)) for name in names), losses or None)
            rows.append((Head(head, notes_of(measured)), cells))
    columns = ["batch / global", *["images seen / updates"] * seen, *names, "last losses"]
    return Table("job", "", tuple(map(Head, columns)), tuple(rows), caption)


def _text(contrast: Contrast | None) -> Cell:
    """Return ``46 % (44 % to 48 %)``, of images ``4.71; 1.050x (0.903 to 1.220), worse``; None if unknown."""
    if contrast is None:
        return None
    if contrast.kind == "division":
        beside = ratio(contrast)
        for speed, quality in _BETTER.items():
            beside = beside.replace(f", {speed}", f", {quality}")
        return "; ".join(filter(None, (number(contrast.value or 0.0), beside)))
    text = number if contrast.metric.name in ("throughput", "speed-up") else percent
    value = contrast.ratio if contrast.value is None else contrast.value
    return text(value or 0.0) + (f" ({' to '.join(map(text, contrast.interval))})" if contrast.interval else "")
