"""Entries in the user's own crontab, and in Slurm's, where each firing is a batch job of its own."""

import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence

import psutil

from provisioning.foreground import call
from provisioning.timers.base import MARKER, Installed, ScheduledJob
from suite.errors import RequestError

_NO_TABLE = r"(?i)no crontab for |can't open '[^']*': No such file"
DAEMONS = {"cron", "crond", "cronie", "fcron", "busybox-crond"}
LONGEST_COMMAND = 998
"""Vixie cron reads no more of a command."""
_OURS = re.compile(rf"^(?P<when>(?:\S+\s+){{5}})(?P<command>.*) # {MARKER}(?P<name>\S+)$")


class Cron:
    """See ``base.Timer``. Reads the table with ``-l`` and replaces it as a whole, as ``crontab -e`` does."""

    kind = "cron"
    program = "crontab"

    def missing(self) -> str | None:
        return None if shutil.which(self.program) else f"{self.program} is not installed"

    def asleep(self) -> str | None:
        names = {process.info["name"] for process in psutil.process_iter(["name"])}
        return None if names & DAEMONS else "no cron daemon is running on this host"

    def lines(self, job: ScheduledJob) -> list[str]:
        return [line(job)]

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        return {self.program: "".join(f"{text}\n" for text in self.lines(job))}

    def install(self, job: ScheduledJob) -> bool:
        before = self._table()
        after = with_entry(before, job.name, self.lines(job))
        return self._replace(before, after)

    def installed(self) -> list[Installed]:
        return entries(self._table())

    def remove(self, name: str) -> bool:
        before = self._table()
        return self._replace(before, without(before, name))

    def _table(self) -> str:
        """Return the table, empty where the user has none. No other failure may pass for that."""
        found = call([self.program, "-l"], allowed=_NO_TABLE)
        return "" if re.match(_NO_TABLE, found) else found

    def _replace(self, before: str, after: str) -> bool:
        if before == after:
            return False
        with tempfile.NamedTemporaryFile("w", prefix="virtbench-", suffix=".crontab") as file:
            file.write(after)
            file.flush()
            call([self.program, file.name])
        return True


class Scrontab(Cron):
    """See ``base.Timer``. The job itself only submits and follows the sweep, so it asks for one CPU and no node."""

    kind = "scrontab"
    program = "scrontab"

    def asleep(self) -> str | None:
        return None

    def lines(self, job: ScheduledJob) -> list[str]:
        words = (f"--job-name=virtbench-{job.name}", f"--chdir={job.directory}")
        return [*(f"#SCRON {shlex.quote(word)}" for word in words), line(job)]


def command(job: ScheduledJob) -> str:
    """Return the command for the timer's ``sh``: fixed text and quoted words."""
    environment = [f"{name}={value}" for name, value in sorted(job.environment.items())]
    words = shlex.join(["/usr/bin/env", *environment, *job.argv])
    return f"cd {shlex.quote(job.directory)} && exec {words} >>{shlex.quote(job.log)} 2>&1"


def line(job: ScheduledJob) -> str:
    """Return one line of a crontab. The marker is a comment for the shell: entry and marker cannot come apart."""
    # Cron takes % as the end of the line, unless it is escaped; sh never sees the escape. One that is there already
    # would be taken with ours for an escaped backslash, and the line would end at the %.
    if any("\\%" in word for word in (*job.argv, job.directory, job.log, *job.environment.values())):
        raise RequestError(f"schedule {job.name}: cron cannot hold \\% in a command", remedy="name files without it")
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
