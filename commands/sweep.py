"""``bench sweep``: here only what concerns its schedule."""

import click

from commands.schedule import schedule
from commands.scheduled import schedule_run


@click.group(commands=(schedule, schedule_run))
def sweep() -> None:
    """Sweeps at set times.

    \b
    Examples:
      bench sweep schedule plans/nightly.toml --every "02:00 daily"
    """
