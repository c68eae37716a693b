"""``bench sweep``: a plan file, and what becomes of it."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commands.run.options import PlanFile, positive
from commands.schedule.command import schedule
from commands.schedule.firing import schedule_run
from commands.sweep.block import element
from commands.sweep.look import plan, status
from commands.sweep.stop import cancel, stop
from suite.errors import RequestError
from suite.sweep.file import load_sweep

if TYPE_CHECKING:
    from commands.sweep.backends.registry import SweepEnd, SweepRequest
    from commands.sweep.resolve import Planned
    from suite.progress import Display, Lines
    from suite.sweep.directory import SweepDirectory
    from suite.sweep.model import Sweep


@click.group(commands=(plan, status, stop, cancel, schedule, schedule_run, element))
def sweep() -> None:
    """Measure a matrix of cells, planned in a file, resumed by itself.

    \b
    Examples:
      bench sweep plan smoke                 what will run, how long it takes, what is refused
      bench sweep run smoke                  again after Ctrl-C or a crash: continues
      bench sweep status results/smoke
    """


@sweep.command()
@click.argument("file", type=PlanFile())
@click.option("--out", type=click.Path(path_type=Path), help="Directory. Default: the plan's, else results/NAME.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, and by whom; start and write nothing.")
@click.option(
    "--only-block",
    type=int,
    callback=positive,
    help="Run this block of every cell and no other: what a scheduler gives to one machine.",
)
@click.option("--take-over", is_flag=True, help="Claims of other machines are of processes that have ended.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def run(file: Path, out: Path | None, dry_run: bool, only_block: int | None, take_over: bool, as_json: bool) -> None:
    """Run what is missing of a sweep: finished trials are kept, failed ones are tried again.

    Exit codes: 0 done, or stopped as asked; 1 some trials failed in the end; 2 the request was wrong.

    \b
    Examples:
      bench sweep run smoke                  a plan that comes with bench
      bench sweep run my/nightly.toml --out results/tuesday
      bench sweep run paper-single --dry-run
      bench sweep run smoke --only-block 3
    """
    from commands.sweep.backends.registry import SweepRequest, engine_of
    from suite.sweep.directory import SweepDirectory, default_directory

    planned = load_sweep(file)
    engine = engine_of(planned)
    if only_block is not None and only_block >= planned.element_count:
        last = planned.element_count - 1
        raise RequestError(f"--only-block {only_block}: the blocks are 0 to {last}", remedy="choose one of them")
    directory = SweepDirectory(out or default_directory(planned))
    with _observing(directory.path) as observer:
        if dry_run:
            cells = _checked_here(planned, only_block, observer.note)
            engine(SweepRequest(file, planned, directory, cells, observer, dry_run=True))
            click.echo(f"{file} can be run into {directory.path}; bench sweep plan tells what it comes to", err=True)
            return
        end = _run(SweepRequest(file, planned, directory, (), observer), only_block, take_over=take_over)
    _tell(planned, directory, end, only_block, as_json=as_json)


@contextmanager
def _observing(directory: Path) -> "Iterator[Lines | Display]":
    """The matrix, live, on a terminal; else lines."""
    from rich.console import Console

    from suite.progress import Lines

    if not sys.stderr.isatty():
        yield Lines(sys.stderr)
        return
    from commands.sweep.view import SweepDisplay

    with closing(SweepDisplay(Console(stderr=True), directory)) as display:
        yield display


def _checked_here(sweep: "Sweep", only_block: int | None, note: Callable[[str], None]) -> "list[Planned]":
    """Every cell, checked on this machine. Of what other machines run nothing: each element is checked where it runs,
    and a cluster's login node may carry no target at all.
    """
    from commands.sweep.resolve import refuse_refused, resolve

    planned = resolve(sweep, note) if only_block is not None or sweep.engine.kind == "local" else []
    refuse_refused(planned)
    return planned


def _run(request: "SweepRequest", only_block: int | None, *, take_over: bool) -> "SweepEnd":
    from dataclasses import replace

    from commands.sweep.backends.registry import engine_of, run_element
    from commands.sweep.block import this_machine
    from commands.sweep.resolve import ledger_of
    from suite.sweep.cells import cells_of
    from suite.sweep.locks import WHOLE, claimed
    from suite.sweep.pool import join_pool

    directory, note = request.directory, request.observer.note
    # Of one block alone the runner holds a claim, so that other machines can run other blocks.
    claim = claimed(directory.path, WHOLE, take_over=take_over) if only_block is None else nullcontext()
    with claim, ledger_of(directory.path):
        if only_block is not None:
            directory.refuse_changed(request.sweep)
        planned = _checked_here(request.sweep, only_block, note)
        cells = cells_of(request.sweep)
        for line in directory.changes(request.sweep, cells).lines():
            note(line)
        directory.accept(request.sweep, cells)
        request = replace(request, planned=planned)
        if only_block is not None:
            if request.sweep.engine.kind != "local":
                join_pool(directory.path, this_machine())
            return run_element(request, only_block, take_over=take_over)
        directory.clear_stop()
        return engine_of(request.sweep)(request)


def _tell(
    planned: "Sweep", directory: "SweepDirectory", end: "SweepEnd", only_block: int | None, *, as_json: bool
) -> None:
    records = directory.failed(planned.budget.retries)
    failed = [f"{name}/{record.trial_id}" for name, record in records if only_block in (None, record.block)]
    if as_json:
        told = {"name": planned.name, "directory": str(directory.path), "measured": len(end.made), "failed": failed}
        click.echo(json.dumps({**told, "ended_early": end.reason}))
    else:
        click.echo(f"{len(end.made)} trials run now, {len(failed)} failed in the end: {directory.path}", err=True)
        if end.reason:
            click.echo(f"ended early: {end.reason}; bench sweep run continues it", err=True)
        click.echo(f"see them with: bench compare {directory.path}", err=True)
    if failed:
        sys.exit(1)
