"""Victims beside aggressors in words and as a matrix, the same for the terminal, Markdown and the page."""

from collections.abc import Iterator

from analysis.compare.interference import SHARED_METRICS
from analysis.compare.results import Comparison, Interference, Isolation, Job, known_first, switched
from analysis.figures import reference
from analysis.report.formatting import ends, number, ratio, times
from analysis.report.grid import Grid, Head
from suite.job.sharing import aggressor_names

TITLE = "throughput beside an aggressor, over the same alone"


def jobs(comparison: Comparison) -> list[Job]:
    """Those in which something ran beside a victim."""
    return list(dict.fromkeys(one.job for one in comparison.interference))


def matrix(comparison: Comparison, job: Job) -> Grid:
    """Victims and targets below each other, aggressors beside each other."""
    mine = [one for one in comparison.interference if one.job == job]
    aggressors = sorted({one.aggressor for one in mine}, key=lambda name: known_first(aggressor_names(), name))
    cells = {(_row(one), one.aggressor): _cell(one) for one in mine}
    notes: dict[str, dict[str, None]] = {}
    for one in mine:
        notes.setdefault(_row(one), {}).update(dict.fromkeys(one.notes))
    rows = tuple(
        (Head(row, tuple(found)), tuple(cells.get((row, name)) for name in aggressors)) for row, found in notes.items()
    )
    return Grid("victim", tuple(Head(f"beside {name}") for name in aggressors), rows)


def _row(one: Interference) -> str:
    return f"{one.model} on {one.target}" + (f", {switched(one.ablation)}" if one.ablation else "")


def _cell(one: Interference) -> str | None:
    found = one.effects.get("throughput")
    return ratio(found) if found else None


def lines(comparison: Comparison, job: Job) -> Iterator[str]:
    """What the matrix does not hold: the other metrics, the aggressors' own loss, the ranking, the paper's words."""
    for one in comparison.interference:
        if one.job == job:
            yield "; ".join(_parts(one))
    if ranked := [one for one in comparison.isolation if one.job == job]:
        cells = ranked[0].cells
        yield f"isolation, best first (mean over {cells} victim-aggressor pairs): " + ", ".join(map(_ranked, ranked))
    if job in jobs(comparison):
        yield f"{reference.SOURCE}, figure 10 (beside AlexNet at batch 512): {reference.FIGURE_10}"


def _ranked(one: Isolation) -> str:
    notes = f" ({', '.join(one.notes)})" if one.notes else ""
    return f"{one.target}{notes} {ratio(one.effect)}"


def _parts(one: Interference) -> Iterator[str]:
    yield f"{_row(one)} beside {one.aggressor}"
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
