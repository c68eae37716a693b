"""The gate: whether a run is slower than the run before. ``bench compare OLD NEW --fail-above``, and schedules."""

import os
from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import pandas as pd


def gate(directories: Sequence[Path], options: dict[str, Any]) -> int:
    """Print whether the last directory is slower than the others; return the exit code of the outcome."""
    *named, new = directories or [latest()]
    old = [[path] for path in named]
    old += baselines(options["baseline"], new)
    if not old:
        raise RequestError(
            "--fail-above compares a run with older ones",
            remedy="bench compare BEFORE… AFTER --fail-above 5%, or name them with --baseline",
        )
    regression = judged(
        old,
        [new],
        options["fail_above"],
        force=options["force"],
        across_code=options["across"] == "code",
    )
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
        directories = [place for place in places if place.is_dir() and not place.is_symlink()]
        runs_of_each = [find_runs([directory]) for directory in directories if not directory.samefile(new)]
        with_runs = [runs for runs in runs_of_each if runs]
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
    before = _sound(load(older), force=force)
    after = _sound(load(new), force=force)
    _refuse_copies(before, after)
    code_change = other_code(before.trials, after.trials) if across_code else ""
    if code_change:
        before = replace(before, trials=without_code(before.trials))
        after = replace(after, trials=without_code(after.trials))
    numbers = {}
    for number, places in enumerate(old):
        numbers.update(dict.fromkeys(_runs(places), number))
    stopped = any(map(open_ended, after.directories))
    regression = judge(before, after, bound, force=force, open_ended=stopped, baselines=numbers)
    if not code_change:
        return regression
    changes = []
    for change in regression.changes:
        notes = (code_change, *change.notes)
        changes.append(replace(change, notes=notes))
    return replace(regression, changes=tuple(changes))


def judge(
    old: Records,
    new: Records,
    fail_above: float | None,
    *,
    force: bool = False,
    **how: Any,  # noqa: ANN401 (those of ``regress``)
) -> Regression:
    """Compare the records of two runs. Raises RequestError for other hosts, other code, or nothing in common."""
    hosts = other_hosts(old.trials, new.trials)
    if hosts and not force:
        raise RequestError(
            f"the runs are of other hosts: {hosts}",
            remedy="bench compare BEFORE AFTER --by host compares hosts; --force judges them all the same",
        )
    regression = regress(old, new, fail_above, **how)
    if regression.missing:
        change = other_code(old.trials, new.trials)
        if change:
            raise RequestError(f"your own code has changed: {change}", remedy="compare the two with --across code")
    if not regression.changes:
        reasons = [f"{cell.name}: {cell.why}" for cell in regression.missing]
        why = "; ".join(reasons) or "nothing was finished"
        if regression.added:
            why += f"; the new run alone has {', '.join(regression.added)}"
        raise RequestError(
            f"the runs have no cell in common ({why})",
            remedy="compare runs of one plan: workload, profile, engine and every other setting must agree",
        )
    return regression


def _sound(records: Records, *, force: bool) -> Records:
    """Return records of which those that the audit refuses count as failed: a cell must not vanish with them."""
    kept = audited(records, force=force)
    if force:
        return kept
    trials = records.trials
    sound = trials["path"].isin(kept.trials["path"])
    ok = trials["ok"] & sound
    messages = trials["error_message"].where(sound, REFUSED)
    return replace(kept, trials=trials.assign(ok=ok, error_message=messages))


def _refuse_itself(old: Sequence[Path], new: Sequence[Path]) -> None:
    for before, after in product(old, new):
        if contains(before, after) or contains(after, before):
            raise RequestError(
                f"{after} would be compared with itself: {before} holds the same records",
                remedy="name two runs, or two sweeps, that lie beside each other",
            )


def _refuse_copies(old: Records, new: Records) -> None:
    """Raise RequestError where both sides hold one run: a copy of it has other paths, and the same identity."""
    before = _paths_by_run(old)
    after = _paths_by_run(new)
    for run in before.index.intersection(after.index):
        copied = run_of(before[run])
        raise RequestError(
            f"{run_of(after[run])} would be compared with itself: {copied} is a copy of the same run",
            remedy="leave one of them out",
        )


def _paths_by_run(records: Records) -> "pd.Series[str]":
    """Return the path of one record of each run, by the run's identity."""
    first = records.trials.drop_duplicates("run_id")
    return first.set_index("run_id")["path"]


def show_change(records: Records, directories: Sequence[Path], *, force: bool) -> None:
    """Show how the second of two pooled directories differs from the first, where one machine measured both."""
    _refuse_itself(directories[:1], directories[1:])
    sides = [part_of(records, directory) for directory in directories]
    hosts = other_hosts(*(side.trials for side in sides))
    if hosts and not force:
        shown = "no change between the runs is shown, for they are of other hosts"
        click.echo(f"{shown}: {hosts}; add --by host", err=True)
    elif all(len(side.trials) for side in sides):
        regression = regress(sides[0], sides[1])
        PlainConsole().print(Terminal(gate_document(regression)))


def _runs(directories: Sequence[Path]) -> set[str]:
    runs = set()
    for directory in directories:
        place = Path(os.path.normpath(directory))
        runs |= {str(run) for run in runs_below(place)}
    return runs
