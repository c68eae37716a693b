"""``bench sweep stop`` and ``bench sweep cancel``: end a sweep that another process runs."""

import select
import signal
from pathlib import Path

import click

from commands.sweep.backends.base import backend_of
from suite.errors import MeasurementError, RequestError
from suite.results.store import request_stop
from suite.sweep.directory import SweepDirectory
from suite.sweep.locks import LockHolder, holders, is_held
from suite.sweep.status import latest_sweep

ENDS_WITHIN_S = 120
"""A trial is closed first: a guest is shut down, containers are removed."""


_directory = click.argument("directory", required=False, type=click.Path(path_type=Path))


@click.command()
@_directory
def stop(directory: Path | None) -> None:
    """End a sweep after its current trial. bench sweep run continues it.

    \b
    Examples:
      bench sweep stop
      bench sweep stop results/nightly
    """
    path = directory or latest_sweep()
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
    """End a sweep now, like Ctrl-C: the current trial is lost, finished trials are kept.

    \b
    Examples:
      bench sweep cancel
      bench sweep cancel results/nightly
    """
    path = directory or latest_sweep()
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
        where = f"it is {', '.join(str(holder.owner) for holder in running)}: cancel it there"
        raise RequestError(
            f"no process that is seen from here runs the sweep in {path}",
            remedy=where if running else f"see bench sweep status {path}",
        )


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
        if not select.select([process], [], [], ENDS_WITHIN_S)[0]:
            raise MeasurementError(f"{owner} has not ended within {ENDS_WITHIN_S} s", remedy="see what it waits for")
    return f"{owner} is ended; what was measured is kept"
