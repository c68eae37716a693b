"""Entries in the user's own crontab."""

import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping

import psutil

from provisioning.foreground import call
from provisioning.timers.base import MARKER, Installed, ScheduledJob, Timer
from suite.errors import RequestError

_NO_TABLE = r"(?i)no crontab for |can't open '[^']*': No such file"
DAEMONS = {"cron", "crond", "cronie", "fcron", "busybox-crond"}
LONGEST_COMMAND = 998
"""Vixie cron reads no more of a command."""
_OURS = re.compile(rf"^(?P<when>(?:\S+\s+){{5}})(?P<command>.*) # {MARKER}(?P<name>\S+)$")


class Cron(Timer):
    """See ``base.Timer``. Reads the table with ``-l`` and replaces it as a whole, as ``crontab -e`` does."""

    kind = "cron"

    def missing(self) -> str | None:
        return None if shutil.which("crontab") else "crontab is not installed"

    def asleep(self) -> str | None:
        names = {process.info["name"] for process in psutil.process_iter(["name"])}
        return None if names & DAEMONS else "no cron daemon is running on this host"

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        return {"crontab": line(job)}

    def install(self, job: ScheduledJob) -> None:
        _write(without(_table(), job.name) + line(job))

    def installed(self) -> list[Installed]:
        found = (_OURS.match(text) for text in _table().splitlines())
        return [Installed(entry["name"], entry["when"].strip(), entry[0]) for entry in found if entry]

    def remove(self, name: str) -> None:
        _write(without(_table(), name))


def _table() -> str:
    """Return the table, empty where the user has none. No other failure may pass for that."""
    found = call(["crontab", "-l"], allowed=_NO_TABLE)
    return "" if re.match(_NO_TABLE, found) else found


def _write(table: str) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="virtbench-", suffix=".crontab") as file:
        file.write(table)
        file.flush()
        call(["crontab", file.name])


def line(job: ScheduledJob) -> str:
    """Return one line of a crontab: fixed text and quoted words for the timer's ``sh``.

    The marker is a comment for the shell, so entry and marker cannot come apart. Raises RequestError for a command that
    cron cannot hold.
    """
    # Cron takes % as the end of the line, unless it is escaped; sh never sees the escape. One that is there already
    # would be taken with ours for an escaped backslash, and the line would end at the %.
    if any("\\%" in word for word in (*job.argv, job.directory, job.log, *job.environment.values())):
        raise RequestError(f"schedule {job.name}: cron cannot hold \\% in a command", remedy="name files without it")
    environment = [f"{name}={value}" for name, value in sorted(job.environment.items())]
    words = shlex.join(["/usr/bin/env", *environment, *job.argv])
    command = f"cd {shlex.quote(job.directory)} && exec {words} >>{shlex.quote(job.log)} 2>&1 # {MARKER}{job.name}"
    text = command.replace("%", r"\%")
    if len(text.encode()) > LONGEST_COMMAND:
        raise RequestError(
            f"the command of schedule {job.name} is {len(text.encode())} bytes long, cron takes {LONGEST_COMMAND}",
            remedy="use shorter paths, or a script for --notify",
        )
    return f"{job.schedule.cron} {text}\n"


def without(table: str, name: str) -> str:
    """Return the table without the entry of this name, every line ended."""
    ours = ((_OURS.match(text), text) for text in table.splitlines())
    return "".join(f"{text}\n" for entry, text in ours if not (entry and entry["name"] == name))
