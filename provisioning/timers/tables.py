"""Edit the text of a crontab: one line per entry of the suite, and every other line as it was."""

import re
import shlex
from collections.abc import Sequence

from provisioning.timers.base import MARKER, Installed, ScheduledJob
from suite.errors import RequestError

LONGEST_COMMAND = 998
"""Vixie cron reads no more of a command."""
_OURS = re.compile(rf"^(?P<when>(?:\S+\s+){{5}})(?P<command>.*) # {MARKER}(?P<name>\S+)$")


def command(job: ScheduledJob) -> str:
    """Return the command for the timer's ``sh``: fixed text and quoted words."""
    environment = [f"{name}={value}" for name, value in sorted(job.environment.items())]
    words = shlex.join(["/usr/bin/env", *environment, *job.argv])
    return f"cd {shlex.quote(job.directory)} && exec {words} >>{shlex.quote(job.log)} 2>&1"


def line(job: ScheduledJob) -> str:
    """Return one line of a crontab. The marker is a comment for the shell: entry and marker cannot come apart."""
    # Cron takes % as the end of the line, unless it is escaped; sh never sees the escape.
    text = f"{command(job)} # {MARKER}{job.name}".replace("%", r"\%")
    if len(text.encode()) > LONGEST_COMMAND:
        raise RequestError(
            f"the command of schedule {job.name} is {len(text.encode())} bytes long, cron takes {LONGEST_COMMAND}",
            remedy="use shorter paths, or a script for --notify",
        )
    return f"{job.schedule.cron} {text}"


def entries(table: str) -> list[Installed]:
    """Return the entries of the suite."""
    found = (_OURS.match(text) for text in table.splitlines())
    return [Installed(one["name"], one["when"].strip(), one[0]) for one in found if one]


def without(table: str, name: str) -> str:
    """Return the table without one entry, and without the lines right above it that hold Slurm's options for it."""
    kept: list[str] = []
    for text in table.splitlines():
        ours = _OURS.match(text)
        if not (ours and ours["name"] == name):
            kept.append(text)
            continue
        while kept and kept[-1].startswith("#SCRON"):
            kept.pop()
    return "".join(f"{text}\n" for text in kept)


def with_entry(table: str, name: str, lines: Sequence[str]) -> str:
    """Return the table with this entry in place of an older one of its name; the same table if it is there already."""
    added = "".join(f"{text}\n" for text in lines)
    if f"\n{added}" in f"\n{table}":
        return table
    return without(table, name) + added
