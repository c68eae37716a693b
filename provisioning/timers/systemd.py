"""A systemd timer and its service: of the system for root, of the user for others."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from provisioning.foreground import call
from provisioning.timers.base import MARKER, Installed, ScheduledJob, Timer
from suite.errors import RequestError
from suite.results.store import write_atomic

_AWAKE = {"running", "degraded", "starting", "initializing", "maintenance"}
_UNITS = {
    # With KillMode=mixed the sweep gets the signal, and has time to end.
    "service": """\
# {mark}
[Unit]
Description=virtbench sweep {name}

[Service]
Type=oneshot
WorkingDirectory={directory}
{environment}ExecStart={command}
KillMode=mixed
TimeoutStopSec=5min
""",
    "timer": """\
# {mark}
[Unit]
Description=virtbench sweep {name}: {text}

[Timer]
OnCalendar={when}
AccuracySec=1s

[Install]
WantedBy=timers.target
""",
}


class Systemd(Timer):
    """See ``base.Timer``. A service that still runs is not started again."""

    kind = "systemd"

    def __init__(self, units: Path | None = None) -> None:
        system = os.geteuid() == 0
        own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        self.units = units or (Path("/etc/systemd/system") if system else own)
        self.systemctl = ["systemctl"] if system else ["systemctl", "--user"]

    def missing(self) -> str | None:
        if not shutil.which("systemctl"):
            return "systemctl is not installed"
        # "offline" where another program is process 1, and nothing at all where the user has no manager.
        if call([*self.systemctl, "is-system-running"], allowed="").strip() in _AWAKE:
            return None
        return f"systemd does not manage this {'host' if len(self.systemctl) == 1 else 'session'}"

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        # systemd takes no quotes there.
        if job.directory != job.directory.strip() or job.directory.endswith("\\"):
            raise RequestError(
                f"schedule {job.name}: a unit cannot name the directory {job.directory!r}",
                remedy="run it from one whose name begins and ends with a letter, or use --with cron",
            )
        variables = (quoted(f"{name}={value}") for name, value in sorted(job.environment.items()))
        values = {
            "mark": MARKER + job.name,
            "name": job.name,
            "text": job.schedule.text,
            "when": job.schedule.on_calendar,
            "directory": job.directory.replace("%", "%%"),
            "environment": "".join(f"Environment={variable}\n" for variable in variables),
            "command": " ".join(quoted(word.replace("$", "$$")) for word in job.argv),
        }
        return {str(self._unit(job.name, suffix)): text.format_map(values) for suffix, text in _UNITS.items()}

    def install(self, job: ScheduledJob) -> None:
        for path, text in self.render(job).items():
            write_atomic(Path(path), text)
        call([*self.systemctl, "daemon-reload"])
        call([*self.systemctl, "enable", "--now", self._unit(job.name, "timer").name])

    def installed(self) -> list[Installed]:
        found = []
        for path in sorted(self.units.glob("virtbench-*.timer")):
            text, name = path.read_text(), path.stem.removeprefix("virtbench-")
            when = re.search(r"^OnCalendar=(.*)$", text, re.MULTILINE)
            if f"# {MARKER}{name}\n" in text and when:
                found.append(Installed(name, when[1], str(path)))
        return found

    def remove(self, name: str) -> None:
        call([*self.systemctl, "disable", "--now", self._unit(name, "timer").name])
        for suffix in _UNITS:
            self._unit(name, suffix).unlink(missing_ok=True)
        call([*self.systemctl, "daemon-reload"])

    def _unit(self, name: str, suffix: str) -> Path:
        return self.units / f"virtbench-{name}.{suffix}"


def quoted(word: str) -> str:
    """Quote a word for systemd; see "Quoting" and "Specifiers" in systemd.unit(5)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
