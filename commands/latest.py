"""The run that a command takes if none is named."""

from pathlib import Path

import click

from suite.results.layout import RESULTS, empty_after, latest_run


def latest() -> Path:
    """Return the run in results/ that was written last; name a later one that has no record on standard error."""
    run = latest_run(RESULTS)
    if later := empty_after(run):
        click.echo(f"{later} is newer and has no record yet: this is {run}", err=True)
    return run
