"""Commands as jobs: words, patterns, names, and their place in the comparison key."""

import re
import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from suite.errors import RequestError
from suite.job.command import CommandJob, parse_command, parse_pattern
from suite.job.job import Job, settings
from suite.request.request import RunRequest
from tests.jobs import in_job

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=20)


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_the_words_are_those_that_a_shell_would_make(words: list[str]) -> None:
    assume(not re.match(r"\w+=", words[0]))  # a variable, which is refused
    assert parse_command(shlex.join(words)) == tuple(words)


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_every_command_has_a_name_that_files_can_have(words: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", CommandJob(argv=tuple(words)).name)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python", "-u", "src/train.py", "--epochs", "1"), "train.py"),
        (("/usr/bin/fio", "job"), "fio"),
        (("./../",), "command"),
    ],
)
def test_it_is_called_by_its_script_or_its_program(argv: tuple[str, ...], name: str) -> None:
    assert CommandJob(argv=argv).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python 'train.py", "cannot be split into words: No closing quotation"),
        ("''", "names no program"),
        ("  ", "names no program"),
        ("a\nb", "line break"),
        ("a \x1b[2J", "control character"),
        ("x" * 4001, "4000 are the most"),
        ("python train.py | tee log", "| needs a shell, and none starts the command"),
        ("cd src && python train.py", "&& needs a shell"),
        ("python train.py >log", "> needs a shell"),
        ("OMP_NUM_THREADS=4 python train.py", "OMP_NUM_THREADS=4 is set by a shell, and none starts the command"),
    ],
)
def test_a_command_that_cannot_be_is_refused_before_a_run(text: str, message: str) -> None:
    with pytest.raises(RequestError, match="--command: ") as told:
        RunRequest.of({"scenario": "command", "command": text})
    assert message in told.value.message


def test_a_pipe_is_given_to_a_shell_and_an_argument_is_quoted() -> None:
    with pytest.raises(RequestError) as refused:
        parse_command("python train.py | tee log")
    assert str(refused.value.remedy).startswith("write it as sh -c 'python train.py | tee log', or quote |")
    assert parse_command("sh -c 'python train.py | tee log'") == ("sh", "-c", "python train.py | tee log")
    assert parse_command(r'a "b;\"c" d\&e') == ("a", 'b;"c', "d&e")


def test_a_variable_is_set_by_env() -> None:
    with pytest.raises(RequestError) as refused:
        parse_command("A='1 2' python train.py --lr=1")
    assert str(refused.value.remedy) == "write it as env 'A=1 2' python train.py --lr=1"
    assert parse_command("env A=1 python train.py")[:2] == ("env", "A=1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(?P<throughput>", "is no regular expression: "),
        ("(?P<rate>[0-9]+)", "has no group that is named throughput"),
        ("[0-9]+", "has no group that is named throughput"),
        ("(?P<throughput>a{99999999999999999999})", "is no regular expression: "),
        ("(?P<throughput>a)\t", "control character"),
    ],
)
def test_a_pattern_that_finds_no_throughput_is_refused_before_a_run(text: str, message: str) -> None:
    parse_pattern("json")
    parse_pattern("(?P<throughput>[0-9.]+) tokens/s")
    with pytest.raises(RequestError) as told:
        RunRequest.of({"scenario": "command", "throughput_pattern": text})
    assert message in told.value.message


def test_a_unit_is_one_word() -> None:
    with pytest.raises(RequestError, match="--unit"):
        RunRequest.of({"scenario": "command", "unit": "so many"})


def test_the_words_and_the_pattern_are_part_of_the_comparison_key() -> None:
    def key(*argv: str) -> dict[str, str]:
        command = CommandJob(argv=argv, throughput="(?P<throughput>x; y)")
        values = {"scenario": "command", "model": "x", "command": command}
        envelope = {"cpus": (0,), "memory_bytes": 1 << 30, "threads": 1}
        return settings(Job.model_validate(in_job({**values, "envelope": envelope})["job"]))

    assert key("python", "-c", "a; b")["command.argv"] == "python -c 'a; b'"
    assert key("python", "-c", "a; b") != key("python", "-c", "a;b")
    assert key("a", "b c") != key("a", "b", "c")
    assert not any("; " in value for value in key("a; b").values())
