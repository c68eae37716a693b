"""The tables of a comparison."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, product, starmap

from analysis.compare.contrast_kinds import KEPT, SHARED_METRICS, STEAL, ContrastKind
from analysis.compare.published import citation, published_claims
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
    apart = len(units) > 1
    settings = differing([group.job for group in groups])
    names = [_THROUGHPUT.name if apart else _unit(groups[0])]
    if judged:
        names += _JUDGED
    rows = []
    for group in groups:
        values = [getattr(group.job, name) for name in settings]
        cell = ", ".join(filter(None, (group.model, *values)))
        for summary in group.targets:
            # "resnet50, tuned: bare-metal", and for the targets below it "  vm accelerator:tcg [1]".
            text = f"  {summary.target}"
            if summary is group.targets[0]:
                text = f"{cell}: {summary.target}"
            notes = filter(None, (*summary.substitutes, footnotes.at(group, summary)))
            head = Head(text, tuple(notes))
            cells = _overview_cells(group, summary, units_differ=apart, judged=judged)
            rows.append((head, cells))
    others = [metric.name for metric in _OTHERS]
    heads = tuple(map(Head, (*names, *others)))
    table = Table("", "", heads, tuple(rows), compact=True)
    if judged:
        return replace(table, narrower=table.only(*range(len(names))))
    return table


def _overview_cells(group: Group, summary: TargetSummary, *, units_differ: bool, judged: bool) -> tuple[Cell, ...]:
    measured = group.of_target(summary.target)
    throughput = measured.get(_THROUGHPUT.name)
    value, *judged_cells = _judged_cells(throughput)
    if units_differ and throughput:
        value = f"{value} {_unit(group)}"
    cells = [value]
    if judged:
        cells += judged_cells
    for metric in _OTHERS:
        spent = measured.get(metric.name)
        text = "-"
        if spent:
            text = f"{number(spent.value or 0.0)} {spent.metric.unit}"
        cells.append(text)
    return tuple(cells)


def _unit(group: Group) -> str:
    return next(metric.unit for metric in group.metrics if metric.name == _THROUGHPUT.name)


def differing(jobs: Sequence[ComparedJob]) -> list[str]:
    names = []
    for field in fields(ComparedJob):
        values = {getattr(job, field.name) for job in jobs}
        if len(values) > 1:
            names.append(field.name)
    return names


def _judged_cells(throughput: Contrast | None) -> tuple[Cell, ...]:
    """Return value, ratio, interval and verdict; of bare metal its value and the noise floor."""
    if throughput is None:
        return "-", "", "", ""
    value = _counted(throughput)
    if throughput.target in BASES:
        noise = ""
        if throughput.noise:
            noise = floor(throughput.noise.share)
        if noise.endswith("%"):
            noise = f"noise {noise}"
        return value, "", noise, ""
    why_not = hidden(throughput)
    ends = map(brief, throughput.interval or ())
    interval = why_not or " to ".join(ends)
    if throughput.ratio is None or throughput.verdict is None:
        return value, "", interval, ""
    over_base = "" if why_not else f"{brief(throughput.ratio)}x"
    # How many more blocks would decide is in the answer, and with every metric.
    verdict = replace(throughput.verdict, more_blocks=None)
    return value, over_base, interval, styled(verdict)


def _counted(throughput: Contrast) -> str:
    """Return the value; with its blocks where these are too few for a number that stands alone."""
    value = number(throughput.value or 0.0)
    blocks = throughput.trials
    if blocks < LEAST_BLOCKS:
        return f"{value} ({count(blocks, 'block')})"
    return value


class Footnotes:
    """The notes at the numbers of an overview, numbered in the order in which they are first asked for.

    A note says what was found; the number of its trials and the advice are shown with ``--verbose``.
    """

    def __init__(self, comparison: Comparison, stated: str) -> None:
        """Take a comparison, and the text above, whose findings need no note."""
        self._comparison = comparison
        self._stated = stated
        self._touched: dict[str, set[Touched]] = {}
        for warning in comparison.warnings:
            if warning.touches:
                touched = self._touched.setdefault(_finding(warning), set())
                touched.update(warning.touches)
        self._numbered: list[str] = []

    def at(self, group: Group, summary: TargetSummary) -> str:
        """Return the numbers of the notes at a target: ``[1,3]``; empty if there are none."""
        touching = {Touched(group.job, summary.target, model) for model in ("", group.model)}
        at_target = [text for text, touched in self._touched.items() if touching & touched]
        # A change is a warning and a mark, in the same words.
        texts = dict.fromkeys((*at_target, *summary.marks))
        numbers = [str(self._number(text)) for text in texts if text not in self._stated]
        if not numbers:
            return ""
        return f"[{','.join(numbers)}]"

    def _number(self, text: str) -> int:
        """Return the number of a note, which it is given when it is first asked for."""
        if text not in self._numbered:
            self._numbered.append(text)
        return self._numbered.index(text) + 1

    def lines(self) -> Iterator[Line]:
        """Yield the notes that were asked for, then the warnings that stand at no number, or at none that is shown."""
        for number_of_note, text in enumerate(self._numbered, start=1):
            yield Line(text, label=f"[{number_of_note}]")
        unnumbered = []
        for warning in self._comparison.warnings:
            finding = _finding(warning)
            is_shown = finding in self._numbered or finding in self._stated
            if not warning.touches or not is_shown:
                unnumbered.append(warning)
        for line in warnings(notices(unnumbered, self._comparison.jobs)):
            if line.label:
                yield line


def _finding(warning: AnalysisWarning) -> str:
    """Return the finding without the job and the model: it stands at their numbers."""
    text = warning.finding
    for touched in warning.touches:
        text = text.removeprefix(f"{touched.job}, {touched.model}: ")
        text = text.removeprefix(f"{touched.job}: ")
    return one_line(text)


def results_table(group: Group, *, full: bool = True) -> Table:
    """Return targets below each other and metrics beside each other; turned where a probe has many metrics.

    ``full``: with what supports the numbers, the expected throughput and the step tail of a training. What a workload
    measures itself has a table of its own.
    """
    metrics = [metric for metric in group.metrics if metric.model is None or metric.of_probe]
    wide = len(shown(metrics)) <= _MOST_METRICS
    cells = _estimates(group, metrics if full else shown(metrics))
    expected = []
    for summary in group.targets:
        throughput = group.of_target(summary.target).get("throughput")
        expected.append(_expected(throughput))
    if full and wide and any(expected):
        first, *others = cells.items()
        cells = dict([first, (EXPECTED, expected), *others])
    trials = [_trials(summary) for summary in group.targets]
    table = _by_target(group, {**cells, "trials": trials})
    if not wide:
        table = table.turned()
    if full:
        return replace(table, narrower=results_table(group, full=False))
    return table


def _trials(summary: TargetSummary) -> str:
    if summary.failed:
        return f"{summary.ok}, {summary.failed} failed"
    return str(summary.ok)


def _by_target(group: Group, cells: Mapping[str, Sequence[Cell]], caption: str = "") -> Table:
    heads = [Head(summary.target, summary.notes) for summary in group.targets]
    cells_of_targets = zip(*cells.values(), strict=True)
    rows = zip(heads, cells_of_targets, strict=True)
    return Table("target", "metric", tuple(map(Head, cells)), tuple(rows), caption)


def _expected(contrast: Contrast | None) -> Cell:
    if not contrast or not contrast.expected:
        return None
    return Effect(
        ratio=contrast.expected.ratio,
        blocks=contrast.blocks,
        interval=contrast.expected.interval,
    )


def own_table(group: Group, *, losses: bool) -> Table | None:
    """Return what the workload measures itself: times of epochs, latencies, last losses. None if there is nothing."""
    measured = [metric for metric in group.metrics if metric.name in group.measured]
    of_workload = [metric for metric in measured if metric.model and not metric.of_probe]
    last = _losses(group) if losses else {}
    cells = {**_estimates(group, of_workload), **last}
    if not cells:
        return None
    captions = []
    if group.epoch:
        scaled = ", scaled from a share of one" if group.epoch.name == SCALED_EPOCH else ""
        captions.append(f"time per epoch{scaled}")
    if last:
        captions.append(f"losses: the last {LATELY} steps, or all")
    table = _by_target(group, cells, "; ".join(captions))
    if len(cells) <= 2 * _MOST_METRICS:
        return table
    return table.turned()


def _losses(group: Group) -> dict[str, list[Cell]]:
    losses: dict[str, list[Cell]] = {}
    names = chain.from_iterable(summary.losses for summary in group.targets)
    for name in dict.fromkeys(names):
        losses[name] = [_number(summary.losses.get(name)) for summary in group.targets]
    return losses


def _estimates(group: Group, metrics: Iterable[Metric]) -> dict[str, list[Cell]]:
    targets = [group.of_target(summary.target) for summary in group.targets]
    estimates: dict[str, list[Cell]] = {}
    for metric in metrics:
        estimates[title(metric)] = [measured.get(metric.name) for measured in targets]
    return estimates


def kind_table(kind: ContrastKind, group: Group, arms: Mapping[Arm, Measured]) -> Table:
    """Return the arms of a kind of contrast below each other and metrics beside each other."""
    metrics = shown(kind.metrics or group.metrics)
    rows = []
    for arm, measured in arms.items():
        head = Head(named_arm(arm.target, arm.ablation), notes_of(measured))
        cells = tuple(measured.get(metric.name) for metric in metrics)
        rows.append((head, cells))
    title = kind.title or kind.name
    caption = f"{title} in the same blocks, over {kind.over}"
    heads = tuple(Head(metric.name) for metric in metrics)
    table = Table(title, "metric", heads, tuple(rows), caption)
    if len(metrics) <= _MOST_METRICS:
        return table
    return table.turned()


def title(metric: Metric) -> str:
    """Return the head of a metric; the throughput of a training goes by its unit alone."""
    if metric.name == "throughput" and not metric.model:
        return metric.unit
    return f"{metric.name} {metric.unit}".rstrip()


_COSTS: Mapping[str, Callable[[Cost], Cell]] = {
    "CPU s steps": lambda cost: _number(cost.cpu_steps_s),
    "CPU s start-up": lambda cost: _number(cost.cpu_startup_s),
    "CPU s inside": lambda cost: _number(cost.cpu_inside_s),
    "CPU s all-in": lambda cost: _number(cost.cpu_all_in_s),
    "all-in/inside": lambda cost: None if cost.all_in_to_inside is None else times(cost.all_in_to_inside),
    f"all-in to {BASELINE}": lambda cost: _over_base(cost),
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
    names = list(_COSTS) if parted else list(_COSTS)[2:]
    rows = []
    for cost in group.costs:
        cells = tuple(_COSTS[name](cost) for name in names)
        rows.append((Head(cost.target, cost.notes), cells))
    split = ""
    if parted:
        split = f"steps are the measured ones per {group.costs[0].unit}, start-up the rest of the job; "
    caption = (
        f"taken of the host per trial: {split}inside is the job by its own accounting, all-in everything that serves "
        "the target by the host's, as QEMU's own threads, which share the CPUs of a VM; memory (the peak) and disk are "
        "inside / all-in; energy is the whole host's; used is all-in, of memory its peak, and allocated the envelope, "
        "both over the elapsed time"
    )
    heads = tuple(Head(name.replace(BASELINE, group.base)) for name in names)
    return Table("target", "", heads, tuple(rows), caption)


def cost_lines(group: Group) -> Iterator[str]:
    """Yield why all-in may be less than inside, for the targets where it is."""
    for resource, why, (inside_name, all_in_name) in _BELOW:
        below = []
        for cost in group.costs:
            inside = getattr(cost, inside_name)
            all_in = getattr(cost, all_in_name)
            if inside is not None and all_in is not None and all_in < inside:
                below.append(cost.target)
        if below:
            yield f"{resource} all-in below inside ({', '.join(below)}): {why}"


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
    if value is None:
        return None
    return number(value)


def _over_base(cost: Cost) -> Cell:
    if cost.target not in BASES:
        return cost.normalised
    return None if cost.cpu_all_in_s is None else "1.000x"


def _used(used: float | None, allocated: float | None) -> Cell:
    """Return ``12.3``, ``40.0`` and ``31 %``; None where one is not known."""
    if used is None or not allocated:
        return None
    return number(used), number(allocated), percent(used / allocated)


def _both(inside: float | None, all_in: float | None) -> Cell:
    if inside is None and all_in is None:
        return None
    return (size(inside), size(all_in))


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
        contrast = measured.get(metric.name)
        if contrast and contrast.noise:
            name = f"{_victim(arm)} alone: noise floor of {metric.name}"
            rows[name][arm.target] = floor(contrast.noise.share)
    notes = notes_by_target((arm.target, notes_of(measured)) for arm, measured in victims.items())
    heads = tuple(starmap(Head, notes.items()))
    filled = []
    for name, cells in rows.items():
        if any(cells.values()):
            filled.append((Head(name), tuple(map(cells.get, notes))))
    return Table("victim", "target", heads, tuple(filled))


def _victim(arm: Arm) -> str:
    if arm.ablation:
        return f"{arm.model}, {label_of(arm.ablation)},"
    return arm.model


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
    ranked = [contrast for contrast in of_job.contrasts if contrast.kind == "isolation"]
    if ranked:
        texts = (f"{Head(contrast.target, contrast.notes)} {ratio(contrast)}" for contrast in ranked)
        pairs = f"mean over {len(ranked[0].members)} victim-aggressor pairs"
        # No verdict stands on the difference between two of them: the order is that of the numbers.
        yield f"isolation, by ratio ({pairs}): {', '.join(texts)}"
    if job in jobs_with_aggressors(of_job) and job.profile == reference.PAPER:
        sentences = []
        for claim in published_claims(reference.PAPERS_KEY):
            if "aggressor" in claim.where:
                sentences.append(claim.sentence.removeprefix("Next to another job, "))
        paper = citation(reference.PAPERS_KEY)
        yield f"{paper}, figure 10 (beside AlexNet at batch 512): {'; '.join(sentences)}"
