"""``bench sweep plan`` and ``bench sweep status``: looking, without touching anything."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.run.options import PlanFile
from suite.sweep.directory import SweepDirectory, default_directory
from suite.sweep.file import load_sweep
from suite.sweep.model import Sweep
from suite.sweep.status import SweepStatus, latest_sweep, status_of

if TYPE_CHECKING:
    from commands.sweep.resolve import Planned
    from suite.sweep.estimate import Durations

WATCH_S = 2.0
"""How often ``--watch`` looks at the claims: one directory and a file; what takes longer only when they changed."""


@click.command()
@click.argument("file", type=PlanFile())
@click.option("--out", type=click.Path(path_type=Path), help="Directory. Default: the plan's, else results/NAME.")
@click.option(
    "--estimate-from",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Earlier records to estimate the time from. Default: results/.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def plan(file: Path, out: Path | None, estimate_from: Path | None, as_json: bool) -> None:
    """Say what a sweep comes to: cells, trials, time from earlier records, and what is refused and why.

    Starts nothing and writes nothing. Exit code 2 when a cell is refused.

    \b
    Examples:
      bench sweep plan smoke
      bench sweep plan paper-single --estimate-from results/lastyear --json
    """
    from commands.sweep.backends.registry import engine_of
    from commands.sweep.resolve import resolve
    from suite.results.store import RESULTS
    from suite.sweep.estimate import durations_below

    sweep = load_sweep(file)
    engine_of(sweep)
    planned = resolve(sweep, lambda text: click.echo(text, err=True))
    directory = SweepDirectory(out or default_directory(sweep))
    told = _told(sweep, directory, planned, durations_below(estimate_from or RESULTS))
    if as_json:
        click.echo(json.dumps(told, indent=1))
    else:
        _say(told)
    if any(each.refusal for each in planned):
        sys.exit(2)


def _told(sweep: Sweep, directory: SweepDirectory, planned: "list[Planned]", durations: "Durations") -> dict[str, Any]:
    from suite.sweep.estimate import total

    cells = [_cell(sweep, directory, each, durations) for each in planned]
    runnable = [cell for cell in cells if not cell["refused"]]
    first_s, block_s = (total(cell[name] for cell in runnable) if runnable else None for name in ("first_s", "block_s"))
    known = None not in (first_s, block_s)
    return {
        "name": sweep.name,
        "directory": str(directory.path),
        "engine": sweep.engine.kind,
        "elements": sweep.element_count,
        "until": sweep.until,
        "trials": sum(cell["trials"] for cell in cells),
        "trials_left": sum(cell["trials_left"] for cell in cells),
        "element_s": block_s,
        "total_s": (first_s or 0) + (sweep.element_count - 1) * (block_s or 0) if known else None,
        "changes": directory.changes(sweep, [each.cell for each in planned]).lines(),
        "cells": cells,
    }


def _cell(sweep: Sweep, directory: SweepDirectory, each: "Planned", durations: "Durations") -> dict[str, Any]:
    """``first_s``: of the first block, with the warm-up before it; ``block_s``: of each further one."""
    told: dict[str, Any] = {"cell_id": each.cell.cell_id, "settings": each.cell.settings}
    told |= {"command": each.command, "refused": None, "remedy": None}
    if each.ready is None:
        message, remedy = (each.refusal.message, each.refusal.remedy) if each.refusal else ("refused", None)
        return {**told, "refused": message, "remedy": remedy, "targets": [], "trials": 0, "trials_left": 0}
    plan = each.ready.plan
    trials = [trial.trial_id for trial in plan.trials()]
    finished = set(directory.cell(each.cell.cell_id, sweep.budget.retries).finished())
    return {
        **told,
        "targets": list(plan.targets),
        "trials": len(trials),
        "trials_left": sum(trial not in finished for trial in trials),
        "first_s": durations.of_block(plan, 0),
        "block_s": durations.of_block(plan, 1),
    }


def _say(told: dict[str, Any]) -> None:
    from commands.sweep.view import span

    def time_of(seconds: float | None) -> str:
        return "unknown" if seconds is None else span(seconds)

    refusals: dict[str, list[str]] = {}
    for cell in told["cells"]:
        if cell["refused"]:
            reason = f"{cell['refused']} (what to do: {cell['remedy']})"
            refusals.setdefault(reason, []).append(cell["cell_id"])
        else:
            targets = ", ".join(cell["targets"])
            click.echo(f"{cell['cell_id']}: {cell['trials']} trials on {targets}; a block: {time_of(cell['block_s'])}")
    for reason, cells in refusals.items():
        click.echo(f"refused: {', '.join(cells)}: {reason}")
    for line in told["changes"]:
        click.echo(line)
    most = "at most " if told["until"] else ""
    click.echo(
        f"{len(told['cells'])} cells, {most}{told['elements']} blocks, {told['trials']} trials "
        f"({told['trials_left']} to be run) into {told['directory']}, by the engine {told['engine']}; "
        f"time: {most if told['total_s'] else ''}{time_of(told['total_s'])}"
    )


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Go on showing it until it ends.")
@click.option("--json", "as_json", is_flag=True, help="For machines; with --watch a line for each change.")
def status(directory: Path | None, watch: bool, as_json: bool) -> None:
    """How far a sweep is: its cells and targets, what is run now, how wide the intervals are, what is left.

    Without a directory: of the sweep in results/ that was begun last.

    \b
    Examples:
      bench sweep status
      bench sweep status results/nightly --watch
      bench sweep status results/nightly --json
    """
    path = directory or latest_sweep()
    seen: object = None
    while True:
        now = _stamp(path)
        if now != seen:
            seen = now
            running = _show(path, as_json=as_json, lines=watch)
        if not (watch and running):
            return
        time.sleep(WATCH_S)


def _stamp(path: Path) -> object:
    """Changes with every trial that begins or ends: claims are told, and made and removed."""
    files = sorted((path / ".claims").glob("*.json"))
    try:
        return [(file.name, file.stat().st_mtime_ns) for file in files]
    except FileNotFoundError:
        return None  # removed in between: look again


def _show(path: Path, *, as_json: bool, lines: bool) -> bool:
    """Returns whether it is running."""
    from commands.sweep.backends.registry import said_of
    from commands.sweep.resolve import enough_of
    from suite.sweep.directory import SweepDirectory

    accepted = SweepDirectory(path).accepted()
    found = status_of(path, enough_of(accepted.sweep) if accepted else None)
    engine = said_of(accepted.sweep, path) if accepted else []
    if as_json:
        _show_json(found, path, engine, indent=None if lines else 1)
    else:
        _show_table(found, path, engine)
    return found.state in ("running", "stopping")


def _show_json(found: SweepStatus, path: Path, engine: list[str], indent: int | None) -> None:
    from commands.sweep.view import widths_of

    widths = {cell.cell_id: dict(widths_of(path / cell.cell_id)) for cell in found.cells}
    told = {**found.model_dump(mode="json"), "half_widths": widths, "engine": engine}
    click.echo(json.dumps(told, indent=indent))


def _show_table(found: SweepStatus, path: Path, engine: list[str]) -> None:
    from rich.console import Console

    from commands.sweep.view import lines, matrix, widths_of

    console = Console()
    console.print(matrix(found, {cell.cell_id: widths_of(path / cell.cell_id) for cell in found.cells}))
    for line in (*lines(found), *engine):
        console.print(line, markup=False, highlight=False)
