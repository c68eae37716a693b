"""The tables of a comparison."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product, starmap

from analysis.compare.contrasts import KEPT, SHARED_METRICS, STEAL, ContrastKind
from analysis.compare.published import published_claims
from analysis.compare.results import (
    Arm,
    ComparedJob,
    Comparison,
    Contrast,
    Cost,
    Effect,
    Group,
    Measured,
    TargetSummary,
)
from analysis.figures import reference
from analysis.load.metrics import METRICS, Metric
from analysis.report.elements import Cell, Head, Line, Table, styled, warnings
from analysis.report.formatting import (
    brief,
    floor,
    hidden,
    notes_by_target,
    notes_of,
    one_line,
    percent,
    ratio,
    shown,
    times,
)
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.warnings.types import AnalysisWarning, Touched, notices
from suite.job.ablations import label_of, named_arm
from suite.records.columns import LATELY
from suite.records.record import SCALED_EPOCH
from suite.targets import BASELINE, BASES
from suite.units import count, number

_MOST_METRICS = 3
EXPECTED = "expected"
_JUDGED = ("ratio", "95 % interval", "verdict")
_UNITS = (("GiB", 30), ("MiB", 20), ("KiB", 10))
_THROUGHPUT, *_OTHERS = (metric for metric in METRICS if not metric.supporting)


def overview_table(groups: Sequence[Group], footnotes: "Footnotes", *, judged: bool) -> Table:
    """Return all trainings, a line for each target; what their numbers must not be read without are footnotes.

    All cells (a job and a model each) are in one table, so that four of them fit one screen. The first line of a cell
    is bare metal's. ``judged``: with ratio, interval and verdict, where the answer does not give those of all.
    """
    units = {_unit(group) for group in groups}
    apart, settings = len(units) > 1, differing([group.job for group in groups])
    names = (_THROUGHPUT.name if apart else _unit(groups[0]), *(_JUDGED if judged else ()))
    rows = []
    for group in groups:
        cell = ", ".join(filter(None, (group.model, *(getattr(group.job, name) for name in settings))))
        for summary in group.targets:
            # "resnet50, tuned: bare-metal", and for the targets below it "  vm accelerator:tcg [1]".
            text = f"{cell}: {summary.target}" if summary is group.targets[0] else f"  {summary.target}"
            head = Head(text, tuple(filter(None, (*summary.substitutes, footnotes.at(group, summary)))))
            rows.append((head, _overview_cells(group, summary, units_differ=apart, judged=judged)))
    heads = tuple(map(Head, (*names, *(metric.name for metric in _OTHERS))))
    table = Table("", "", heads, tuple(rows), compact=True)
    return replace(table, narrower=table.only(*range(len(names)))) if judged else table


def _overview_cells(group: Group, summary: TargetSummary, *, units_differ: bool, judged: bool) -> tuple[Cell, ...]:
    measured = group.of_target(summary.target)
    throughput, *spent = (measured.get(metric.name) for metric in (_THROUGHPUT, *_OTHERS))
    value, *cells = _judged_cells(throughput)
    value = f"{value} {_unit(group)}" if units_differ and throughput else value
    others = (f"{number(cell.value or 0.0)} {cell.metric.unit}" if cell else "-" for cell in spent)
    return (value, *(cells if judged else ()), *others)


def _unit(group: Group) -> str:
    return next(metric.unit for metric in group.metrics if metric.name == _THROUGHPUT.name)


def differing(jobs: Sequence[ComparedJob]) -> list[str]:
    return [field.name for field in fields(ComparedJob) if len({getattr(job, field.name) for job in jobs}) > 1]


def _judged_cells(throughput: Contrast | None) -> tuple[Cell, ...]:
    """Return value, ratio, interval and verdict; of bare metal its value and the noise floor."""
    if throughput is None:
        return "-", "", "", ""
    value = _counted(throughput)
    if throughput.target in BASES:
        text = floor(throughput.noise.share) if throughput.noise else ""
        return value, "", f"noise {text}" if text.endswith("%") else text, ""
    why_not = hidden(throughput)
    interval = why_not or " to ".join(map(brief, throughput.interval or ()))
    if throughput.ratio is None or throughput.verdict is None:
        return value, "", interval, ""
    over_base = "" if why_not else f"{brief(throughput.ratio)}x"
    # How many more blocks would decide is in the answer, and with every metric.
    return value, over_base, interval, styled(replace(throughput.verdict, more_blocks=None))


def _counted(throughput: Contrast) -> str:
    """Return the value; with its blocks where these are too few for a number that stands alone."""
    value, blocks = number(throughput.value or 0.0), throughput.trials
    return f"{value} ({count(blocks, 'block')})" if blocks < LEAST_BLOCKS else value


class Footnotes:
    """The notes at the numbers of an overview, numbered in the order in which they are first asked for.

    A note says what was found; the number of its trials and the advice are shown with ``--verbose``.
    """

    def __init__(self, comparison: Comparison, stated: str) -> None:
        """Take a comparison, and the text above, whose findings need no note."""
        self._comparison, self._stated = comparison, stated
        self._touched: dict[str, set[Touched]] = {}
        for warning in comparison.warnings:
            if warning.touches:
                self._touched.setdefault(_finding(warning), set()).update(warning.touches)
        self._numbered: list[str] = []

    def at(self, group: Group, summary: TargetSummary) -> str:
        """Return the numbers of the notes at a target: ``[1,3]``; empty if there are none."""
        own = {Touched(group.job, summary.target, model) for model in ("", group.model)}
        # A change is a warning and a mark, in the same words.
        at_target = dict.fromkeys((*(text for text, touched in self._touched.items() if own & touched), *summary.marks))
        texts = [text for text in at_target if text not in self._stated]
        self._numbered += [text for text in texts if text not in self._numbered]
        return f"[{','.join(str(self._numbered.index(text) + 1) for text in texts)}]" if texts else ""

    def lines(self) -> Iterator[Line]:
        """Yield the notes that were asked for, then the warnings that stand at no number, or at none that is shown."""
        yield from (Line(text, label=f"[{place}]") for place, text in enumerate(self._numbered, start=1))
        left = [
            one
            for one in self._comparison.warnings
            if not one.touches or (_finding(one) not in {*self._numbered} and _finding(one) not in self._stated)
        ]
        yield from (line for line in warnings(notices(left, self._comparison.jobs)) if line.label)


def _finding(warning: AnalysisWarning) -> str:
    """Return the finding without the job and the model: it stands at their numbers."""
    text = warning.finding
    for touched in warning.touches:
        text = text.removeprefix(f"{touched.job}, {touched.model}: ").removeprefix(f"{touched.job}: ")
    return one_line(text)


def results_table(group: Group, *, full: bool = True) -> Table:
    """Return targets below each other and metrics beside each other; turned where a probe has many metrics.

    ``full``: with what supports the numbers, the expected throughput and the step tail of a training. What a workload
    measures itself has a table of its own.
    """
    metrics = [metric for metric in group.metrics if metric.model is None or metric.of_probe]
    wide = len(shown(metrics)) <= _MOST_METRICS
    cells = _estimates(group, metrics if full else shown(metrics))
    expected = [_expected(group.of_target(summary.target).get("throughput")) for summary in group.targets]
    if full and wide and any(expected):
        first, *others = cells.items()
        cells = dict([first, (EXPECTED, expected), *others])
    trials = [f"{summary.ok}{f', {summary.failed} failed' * bool(summary.failed)}" for summary in group.targets]
    table = _by_target(group, {**cells, "trials": trials})
    table = table if wide else table.turned()
    return replace(table, narrower=results_table(group, full=False)) if full else table


def _by_target(group: Group, cells: Mapping[str, Sequence[Cell]], caption: str = "") -> Table:
    heads = [Head(summary.target, summary.notes) for summary in group.targets]
    rows = tuple(zip(heads, zip(*cells.values(), strict=True), strict=True))
    return Table("target", "metric", tuple(map(Head, cells)), rows, caption)


def _expected(contrast: Contrast | None) -> Cell:
    if not contrast or not contrast.expected:
        return None
    return Effect(ratio=contrast.expected.ratio, blocks=contrast.blocks, interval=contrast.expected.interval)


def own_table(group: Group, *, losses: bool) -> Table | None:
    """Return what the workload measures itself: times of epochs, latencies, last losses. None if there is nothing."""
    own = [each for each in group.metrics if each.model and not each.of_probe and each.name in group.measured]
    last = _losses(group) if losses else {}
    if not (cells := {**_estimates(group, own), **last}):
        return None
    scaled = ", scaled from a share of one" if group.epoch and group.epoch.name == SCALED_EPOCH else ""
    captions = [f"time per epoch{scaled}"] if group.epoch else []
    captions += [f"losses: the last {LATELY} steps, or all"] if last else []
    table = _by_target(group, cells, "; ".join(captions))
    return table if len(cells) <= 2 * _MOST_METRICS else table.turned()


def _losses(group: Group) -> dict[str, list[Cell]]:
    names = dict.fromkeys(name for summary in group.targets for name in summary.losses)
    return {name: [_number(summary.losses.get(name)) for summary in group.targets] for name in names}


def _estimates(group: Group, metrics: Iterable[Metric]) -> dict[str, list[Cell]]:
    targets = [group.of_target(summary.target) for summary in group.targets]
    return {title(metric): [measured.get(metric.name) for measured in targets] for metric in metrics}


def kind_table(kind: ContrastKind, group: Group, arms: Mapping[Arm, Measured]) -> Table:
    """Return the arms of a kind of contrast below each other and metrics beside each other."""
    metrics = shown(kind.metrics or group.metrics)
    heads = (Head(named_arm(arm.target, arm.ablation), notes_of(measured)) for arm, measured in arms.items())
    cells = (tuple(measured.get(metric.name) for metric in metrics) for measured in arms.values())
    rows = tuple(zip(heads, cells, strict=True))
    title = kind.title or kind.name
    caption = f"{title} in the same blocks, over {kind.over}"
    table = Table(title, "metric", tuple(Head(metric.name) for metric in metrics), rows, caption)
    return table if len(metrics) <= _MOST_METRICS else table.turned()


def title(metric: Metric) -> str:
    """Return the head of a metric; the throughput of a training goes by its unit alone."""
    return metric.unit if metric.name == "throughput" and not metric.model else f"{metric.name} {metric.unit}".rstrip()


_COSTS: Mapping[str, Callable[[Cost], Cell]] = {
    "CPU s steps": lambda cost: _number(cost.cpu_steps_s),
    "CPU s start-up": lambda cost: _number(cost.cpu_startup_s),
    "CPU s inside": lambda cost: _number(cost.cpu_inside_s),
    "CPU s all-in": lambda cost: _number(cost.cpu_all_in_s),
    "all-in/inside": lambda cost: None if cost.all_in_to_inside is None else times(cost.all_in_to_inside),
    f"all-in to {BASELINE}": lambda cost: (
        cost.normalised if cost.target not in BASES else None if cost.cpu_all_in_s is None else "1.000x"
    ),
    "memory": lambda cost: _both(cost.memory_inside_bytes, cost.memory_all_in_bytes),
    "disk read": lambda cost: _both(cost.disk_read_inside_bytes, cost.disk_read_all_in_bytes),
    "disk written": lambda cost: _both(cost.disk_written_inside_bytes, cost.disk_written_all_in_bytes),
    "energy J": lambda cost: _number(cost.energy_j),
    "CPU s used / allocated": lambda cost: _used(cost.cpu_all_in_s, cost.cpu_allocated_s),
    "GiB s used / allocated": lambda cost: _used(cost.memory_used_gib_s, cost.memory_allocated_gib_s),
}


def cost_table(group: Group) -> Table:
    """Return targets below each other and resources beside each other; no rows where nothing is known."""
    parted = not group.job.traits.probes  # which have no steps, of which the first two columns are
    cells = _COSTS if parted else dict([*_COSTS.items()][2:])
    rows = tuple((Head(cost.target, cost.notes), tuple(cell(cost) for cell in cells.values())) for cost in group.costs)
    split = f"steps are the measured ones per {group.costs[0].unit}, start-up the rest of the job; " if parted else ""
    caption = (
        f"taken of the host per trial: {split}inside is the job by its own accounting, all-in everything that serves "
        "the target by the host's; memory (the peak) and disk are inside / all-in; energy is the whole host's; used is "
        "all-in, of memory its peak, and allocated the envelope, both over the elapsed time"
    )
    heads = tuple(Head(name.replace(BASELINE, group.base)) for name in cells)
    return Table("target", "", heads, rows, caption)


def cost_lines(group: Group) -> Iterator[str]:
    """Yield why all-in may be less than inside, for the targets where it is."""
    for what, why, (inside, all_in) in _BELOW:
        pairs = ((cost.target, getattr(cost, inside), getattr(cost, all_in)) for cost in group.costs)
        if below := [target for target, own, whole in pairs if None not in (own, whole) and whole < own]:
            yield f"{what} all-in below inside ({', '.join(below)}): {why}"


_BELOW = (
    (
        "CPU seconds",
        "the clock inside runs on while the host gives a guest's CPUs to other work; all-in is the host's own count",
        ("cpu_inside_s", "cpu_all_in_s"),
    ),
    (
        "memory",
        "inside counts mapped files whole, the host charges them to whoever read them first",
        ("memory_inside_bytes", "memory_all_in_bytes"),
    ),
)


def _number(value: float | None) -> str | None:
    return None if value is None else number(value)


def _used(used: float | None, allocated: float | None) -> Cell:
    """Return ``12.3``, ``40.0`` and ``31 %``; None where one is not known."""
    if used is None or not allocated:
        return None
    return number(used), number(allocated), percent(used / allocated)


def _both(inside: float | None, all_in: float | None) -> Cell:
    return None if inside is None and all_in is None else (size(inside), size(all_in))


def size(value: float | None) -> str:
    """Return a size as text, ``1.25 GiB``; a dash where it is not known."""
    if value is None:
        return "-"
    for unit, bits in _UNITS:
        if value >= 1 << bits:
            return f"{number(value / (1 << bits))} {unit}"
    return f"{value:.0f} B"


TITLE = "beside an aggressor, over the same victim alone"


def jobs_with_aggressors(comparison: Comparison) -> list[ComparedJob]:
    return list(dict.fromkeys(arm.job for arm in comparison.of_kind("aggressor")))


def interference_table(comparison: Comparison, job: ComparedJob) -> Table:
    """Return the metrics of victims beside aggressors below each other, targets beside each other."""
    of_job = comparison.of(job)
    victims = of_job.of_kind("aggressor")
    rows: dict[str, dict[str, Cell]] = defaultdict(dict)
    for arm, measured in victims.items():
        for name, cell in _beside(of_job, arm, measured):
            rows[name][arm.target] = cell
    for (arm, measured), metric in product(victims.items(), SHARED_METRICS):
        if metric.name in measured and (noise := measured[metric.name].noise):
            rows[f"{_victim(arm)} alone: noise floor of {metric.name}"][arm.target] = floor(noise.share)
    noted = ((arm.target, notes_of(measured)) for arm, measured in victims.items())
    heads = tuple(starmap(Head, notes_by_target(noted).items()))
    known = {row: tuple(cells.get(head.text) for head in heads) for row, cells in rows.items() if any(cells.values())}
    return Table("victim", "target", heads, tuple((Head(row), cells) for row, cells in known.items()))


def _victim(arm: Arm) -> str:
    return f"{arm.model}, {label_of(arm.ablation)}," if arm.ablation else arm.model


def _beside(of_job: Comparison, arm: Arm, measured: Measured) -> Iterator[tuple[str, Cell]]:
    """Yield each row of a victim beside an aggressor: the metrics over those alone, and what both had to share."""
    beside = f"{_victim(arm)} beside {arm.aggressor}:"
    for metric in SHARED_METRICS:
        yield f"{beside} {metric.name}", measured.get(metric.name)
    yield f"{beside} the aggressor's speed over that before", of_job.of_kind("kept").get(arm, {}).get(KEPT.name)
    steal = of_job.of_kind("steal")
    shares = [steal.get(side, {}).get(STEAL.name) for side in (arm._replace(aggressor=""), arm)]
    texts = tuple(f"{number(share.value * 100)} %" for share in shares if share and share.value is not None)
    yield f"{beside} steal alone / beside", texts if len(texts) == len(shares) else None


def interference_lines(comparison: Comparison, job: ComparedJob) -> Iterator[str]:
    """Yield the ranking of the targets, and what the paper says."""
    of_job = comparison.of(job)
    if ranked := [contrast for contrast in of_job.contrasts if contrast.kind == "isolation"]:
        texts = (f"{Head(contrast.target, contrast.notes)} {ratio(contrast)}" for contrast in ranked)
        pairs = f"mean over {len(ranked[0].members)} victim-aggressor pairs"
        # No verdict stands on the difference between two of them: the order is that of the numbers.
        yield f"isolation, by ratio ({pairs}): {', '.join(texts)}"
    if job in jobs_with_aggressors(of_job) and job.profile == reference.PAPER:
        claims = [claim for claim in published_claims(reference.PAPERS_KEY) if "aggressor" in claim.where]
        sentences = (claim.sentence.removeprefix("Beside another job, ") for claim in claims)
        yield f"{claims[0].cited}, figure 10 (beside AlexNet at batch 512): {'; '.join(sentences)}"
