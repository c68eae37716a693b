"""The interference table: what victims keep beside aggressors; the ranking of the targets as a line."""

from collections import defaultdict
from collections.abc import Iterator

from analysis.compare.interference import SHARED_METRICS
from analysis.compare.results import ComparedJob, Comparison, Interference, known_first
from analysis.figures import reference
from analysis.report.formatting import floor, number, ratio
from analysis.report.table import Cell, Head, Table
from suite.job.ablations import label_of
from suite.targets import TARGETS

TITLE = "beside an aggressor, over the same victim alone"


def jobs_with_aggressors(comparison: Comparison) -> list[ComparedJob]:
    """Return the jobs in which something ran beside a victim."""
    return list(dict.fromkeys(one.job for one in comparison.interference))


def interference_table(comparison: Comparison, job: ComparedJob) -> Table:
    """Return the metrics of victims beside aggressors below each other, targets beside each other."""
    found = comparison.of(job).interference
    targets = sorted({one.target for one in found}, key=lambda name: known_first(TARGETS, name))
    rows: dict[str, dict[str, Cell]] = defaultdict(dict)
    for facts in (_beside, _alone):
        for one in found:
            for name, cell in facts(one, f"{one.model}, {label_of(one.ablation)}," if one.ablation else one.model):
                rows[name][one.target] = cell
    notes = {name: dict.fromkeys(note for one in found if one.target == name for note in one.notes) for name in targets}
    heads = tuple(Head(name, tuple(notes[name])) for name in targets)
    known = {row: tuple(cells.get(name) for name in targets) for row, cells in rows.items() if any(cells.values())}
    return Table("victim", "target", heads, tuple((Head(row), cells) for row, cells in known.items()))


def _beside(one: Interference, victim: str) -> Iterator[tuple[str, Cell]]:
    """Yield each row of a victim beside an aggressor: the metrics over those alone, and what both had to share."""
    beside = f"{victim} beside {one.aggressor}:"
    for metric in SHARED_METRICS:
        yield f"{beside} {metric.name}", one.effects.get(metric.name)
    yield f"{beside} the aggressor's speed over that before", one.kept
    shares = [f"{number(share * 100)} %" for share in one.steal_shares if share is not None]
    yield f"{beside} steal alone / beside", tuple(shares) if len(shares) == len(one.steal_shares) else None


def _alone(one: Interference, victim: str) -> Iterator[tuple[str, Cell]]:
    for metric in SHARED_METRICS:
        known = one.noise_floors.get(metric.name)
        yield f"{victim} alone: noise floor of {metric.name}", floor(known.share) if known else None


def interference_lines(comparison: Comparison, job: ComparedJob) -> Iterator[str]:
    """Yield the ranking of the targets, and what the paper says."""
    own = comparison.of(job)
    if own.isolation:
        ranked = (f"{Head(one.target, one.notes)} {ratio(one.effect)}" for one in own.isolation)
        pairs = f"mean over {own.isolation[0].cells} victim-aggressor pairs"
        yield f"isolation, best first ({pairs}): {', '.join(ranked)}"
    if own.interference:
        yield f"{reference.SOURCE}, figure 10 (beside AlexNet at batch 512): {reference.FIGURE_10}"
