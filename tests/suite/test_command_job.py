"""Commands as jobs: words, patterns, names, and their place in the comparison key."""

import re
import shlex

from hypothesis import assume, given
from hypothesis import strategies as st

from suite.job.command import CommandJob, parse_command
from suite.job.job import Job, comparison_key, settings
from tests.jobs import in_job

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=20)


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_the_words_are_those_that_a_shell_would_make(words: list[str]) -> None:
    assume(not re.match(r"\w+=", words[0]))  # a variable, which is refused
    assert parse_command(shlex.join(words)) == tuple(words)


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_every_command_has_a_name_that_files_can_have(words: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", CommandJob(argv=tuple(words)).name)


def test_the_words_and_the_pattern_are_part_of_the_comparison_key() -> None:
    def job(*argv: str) -> Job:
        command = CommandJob(argv=argv, throughput="(?P<throughput>x; y)")
        values = {"scenario": "command", "model": "x", "command": command}
        envelope = {"cpus": (0,), "memory_bytes": 1 << 30, "threads": 1}
        return Job.model_validate(in_job({**values, "envelope": envelope})["job"])

    def key(*argv: str) -> dict[str, str]:
        return settings(job(*argv))

    assert key("python", "-c", "a; b")["command.argv"] == "python -c 'a; b'"
    assert key("python", "-c", "a; b") != key("python", "-c", "a;b")
    assert key("a", "b c") != key("a", "b", "c")
    assert len(str(comparison_key(job("a; b"))).split("; ")) == len(key("a; b")), "as text it can be divided again"
