"""What is handed to Slurm, word by word."""

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from commands.sweep.backends import slurm
from commands.sweep.backends.base import job_name
from provisioning.batch import patience
from provisioning.batch.options import SlurmOptions
from provisioning.batch.patience import AwayError
from provisioning.batch.remote import StreamProcess
from suite.errors import CommandError, MeasurementError, RequestError
from tests.clock import Clock
from tests.suite.sweep.conftest import make_sweep

Calls = Callable[..., list[list[str]]]
COMMAND = ("/opt/vb/bin/bench", "sweep", "run", "/home/a b/plan.toml", "--out", "/data/a b", "--only-block")


def script(options: SlurmOptions | None = None, **changed: object) -> str:
    given = {"blocks": [0, 1, 2], "limit": "12", "directory": Path("/data/a b"), **changed}
    return slurm.script(options or SlurmOptions(), "bench-smoke-1", command=COMMAND, **given)  # type: ignore[arg-type]


def words_for_sbatch(text: str) -> list[str]:
    return [word for line in text.splitlines() if line.startswith("#SBATCH ") for word in shlex.split(line[8:])]


def test_a_sweep_finds_its_jobs_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert job_name(make_sweep(), tmp_path) == job_name(make_sweep(), tmp_path / "link")
    assert job_name(make_sweep(), tmp_path) != job_name(make_sweep(), tmp_path / "other")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """``programs(answer)``: Slurm's programs print it; returns the words of every call so far."""
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def _programs(answer: str = "") -> list[list[str]]:
        (tmp_path / "answer").write_text(answer)
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name in ("sbatch", "squeue", "scancel"):
            program = tmp_path / "bin" / name
            own = f'echo {name} "$@" "filter=${{{name.upper()}_PARTITION}}" >>{calls}'
            program.write_text(f"#!/bin/sh\n{own}\n[ {name} = sbatch ] && cat >/dev/null\ncat {tmp_path / 'answer'}\n")
            program.chmod(0o755)
        return [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []

    return _programs


BANNER = "\n-----\n  Welcome to the cluster\n-----\n\n--> Verifying access to desired queue (spr)...OK\n"


@pytest.mark.parametrize(
    ("answer", "job", "cluster"),
    [("4712\n", "4712", None), ("4712;alpha\n", "4712", "alpha"), (f"{BANNER}519605\n", "519605", None)],
)
def test_a_jobs_number_is_read_behind_a_banner(answer: str, job: str, cluster: str | None, programs: Calls) -> None:
    programs(answer)
    assert slurm.submit(script()) == (job, cluster)


def test_an_answer_without_a_number_is_no_job(programs: Calls) -> None:
    programs(BANNER)
    with pytest.raises(MeasurementError, match="Welcome to the cluster") as raised:
        slurm.submit(script())
    assert "first on PATH" in str(raised.value.remedy)


def test_what_a_plan_chooses_stands_on_the_command_line_where_no_variable_wins(programs: Calls) -> None:
    programs("1\n")
    text = script(SlurmOptions(partition="cpu", account="p1", constraint="[rack1|rack2]"))
    slurm.submit(text)
    (called,) = programs()
    assert called[1:-1] == ["--parsable", *" ".join(words_for_sbatch(text)).split()]
    assert {"--partition=cpu", "--account=p1", "--constraint=[rack1|rack2]", "--requeue", "--mem=0"} <= set(called)


def test_the_queue_is_read_whatever_else_squeue_prints(programs: Calls) -> None:
    programs("CLUSTER: alpha\n4711|0|PD||Priority\n\n4711|1|R|n01|None\n4713|N/A|R|n02|None\n")
    assert [(task.job, task.block, str(task)) for task in slurm.tasks(["--me"])] == [
        ("4711", 0, "waiting (Priority)"),
        ("4711", 1, "running on n01"),
    ]
    programs("JOBID PARTITION NAME\n4711 main bench-x\n")
    with pytest.raises(MeasurementError, match="the answer of squeue is not Slurm's: 'JOBID PARTITION NAME'"):
        slurm.tasks(["--me"])


@pytest.mark.parametrize(
    ("further", "variables", "words"),
    [
        ((), {}, []),
        (("--clusters=alpha",), {"SBATCH_CLUSTERS": "beta"}, ["--clusters=alpha"]),
        ((), {"SBATCH_CLUSTERS": "beta", "SLURM_CLUSTERS": "gamma"}, ["--clusters=beta"]),
        ((), {"SLURM_CLUSTERS": "gamma"}, ["--clusters=gamma"]),
    ],
)
def test_squeue_and_scancel_ask_the_cluster_that_takes_the_jobs_and_use_no_other_filter(
    further: tuple[str, ...],
    variables: dict[str, str],
    words: list[str],
    programs: Calls,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in {**variables, "SQUEUE_PARTITION": "gpu", "SCANCEL_PARTITION": "gpu"}.items():
        monkeypatch.setenv(name, value)
    text = script(SlurmOptions(further=further))
    assert [word for word in words_for_sbatch(text) if word.startswith("--clusters")] == words
    programs("4711|0|PD||Priority\n")
    slurm.Slurm().cancel(make_sweep(engine={"kind": "slurm", "further": list(further)}), tmp_path)
    assert [called[0] for called in programs()] == ["squeue", "scancel"]
    for called in programs():
        assert [word for word in called if word.startswith("--clusters")] == words
        assert called[-1] == "filter="


BUSY = "slurm_load_jobs error: Socket timed out on send/recv operation"
JOB_SHELL = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1", "SLURM_EXACT": "1", "SBATCH_EXCLUSIVE": "user"}


def test_a_controller_that_is_away_for_a_moment_ends_no_following(
    programs: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs()
    clock, squeue, notes = Clock(), tmp_path / "bin/squeue", list[str]()
    monkeypatch.setattr(patience, "time", clock)
    followed = slurm.FollowedQueue(["--me"], 0.0, notes.append, [])
    squeue.write_text(f"#!/bin/sh\necho '{BUSY}' >&2; exit 1\n")
    first = followed.newest(1)
    assert first is not None, "submitted, and not seen yet"
    assert not first.ended
    squeue.write_text("#!/bin/sh\necho '4712|1|R|n1|None'\n")
    assert str(followed.newest(1)) == "running on n1"
    squeue.write_text(f"#!/bin/sh\necho '{BUSY}' >&2; exit 1\n")
    assert [str(followed.newest(1)) for _ in range(3)] == ["running on n1"] * 3
    assert [note for note in notes if "for 120 s" in note] == [notes[0], notes[2]]
    clock.sleep(125)
    with pytest.raises(
        AwayError, match=r"the controller of Slurm has not answered for 12\d s: slurm_load_jobs"
    ) as raised:
        followed.newest(1)
    assert "bench sweep run follows them again" in str(raised.value.remedy)
    squeue.write_text("#!/bin/sh\n")
    assert followed.newest(1) is None


def test_what_is_no_absence_of_the_controller_is_not_waited_for(programs: Calls, tmp_path: Path) -> None:
    programs()
    (tmp_path / "bin/squeue").write_text("#!/bin/sh\necho 'error: unrecognized arguments: --me' >&2; exit 2\n")
    with pytest.raises(CommandError, match="unrecognized arguments"):
        slurm.FollowedQueue(["--me"], 0.0, print, []).newest(0)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("launch failed requeued held", "scontrol release 4712_0"),
        ("JobHeldUser", "scontrol release 4712_0"),
        ("PartitionTimeLimit", "time_limit"),
        ("AssocMaxCpuPerJobLimit", "scontrol show job 4712_0"),
        ("QOSMaxWallDurationPerJobLimit", "bench sweep cancel"),
        ("BadConstraints", "constraint"),
    ],
)
def test_a_task_that_no_waiting_starts_is_refused_with_its_reason(reason: str, remedy: str, programs: Calls) -> None:
    programs(f"4712|0|PD||{reason}\n")
    process = slurm.TaskProcess(slurm.FollowedQueue(["--me"], 0.0, print, []), 0)
    with pytest.raises(RequestError, match=reason) as raised:
        list(process.lines())
    assert remedy in str(raised.value.remedy)


@pytest.mark.parametrize(
    "reason", ["Priority", "Resources", "BeginTime", "ReqNodeNotAvail, UnavailableNodes:n1", "QOSMaxJobsPerUserLimit"]
)
def test_a_task_that_waits_for_its_turn_is_waited_for(reason: str) -> None:
    assert slurm.ArrayTask("4712", 0, "PD", reason, "").final is None


def test_no_variable_of_a_jobs_shell_reaches_the_jobs_of_a_sweep(
    programs: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs("1\n")
    for name in ("sbatch", "salloc", "squeue", "scancel"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nenv >{tmp_path}/{name}.env\necho 4712\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name, value in {**JOB_SHELL, "SLURM_CONF": "/etc/own.conf", "SLURM_JWT": "x"}.items():
        monkeypatch.setenv(name, value)
    slurm.submit(script())
    slurm._ask(["squeue"])
    slurm._ask(["scancel"])
    (tmp_path / "logs").mkdir()
    block = StreamProcess(["salloc"], [], tmp_path / "logs/log", without=slurm.own_variables())
    assert list(block.lines()) == []
    block.close()
    for name in ("sbatch", "salloc", "squeue", "scancel"):
        seen = dict(line.split("=", 1) for line in (tmp_path / f"{name}.env").read_text().splitlines() if "=" in line)
        assert not set(JOB_SHELL) & set(seen)
        assert (seen["SLURM_CONF"], seen["SLURM_JWT"]) == ("/etc/own.conf", "x")


def test_both_ways_take_the_users_account_if_the_plan_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "p7")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    words = slurm.resources(SlurmOptions(partition="cpu"), "bench-x", "12")
    assert {"--account=p7", "--partition=cpu", "--exclusive", "--mem=0"} <= set(words)
    assert set(words) <= {*words_for_sbatch(script(SlurmOptions(partition="cpu"))), "--job-name=bench-x"}


@pytest.mark.parametrize(
    ("variables", "sharing", "refused"),
    [
        ({}, "YES", None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "1(x2)"}, "NO", None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "4096"}, "NO", "of the 4,096 CPUs of its job"),
        ({"SLURM_JOB_ID": "7"}, "NO\nNO", None),
        ({"SLURM_JOB_ID": "7"}, "NO\nYES", r"other jobs may run on the node of the block \(OverSubscribe=YES\)"),
        ({"SLURM_JOB_ID": "7"}, "YES", "other jobs may run on the node"),
    ],
)
def test_a_block_is_refused_on_a_node_that_is_not_all_its_own(
    variables: dict[str, str], sharing: str, refused: str | None, programs: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(f"{sharing}\n")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match=refused) if refused else nullcontext():
        slurm.Slurm().check_node()


def test_a_task_has_ended_when_it_does_not_come_back_by_itself(programs: Calls) -> None:
    programs("".join(f"12|{block}|{state}|n1|None\n" for block, state in enumerate(("R", "PD", "CG", "CD", "NF"))))
    tasks = slurm.tasks(["--me"])
    assert {(task.job, task.node) for task in tasks} == {("12", "n1")}
    assert [task.ended for task in tasks] == [False, False, False, True, True]
