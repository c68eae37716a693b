"""Entries in Slurm's crontab: each firing is a batch job of its own, and the next one waits for its end."""

from provisioning.timers import tables
from provisioning.timers.base import ScheduledJob
from provisioning.timers.cron import Cron


class Scrontab(Cron):
    """See ``base.Timer``. The job itself only submits and follows the sweep, so it asks for one CPU and no node."""

    kind = "scrontab"
    program = "scrontab"

    def asleep(self) -> str | None:
        return None

    def lines(self, job: ScheduledJob) -> list[str]:
        return [f"#SCRON --job-name=virtbench-{job.name}", f"#SCRON --chdir={job.directory}", tables.line(job)]
