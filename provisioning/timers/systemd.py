"""A systemd timer and its service: of the system for root, of the user for others."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioning.foreground import call
from provisioning.timers.base import MARKER, Installed, ScheduledJob, check_name
from suite.errors import RequestError
from suite.results.store import write_atomic

_AWAKE = {"running", "degraded", "starting", "initializing", "maintenance"}


class Systemd:
    """See ``base.Timer``. A service that still runs is not started again."""

    kind = "systemd"

    def __init__(self, units: Path | None = None, systemctl: Sequence[str] | None = None) -> None:
        system = os.geteuid() == 0
        own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        self.units = units or (Path("/etc/systemd/system") if system else own)
        self.systemctl = list(systemctl or (["systemctl"] if system else ["systemctl", "--user"]))

    def missing(self) -> str | None:
        if not shutil.which(self.systemctl[0]):
            return "systemctl is not installed"
        # "offline" where another program is process 1, and nothing at all where the user has no manager.
        state = call([*self.systemctl, "is-system-running"], allowed="").strip()
        return (
            None
            if state in _AWAKE
            else f"systemd does not manage this {'host' if len(self.systemctl) == 1 else 'session'}"
        )

    def asleep(self) -> str | None:
        return None

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        return {
            str(self._unit(job.name, "service")): service(job),
            str(self._unit(job.name, "timer")): timer(job),
        }

    def install(self, job: ScheduledJob) -> bool:
        texts = self.render(job)
        changed = [path for path, text in texts.items() if not Path(path).is_file() or Path(path).read_text() != text]
        for path in changed:
            write_atomic(Path(path), texts[path])
        if changed:
            call([*self.systemctl, "daemon-reload"])
        call([*self.systemctl, "enable", "--now", self._unit(job.name, "timer").name])
        return bool(changed)

    def installed(self) -> list[Installed]:
        found = []
        for path in sorted(self.units.glob("virtbench-*.timer")):
            text = path.read_text()
            name = path.stem.removeprefix("virtbench-")
            when = re.search(r"^OnCalendar=(.*)$", text, re.MULTILINE)
            if f"# {MARKER}{name}\n" in text and when:
                found.append(Installed(name, when[1], str(path)))
        return found

    def remove(self, name: str) -> bool:
        if check_name(name) not in {one.name for one in self.installed()}:
            return False
        call([*self.systemctl, "disable", "--now", self._unit(name, "timer").name])
        for suffix in ("timer", "service"):
            self._unit(name, suffix).unlink(missing_ok=True)
        call([*self.systemctl, "daemon-reload"])
        return True

    def _unit(self, name: str, suffix: str) -> Path:
        return self.units / f"virtbench-{name}.{suffix}"


def service(job: ScheduledJob) -> str:
    """Return the service unit. With ``KillMode=mixed`` the sweep gets the signal, and has time to end.

    Raises RequestError for a directory that the unit cannot name: systemd takes no quotes there.
    """
    if job.directory != job.directory.strip() or job.directory.endswith("\\"):
        raise RequestError(
            f"schedule {job.name}: a unit cannot name the directory {job.directory!r}",
            remedy="run it from one whose name begins and ends with a letter, or use --with cron",
        )
    environment = "".join(
        f"Environment={quoted(f'{name}={value}')}\n" for name, value in sorted(job.environment.items())
    )
    return (
        f"# {MARKER}{job.name}\n"
        f"[Unit]\nDescription=virtbench sweep {job.name}\n\n"
        f"[Service]\nType=oneshot\nWorkingDirectory={job.directory.replace('%', '%%')}\n{environment}"
        f"ExecStart={' '.join(quoted(word.replace('$', '$$')) for word in job.argv)}\n"
        "KillMode=mixed\nTimeoutStopSec=5min\n"
    )


def timer(job: ScheduledJob) -> str:
    """Return the timer unit."""
    return (
        f"# {MARKER}{job.name}\n"
        f"[Unit]\nDescription=virtbench sweep {job.name}: {job.schedule.text}\n\n"
        f"[Timer]\nOnCalendar={job.schedule.on_calendar}\nAccuracySec=1s\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )


def quoted(word: str) -> str:
    """Quote a word for systemd; see "Quoting" and "Specifiers" in systemd.unit(5)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
