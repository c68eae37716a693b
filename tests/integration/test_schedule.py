"""A real cron daemon, in a mount namespace with a spool of its own, fires an entry of ``bench sweep schedule``."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.bench import REPOSITORY
from tests.integration.machine import wait_for

FIRED_WITHIN_S = 180.0
"""An entry of every minute; the rest is for a machine that is busy."""
FOREIGN = "# my own\n17 3 1 1 * /bin/true\n"
Inside = Callable[..., "subprocess.CompletedProcess[str]"]
NEEDED = ("cron", "crontab", "unshare", "nsenter")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.beside,
    pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root"),
    pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason=f"needs {', '.join(NEEDED)}"),
]


@pytest.fixture
def cron(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A daemon in a mount namespace: the host's own tables are not there, and nothing of it is seen outside."""
    for name in ("spool/crontabs", "cron.d", "run"):
        (tmp_path / "cron" / name).mkdir(parents=True)
    (tmp_path / "cron/crontab").write_text("")
    (tmp_path / "cron/spool/crontabs").chmod(0o1730)
    binds = {"spool": "/var/spool/cron", "cron.d": "/etc/cron.d", "crontab": "/etc/crontab", "run": "/run"}
    mounts = " && ".join(f"mount --bind {tmp_path}/cron/{own} {place}" for own, place in binds.items())
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mounts} && exec cron -f"]
    daemon = subprocess.Popen(argv, start_new_session=True)
    try:
        # Cron itself has said where it is: before that, the namespace would be this host's.
        wait_for("cron", (tmp_path / "cron/run/crond.pid").exists, lambda: "")
        assert Path(f"/proc/{daemon.pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
        yield daemon
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


@pytest.fixture
def inside(cron: "subprocess.Popen[bytes]", tmp_path: Path) -> Inside:
    """Runs a command where the daemon lives."""

    def _inside(*argv: str, given: str = "") -> "subprocess.CompletedProcess[str]":
        place = ["nsenter", f"--mount=/proc/{cron.pid}/ns/mnt", f"--wdns={tmp_path}"]
        return subprocess.run([*place, *argv], capture_output=True, text=True, check=True, input=given)

    return _inside


def _fired(told: Path, spool: Path) -> bool:
    # Cron sees a change by whole seconds: what is changed in the second in which it looked, it would never see.
    for path in (spool / "root", spool):
        path.touch()
    return told.exists() and told.read_text().endswith("}")


def test_an_entry_is_installed_listed_fired_and_removed_and_others_stay(
    cron: "subprocess.Popen[bytes]", inside: Inside, tmp_path: Path
) -> None:
    cron.send_signal(signal.SIGSTOP)  # no minute is to begin before the plan is what the entry is to find
    schedule = [sys.executable, str(REPOSITORY / "cli.py"), "sweep", "schedule"]
    plan, told = tmp_path / "it's 100% night.toml", tmp_path / "told.json"
    shutil.copy(REPOSITORY / "plans/smoke.toml", plan)
    inside("crontab", "-", given=FOREIGN)
    for _ in range(2):  # the second replaces the first
        made = inside(*schedule, str(plan), "--name", "night", "--every", "1m", "--notify", f"tee '{told}'")
        assert "installed: night (cron, 1m)" in made.stderr, made.stderr
    (listed,) = json.loads(inside(*schedule, "--list", "--json").stdout)["schedules"]
    assert (listed["name"], listed["when"], listed["with"]) == ("night", "* * * * *", "cron")
    plan.write_text("this is no plan\n")  # a sweep that is refused at once: what is tested is the way to it and back
    cron.send_signal(signal.SIGCONT)
    wait_for("a firing", lambda: _fired(told, tmp_path / "cron/spool/crontabs"), lambda: "", FIRED_WITHIN_S)
    result = json.loads(told.read_text())
    assert (result["outcome"], result["sweep_exit_code"], result["plan"]) == ("failed", 2, str(plan))
    assert str(tmp_path / "results/night-scheduled/") in result["directory"]
    assert "removed: night (cron)" in inside(*schedule, "--remove", "night").stderr
    assert inside("crontab", "-l").stdout == FOREIGN
    assert "is not TOML" in (tmp_path / "results/night-scheduled.log").read_text()
