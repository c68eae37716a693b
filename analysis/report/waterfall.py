"""Explanations for the terminal, and their lines for the page."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from analysis.explain.explanation import UNEXPLAINED, Explained, Explanation, Predicted, TimeDifference
from analysis.report.formatting import ablation_line, seconds
from analysis.report.layout import empty_table
from analysis.statistics.ratios import StepTimes
from suite.targets import BASELINE


def share(part: TimeDifference, whole: TimeDifference) -> str:
    """Return the share of a part in the whole difference, ``34 %``; empty where the whole may be nothing."""
    if not _differs(whole):
        return ""
    return f"{round(100 * part.difference_s / whole.difference_s) + 0.0:.0f} %"


def _differs(whole: TimeDifference) -> bool:
    """Return whether the interval excludes zero: of a difference that may be nothing, no part is a share."""
    return whole.interval is not None and not whole.interval[0] <= 0 <= whole.interval[1]


def reason(one: Explanation) -> str:
    """Return the greatest part of a difference in time as a sentence; empty where the whole may be nothing."""
    if not _differs(one.whole):
        return ""
    sign = 1 if one.whole.difference_s > 0 else -1
    part = max(one.parts, key=lambda part: sign * part.difference_s)
    name = "not explained by its parts" if part.name == UNEXPLAINED else part.name
    took, how = seconds(one.whole.difference_s).lstrip("+-"), "longer" if sign > 0 else "shorter"
    return f" With opening, a trial takes {took} s {how}; {share(part, one.whole)} of that is {name}."


def interval(part: TimeDifference) -> str:
    """Return the interval of a difference in seconds; empty where it has none."""
    return "" if part.interval is None else f"{seconds(part.interval[0])} to {seconds(part.interval[1])}"


NOTHING = (
    f"Nothing to explain: no training on another target shares a block with a {BASELINE} trial that it may be compared "
    "with; bench compare says what there is"
)


class Waterfall:
    """Explanations to print on a rich console; then the warnings."""

    def __init__(self, explained: Explained) -> None:
        self.explained = explained

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if not self.explained.explanations:
            yield Text(NOTHING, style="bold")
        for one in self.explained.explanations:
            head = Text(f"{one.model} on {one.target}", style="bold").append(f"  {one.job}", style="not bold")
            head.append("".join(f", {note}" for note in one.notes), style="yellow")
            yield head
            yield _table(one, narrow=options.max_width < 60)
            yield from (Text(line, style="dim") for line in (*step_lines(one), *map(ablation_line, one.ablations)))
            yield from (Text(line) for line in prediction_lines(one))
            yield Text()
        if self.explained.explanations:
            yield Text(
                "seconds per trial; difference: mean over the blocks, with its 95 % t interval; the parts and what is "
                "unexplained sum to the whole; of it: the part's share, where the interval of the whole excludes zero",
                style="dim",
            )
        for found in self.explained.warnings:
            yield Text("warning: ", style="yellow").append(f"{found.message}; {found.advice}", style="default")


def _table(one: Explanation, *, narrow: bool) -> RichTable:
    columns = () if narrow else (BASELINE, one.target)
    table = empty_table(("part", *columns, "difference s", *(() if narrow else ("",)), "of it"))
    for name, part in [*with_phases(one.parts), (one.whole.name, one.whole)]:
        style = "bold" if part is one.whole else ""
        values = () if narrow else (seconds(part.baseline_s).lstrip("+"), seconds(part.target_s).lstrip("+"))
        spread = () if narrow else (interval(part),)
        table.add_row(name, *values, seconds(part.difference_s), *spread, share(part, one.whole), style=style)
    return table


def with_phases(parts: Sequence[TimeDifference]) -> Iterator[tuple[str, TimeDifference]]:
    """Yield the parts with their names, below each its phases."""
    for part in parts:
        yield part.name, part
        yield from ((f"  {phase.name}", phase) for phase in part.phases)


def step_lines(one: Explanation) -> Iterator[str]:
    """Yield how the measured steps spread on bare metal and on the target."""
    for name, found in ((BASELINE, one.baseline_steps), (one.target, one.target_steps)):
        if found:
            yield f"steps on {name}: {_steps(found)}"


def _steps(found: StepTimes) -> str:
    jitter = "" if found.jitter_s is None else f", jitter {found.jitter_s * 1e3:.3g} ms"
    return f"p50 {found.p50_s * 1e3:.3g} ms, p95 {found.p95_s * 1e3:.3g} ms, p99 {found.p99_s * 1e3:.3g} ms{jitter}"


def prediction_lines(one: Explanation) -> Iterator[str]:
    """Yield what the probes predict for each part and for the whole, and where the measurement departs from it."""
    if (found := one.prediction) is None:
        return
    yield f"predicted by the probes: {'; '.join(map(_predicted, found.predicted))}"
    silent = f"; no probe speaks for {', '.join(found.silent)}" if found.silent else ""
    yield (
        f"together {_seconds(found.difference_s, found.interval)} s predicted, "
        f"{_seconds(one.whole.difference_s, one.whole.interval)} s measured{silent}"
    )
    measured = {part.name: part for part in one.parts}
    for part in found.predicted:
        if part.parts:
            yield _sentence(f"of {part.part}", part.difference_s, measured[part.part].difference_s, part.by or "")
    if found.parts:
        yield _sentence("of the whole", found.difference_s, one.whole.difference_s, "the probes together")


def _predicted(found: Predicted) -> str:
    if found.by is None:
        return f"{found.part} {_seconds(found.difference_s, found.interval)} (measured itself)"
    return f"{found.part} {_seconds(found.difference_s, found.interval)} by {found.by}"


def _seconds(difference_s: float, ends: tuple[float, float] | None) -> str:
    return seconds(difference_s) + (f" ({seconds(ends[0])} to {seconds(ends[1])})" if ends else "")


def _sentence(what: str, predicted_s: float, measured_s: float, by: str) -> str:
    side = "more" if measured_s > predicted_s else "less"
    return (
        f"measurement and prediction differ: the cost {what} is {seconds(measured_s)} s, {side} than the "
        f"{seconds(predicted_s)} s predicted by {by}, beyond both intervals"
    )
