"""Explanations as elements of a document: the parts of a difference in time, and what the probes predict."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise

from analysis.compare.results import ComparedJob
from analysis.explain.explanation import (
    UNEXPLAINED,
    Explained,
    Explanation,
    NumberDifference,
    Predicted,
    PreemptedJob,
    TimeDifference,
    Victim,
)
from analysis.report.elements import Bar, Cell, Element, Head, Heading, Line, Notes, Table, warnings
from analysis.report.formatting import duration, noted_effects, seconds
from analysis.warnings.types import notices
from suite.job.ablations import label_of, named_arm
from suite.targets import BASELINE, base_of
from suite.units import count, number


def reason(explanation: Explanation) -> str:
    """Return the greatest part of a difference in time as a sentence; empty where no difference is shown."""
    sign = 1 if explanation.whole.difference_s > 0 else -1
    part = max(explanation.parts, key=lambda part: sign * part.difference_s)
    share = _share(explanation, part)
    if not share:
        return ""
    name = "not explained by its parts" if part.name == UNEXPLAINED else part.name
    took = seconds(explanation.whole.difference_s).lstrip("+-")
    how = "longer" if explanation.whole.difference_s > 0 else "shorter"
    arm = f"{explanation.model} on {explanation.target}"
    return f"{arm}: with opening, a trial takes {took} s {how}; {share} of that is {name}"


def _share(explanation: Explanation, part: TimeDifference) -> str:
    share = explanation.share(part)
    if share is None:
        return ""
    return f"{round(100 * share) + 0.0:.0f} %"


NOTHING = (
    f"Nothing to explain: no training on another target shares a block with a {BASELINE} trial that it may be compared "
    "with, or holds a job both alone and next to another; bench compare says what there is"
)
_LEGEND = (
    "seconds per trial; difference: mean over the blocks, with its 95 % t interval; the parts and what is unexplained "
    "sum to the whole; of it: the part's share, if the trials decide and the interval of the whole excludes zero"
)
_OF_SWITCHES = (
    "switches and migrations: of the job's threads in the measured steps of a trial, counted by the kernel that they "
    "run on; the kernel of a virtual machine does not see that its host takes a CPU away"
)


def explanation_document(explained: Explained) -> Iterator[Element]:
    if not (explained.explanations or explained.preempted or explained.victims):
        yield Line(NOTHING, "strong")
    yield from _parts(explained)
    yield from warnings(notices(explained.warnings, {explanation.job for explanation in explained.explanations}))


def explained_job(explained: Explained, job: ComparedJob) -> Iterator[Element]:
    """Yield where the time of a job goes, for the page."""
    explanations = tuple(explanation for explanation in explained.explanations if explanation.job == job)
    preempted = tuple(preempted_job for preempted_job in explained.preempted if preempted_job.job == job)
    victims = tuple(victim for victim in explained.victims if victim.job == job)
    if explanations:
        yield Heading("Where the time goes")
    yield from _parts(
        replace(explained, explanations=explanations, preempted=preempted, victims=victims),
        bars=True,
    )


def _parts(explained: Explained, *, bars: bool = False) -> Iterator[Element]:
    """Yield the parts of each difference, with what the probes predict, then the course of preempted jobs.

    ``bars`` adds a waterfall for the page.
    """
    for explanation in explained.explanations:
        yield Heading(
            f"{explanation.model} on {explanation.target}",
            f"{explanation.job}, {count(explanation.blocks, 'block')}",
            explanation.notes,
        )
        yield _table(explanation, bars=bars)
        yield Notes(tuple(_notes(explanation, explained)))
        yield from map(Line, prediction_lines(explanation))
    if explained.explanations:
        yield Line(_LEGEND, "dim")
    for job in explained.preempted:
        yield from _preempted(job)
    for key, victims in groupby(explained.victims, _neighbourhood):
        yield from _beside(*key, tuple(victims))
    if explained.victims or any(explanation.counts for explanation in explained.explanations):
        yield Line(_OF_SWITCHES, "dim")


def _neighbourhood(victim: Victim) -> tuple[ComparedJob, str, str, str]:
    return victim.job, victim.model, victim.ablation, victim.aggressor


def _beside(
    job: ComparedJob,
    model: str,
    ablation: str,
    aggressor: str,
    victims: Sequence[Victim],
) -> Iterator[Element]:
    """Yield what changed in a model next to an aggressor, a row for each number on each target."""
    switched = f", {label_of(ablation)}" if ablation else ""
    yield Heading(f"{model}{switched} next to {aggressor}, and alone", str(job))
    rows: list[tuple[Head, tuple[Cell, ...]]] = []
    for victim in victims:
        for counted in victim.numbers:
            rows.append((Head(f"{victim.target}: {counted.name}"), (*_counts(counted), str(victim.blocks))))
    columns = tuple(map(Head, ("alone", "beside", "difference", "95 % interval", "blocks")))
    table = Table("number", "", columns, tuple(rows), compact=True)
    yield replace(table, narrower=table.only(0, 1, 2))


def _notes(explanation: Explanation, explained: Explained) -> Iterator[str]:
    if explanation.withheld:
        yield "no part is a share of the difference, which has no verdict"
    yield from _step_lines(explanation)
    targets = (explanation.target, base_of(explanation.target))
    for arm, measured in explained.of_kind("ablation").items():
        if arm[:2] == (explanation.job, explanation.model) and arm.target in targets:
            yield f"switched in the same blocks: {named_arm(arm.target, arm.ablation)}{noted_effects(measured)}"


def _preempted(job: PreemptedJob) -> Iterator[Element]:
    every = f"taken away every {duration(job.mean_s)} on average"
    yield Heading(f"{job.model} on {job.target}, preempted", f"{every}, {count(job.blocks, 'block')}")
    rows = []
    for compared in job.numbers:
        measured = _mean(compared.measured, compared.measured_interval)
        predicted = _mean(compared.predicted, compared.predicted_interval)
        rows.append((Head(f"{compared.name} {compared.unit}".strip()), (measured, predicted)))
    yield Table("", "", (Head("measured"), Head("predicted")), tuple(rows), compact=True)
    if job.withheld:
        yield Line(f"no verdict on whether measurement and prediction differ: {'; '.join(job.withheld)}")
        return
    differing = [compared.name for compared in job.numbers if compared.differs]
    how = "are not shown to differ"
    if differing:
        how = f"differ in {' and '.join(differing)}"
    yield Line(f"measurement and prediction {how} (95 % intervals of the mean over the blocks)")


def _mean(mean: float, ends: tuple[float, float] | None) -> str:
    if ends:
        return f"{mean:.3g} ({ends[0]:.3g} to {ends[1]:.3g})"
    return f"{mean:.3g}"


def _table(explanation: Explanation, *, bars: bool) -> Table:
    columns = tuple(
        map(Head, (base_of(explanation.target), explanation.target, "difference s", "95 % interval", "of it", ""))
    )
    rows: list[tuple[Head, tuple[Cell, ...]]] = []
    for part, bar in zip((*explanation.parts, explanation.whole), _bars(explanation), strict=True):
        head = Head(part.name, style="strong" if part is explanation.whole else "")
        rows.append((head, (*_cells(explanation, part), bar)))
        for phase in part.phases:
            rows.append((Head(f"  {phase.name}", style="part"), (*_cells(explanation, phase), "")))
    for counted in explanation.counts:
        rows.append((Head(counted.name), (*_counts(counted), "", "")))
    table = Table("part", "", columns, tuple(rows), compact=not bars)
    if bars:
        return table
    return replace(table.only(*range(5)), narrower=table.only(2, 4))


def _cells(explanation: Explanation, part: TimeDifference) -> tuple[str, ...]:
    before = seconds(part.baseline_s).lstrip("+")
    after = seconds(part.target_s).lstrip("+")
    return (
        before,
        after,
        seconds(part.difference_s),
        " to ".join(map(seconds, part.interval or ())),
        _share(explanation, part),
    )


def _counts(counted: NumberDifference) -> tuple[str, ...]:
    return (
        number(counted.baseline),
        number(counted.target),
        _signed(counted.difference),
        " to ".join(map(_signed, counted.interval or ())),
    )


def _signed(value: float) -> str:
    text = number(value)
    return f"+{text}" if value > 0 else text


def _bars(explanation: Explanation) -> Iterator[Bar]:
    """Yield a bar for each part, beginning at the end of the one before, and one for the whole, from zero."""
    ends = [0.0, *accumulate(part.difference_s for part in explanation.parts)]
    low = min(ends)
    high = max(ends)
    scale = 100 / (high - low) if high > low else 0.0
    kinds = [*map(_kind_of_bar, explanation.parts), "whole"]
    spans = [*pairwise(ends), (0.0, ends[-1])]
    for (start, end), kind in zip(spans, kinds, strict=True):
        yield Bar((min(start, end) - low) * scale, abs(end - start) * scale, kind)


def _kind_of_bar(part: TimeDifference) -> str:
    if part.name == UNEXPLAINED:
        return "rest"
    return "more" if part.difference_s > 0 else "less"


def _step_lines(explanation: Explanation) -> Iterator[str]:
    for name, steps in (
        (base_of(explanation.target), explanation.baseline_steps),
        (explanation.target, explanation.target_steps),
    ):
        if steps:
            times_s = {"p50": steps.p50_s, "p95": steps.p95_s, "p99": steps.p99_s, "jitter": steps.jitter_s}
            texts = [f"{span} {number(time_s * 1e3)} ms" for span, time_s in times_s.items() if time_s is not None]
            yield f"steps on {name}: {', '.join(texts)}"


def prediction_lines(explanation: Explanation) -> Iterator[str]:
    """Yield what the probes predict for each part and for the whole, and where the measurement departs from it."""
    share = explanation.communicating
    if share:
        carried = ""
        if share.interface_bytes:
            carried = f" ({share.interface_bytes / 1e6:.3g} MB by its interface)"
        speed = ""
        if share.bandwidth_mb_s:
            speed = f"collectives at {share.bandwidth_mb_s:.3g} MB/s"
        predicted = ""
        if share.predicted:
            predicted = f"; {speed} predict {share.predicted:.0%} if nothing hides it"
        yield (
            f"communication: a rank sends {share.step_bytes / 1e6:.3g} MB in a step{carried}, "
            f"which takes {share.measured:.0%} of the step's time{predicted}"
        )
    prediction = explanation.prediction
    if prediction is None:
        return
    yield f"predicted by the probes: {'; '.join(map(_predicted, prediction.predicted))}"
    silent = ""
    if prediction.silent:
        silent = f"; no probe speaks for {', '.join(prediction.silent)}"
    yield (
        f"together {_seconds(prediction.difference_s, prediction.interval)} s predicted, "
        f"{_seconds(explanation.whole.difference_s, explanation.whole.interval)} s measured{silent}"
    )
    measured = {part.name: part for part in explanation.parts}
    for part in prediction.predicted:
        if part.parts:
            yield _sentence(
                f"of {part.part}",
                part.difference_s,
                measured[part.part].difference_s,
                part.by or "",
            )
    if prediction.parts:
        yield _sentence(
            "of the whole",
            prediction.difference_s,
            explanation.whole.difference_s,
            "the probes together",
        )


def _predicted(part: Predicted) -> str:
    by = "(measured itself)" if part.by is None else f"by {part.by}"
    return f"{part.part} {_seconds(part.difference_s, part.interval)} {by}"


def _seconds(difference_s: float, ends: tuple[float, float] | None) -> str:
    return seconds(difference_s) + (f" ({seconds(ends[0])} to {seconds(ends[1])})" if ends else "")


def _sentence(subject: str, predicted_s: float, measured_s: float, by: str) -> str:
    side = "more" if measured_s > predicted_s else "less"
    return (
        f"measurement and prediction differ: the cost {subject} is {seconds(measured_s)} s, {side} than the "
        f"{seconds(predicted_s)} s predicted by {by}, beyond both intervals"
    )
