"""``bench sweep`` and ``bench sweep run``."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import click

from commands.lazy import SuggestingGroup
from commands.output import Output
from commands.paths import UserPath
from commands.run.options import BUSY_HELP, number
from commands.run.prepare import observing
from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, backend_of
from commands.sweep.backends.local import run_block
from commands.sweep.block import block, this_machine
from commands.sweep.firing import schedule_run
from commands.sweep.plan import described, plan, show
from commands.sweep.resolve import PlanFile, Planned, resolve_all
from commands.sweep.schedule import schedule
from commands.sweep.status import SweepDisplay, cancel, status, stop
from provisioning import ledger, neighbours
from provisioning.neighbours import Busy
from suite.errors import RequestError
from suite.results.store import StopRequest, clear_stop, stop_request
from suite.sweep.cells import cells_of
from suite.sweep.directory import SweepDirectory, default_directory
from suite.sweep.file import Sweep, load_sweep
from suite.sweep.locks import WHOLE, locked
from suite.sweep.pool import join_pool
from suite.units import count


class SweepOutput(Output):
    """A sweep that has ended: ``measured`` counts the trials of this call, ``failed`` names those of all calls."""

    name: str
    directory: str
    measured: int
    failed: list[str]
    ended_early: str | None
    """Why trials are left; None where none is."""


@click.group(cls=SuggestingGroup, commands=(plan, status, stop, cancel, schedule, schedule_run, block))
def sweep() -> None:
    """Measure the cells of a plan file, also after an interruption.

    \b
    Examples:
      bench sweep plan smoke                 trials, time and refusals
      bench sweep run smoke                  again after Ctrl-C or a crash: continues
      bench sweep status results/smoke
    """


@sweep.command()
@click.argument("file", type=PlanFile())
@click.option("--out", type=UserPath(), help="Directory. Default: the plan's, else results/NAME.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and where; start and write nothing.")
@number("--only-block", help="Run only this block of every cell, the unit that schedulers hand out.")
@click.option(
    "--take-over", is_flag=True, help="Take over locks of other machines. Use it only if their processes have ended."
)
@click.option("--concurrent", "busy", flag_value="share", help=BUSY_HELP["share"])
@click.option("--wait", "busy", flag_value="wait", help=BUSY_HELP["wait"])
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def run(
    file: Path,
    out: Path | None,
    dry_run: bool,
    only_block: int | None,
    take_over: bool,
    busy: Busy | None,
    as_json: bool,
) -> None:
    """Run the missing trials of a sweep.

    Finished ones are kept, failed ones are tried again up to budget.retries times.

    Exit codes: 0 done, or stopped as asked; 1 some trials failed in the end; 2 the request was wrong.

    \b
    Examples:
      bench sweep run smoke                  a plan that comes with bench
      bench sweep run my/nightly.toml --out results/tuesday
      bench sweep run paper --dry-run
      bench sweep run smoke --only-block 3
    """
    if dry_run and as_json:
        raise RequestError("--dry-run prints no JSON", remedy=f"see bench sweep plan {file} --json")
    planned = load_sweep(file)
    backend = backend_of(planned)
    backend.check(planned)
    if only_block is not None and only_block >= planned.block_count:
        last = planned.block_count - 1
        raise RequestError(f"--only-block {only_block}: the blocks are 0 to {last}", remedy="choose one of them")
    directory = SweepDirectory(out or default_directory(planned))
    if dry_run:
        _show_plan(file, planned, directory, here=backend.runs_here or only_block is not None)
        return
    repeat = f"bench sweep run {file}"
    if out:
        repeat += f" --out {out}"
    failed = measure(
        file,
        planned,
        directory,
        again=repeat,
        only_block=only_block,
        take_over=take_over,
        busy=busy,
        as_json=as_json,
    )
    if failed:
        sys.exit(1)


def _show_plan(file: Path, planned: Sweep, directory: SweepDirectory, *, here: bool) -> None:
    """Print the cells, where they run and how long; what runs elsewhere is not checked ``here``."""
    with observing(lambda console: SweepDisplay(console, directory.path)) as observer:
        cells: Sequence[Planned] = ()
        if here:
            cells = resolve_all(planned, observer.note)
            show(described(planned, directory, observer.note, planned=cells))
        else:
            _list_unchecked(planned, directory)
        request = SweepRequest(file, planned, directory, cells, observer, dry_run=True)
        backend_of(planned).dry_run(request)
    click.echo("Dry run: nothing was started. Remove --dry-run to start it.", err=True)


def _list_unchecked(planned: Sweep, directory: SweepDirectory) -> None:
    """Print the cells to standard error: standard output is for the script of a scheduler."""
    blocks = count(planned.block_count, "block")
    for cell in cells_of(planned):
        click.echo(f"{cell.cell_id}: {blocks}, checked on the machine that runs it", err=True)
    click.echo(f"into {directory.path}, by the engine {planned.engine.kind}", err=True)


def measure(
    file: Path,
    planned: Sweep,
    directory: SweepDirectory,
    *,
    again: str,
    only_block: int | None = None,
    take_over: bool = False,
    busy: Busy | None = None,
    as_json: bool = False,
) -> bool:
    """Run what is missing of a sweep and report it; return whether trials failed in the end.

    ``again`` is the command that goes on after Ctrl-C.
    """
    with observing(lambda console: SweepDisplay(console, directory.path)) as observer:
        request = SweepRequest(file, planned, directory, (), observer, take_over=take_over)
        try:
            end = _run(request, only_block, busy)
        except KeyboardInterrupt:
            click.echo(f"go on with: {again}", err=True)
            raise
    return _report(planned, directory, end, only_block, again=again, as_json=as_json)


def _run(request: SweepRequest, only_block: int | None, busy: Busy | None) -> SweepEnd:
    directory = request.directory
    sweep = request.sweep
    earlier = stop_request(directory.path)
    backend = backend_of(sweep)
    # Of one block alone the runner holds a lock, so that other machines can run other blocks.
    lock: AbstractContextManager[object] = nullcontext()
    if only_block is None:
        lock = locked(directory.path, WHOLE, take_over=request.take_over)
    # With the ledger's entry, ``bench clean`` finds what a killed sweep has left half written.
    with lock, ledger.holding("run-directory", str(directory.path.absolute())):
        if only_block is not None:
            directory.refuse_changed(sweep)
        # What other machines run is checked there: a cluster's login node may carry no target at all.
        checked_here = backend.runs_here or only_block is not None
        planned = resolve_all(sweep, request.observer.note) if checked_here else []
        cells = cells_of(sweep)
        for line in directory.changes(sweep, cells):
            request.observer.note(line)
        directory.accept(sweep, cells)
        request = replace(request, planned=planned)
        if only_block is None:
            return _run_all(request, backend, busy, earlier)
        if not backend.runs_here:
            join_pool(directory.path, this_machine())
        return run_block(request, only_block)


def _run_all(request: SweepRequest, backend: Backend, busy: Busy | None, earlier: StopRequest | None) -> SweepEnd:
    directory = request.directory
    sweep = request.sweep
    with ExitStack() as stack:
        for cell in cells_of(sweep):
            run = directory.cell(cell.cell_id, sweep.budget.retries)
            stack.enter_context(run.sealed())
        if backend.runs_here:  # else a scheduler knows which CPUs are free
            cpus = set[int]()
            for planned in request.planned:
                if planned.ready:
                    cpus.update(planned.ready.site.here_cpus(planned.ready.plan))
            alone = neighbours.alone_on(sorted(cpus), request.observer.note, busy)
            stack.enter_context(alone)
        clear_stop(directory.path, earlier)
        return backend.run(request)


def _report(
    planned: Sweep,
    directory: SweepDirectory,
    end: SweepEnd,
    only_block: int | None,
    *,
    again: str,
    as_json: bool,
) -> bool:
    records = directory.failed(planned.budget.retries)
    failed = []
    for cell, record in records:
        if only_block in (None, record.block):
            failed.append(f"{cell}/{record.trial_id}")
    measured = len(end.made)
    if as_json:
        output = SweepOutput(
            name=planned.name,
            directory=str(directory.path),
            measured=measured,
            failed=failed,
            ended_early=end.reason,
        )
        output.tell()
    else:
        click.echo(f"{count(measured, 'trial')} run now, {len(failed)} failed in the end: {directory.path}", err=True)
        if failed:
            retries = planned.budget.retries
            click.echo(f"to try them again, raise budget.retries above {retries}, and repeat the command", err=True)
        if end.reason:
            click.echo(f"ended early: {end.reason}; go on with: {again}", err=True)
        click.echo(f"see them with: bench compare {directory.path}", err=True)
    return bool(failed)
