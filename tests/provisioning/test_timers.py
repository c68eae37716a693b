"""Entries of timers: their text, what is refused, and that those of others stay."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from commands.sweep.schedule import choose
from provisioning.kubernetes.cluster import Cluster
from provisioning.timers import host, kubernetes
from provisioning.timers.base import ScheduledJob, Timer, parse_schedule
from provisioning.timers.host import Cron, Systemd, quoted, without
from provisioning.timers.kubernetes import KubernetesTimer
from suite.errors import RequestError
from suite.registries import TIMERS
from tests.kubernetes_schema import invalid
from tests.provisioning.conftest import raises
from tests.provisioning.kubernetes.namespace import Namespace

FOREIGN = """MAILTO=me
CRON_TZ=UTC
# 0 2 * * * old

5 5 * * * /usr/bin/true # virtbench-schedule
@daily backup --all
"""


def line(job: ScheduledJob) -> str:
    return Cron().render(job)["crontab"]


def install(timer: Timer, job: ScheduledJob) -> None:
    timer.install(job.name, timer.render(job))


def job(**changes: Any) -> ScheduledJob:
    values: dict[str, Any] = {
        "name": "night",
        "schedule": parse_schedule("02:00 daily"),
        "plan": Path("/home/me/night.toml"),
        "command": ("/opt/python", "/opt/cli.py"),
        "options": ("--notify", "tee 'a b' 100%"),
        "directory": "/home/me/my runs",
        "environment": {"PATH": "/usr/bin:/bin"},
        "log": "/home/me/night.log",
    }
    return ScheduledJob(**(values | changes))


def test_the_shell_of_cron_gets_back_every_word_as_it_was(tmp_path: Path) -> None:
    shown = tmp_path / "it's a log"
    words = ("/usr/bin/printf", "%s\\n", "tee 'a b'", "$HOME `id` \\ %", '"')
    text = line(job(command=words, options=(), directory=str(tmp_path), log=str(shown), environment={"A": "b c"}))
    # As cron does: the five fields go, an escaped % is one, and the rest is the shell's.
    subprocess.run(["sh", "-c", text.split(None, 5)[5].replace(r"\%", "%")], env={}, check=True)
    assert shown.read_text().splitlines() == list(words[2:])


def test_a_command_longer_than_cron_takes_is_refused() -> None:
    with pytest.raises(RequestError, match="cron takes 998"):
        line(job(directory="/" + "x" * 1000))


@pytest.mark.parametrize("change", [{"name": "../x"}, {"name": ""}, {"name": "a b"}, {"directory": "/a\n* * * * * rm"}])
def test_what_could_become_another_entry_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        job(**change)


STORE = """case "$1" in
-l) if [ -e "$0.table" ]; then cat "$0.table"; else echo "no crontab for me" >&2; exit 1; fi;;
*) cp "$1" "$0.table";;
esac"""


def test_an_entry_is_added_replaced_and_removed_and_every_other_line_stays(program: Any) -> None:
    table, timer = Path(f"{program('crontab', STORE)}.table"), Cron()
    assert timer.installed() == []
    install(timer, job())
    assert table.read_text() == "".join(timer.render(job()).values())
    table.write_text(FOREIGN.rstrip("\n"))  # a last line without a line break
    install(timer, job())
    install(timer, job(name="noon"))
    install(timer, job(schedule=parse_schedule("6h")))
    assert table.read_text().endswith(FOREIGN)
    assert [(one.name, one.when) for one in timer.installed()] == [("night", "0 */6 * * *"), ("noon", "0 2 * * *")]
    timer.remove("night")
    timer.remove("noon")
    assert table.read_text() == FOREIGN
    assert without(FOREIGN, "night") == FOREIGN


@pytest.mark.parametrize(("user", "linger", "warned"), [(1000, "no", True), (1000, "yes", False), (0, "no", False)])
def test_timers_of_a_user_without_lingering_are_named(
    user: int, linger: str, warned: bool, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("systemctl", "echo running")
    program("loginctl", f'[ "$*" = "show-user {user} --property=Linger" ] && echo Linger={linger}')
    monkeypatch.setattr("os.geteuid", lambda: user)
    timer = Systemd()
    assert timer.missing() is None
    assert ("loginctl enable-linger" in str(timer.asleep())) is warned


def test_a_table_that_cannot_be_read_is_never_overwritten(program: Any) -> None:
    table = Path(f"{program('crontab', STORE.replace('no crontab for me', 'you are not allowed to use this'))}.table")
    with pytest.raises(RequestError, match="not allowed"):
        install(Cron(), job())
    assert not table.exists()


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("You (alice) are not allowed to use this program (crontab)", "/etc/cron.allow"),
        ("Authentication token is no longer valid; new password required", "passwd"),
        ("crontabs/alice/: fopen: Permission denied", "cron.allow"),
    ],
)
def test_a_user_whom_crontab_refuses_is_given_the_remedy(message: str, remedy: str, program: Any) -> None:
    program("crontab", f"echo '{message}' >&2; exit 1")
    with raises(RequestError, "crontab refuses this user", remedy):
        Cron().installed()


@pytest.mark.parametrize(
    "message",
    ["no crontab for alice", "user alice has no fcrontab.", "crontab: can't open 'alice': No such file or directory"],
)
def test_every_cron_names_an_empty_table_in_its_own_words(message: str, program: Any) -> None:
    program("crontab", f'echo "{message}" >&2; exit 1')
    assert Cron().installed() == []


def test_a_table_in_another_encoding_is_written_back_as_it_was(program: Any) -> None:
    table = Path(f"{program('crontab', STORE)}.table")
    table.write_bytes(b"# Gr\xfc\xdfe\n")
    install(Cron(), job())
    Cron().remove("night")
    assert table.read_bytes() == b"# Gr\xfc\xdfe\n"


@pytest.mark.parametrize(("state", "awake"), [("active", True), ("inactive", False)])
def test_systemd_cron_has_no_daemon(state: str, awake: bool, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "DAEMONS", set())
    program("systemctl", f'[ "$*" = "is-active cron.target" ] && echo {state}')
    assert (Cron().asleep() is None) is awake


def test_a_unit_of_systemd_is_installed_listed_and_removed_and_others_stay(tmp_path: Path, program: Any) -> None:
    called = tmp_path / "called"
    program("systemctl", f'echo "$@" >>{called}; echo running')
    timer = Systemd(tmp_path / "units")
    timer.units.mkdir()
    (timer.units / "virtbench-mine.timer").write_text("[Timer]\nOnCalendar=daily\n")
    assert timer.missing() is None
    install(timer, job())
    install(timer, job())
    assert [(one.name, one.when) for one in timer.installed()] == [("night", "*-*-* 02:00:00")]
    assert "enable --now virtbench-night.timer" in called.read_text()
    timer.remove("night")
    assert [path.name for path in timer.units.iterdir()] == ["virtbench-mine.timer"]


@pytest.mark.parametrize("suffix", ["timer", "service"])
def test_a_unit_of_the_users_own_is_neither_written_over_nor_removed(tmp_path: Path, program: Any, suffix: str) -> None:
    program("systemctl", "echo running")
    timer = Systemd(tmp_path / "units")
    timer.units.mkdir()
    install(timer, job())
    mine = timer.units / f"virtbench-night.{suffix}"
    mine.write_text("mine")
    with pytest.raises(RequestError, match="a unit of your own"):
        install(timer, job())
    timer.remove("night")
    assert [(path.name, path.read_text()) for path in timer.units.iterdir()] == [(mine.name, "mine")]


def test_a_host_whose_first_process_is_not_systemd_has_no_such_timer(program: Any) -> None:
    program("systemctl", "echo offline; exit 1")
    assert "does not manage" in str(Systemd().missing())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    made = job(command=("/bin/echo",), options=("a 'b' \"c\" 100% $HOME \\",), directory="/tmp")
    for place, text in Systemd(tmp_path).render(made).items():
        Path(place).write_text(text)
    units = [str(tmp_path / f"virtbench-night.{suffix}") for suffix in ("service", "timer")]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert "virtbench-night" not in done.stderr, done.stderr


def test_a_word_is_quoted_as_systemd_reads_it() -> None:
    assert quoted('a "b" 5% \\') == '"a \\"b\\" 5%% \\\\"'


def test_without_any_timer_the_reason_of_each_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(RequestError, match=r"systemd: systemctl is not installed; cron: crontab is not installed; kub"):
        choose(None)
    for kind in TIMERS:
        with pytest.raises(RequestError, match=r"not installed|no kubeconfig"):
            choose(kind)


ENGINE = '[engine]\nkind = "kubernetes"\nimage = "registry.example.org/virtbench-suite:0123456789ab"\n'
CLAIM = 'claim = "records"\n'


@pytest.fixture
def nightly(tmp_path: Path) -> ScheduledJob:
    return planned(tmp_path, ENGINE + CLAIM)


def planned(tmp_path: Path, engine: str, **changes: Any) -> ScheduledJob:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'name = "pods"\n{engine}')
    return job(**{"plan": plan, "options": ("--keep", "3"), "log": "/home/me/results/night.log", **changes})


@pytest.fixture(params=["batch/v1beta1", "batch/v1"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """A server of 1.20, and today's."""
    found = Namespace(resources=("jobs", "cronjobs") if request.param == "batch/v1" else ("jobs",))
    monkeypatch.setattr(Cluster, "connect", lambda: found)
    return found


@pytest.mark.parametrize("group", ["batch/v1beta1", "batch/v1"])
def test_the_cronjob_is_valid_in_1_20_and_today(nightly: ScheduledJob, group: str) -> None:
    assert invalid(kubernetes.manifest(nightly, group)) == []


def test_a_cronjob_is_installed_replaced_and_removed(cluster: Namespace, nightly: ScheduledJob, tmp_path: Path) -> None:
    timer = KubernetesTimer()
    install(timer, nightly)
    install(timer, planned(tmp_path, ENGINE + CLAIM, schedule=parse_schedule("6h")))
    (one,) = timer.installed()
    assert (one.name, one.when.split(" (")[0]) == ("night", "0 */6 * * *")
    assert "virtbench-night in lab of here" in one.line
    timer.remove("night")
    assert timer.installed() == []
    group = "batch/v1" if "cronjobs" in cluster.resources else "batch/v1beta1"
    place = f"/apis/{group}/namespaces/lab/cronjobs/virtbench-night"
    assert cluster.changes == [f"POST {place}", f"PUT {place}", f"DELETE {place}"]


@pytest.mark.parametrize(
    ("engine", "changes", "said"),
    [
        ("", {}, "by the engine local"),
        (ENGINE, {}, "names no claim"),
        (f'{ENGINE}{CLAIM}context = "far"\n', {}, "names a context"),
        (ENGINE + CLAIM, {"options": ("--notify", "mail")}, "--notify: a pod has neither"),
        (ENGINE + CLAIM, {"name": "Night"}, "cannot be the name of a CronJob"),
        (ENGINE + CLAIM, {"name": "n" * 43}, "cannot be the name of a CronJob"),
    ],
)
def test_what_a_pod_cannot_be_given_is_refused(tmp_path: Path, engine: str, changes: dict[str, Any], said: str) -> None:
    with raises(RequestError, said):
        kubernetes.manifest(planned(tmp_path, engine, **changes), "batch/v1")


def test_a_nameless_zone_is_refused(nightly: ScheduledJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(kubernetes, "LOCALTIME", tmp_path / "localtime")
    assert kubernetes.time_zone() == "Etc/UTC"
    (tmp_path / "localtime").write_bytes(b"TZif2")
    with pytest.raises(RequestError, match="does not name a time zone"):
        kubernetes.manifest(nightly, "batch/v1")


def test_without_a_cluster_the_reason_is_told_and_a_dry_run_shows_todays_manifest(
    nightly: ScheduledJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    timer = KubernetesTimer()
    assert "there is no kubeconfig" in str(timer.missing())
    assert '"apiVersion": "batch/v1"' in timer.render(nightly)["cronjobs/virtbench-night"]
