"""``bench sweep status``: how far a sweep is."""

import time
from pathlib import Path

import click

from commands.output import Output
from commands.sweep.backends.base import backend_of
from commands.sweep.stop_rule import stop_rule_of
from commands.sweep.view import Widths, lines, matrix, widths_of
from suite.errors import RequestError
from suite.sweep.directory import SweepDirectory
from suite.sweep.locks import lock_files
from suite.sweep.status import SweepStatus, latest_sweep, status_of
from suite.untrusted.console import PlainConsole

WATCH_S = 2.0
"""The interval at which ``--watch`` looks at the locks: a directory and a file. It reads more only if they changed."""


class StatusOutput(Output, SweepStatus):
    """The progress of a sweep; with ``--watch`` each line is one."""

    half_widths: dict[str, Widths]
    """Half the width of each interval so far, as a share, by cell and ratio."""
    engine: list[str]
    """The jobs in the queue of the scheduler, as lines."""


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Refresh until the sweep ends.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line per change.")
def status(directory: Path | None, watch: bool, as_json: bool) -> None:
    """Show the progress of a sweep: cells and targets, the current trial, interval widths, remaining time.

    Default: the latest sweep in results/.

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
            running = _show(path, as_json=as_json, as_lines=watch)
        if not (watch and running):
            return
        time.sleep(WATCH_S)


def _stamp(path: Path) -> object:
    """Return a value that changes with every trial that begins or ends: the locks say what is run."""
    try:
        return [(file.name, file.stat().st_mtime_ns) for file in lock_files(path)]
    except FileNotFoundError:
        return None  # removed in between: look again


def _show(path: Path, *, as_json: bool, as_lines: bool) -> bool:
    """Print the status; return whether the sweep is running."""
    sweep = SweepDirectory(path).begun().sweep
    found = status_of(path, stop_rule_of(sweep))
    try:
        queue = backend_of(sweep).queue(sweep, path)
    except RequestError as error:  # a backend that is not installed here; the records are here all the same
        queue = [f"the queue cannot be seen from here: {error.message}"]
    widths = {cell.cell_id: widths_of(path / cell.cell_id) for cell in found.cells}
    if as_json:
        StatusOutput(**dict(found), half_widths=widths, engine=queue).tell(None if as_lines else 1)
    else:
        console = PlainConsole()
        console.print(matrix(found, widths))
        for line in (*lines(found), *queue):
            console.print(line)
    return found.state in ("running", "stopping")
