"""What is handed to Slurm, word by word."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.sweep.backends import slurm
from commands.sweep.backends.base import job_name
from provisioning.batch.options import SlurmOptions
from suite.errors import MeasurementError
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


def test_a_task_has_ended_when_it_does_not_come_back_by_itself(programs: Calls) -> None:
    programs("".join(f"12|{block}|{state}|n1|None\n" for block, state in enumerate(("R", "PD", "CG", "CD", "NF"))))
    tasks = slurm.tasks(["--me"])
    assert {(task.job, task.node) for task in tasks} == {("12", "n1")}
    assert [task.ended for task in tasks] == [False, False, False, True, True]
