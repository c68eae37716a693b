"""What is handed to Slurm, word by word."""

import shlex
from pathlib import Path

import pytest
from pydantic import ValidationError

from provisioning.batch import slurm
from provisioning.batch.options import SlurmOptions

COMMAND = ("/opt/vb/bin/bench", "sweep", "run", "/home/a b/plan.toml", "--out", "/data/a b", "--only-block")


def script(options: SlurmOptions | None = None, **changed: object) -> str:
    given = {"blocks": [0, 1, 2], "limit": "12", "directory": Path("/data/a b"), **changed}
    return slurm.script(options or SlurmOptions(), "bench-smoke-1", command=COMMAND, **given)  # type: ignore[arg-type]


def words_for_sbatch(text: str) -> list[str]:
    return [word for line in text.splitlines() if line.startswith("#SBATCH ") for word in shlex.split(line[8:])]


@pytest.mark.parametrize(
    ("blocks", "at_once", "words"),
    [([0], None, "0"), ([0, 1, 2], None, "0-2"), ([5, 0, 2, 3, 3], None, "0,2-3,5"), ([0, 1], 1, "0-1%1")],
)
def test_the_blocks_are_named_in_ranges(blocks: list[int], at_once: int | None, words: str) -> None:
    assert slurm.array(blocks, at_once) == words


def test_a_block_has_a_whole_node_and_comes_back_after_preemption() -> None:
    words = words_for_sbatch(script())
    assert {"--exclusive", "--nodes=1", "--mem=0", "--requeue", "--open-mode=append", "--array=0-2"} <= set(words)
    assert "--time=12" in words
    assert "--signal=B:TERM@60" in words


def test_what_is_not_chosen_is_left_to_the_cluster() -> None:
    words = words_for_sbatch(script(limit=None))
    assert not [word for word in words if word.startswith(("--time", "--partition", "--account", "--constraint"))]


def test_choices_of_the_plan_reach_sbatch() -> None:
    options = SlurmOptions(
        partition="cpu", account="p1", constraint="icelake&nvme", at_once=4, further=("--licenses=a b",)
    )
    words = words_for_sbatch(script(options))
    assert {"--partition=cpu", "--account=p1", "--constraint=icelake&nvme", "--licenses=a b"} <= set(words)
    assert "--array=0-2%4" in words


def test_names_with_spaces_stay_one_word_and_a_percent_is_no_field() -> None:
    text = script(directory=Path("/data/50% $(id)"))
    assert "--output=/data/50%% $(id)/logs/slurm-%A_%a.log" in words_for_sbatch(text)
    last = text.rstrip().splitlines()[-1]
    assert shlex.split(last) == ["exec", *COMMAND, "$SLURM_ARRAY_TASK_ID"]


@pytest.mark.parametrize(
    ("options", "estimate_s", "minutes"),
    [
        ({}, None, None),
        ({}, 600.0, "21"),
        ({"time_margin": 1.0}, 1.0, "2"),
        ({"time_limit": "2h"}, 600.0, "120"),
        ({"time_limit": "90s"}, None, "2"),
    ],
)
def test_the_time_limit_is_the_estimate_with_a_margin(
    options: dict[str, object], estimate_s: float | None, minutes: str | None
) -> None:
    assert slurm.time_limit(SlurmOptions.model_validate(options), estimate_s) == minutes


@pytest.mark.parametrize(
    "table",
    [
        {"partitoin": "cpu"},
        {"partition": "cpu\n#SBATCH --uid=0"},
        {"partition": "--uid=0"},
        {"further": ["uid=0"]},
        {"further": ["--wrap=x\n"]},
        {"scratch": "relative"},
        {"scratch": "/a/../b"},
        {"time_limit": "soon"},
        {"at_once": 0},
    ],
)
def test_what_is_no_option_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SlurmOptions.model_validate(table)


def test_a_sweep_finds_its_jobs_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert slurm.job_name("smoke", tmp_path) == slurm.job_name("smoke", tmp_path / "link")
    assert slurm.job_name("smoke", tmp_path) != slurm.job_name("smoke", tmp_path / "other")


@pytest.mark.parametrize(("state", "ended"), [("R", False), ("PD", False), ("CG", False), ("CD", True), ("NF", True)])
def test_a_task_has_ended_when_it_does_not_come_back_by_itself(state: str, ended: bool) -> None:
    task = slurm.task_of(f"12|3|{state}|n1|None")
    assert (task.job, task.block, task.node, task.ended) == ("12", 3, "n1", ended)
