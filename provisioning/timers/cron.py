"""Entries in the user's own crontab, and in Slurm's, where each firing is a batch job of its own."""

import re
import shutil
import tempfile
from collections.abc import Mapping

import psutil

from provisioning.timers import tables
from provisioning.timers.base import Installed, ScheduledJob, call

_NO_TABLE = r"(?i)no crontab for |can't open '[^']*': No such file"
DAEMONS = {"cron", "crond", "cronie", "fcron", "busybox-crond"}


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
        return [tables.line(job)]

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        return {self.program: "".join(f"{text}\n" for text in self.lines(job))}

    def install(self, job: ScheduledJob) -> bool:
        before = self._table()
        after = tables.with_entry(before, job.name, self.lines(job))
        return self._replace(before, after)

    def installed(self) -> list[Installed]:
        return tables.entries(self._table())

    def remove(self, name: str) -> bool:
        before = self._table()
        return self._replace(before, tables.without(before, name))

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
        return [f"#SCRON --job-name=virtbench-{job.name}", f"#SCRON --chdir={job.directory}", tables.line(job)]
