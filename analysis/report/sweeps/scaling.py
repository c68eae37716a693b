"""Numbers of workers and instances as elements of a document.

Scaling has a table for each model and kind, and one of the quality of what was learned; instances that were opened
together have a row for each number of them.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, groupby

from analysis.compare.results import Arm, Comparison, Contrast, Measured
from analysis.compare.scaling import EACH, FAILED, SCALED, TIMES
from analysis.report.elements import Cell, Element, Head, Heading, Line, Notes, Table
from analysis.report.formatting import margins, notes_of, percent, ratio
from suite.job.ablations import named_arm
from suite.trial_names import instances_in
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
_UNITS_OF_FURTHER = {TIMES[0].name: "s", EACH[0].name: "MB", EACH[1].name: "s of CPU"}
"""The units of what each further instance adds."""


def scaling_document(comparison: Comparison) -> Iterator[Element]:
    elements = list(scaling_elements(comparison))
    yield from elements or [Line(_NOTHING, "strong")]


def scaling_elements(comparison: Comparison) -> Iterator[Element]:
    """Yield the table of each kind, job and model; nothing if no job scales."""
    for kind, (title, caption) in _KINDS.items():
        with_margin = caption.format(margin=margins(comparison))
        of_kind = comparison.of_kind(kind)
        for (job, model), arms in groupby(of_kind, lambda arm: arm[:2]):
            yield Heading(f"{model}: {title}", str(job))
            of_model = {arm: of_kind[arm] for arm in arms}
            yield _table(of_model, with_margin, seen=kind == "division")
            yield Notes(tuple(_notes(of_model)))


def _table(arms: Mapping[Arm, Measured], caption: str, *, seen: bool) -> Table:
    every = dict.fromkeys(chain.from_iterable(arms.values()))
    names = list(every) if seen else [name for name in SCALED if name in every]
    rows = []
    for arm, measured in arms.items():
        way = arm.division
        if way is None:
            continue
        cells: list[Cell] = [f"{way.batch} / {way.global_batch}"]
        if seen:
            images = way.images_seen or 0
            cells.append(f"{images:,} / {images // way.global_batch:,}")
        cells += [_text(measured.get(name)) for name in names]
        losses = ", ".join(f"{loss} {number(value)}" for loss, value in way.losses)
        cells.append(losses or None)
        rows.append((Head(_head(arm, seen=seen)), tuple(cells)))
    columns = ["batch / global"]
    if seen:
        columns.append("images seen / updates")
    columns += [*names, "last losses"]
    return Table("job", "", tuple(map(Head, columns)), tuple(rows), caption)


def _head(arm: Arm, *, seen: bool = False) -> str:
    if arm.division is None:
        return arm.target
    strategy = f", {arm.division.strategy}" if seen else ""
    return f"{arm.target}, {count(arm.division.workers, 'worker')}{strategy}"


def _notes(arms: Mapping[Arm, Measured]) -> Iterator[str]:
    """Yield each note that restricts numbers once, with the rows that it is about unless these are all."""
    heads: dict[str, list[str]] = {}
    for arm, measured in arms.items():
        for note in notes_of(measured):
            brief, _, _ = note.partition(" (")
            heads.setdefault(brief, []).append(_head(arm))
    for note, of_note in heads.items():
        if len(of_note) == len(arms):
            yield note
        else:
            yield f"{'; '.join(of_note)}: {note}"


def _text(contrast: Contrast | None) -> Cell:
    """Return ``46 % (44 % to 48 %)``, of images ``4.71; 1.050x (0.903 to 1.220), worse``; None if unknown."""
    if contrast is None:
        return None
    if contrast.kind == "division":
        return quality(contrast)
    text_of = number if contrast.metric.name in ("throughput", "speed-up") else percent
    value = contrast.ratio if contrast.value is None else contrast.value
    text = text_of(value or 0.0)
    if contrast.interval:
        text += f" ({' to '.join(map(text_of, contrast.interval))})"
    return text


def quality(contrast: Contrast) -> str:
    """Return the value of a metric of images, and its ratio with a verdict in words for quality."""
    beside = ratio(contrast)
    for speed, word in _BETTER.items():
        beside = beside.replace(f", {speed}", f", {word}")
    return "; ".join(filter(None, (number(contrast.value or 0.0), beside)))


def growth_elements(comparison: Comparison) -> Iterator[Element]:
    """Yield a table for each job, a row for each number of instances of a target, and what each further one adds."""
    together = comparison.of_kind("together")
    slopes = comparison.of_kind("growth")
    for job, of_job in groupby(together, lambda arm: arm.job):
        arms = sorted(of_job, key=lambda arm: (named(arm), instances_in(arm.model)))
        yield Heading("Many at once", str(job))
        heads = []
        for metric in (*TIMES, *EACH):
            name = metric.name.replace("-per-instance", "")
            heads.append(Head(f"{name} {metric.unit}"))
        rows = [_row(arm, together[arm]) for arm in arms]
        yield Table(
            "opened together",
            "",
            tuple(heads),
            tuple(rows),
            "memory and CPU: of each instance",
            compact=True,
        )
        of_targets = dict.fromkeys(arm._replace(model="") for arm in arms)
        further = [_further(arm, slopes[arm]) for arm in of_targets if arm in slopes]
        yield Notes(tuple(further))


def _row(arm: Arm, measured: Measured) -> tuple[Head, tuple[str, ...]]:
    failed = measured.get(FAILED.name)
    instances = instances_in(arm.model)
    notes: tuple[str, ...] = ()
    if failed and failed.value:
        opened = failed.trials * instances
        lost = number(failed.value * failed.trials)
        notes = (f"{lost} of {count(opened, 'instance')} did not open",)
    cells = tuple(_value(measured.get(metric.name)) for metric in (*TIMES, *EACH))
    head = Head(f"{named(arm)}, {count(instances, 'instance')}", notes)
    return head, cells


def named(arm: Arm) -> str:
    return named_arm(arm.target, arm.ablation)


def _value(contrast: Contrast | None) -> str:
    if contrast is None or contrast.value is None:
        return "-"
    return number(contrast.value)


def _further(arm: Arm, measured: Measured) -> str:
    """Return ``each further instance of vm: 1.25 s (1.20 to 1.31), 310 MB, …``."""
    parts = []
    for name, unit in _UNITS_OF_FURTHER.items():
        contrast = measured.get(name)
        if contrast:
            ends = ""
            if contrast.value_interval:
                ends = f" ({' to '.join(map(number, contrast.value_interval))})"
            parts.append(f"{_value(contrast)} {unit}{ends}")
    return f"each further instance of {named(arm)}: {', '.join(parts)}"
