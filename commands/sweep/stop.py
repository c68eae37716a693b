"""``bench sweep stop`` and ``bench sweep cancel``: ending a sweep that another process runs."""

import os
import select
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from suite.errors import MeasurementError, RequestError
from suite.sweep.directory import Accepted, SweepDirectory
from suite.sweep.locks import holders
from suite.sweep.status import latest_sweep

if TYPE_CHECKING:
    from suite.process_identity import Owner

ENDS_WITHIN_S = 120
"""A trial is closed first: a guest is shut down, containers are removed."""


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
def stop(directory: Path | None) -> None:
    """End a sweep after its current trial. bench sweep run continues it.

    \b
    Examples:
      bench sweep stop
      bench sweep stop results/nightly
    """
    from commands.sweep.backends.registry import stop_of

    path, accepted = _sweep(directory)
    running = holders(path)
    if not running and accepted.sweep.engine.kind == "local":
        raise RequestError(f"nobody runs the sweep in {path}", remedy=f"see bench sweep status {path}")
    SweepDirectory(path).request_stop()
    for line in (*stop_of(accepted.sweep, path), f"{path}: ends after its current trial"):
        click.echo(line, err=True)


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
def cancel(directory: Path | None) -> None:
    """End a sweep now, as Ctrl-C does: the current trial is lost, what was measured is kept.

    \b
    Examples:
      bench sweep cancel
      bench sweep cancel results/nightly
    """
    from commands.sweep.backends.registry import cancel_of

    path, accepted = _sweep(directory)
    owners = {holder.owner.pid: holder.owner for holder in holders(path) if holder.owner.here}
    told = cancel_of(accepted.sweep, path)
    if not owners and not told:
        elsewhere = [str(holder.owner) for holder in holders(path)]
        where = (
            f"only {', '.join(elsewhere)} runs it: cancel it there" if elsewhere else f"see bench sweep status {path}"
        )
        raise RequestError(f"nobody on this machine runs the sweep in {path}", remedy=where)
    for line in (*told, *(_end(owner) for owner in owners.values())):
        click.echo(line, err=True)


def _sweep(directory: Path | None) -> tuple[Path, Accepted]:
    path = directory or latest_sweep()
    accepted = SweepDirectory(path).accepted()
    if accepted is None:
        raise RequestError(f"no sweep in {path}", remedy="name the directory of one: the one given to --out")
    return path, accepted


def _end(owner: "Owner") -> str:
    """Ask the process to end as Ctrl-C would, and wait until it has."""
    try:
        process = os.fdopen(os.pidfd_open(owner.pid))
    except ProcessLookupError:
        return f"{owner} has ended"
    with closing(process):
        # Looked at while the descriptor holds the process: its number cannot have become another's in between.
        if not owner.lives_here():
            return f"{owner} has ended"
        try:
            signal.pidfd_send_signal(process.fileno(), signal.SIGTERM)
        except PermissionError as error:
            raise RequestError(f"{owner} belongs to another user", remedy="cancel it as that user") from error
        if not select.select([process], [], [], ENDS_WITHIN_S)[0]:
            raise MeasurementError(f"{owner} has not ended within {ENDS_WITHIN_S} s", remedy="see what it waits for")
    return f"{owner} is ended; what was measured is kept"
