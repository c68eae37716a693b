"""Explanations as elements of a document: the parts of a difference in time, and what the probes predict."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from analysis.compare.results import ComparedJob
from analysis.explain.explanation import UNEXPLAINED, Explained, Explanation, Predicted, PreemptedJob, TimeDifference
from analysis.report.elements import Bar, Cell, Element, Head, Heading, Line, Notes, Table, warnings
from analysis.report.formatting import duration, noted_effects, seconds
from analysis.warnings.types import notices
from suite.job.ablations import named_arm
from suite.targets import BASELINE, base_of
from suite.units import count


def reason(one: Explanation) -> str:
    """Return the greatest part of a difference in time as a sentence; empty where no difference is shown."""
    part = max(one.parts, key=lambda part: part.difference_s * (1 if one.whole.difference_s > 0 else -1))
    if not (share := _share(one, part)):
        return ""
    name = "not explained by its parts" if part.name == UNEXPLAINED else part.name
    took, how = seconds(one.whole.difference_s).lstrip("+-"), "longer" if one.whole.difference_s > 0 else "shorter"
    return f"{one.model} on {one.target}: with opening, a trial takes {took} s {how}; {share} of that is {name}"


def _share(one: Explanation, part: TimeDifference) -> str:
    share = one.share(part)
    return "" if share is None else f"{round(100 * share) + 0.0:.0f} %"


NOTHING = (
    f"Nothing to explain: no training on another target shares a block with a {BASELINE} trial that it may be compared "
    "with; bench compare says what there is"
)
_LEGEND = (
    "seconds per trial; difference: mean over the blocks, with its 95 % t interval; the parts and what is unexplained "
    "sum to the whole; of it: the part's share, if the trials decide and the interval of the whole excludes zero"
)


def explanation_document(explained: Explained) -> Iterator[Element]:
    if not explained.explanations and not explained.preempted:
        yield Line(NOTHING, "strong")
    yield from _parts(explained)
    yield from warnings(notices(explained.warnings, {one.job for one in explained.explanations}))


def explained_job(explained: Explained, job: ComparedJob) -> Iterator[Element]:
    """Yield where the time of a job goes, for the page."""
    explanations = tuple(one for one in explained.explanations if one.job == job)
    preempted = tuple(one for one in explained.preempted if one.job == job)
    if explanations:
        yield Heading("Where the time goes")
    yield from _parts(replace(explained, explanations=explanations, preempted=preempted), bars=True)


def _parts(explained: Explained, *, bars: bool = False) -> Iterator[Element]:
    """Yield the parts of each difference, with what the probes predict, then the course of preempted jobs.

    ``bars`` adds a waterfall for the page.
    """
    for one in explained.explanations:
        yield Heading(f"{one.model} on {one.target}", f"{one.job}, {count(one.blocks, 'block')}", one.notes)
        yield _table(one, bars=bars)
        no_share = ("no part is a share of the difference, which has no verdict",) if one.withheld else ()
        targets = [(one.job, one.model, target) for target in (one.target, base_of(one.target))]
        ablations = (
            f"switched in the same blocks: {named_arm(arm.target, arm.ablation)}{noted_effects(measured)}"
            for arm, measured in explained.of_kind("ablation").items()
            if arm[:3] in targets
        )
        yield Notes((*no_share, *_step_lines(one), *ablations))
        yield from map(Line, prediction_lines(one))
    if explained.explanations:
        yield Line(_LEGEND, "dim")
    for job in explained.preempted:
        yield from _preempted(job)


def _preempted(job: PreemptedJob) -> Iterator[Element]:
    every = f"taken away every {duration(job.mean_s)} on average"
    yield Heading(f"{job.model} on {job.target}, preempted", f"{every}, {count(job.blocks, 'block')}")
    rows = []
    for number in job.numbers:
        measured = _mean(number.measured, number.measured_interval)
        predicted = _mean(number.predicted, number.predicted_interval)
        rows.append((Head(f"{number.name} {number.unit}".strip()), (measured, predicted)))
    yield Table("", "", (Head("measured"), Head("predicted")), tuple(rows), compact=True)
    if job.withheld:
        yield Line(f"no verdict on whether measurement and prediction differ: {'; '.join(job.withheld)}")
        return
    differing = [number.name for number in job.numbers if number.differs]
    how = f"differ in {' and '.join(differing)}" if differing else "are not shown to differ"
    yield Line(f"measurement and prediction {how} (95 % intervals of the mean over the blocks)")


def _mean(mean: float, ends: tuple[float, float] | None) -> str:
    return f"{mean:.3g}" + (f" ({ends[0]:.3g} to {ends[1]:.3g})" if ends else "")


def _table(one: Explanation, *, bars: bool) -> Table:
    columns = tuple(map(Head, (base_of(one.target), one.target, "difference s", "95 % interval", "of it", "")))
    rows: list[tuple[Head, tuple[Cell, ...]]] = []
    for part, bar in zip((*one.parts, one.whole), _bars(one), strict=True):
        rows.append((Head(part.name, style="strong" if part is one.whole else ""), (*_cells(one, part), bar)))
        rows += [(Head(f"  {phase.name}", style="part"), (*_cells(one, phase), "")) for phase in part.phases]
    table = Table("part", "", columns, tuple(rows), compact=not bars)
    return table if bars else replace(table.only(*range(5)), narrower=table.only(2, 4))


def _cells(one: Explanation, part: TimeDifference) -> tuple[str, ...]:
    before, after = seconds(part.baseline_s).lstrip("+"), seconds(part.target_s).lstrip("+")
    return before, after, seconds(part.difference_s), " to ".join(map(seconds, part.interval or ())), _share(one, part)


def _bars(one: Explanation) -> Iterator[Bar]:
    """Yield a bar for each part, beginning at the end of the one before, and one for the whole, from zero."""
    ends = [0.0, *accumulate(part.difference_s for part in one.parts)]
    low, high = min(ends), max(ends)
    scale = 100 / (high - low) if high > low else 0.0
    kinds = ["rest" if part.name == UNEXPLAINED else "more" if part.difference_s > 0 else "less" for part in one.parts]
    for (start, end), kind in zip([*pairwise(ends), (0.0, ends[-1])], [*kinds, "whole"], strict=True):
        yield Bar((min(start, end) - low) * scale, abs(end - start) * scale, kind)


def _step_lines(one: Explanation) -> Iterator[str]:
    for name, steps in ((base_of(one.target), one.baseline_steps), (one.target, one.target_steps)):
        if steps:
            times_s = {"p50": steps.p50_s, "p95": steps.p95_s, "p99": steps.p99_s, "jitter": steps.jitter_s}
            texts = (f"{what} {time_s * 1e3:.3g} ms" for what, time_s in times_s.items() if time_s is not None)
            yield f"steps on {name}: {', '.join(texts)}"


def prediction_lines(one: Explanation) -> Iterator[str]:
    """Yield what the probes predict for each part and for the whole, and where the measurement departs from it."""
    if share := one.communicating:
        carried = f" ({share.interface_bytes / 1e6:.3g} MB by its interface)" if share.interface_bytes else ""
        speed = f"collectives at {share.bandwidth_mb_s:.3g} MB/s" if share.bandwidth_mb_s else ""
        predicted = f"; {speed} predict {share.predicted:.0%} if nothing hides it" if share.predicted else ""
        yield (
            f"communication: a rank sends {share.step_bytes / 1e6:.3g} MB in a step{carried}, "
            f"which takes {share.measured:.0%} of the step's time{predicted}"
        )
    if (prediction := one.prediction) is None:
        return
    yield f"predicted by the probes: {'; '.join(map(_predicted, prediction.predicted))}"
    silent = f"; no probe speaks for {', '.join(prediction.silent)}" if prediction.silent else ""
    yield (
        f"together {_seconds(prediction.difference_s, prediction.interval)} s predicted, "
        f"{_seconds(one.whole.difference_s, one.whole.interval)} s measured{silent}"
    )
    measured = {part.name: part for part in one.parts}
    for part in prediction.predicted:
        if part.parts:
            yield _sentence(f"of {part.part}", part.difference_s, measured[part.part].difference_s, part.by or "")
    if prediction.parts:
        yield _sentence("of the whole", prediction.difference_s, one.whole.difference_s, "the probes together")


def _predicted(part: Predicted) -> str:
    by = "(measured itself)" if part.by is None else f"by {part.by}"
    return f"{part.part} {_seconds(part.difference_s, part.interval)} {by}"


def _seconds(difference_s: float, ends: tuple[float, float] | None) -> str:
    return seconds(difference_s) + (f" ({seconds(ends[0])} to {seconds(ends[1])})" if ends else "")


def _sentence(what: str, predicted_s: float, measured_s: float, by: str) -> str:
    side = "more" if measured_s > predicted_s else "less"
    return (
        f"measurement and prediction differ: the cost {what} is {seconds(measured_s)} s, {side} than the "
        f"{seconds(predicted_s)} s predicted by {by}, beyond both intervals"
    )
