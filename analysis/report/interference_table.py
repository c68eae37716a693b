"""The interference table: what victims keep beside aggressors, and what the table does not hold as lines."""

from collections.abc import Iterator

from analysis.compare.interference import SHARED_METRICS
from analysis.compare.results import ComparedJob, Comparison, Effect, Interference, Isolation, known_first
from analysis.figures import reference
from analysis.report.formatting import ends, number, ratio, times
from analysis.report.table import Head, Table
from suite.job.ablations import label_of
from suite.targets import TARGETS

TITLE = "throughput beside an aggressor, over the same alone"


def jobs_with_aggressors(comparison: Comparison) -> list[ComparedJob]:
    """Return the jobs in which something ran beside a victim."""
    return list(dict.fromkeys(one.job for one in comparison.interference))


def interference_table(comparison: Comparison, job: ComparedJob) -> Table:
    """Return victims with their aggressors below each other, targets beside each other."""
    found = comparison.of(job).interference
    targets = sorted({one.target for one in found}, key=lambda name: known_first(TARGETS, name))
    rows: dict[str, dict[str, Effect | None]] = {}
    for one in found:
        rows.setdefault(_cell(one), {})[one.target] = one.effects.get("throughput")
    notes = {name: dict.fromkeys(note for one in found if one.target == name for note in one.notes) for name in targets}
    return Table(
        "victim",
        "target",
        tuple(Head(name, tuple(notes[name])) for name in targets),
        tuple((Head(row), tuple(cells.get(name) for name in targets)) for row, cells in rows.items()),
    )


def interference_lines(comparison: Comparison, job: ComparedJob) -> Iterator[str]:
    """Yield the other metrics, what the aggressors lost themselves, the ranking, and what the paper says."""
    own = comparison.of(job)
    for one in own.interference:
        yield "; ".join(_parts(one))
    if own.isolation:
        ranked = ", ".join(map(_ranked, own.isolation))
        yield f"isolation, best first (mean over {own.isolation[0].cells} victim-aggressor pairs): {ranked}"
    if own.interference:
        yield f"{reference.SOURCE}, figure 10 (beside AlexNet at batch 512): {reference.FIGURE_10}"


def _cell(one: Interference) -> str:
    victim = f"{one.model}, {label_of(one.ablation)}," if one.ablation else one.model
    return f"{victim} beside {one.aggressor}"


def _ranked(one: Isolation) -> str:
    notes = f" ({', '.join(one.notes)})" if one.notes else ""
    return f"{one.target}{notes} {ratio(one.effect)}"


def _parts(one: Interference) -> Iterator[str]:
    yield f"{_cell(one)} on {one.target}"
    for metric in SHARED_METRICS:
        if found := one.effects.get(metric.name):
            floor = one.noise_floors.get(metric.name)
            shown = f", noise floor {number(floor.share * 100)} %" if floor else ""
            yield f"{metric.name} {ratio(found)}{shown}"
    if one.kept:
        interval = f" ({ends(one.kept.interval)})" if one.kept.interval else ""
        yield f"the aggressor kept {times(one.kept.ratio)}x{interval} of its speed before"
    alone, beside = one.steal_shares
    if alone is not None and beside is not None:
        yield f"steal {number(alone * 100)} % alone, {number(beside * 100)} % beside"
