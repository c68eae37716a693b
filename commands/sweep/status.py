"""``bench sweep status``, ``stop`` and ``cancel``: show a sweep that another process runs, or end it."""

import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from commands.output import Output
from commands.paths import UserPath
from commands.sweep.backends.base import backend_of
from commands.sweep.backends.rounds import stop_rule_of
from suite.errors import MeasurementError, RequestError
from suite.plan import Trial
from suite.progress import Allowance, Display
from suite.records.record import TrialRecord
from suite.results.layout import SWEEP
from suite.results.store import request_stop
from suite.sweep.directory import SweepDirectory
from suite.sweep.locks import LockHolder, holders, is_held, lock_files
from suite.sweep.status import CellStatus, SweepStatus, TrialCounts, latest_sweep, status_of
from suite.units import count, format_duration
from suite.untrusted.console import PlainConsole

Widths = Mapping[str, float | None]
"""Half widths of the intervals of one cell, as shares, by the name of the ratio."""


def widths_of(run: Path) -> Widths:
    """Return the half widths of a cell so far; none if no record counts."""
    # Not at the top: pandas and scipy take most of a second, which only commands that show the intervals need.
    from analysis.compare.convergence import half_widths
    from analysis.load.records import load

    try:
        return half_widths(load([run]))
    except RequestError:
        return {}


def matrix(status: SweepStatus, widths: Mapping[str, Widths]) -> Table:
    """Return a table with a row per cell and a column per arm: trials done of all, failures, width of the interval."""
    names = (name for cell in status.cells for name in cell.arms)
    targets = list(dict.fromkeys(names))
    table = Table(
        Column("cell", no_wrap=True),
        *targets,
        title=f"{status.name}: {status.state}",
        title_justify="left",
        box=None,
    )
    for cell in status.cells:
        cell_widths = widths.get(cell.cell_id, {})
        entries = (_entry(cell, target, cell_widths) for target in targets)
        table.add_row(cell.cell_id, *entries)
    return table


def _entry(cell: CellStatus, target: str, widths: Widths) -> Text:
    counts = cell.arms.get(target)
    if counts is None:
        return Text("")
    planned = counts.done + counts.failed + counts.running + counts.missing
    text = f"{counts.done}/{planned}"
    if counts.failed:
        text += f", {counts.failed} failed"
    if counts.running:
        text += " running"
    of_target = (width for name, width in widths.items() if f" on {target}," in f"{name},")
    measured = [width for width in of_target if width is not None]
    if measured:
        text += f" ±{max(measured):.1%}"
    return Text(text, _style(counts))


def _style(counts: TrialCounts) -> str:
    if counts.failed:
        return "red"
    if counts.running:
        return "cyan"
    if counts.missing:
        return "dim"
    return "green"


def lines(status: SweepStatus) -> list[str]:
    """Return what runs now and how much is left, as lines."""
    running = (now for now in status.running if now.trial)
    shown = [f"now: trial {now.number} of {now.of}, {now.trial} of {now.cell}, by {now.owner}" for now in running]
    if status.blocks_left:
        rough = ", ROUGH" if status.left_source == "rough" else ""
        if status.left_s is None:
            seconds = "unknown"
        else:
            seconds = f"{format_duration(status.left_s)}{rough}"
        trials = count(status.count("missing"), "trial")
        blocks = count(len(status.blocks_left), "block")
        shown.append(f"left: {trials} in {blocks}, time {seconds}")
    failed = status.count("failed")
    if failed:
        shown.append(f"{count(failed, 'trial')} failed: see their records")
    return shown


class SweepDisplay(Display):
    """Shows the matrix and one line below it, redrawn on each call and never by itself."""

    def __init__(self, console: Console, directory: Path) -> None:
        super().__init__(console)
        self._directory = directory
        self._widths: dict[str, Widths] = {}
        self._matrix: Table | None = None
        self._block = -1
        self._allowance = Allowance()

    def trial_started(self, trial: Trial, number: int, of: int) -> None:
        super().trial_started(trial, number, of)
        self._look(trial.block)

    def trial_finished(self, record: TrialRecord) -> None:
        self._look(record.block)
        super().trial_finished(record)

    def close(self) -> None:
        """Leave the matrix as it is in the end on the terminal."""
        super().close()
        if self._matrix:
            status = status_of(self._directory)
            widths = _all_widths(self._directory, status)
            self._console.print(matrix(status, widths))

    def _look(self, block: int) -> None:
        """Make the matrix anew, unless that takes too much of the time."""
        if not self._allowance.left():
            return
        with self._allowance.spending():
            status = status_of(self._directory)
            if block != self._block:  # the intervals change with blocks, and take a moment to compute
                self._block = block
                self._widths = _all_widths(self._directory, status)
            self._matrix = matrix(status, self._widths)

    def _shown(self, line: Text) -> RenderableType:
        if self._matrix:
            return Group(self._matrix, line)
        return line


def _all_widths(directory: Path, status: SweepStatus) -> dict[str, Widths]:
    """Return the half widths of every cell of a sweep by its name."""
    cell_ids = [cell.cell_id for cell in status.cells]
    return {cell_id: widths_of(directory / cell_id) for cell_id in cell_ids}


ENDS_WITHIN_S = 120
"""A trial is closed first: a guest is shut down, containers are removed."""
WATCH_S = 2.0
"""The interval at which ``--watch`` looks at the locks: a directory and a file. It reads more only if they changed."""


class StatusOutput(Output, SweepStatus):
    """The progress of a sweep; with ``--watch`` each line is one."""

    half_widths: dict[str, Widths]
    """Half the width of each interval so far, as a share, by cell and ratio."""
    engine: list[str]
    """The jobs in the queue of the scheduler, as lines."""


_directory = click.argument("directory", required=False, type=UserPath())


@click.command()
@_directory
@click.option("--watch", is_flag=True, help="Refresh until the sweep ends.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line per change.")
def status(directory: Path | None, watch: bool, as_json: bool) -> None:
    """Show the progress of a sweep.

    That is its cells and targets, the current trial, interval widths and the remaining time. Default: the latest
    sweep in results/.

    \b
    Examples:
      bench sweep status
      bench sweep status results/nightly --watch
      bench sweep status results/nightly --json
    """
    path = directory or _latest()
    seen: object = None
    while True:
        now = _stamp(path)
        if now != seen:
            seen = now
            running = _show(path, as_json=as_json, as_lines=watch)
        if not (watch and running):
            return
        time.sleep(WATCH_S)


def _latest() -> Path:
    """Return the latest sweep in results/; name it on standard error if another could be meant."""
    path = latest_sweep()
    sweeps = list(path.parent.glob(f"*/{SWEEP}"))
    if len(sweeps) > 1:
        click.echo(f"{path}: begun or changed last of {len(sweeps)} sweeps", err=True)
    return path


def _stamp(path: Path) -> object:
    """Return a value that changes with every trial that begins or ends: the locks name what runs."""
    try:
        locks = lock_files(path)
        return [(file.name, file.stat().st_mtime_ns) for file in locks]
    except FileNotFoundError:
        return None  # removed in between: look again


def _show(path: Path, *, as_json: bool, as_lines: bool) -> bool:
    """Print the status; return whether the sweep is running."""
    sweep = SweepDirectory(path).begun().sweep
    progress = status_of(path, stop_rule_of(sweep))
    try:
        queue = backend_of(sweep).queue(sweep, path)
    except RequestError as error:  # a backend that is not installed here; the records are here all the same
        queue = [f"the queue cannot be seen from here: {error.message}"]
    widths = _all_widths(path, progress)
    if as_json:
        output = StatusOutput(**dict(progress), half_widths=widths, engine=queue)
        output.tell(None if as_lines else 1)
    else:
        console = PlainConsole()
        console.print(matrix(progress, widths))
        for line in (*lines(progress), *queue):
            console.print(line)
    return progress.state in ("running", "stopping")


@click.command()
@_directory
def stop(directory: Path | None) -> None:
    """End a sweep after its current trial.

    bench sweep run continues it.

    \b
    Examples:
      bench sweep stop
      bench sweep stop results/nightly
    """
    path = directory or _latest()
    sweep = SweepDirectory(path).begun().sweep
    backend = backend_of(sweep)
    if backend.runs_here and not holders(path):
        raise RequestError(f"the sweep in {path} is not running", remedy=f"see bench sweep status {path}")
    request_stop(path)
    for line in (*backend.stop(sweep, path), f"{path}: ends after its current trial"):
        click.echo(line, err=True)


@click.command()
@_directory
def cancel(directory: Path | None) -> None:
    """End a sweep now, like Ctrl-C.

    The current trial is lost, finished trials are kept.

    \b
    Examples:
      bench sweep cancel
      bench sweep cancel results/nightly
    """
    path = directory or _latest()
    sweep = SweepDirectory(path).begun().sweep
    running = holders(path)
    local = {holder.owner.pid: holder for holder in running if holder.owner.lives_here()}
    try:
        # The sweep before its blocks, and both before the queue: it would take what leaves the queue for lost.
        for holder in reversed(local.values()):
            click.echo(_end(path, holder), err=True)
    finally:
        cancelled = backend_of(sweep).cancel(sweep, path)
        for line in cancelled:
            click.echo(line, err=True)
    if not local and not cancelled:
        remedy = f"see bench sweep status {path}"
        if running:
            owners = ", ".join(str(holder.owner) for holder in running)
            remedy = f"it is {owners}: cancel it there"
        raise RequestError(f"no process that is seen from here runs the sweep in {path}", remedy=remedy)


def _end(directory: Path, holder: LockHolder) -> str:
    """Ask the process to end as Ctrl-C would, wait until it has, and return what became of it.

    Raises RequestError for a process that does not hold the lock: whoever may write the directory can name any.
    """
    owner = holder.owner
    with owner.opened() as process:
        if process is None:
            return f"{owner} has ended"
        if not is_held(directory, holder):
            if all(current.owner != owner for current in holders(directory)):
                return f"{owner} has ended"  # by itself: the file of a lock goes before its socket
            raise RequestError(
                f"{owner} is left alone: {directory} names it, and it does not hold the sweep's lock",
                remedy="check who wrote .locks there; a bench of another user, or in another network namespace, is "
                "cancelled by that user, or there",
            )
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except PermissionError as error:
            raise RequestError(f"{owner} belongs to another user", remedy="cancel it as that user") from error
        ended, _, _ = select.select([process], [], [], ENDS_WITHIN_S)
        if not ended:
            raise MeasurementError(f"{owner} has not ended within {ENDS_WITHIN_S} s", remedy="see what it waits for")
    return f"{owner} is ended; what was measured is kept"
