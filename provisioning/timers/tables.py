"""The text of a crontab: one line per entry of the suite, and every other line as it was. Pure."""

import re
import shlex
from collections.abc import Sequence

from provisioning.timers.base import MARKER, Installed, Job
from suite.errors import RequestError

LONGEST_COMMAND = 998
"""Vixie cron reads no more of a command."""
_OURS = re.compile(rf"^(?P<when>(?:\S+\s+){{5}})(?P<command>.*) # {MARKER}(?P<name>\S+)$")


def command(job: Job) -> str:
    """What the timer's ``sh`` is given: fixed text and quoted words."""
    environment = [f"{name}={value}" for name, value in sorted(job.environment.items())]
    words = shlex.join(["/usr/bin/env", *environment, *job.argv])
    return f"cd {shlex.quote(job.directory)} && exec {words} >>{shlex.quote(job.log)} 2>&1"


def line(job: Job) -> str:
    """One line of a crontab. The marker is a comment of the shell's: the entry and its mark cannot come apart."""
    # Cron takes % as the end of the line, unless it is escaped; sh never sees the escape.
    text = f"{command(job)} # {MARKER}{job.name}".replace("%", r"\%")
    if len(text.encode()) > LONGEST_COMMAND:
        raise RequestError(
            f"the command of schedule {job.name} is {len(text.encode())} bytes long, cron takes {LONGEST_COMMAND}",
            remedy="use shorter paths, or a script for --notify",
        )
    return f"{job.every.cron} {text}"


def entries(table: str) -> list[Installed]:
    """Those of the suite."""
    found = (_OURS.match(text) for text in table.splitlines())
    return [Installed(one["name"], one["when"].strip(), one[0]) for one in found if one]


def without(table: str, name: str) -> str:
    """The table without one entry; with the options right above it, where Slurm has them: they are of this entry."""
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
    """The table with this entry, in the place of an older one of its name. What is there already stays as it is."""
    added = "".join(f"{text}\n" for text in lines)
    if f"\n{added}" in f"\n{table}":
        return table
    return without(table, name) + added
