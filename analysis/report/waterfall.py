"""Explanations for the terminal, and their lines for the page."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from analysis.explain.explanation import Difference, Explained, Explanation, Predicted
from analysis.report.formatting import ablation_line, seconds
from analysis.report.terminal import empty_table
from analysis.statistics.ratios import StepTimes
from suite.targets import BASELINE


def share(part: Difference, whole: Difference) -> str:
    """Return the share of a part in the whole difference, ``34 %``; empty where the whole is nothing."""
    return f"{round(100 * part.difference_s / whole.difference_s) + 0.0:.0f} %" if whole.difference_s else ""


def interval(part: Difference) -> str:
    """Return the interval of a difference in seconds; empty where it has none."""
    return "" if part.interval is None else f"{seconds(part.interval[0])} to {seconds(part.interval[1])}"


class Waterfall:
    """Explanations to print on a rich console; then the warnings."""

    def __init__(self, explained: Explained) -> None:
        self.explained = explained

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
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
                "unexplained sum to the whole",
                style="dim",
            )
        for found in self.explained.warnings:
            yield Text("warning: ", style="yellow").append(f"{found.message}; {found.advice}", style="default")


def _table(one: Explanation, *, narrow: bool) -> RichTable:
    columns = () if narrow else (BASELINE, one.target)
    table = empty_table(("part", *columns, "difference s", *(() if narrow else ("",)), "of it"))
    for part in (*one.parts, one.whole):
        style = "bold" if part is one.whole else ""
        values = () if narrow else (seconds(part.baseline_s).lstrip("+"), seconds(part.target_s).lstrip("+"))
        spread = () if narrow else (interval(part),)
        table.add_row(part.name, *values, seconds(part.difference_s), *spread, share(part, one.whole), style=style)
    return table


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
