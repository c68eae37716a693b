"""The timers of a host: systemd's, of the system for root and of the user for others, and the user's crontab."""

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from provisioning.foreground import call
from provisioning.timers.base import MARKER, ScheduledJob, ScheduleEntry, Timer
from suite.errors import CommandError, RequestError
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
_NO_TABLE = r"(?i)no crontab for |has no fcrontab|can't open '[^']*': No such file"
_REFUSALS = {
    "not allowed|permission denied": "have your name added to /etc/cron.allow (fcron.allow), or use --with systemd",
    "no longer valid|expired|new password": "set a new password (passwd); cron runs no job without it",
}
"""Messages with which crontab refuses a user, and the remedies."""
DAEMONS = {"cron", "crond", "cronie", "fcron", "busybox-crond"}
LONGEST_COMMAND = 998
"""Vixie cron reads no more of a command."""
_OURS = re.compile(rf"(?m)^(?P<when>(?:\S+[^\S\n]+){{5}}).* # {MARKER}(?P<name>\S+)\n")


class Systemd(Timer):
    """A service and its timer. A service that still runs is not started again."""

    kind = "systemd"

    def __init__(self, units: Path | None = None) -> None:
        system = os.geteuid() == 0
        user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        self.units = units or (Path("/etc/systemd/system") if system else user)
        self.systemctl = ["systemctl"] if system else ["systemctl", "--user"]

    def missing(self) -> str | None:
        if not shutil.which("systemctl"):
            return "systemctl is not installed"
        # "offline" if another program is process 1, and nothing at all if the user has no manager.
        if call([*self.systemctl, "is-system-running"], allowed="").strip() in _AWAKE:
            return None
        return f"systemd does not manage this {'host' if len(self.systemctl) == 1 else 'session'}"

    def asleep(self) -> str | None:
        if len(self.systemctl) == 1 or not shutil.which("loginctl"):
            return None
        lingers = call(["loginctl", "show-user", str(os.geteuid()), "--property=Linger"], allowed="")
        off = "lingering is off, so systemd ends your timers with your last session: loginctl enable-linger"
        if "Linger=no" in lingers:
            return off
        return None

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        # systemd takes no quotes there.
        if job.directory != job.directory.strip() or job.directory.endswith("\\"):
            raise RequestError(
                f"schedule {job.name}: a unit cannot name the directory {job.directory!r}",
                remedy="run it from one whose name begins and ends with a letter, or use --with cron",
            )
        environment = sorted(job.environment.items())
        variables = (quoted(f"{name}={value}") for name, value in environment)
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

    def install(self, name: str, rendered: Mapping[str, str]) -> None:
        for unit in map(Path, rendered):
            if unit.exists() and not _is_marked(unit, name):
                raise RequestError(f"{unit} is a unit of your own", remedy="give the schedule another --name")
        for path, text in rendered.items():
            write_atomic(Path(path), text)
        call([*self.systemctl, "daemon-reload"])
        call([*self.systemctl, "enable", "--now", self._unit(name, "timer").name])

    def installed(self) -> list[ScheduleEntry]:
        entries = []
        for path in sorted(self.units.glob("virtbench-*.timer")):
            name = path.stem.removeprefix("virtbench-")
            when = re.search(r"^OnCalendar=(.*)$", path.read_text(), re.MULTILINE)
            if _is_marked(path, name) and when:
                entries.append(ScheduleEntry(name, when[1], str(path)))
        return entries

    def remove(self, name: str) -> None:
        call([*self.systemctl, "disable", "--now", self._unit(name, "timer").name])
        for suffix in _UNITS:
            unit = self._unit(name, suffix)
            if unit.exists() and _is_marked(unit, name):
                unit.unlink()
        call([*self.systemctl, "daemon-reload"])

    def _unit(self, name: str, suffix: str) -> Path:
        return self.units / f"virtbench-{name}.{suffix}"


def _is_marked(unit: Path, name: str) -> bool:
    return f"# {MARKER}{name}\n" in unit.read_text()


def quoted(word: str) -> str:
    """Quote a word for systemd; see "Quoting" and "Specifiers" in systemd.unit(5)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


class Cron(Timer):
    """One line of the user's crontab, which is read with ``-l`` and replaced whole, as ``crontab -e`` does."""

    kind = "cron"

    def missing(self) -> str | None:
        if shutil.which("crontab"):
            return None
        return "crontab is not installed"

    def asleep(self) -> str | None:
        names = {process.info["name"] for process in psutil.process_iter(["name"])}
        if names & DAEMONS:
            return None
        # systemd-cron has no daemon: it makes timers of systemd from the tables.
        if (
            shutil.which("systemctl")
            and call(["systemctl", "is-active", "cron.target"], allowed="").strip() == "active"
        ):
            return None
        return "no cron daemon is running on this host"

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        # Cron takes % as the end of the line, unless it is escaped; sh never sees the escape. One that is there already
        # would be taken with ours for an escaped backslash, and the line would end at the %.
        variables = job.environment.values()
        if any("\\%" in word for word in (*job.argv, job.directory, job.log, *variables)):
            raise RequestError(
                f"schedule {job.name}: cron cannot hold \\% in a command", remedy="name files without it"
            )
        environment = [f"{name}={value}" for name, value in sorted(job.environment.items())]
        words = shlex.join(["/usr/bin/env", *environment, *job.argv])
        # The marker is a comment for the shell, so entry and marker cannot come apart.
        command = f"cd {shlex.quote(job.directory)} && exec {words} >>{shlex.quote(job.log)} 2>&1 # {MARKER}{job.name}"
        text = command.replace("%", r"\%")
        if len(text.encode()) > LONGEST_COMMAND:
            raise RequestError(
                f"the command of schedule {job.name} is {len(text.encode())} bytes long, cron takes {LONGEST_COMMAND}",
                remedy="use shorter paths, or a script for --notify",
            )
        return {"crontab": f"{job.schedule.cron} {text}\n"}

    def install(self, name: str, rendered: Mapping[str, str]) -> None:
        # Above all others: what a table sets (CRON_TZ, SHELL) is for the lines below it.
        _write(rendered["crontab"] + without(_table(), name))

    def installed(self) -> list[ScheduleEntry]:
        entries = _OURS.finditer(_table())
        return [ScheduleEntry(entry["name"], entry["when"].strip(), entry[0].rstrip("\n")) for entry in entries]

    def remove(self, name: str) -> None:
        _write(without(_table(), name))


def _table() -> str:
    """Return the table with its last line ended; empty if the user has none. No other failure may pass for that."""
    table = _crontab("-l", allowed=_NO_TABLE)
    if not table or re.match(_NO_TABLE, table):
        return ""
    return table.removesuffix("\n") + "\n"


def _write(table: str) -> None:
    # From a file: of a standard input that ends too early, crontab would take the rest for removed.
    with tempfile.NamedTemporaryFile(prefix="virtbench-", suffix=".crontab") as file:
        file.write(table.encode(errors="surrogateescape"))
        file.flush()
        _crontab(file.name)


def _crontab(word: str, *, allowed: str | None = None) -> str:
    try:
        remedy = "see what crontab -l prints, or use --with systemd"
        return call(["crontab", word], allowed=allowed, remedy=remedy)
    except CommandError as error:
        for pattern, remedy in _REFUSALS.items():
            if re.search(pattern, error.output_tail, re.IGNORECASE):
                raise RequestError(
                    f"crontab refuses this user: {error.output_tail.strip()[-300:]}", remedy=remedy
                ) from error
        raise


def without(table: str, name: str) -> str:
    return _OURS.sub(lambda entry: "" if entry["name"] == name else entry[0], table)
