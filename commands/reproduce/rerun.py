"""A rerun of a paper and a pack of earlier records: what both need to have in common, and whether they agree."""

from collections.abc import Callable, Sequence
from itertools import chain, product
from operator import attrgetter
from pathlib import Path

import click

from analysis.audit.audit import audited
from analysis.compare.matching import other_hosts
from analysis.compare.rerun import Facts, compare_rerun, facts_of
from analysis.load.records import load, part_of, run_of
from analysis.report.sweeps.rerun import rerun_document
from analysis.report.terminal import Terminal
from commands.sweep.resolve import Planned
from suite.differ import differ
from suite.errors import RequestError
from suite.plan import Plan
from suite.request.next_step import NextStep
from suite.results.runs import runs_below
from suite.results.store import PLAN, stored_plan
from suite.sweep.directory import SweepDirectory
from suite.untrusted.console import PlainConsole

_RUN_ID = attrgetter("run_id")
_MOST_NAMED = 4
"""The differences of two jobs that a message names."""


def check_rerun(planned: Sequence[Planned], directory: SweepDirectory, pack: Path, runs: Sequence[Path]) -> None:
    """Check before anything is measured that a plan can be held against the runs of a pack.

    Raises RequestError if the pack has none of its jobs, or is of the very runs that would go on.
    """
    ready = []
    for cell in planned:
        if cell.ready:
            ready.append(cell.ready.plan)
    earlier = _plans_below(*runs)
    if not earlier:
        raise RequestError(f"{pack} holds no run with a plan", remedy="name a pack of bench results pack")
    # What waits for its data, or is refused, has no job yet that could be held against others.
    if len(ready) == len(planned):
        refuse_other_jobs(_facts(ready), _facts(earlier), pack)
    if directory.path.exists():
        begun = set(map(_RUN_ID, _plans_below(directory.path)))
        if not begun.isdisjoint(map(_RUN_ID, earlier)):
            raise RequestError(
                f"{directory.path} holds the runs that {pack} was made of: they agree with themselves",
                remedy="measure them again: --out ANOTHER",
            )


def refuse_other_jobs(planned: Sequence[Facts], earlier: Sequence[Facts], pack: Path) -> None:
    """Raise RequestError, with the job that is most alike, if a pack has none of the jobs of a plan."""
    pairs = []
    for held, job in product(earlier, planned):
        pairs.append(list(differ(held, job)))
    closest = min(pairs, key=len)
    if not closest:
        return
    differences = [fact.against for fact in closest]
    text = ", ".join(differences[:_MOST_NAMED])
    if differences[_MOST_NAMED:]:
        text += f" and {len(differences) - _MOST_NAMED} more"
    raise RequestError(
        f"{pack} has no job of this plan: the one that is most alike has {text}",
        remedy="measure what the pack has: --plan, --profile, --scenario and --model choose it; or leave out --expect",
    )


def _plans_below(*places: Path) -> list[Plan]:
    plans = []
    for run in chain.from_iterable(map(runs_below, places)):
        if (run / PLAN).is_file():
            plans.append(stored_plan(run))
    return plans


def _facts(plans: Sequence[Plan]) -> list[Facts]:
    jobs = chain.from_iterable(plan.jobs for plan in plans)
    return list(map(facts_of, jobs))


def show_rerun(
    pack: Path,
    runs: Sequence[Path],
    directory: Path,
    further: Callable[[int], NextStep | None],
) -> None:
    """Print whether the records below a directory agree with those of a pack, whose runs these are.

    ``further`` returns the command that goes on to a number of blocks.
    """
    click.echo(f"\n{directory} compared with {pack}\n")
    records = audited(load([*runs, directory]))
    rerun = part_of(records, directory).trials
    earlier = records.trials[~records.trials["path"].map(run_of).isin(rerun["path"].map(run_of))]
    hosts = other_hosts(earlier, rerun)
    if hosts:
        click.echo(f"of other machines ({hosts}): what each target has over bare metal is compared")
    comparison = compare_rerun(records, directory)
    PlainConsole().print(Terminal(rerun_document(comparison, further, elsewhere=bool(hosts))))
