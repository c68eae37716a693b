"""The overview: a line for each target of every training, and below it what its numbers must not be read without.

All cells (a job and a model each) are in one table, so that four of them fit one screen. The first line of a cell is
bare metal's. A number in brackets leads to a note below the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from analysis.compare.results import ComparedJob, Comparison, Estimate, Group, TargetSummary
from analysis.load.metrics import METRICS
from analysis.report.formatting import floor, number, one_line, ratio, times, verdict
from analysis.report.layout import empty_table, fits
from analysis.statistics.ratios import Verdict
from analysis.warnings.types import AnalysisWarning, Touched, notices
from suite.targets import BASELINE

VERDICTS = {
    "slower": "red",
    "faster": "green",
    "equivalent": "cyan",
    "undecided": "dim",
    "tail": "yellow",
    "typical-only": "yellow",
}
"""The styles of the verdicts."""
_THROUGHPUT, *_TIMES = (metric for metric in METRICS if not metric.supporting)


def verdict_text(found: Verdict) -> Text:
    """Return a verdict in its style; one that does not stand has none."""
    return Text(verdict(found), style=VERDICTS[found.given] if found.given else "dim")


class Notes:
    """The notes at the numbers of a comparison, numbered in the order in which they are first asked for.

    A note says what was found; how many trials it is about, and what to do, is told with ``--verbose``.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._touched: dict[str, set[Touched]] = {}
        for one in comparison.warnings:
            if one.touches:
                self._touched.setdefault(_finding(one), set()).update(one.touches)
        self._told: list[str] = []

    def at(self, group: Group, summary: TargetSummary) -> str:
        """Return the numbers of the notes at a target: ``[1,3]``; empty where there are none."""
        own = {Touched(group.job, summary.target, model) for model in ("", group.model)}
        found = (*(text for text, touched in self._touched.items() if own & touched), *summary.marks)
        texts = dict.fromkeys(found)  # a change is a warning and a mark, in the same words
        self._told += [text for text in texts if text not in self._told]
        return f"[{','.join(str(self._told.index(text) + 1) for text in texts)}]" if texts else ""

    def lines(self) -> Iterator[Text]:
        """Yield the notes that were asked for, then the warnings that stand at no number, or at none that is shown."""
        for place, text in enumerate(self._told, start=1):
            yield Text(f"[{place}] ", style="yellow").append(text, style="default")
        left = [one for one in self._comparison.warnings if not one.touches or _finding(one) not in self._told]
        for one in notices(left, self._comparison.jobs):
            yield Text("warning: ", style="yellow").append(one_line(one.message), style="default")


def _finding(one: AnalysisWarning) -> str:
    """Return what was found, without the job and the model: it stands at their numbers."""
    text = one.finding
    for touched in one.touches:
        text = text.removeprefix(f"{touched.job}, {touched.model}: ").removeprefix(f"{touched.job}: ")
    return one_line(text)


class Overview:
    """The table of all trainings to print on a rich console; a list where the terminal is too narrow for it."""

    def __init__(self, groups: Sequence[Group], notes: Notes) -> None:
        self.groups = groups
        self.rows = [(group, summary, _head(self.groups, group, summary, notes)) for group, summary in _lines(groups)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # What jobs differ in stands at their lines.
        common = replace(self.groups[0].job, **dict.fromkeys(_differing(self.groups), ""))
        yield Text(str(common), style="dim")
        wide, narrow = (self._table(times_too=times_too) for times_too in (True, False))
        if console.measure(wide, options=options.update(max_width=10_000)).maximum <= options.max_width:
            yield wide
            return
        if fits(console, options, narrow, [head.plain for *_, head in self.rows]):
            yield narrow
            return
        for group, summary, head in self.rows:
            found = summary.estimates.get(_THROUGHPUT.name)
            value = f"{number(found.value)} {_unit(group)} {ratio(found)}".rstrip() if found else "-"
            yield Text.assemble(head, ": ", value)

    def _table(self, *, times_too: bool) -> Table:
        more = [metric.name for metric in _TIMES] if times_too else []
        units = {_unit(group) for group in self.groups}
        alike = len(units) == 1
        table = empty_table(
            ("", units.pop() if alike else _THROUGHPUT.name, "ratio", "95 % interval", "verdict", *more), gap=1
        )
        for group, summary, head in self.rows:
            found = summary.estimates.get(_THROUGHPUT.name)
            spent = [summary.estimates.get(name) for name in more]
            spans = [f"{number(one.value)} s" if one else "-" for one in spent]
            value, *cells = _cells(group, summary, found)
            table.add_row(head, value if alike or not found else f"{value} {_unit(group)}", *cells, *spans)
        return table


def _unit(group: Group) -> str:
    return next(metric.unit for metric in group.metrics if metric.name == _THROUGHPUT.name)


def _differing(groups: Sequence[Group]) -> list[str]:
    """Return the names of what is not the same in all jobs."""
    names = [one.name for one in fields(ComparedJob)]
    return [name for name in names if len({getattr(group.job, name) for group in groups}) > 1]


def _lines(groups: Sequence[Group]) -> Iterator[tuple[Group, TargetSummary]]:
    for group in groups:
        for summary in group.targets:
            yield group, summary


def _head(groups: Sequence[Group], group: Group, summary: TargetSummary, notes: Notes) -> Text:
    """Return ``resnet50, tuned: bare-metal``, or for the targets below it ``  vm accelerator:tcg [1]``."""
    cell = ", ".join(filter(None, (group.model, *(getattr(group.job, name) for name in _differing(groups)))))
    text = Text(f"{cell}: {summary.target}" if summary is group.targets[0] else f"  {summary.target}")
    for note in (*summary.substitutes, notes.at(group, summary)):
        text.append(f" {note}" if note else "", style="yellow")
    return text


def _cells(group: Group, summary: TargetSummary, found: Estimate | None) -> tuple[Text | str, ...]:
    """Return value, ratio, interval and verdict; of bare metal its value and the noise floor."""
    if found is None:
        return "-", "", "", ""
    value = number(found.value)
    if summary.target == BASELINE:
        known = group.noise_floors.get(_THROUGHPUT.name)
        text = floor(known.share) if known else ""
        return value, "", f"noise {text}" if text.endswith("%") else text, ""
    interval = " to ".join(map(_short, found.interval)) if found.interval else ""
    if found.ratio is None or found.verdict is None:
        return value, "", interval, ""
    # How many more blocks would decide is in the answer, and with every metric.
    return value, f"{_short(found.ratio)}x", interval, verdict_text(replace(found.verdict, more_blocks=None))


def _short(ratio: float) -> str:
    """Return a ratio in the width that a line has for it."""
    return times(ratio) if ratio >= 0.1 else f"{ratio:.2g}"
