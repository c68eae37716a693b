"""The plans of runs, and how they are to be judged: their margin, and whether they went on until they had a verdict."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from analysis.statistics.sequential import LEAST_BLOCKS
from suite.errors import RequestError
from suite.plan import Plan
from suite.request.repetitions import MARGIN
from suite.results.runs import accepted_sweep, is_run, sweep_around
from suite.results.store import stored_plan


def plan_of(run: Path) -> Plan | None:
    """Return the plan of a run; None where it has none that can be read."""
    try:
        return stored_plan(run)
    except RequestError:
        return None


@dataclass(frozen=True)
class Terms:
    """How the ratios of a job are judged."""

    margin: float = MARGIN
    """The share by which a ratio may differ from 1 and still be called equivalent."""
    looked: int | None = None
    """The blocks after which a run ``--until decided`` began to look; None where no run of the job did."""
    requested: bool = False
    """Whether the comparison was given the margin; if so, whatever it proposes repeats it."""


def terms_of(runs: Iterable[Path], requested: float | None = None) -> Terms:
    """Return the terms of what is judged together: the requested margin, else the one that the plans of its runs have.

    A run whose plan cannot be read states none. Raises RequestError where the margins differ.
    """
    plans = {}
    for run in runs:
        plan = plan_of(run)
        if plan:
            plans[run] = plan
    decides = any(plan.request and plan.request.repetitions.decides for plan in plans.values())
    margins = {run: plan.margin or MARGIN for run, plan in plans.items()}
    margin = _common(margins) if requested is None else requested
    return Terms(margin, LEAST_BLOCKS if decides else None, requested=requested is not None)


def _common(margins: Mapping[Path, float]) -> float:
    """Return the margin that all runs were planned with, the usual one without a plan. Raises RequestError."""
    differing = sorted(set(margins.values()))
    if len(differing) > 1:
        examples: dict[float, Path] = {}
        for run, margin in margins.items():
            examples.setdefault(margin, run)
        stated = ", ".join(f"{examples[margin]} {margin:.3g}" for margin in differing)
        message = f"runs that are judged together were planned with different margins: {stated}"
        raise RequestError(message, remedy=f"give the one that counts, such as --margin {differing[-1] * 100:g}%")
    return differing[0] if differing else MARGIN


def extendable(directories: Sequence[Path]) -> Path | None:
    """Return the only run, which can be continued; None for several, a sweep, and a cell, which its sweep extends."""
    only = directories[0] if len(directories) == 1 else None
    return only if only and is_run(only) and not sweep_around(only) else None


def open_ended(run: Path) -> bool:
    """Return whether a stop rule decides how many blocks a run has; of a cell, that of its sweep."""
    with suppress(RequestError):
        accepted = accepted_sweep(run.parent)
        if accepted is not None:
            return accepted.sweep.open_ended
    plan = plan_of(run)
    return bool(plan and plan.request and plan.request.repetitions.open_ended)
