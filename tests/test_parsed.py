"""What people write is read as the transcript has it, and systemd reads the same schedules."""

import ast
import shutil
import subprocess

import pytest

from tests.parsed import TRANSCRIPT, answer_to
from tests.refusals import read

READ = read(TRANSCRIPT.read_text(), ">")


def test_every_text_is_read_or_refused_as_in_the_transcript() -> None:
    assert {question: answer_to(question) for question in READ} == READ, "python -m tests.parsed"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_understands_every_schedule() -> None:
    forms = [answer for question, answer in READ.items() if question.startswith("schedule ") and answer[0] == "("]
    argv = ["systemd-analyze", "calendar", *{ast.literal_eval(form)[1] for form in forms}]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
