"""The gate: whether a run is slower than the run before. ``bench compare OLD NEW --fail-above``, and schedules."""

import os
from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from itertools import chain, product
from pathlib import Path
from typing import Any

import click

from analysis.audit.audit import audited
from analysis.compare.matching import REFUSED, other_code, other_hosts, without_code
from analysis.compare.regression import Regression, regress
from analysis.load.plans import open_ended
from analysis.load.records import Records, load, part_of, run_of
from analysis.report.gate import gate_document, gate_summary
from analysis.report.junit import junit
from analysis.report.markdown import markdown
from analysis.report.terminal import Terminal
from commands.compare.output import gate_output
from commands.output import print_json
from commands.run.options import latest
from suite.errors import RequestError
from suite.results.runs import contains, find_runs, runs_below
from suite.results.store import write_output
from suite.untrusted.console import PlainConsole


def gate(directories: Sequence[Path], options: dict[str, Any]) -> int:
    """Print whether the last directory is slower than the others; return the exit code of the outcome."""
    *named, new = directories or [latest()]
    old = [*([path] for path in named), *baselines(options["baseline"], new)]
    if not old:
        raise RequestError(
            "--fail-above compares a run with older ones",
            remedy="bench compare BEFORE… AFTER --fail-above 5%, or name them with --baseline",
        )
    across = options["across"] == "code"
    regression = judged(old, [new], options["fail_above"], force=options["force"], across_code=across)
    if options["junit"]:
        write_output(options["junit"], junit(regression))
    match options["form"]:
        case "json":
            print_json(gate_output(regression))
        case "markdown":
            click.echo(markdown(gate_summary(regression)).rstrip("\n"))
        case _:
            PlainConsole().print(Terminal(gate_document(regression)))
    return regression.exit_code


def baselines(patterns: Sequence[str], new: Path) -> list[list[Path]]:
    """Return the runs of each directory that a pattern matches, in the order of names, without ``new``.

    Links and what holds no run are passed over. Raises RequestError for a pattern that matches no run.
    """
    matches = []
    for pattern in patterns:
        places = map(Path, sorted(glob(pattern)))  # noqa: PTH207 (which takes no absolute pattern)
        old = [place for place in places if place.is_dir() and not place.is_symlink() and not place.samefile(new)]
        with_runs = [runs for place in old if (runs := find_runs([place]))]
        if not with_runs:
            raise RequestError(f"--baseline {pattern} matches no run", remedy="name runs, such as 'results/nightly/*'")
        matches += with_runs
    return matches


def judged(
    old: Sequence[Sequence[Path]],
    new: Sequence[Path],
    bound: float | None,
    *,
    force: bool = False,
    across_code: bool = False,
) -> Regression:
    """Load, audit and judge a run or sweep over older ones, each of several directories.

    With ``across_code`` those of other code are compared, too, and the change is named.
    """
    older = list(chain(*old))
    _refuse_itself(older, new)
    before, after = (_sound(load(side), force=force) for side in (older, new))
    _refuse_copies(before, after)
    change = other_code(before.trials, after.trials) if across_code else ""
    if change:
        before, after = (replace(side, trials=without_code(side.trials)) for side in (before, after))
    numbers = {run: number for number, places in enumerate(old) for run in _runs(places)}
    stopped = any(map(open_ended, after.directories))
    regression = judge(before, after, bound, force=force, open_ended=stopped, baselines=numbers)
    named = (replace(one, notes=(change, *one.notes)) for one in regression.changes)
    if change:
        return replace(regression, changes=tuple(named))
    return regression


def judge(old: Records, new: Records, fail_above: float | None, *, force: bool = False, **how: Any) -> Regression:  # noqa: ANN401 (those of ``regress``)
    """Compare the records of two runs. Raises RequestError for other hosts, other code, or nothing in common."""
    hosts = other_hosts(old.trials, new.trials)
    if hosts and not force:
        raise RequestError(
            f"the runs are of other hosts: {hosts}",
            remedy="bench compare BEFORE AFTER --by host compares hosts; --force judges them all the same",
        )
    regression = regress(old, new, fail_above, **how)
    if regression.missing and (change := other_code(old.trials, new.trials)):
        raise RequestError(f"your own code has changed: {change}", remedy="compare the two with --across code")
    if not regression.changes:
        named = "; ".join(f"{one.name}: {one.why}" for one in regression.missing) or "nothing was finished"
        if regression.added:
            only = f"; the new run alone has {', '.join(regression.added)}"
        else:
            only = ""
        raise RequestError(
            f"the runs have no cell in common ({named}{only})",
            remedy="compare runs of one plan: workload, profile, engine and every other setting must agree",
        )
    return regression


def _sound(records: Records, *, force: bool) -> Records:
    """Return records of which those that the audit refuses count as failed: a cell must not vanish with them."""
    kept = audited(records, force=force)
    if force:
        return kept
    trials = records.trials
    refused = ~trials["path"].isin(kept.trials["path"])
    why = trials["error_message"].mask(refused, REFUSED)
    return replace(kept, trials=trials.assign(ok=trials["ok"] & ~refused, error_message=why))


def _refuse_itself(old: Sequence[Path], new: Sequence[Path]) -> None:
    for before, after in product(old, new):
        if contains(before, after) or contains(after, before):
            raise RequestError(
                f"{after} would be compared with itself: {before} holds the same records",
                remedy="name two runs, or two sweeps, that lie beside each other",
            )


def _refuse_copies(old: Records, new: Records) -> None:
    """Raise RequestError where both sides hold one run: a copy of it has other paths, and the same identity."""
    places = [side.trials.drop_duplicates("run_id").set_index("run_id")["path"] for side in (old, new)]
    for run in places[0].index.intersection(places[1].index):
        before, after = (run_of(side[run]) for side in places)
        raise RequestError(
            f"{after} would be compared with itself: {before} is a copy of the same run", remedy="leave one of them out"
        )


def show_change(records: Records, directories: Sequence[Path], *, force: bool) -> None:
    """Show how the second of two pooled directories differs from the first, where one machine measured both."""
    _refuse_itself(directories[:1], directories[1:])
    sides = [part_of(records, directory) for directory in directories]
    hosts = other_hosts(*(side.trials for side in sides))
    if hosts and not force:
        shown = "no change between the runs is shown, for they are of other hosts"
        click.echo(f"{shown}: {hosts}; add --by host", err=True)
    elif all(len(side.trials) for side in sides):
        PlainConsole().print(Terminal(gate_document(regress(sides[0], sides[1]))))


def _runs(directories: Sequence[Path]) -> set[str]:
    return {str(run) for directory in directories for run in runs_below(Path(os.path.normpath(directory)))}
