"""Commands over the server's stream: their input, output, exit status and end. The commands are real ones."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO

import pytest

from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.execution import PodProcess
from suite.errors import MeasurementError
from tests.provisioning.kubernetes.conftest import Server

Start = Callable[..., PodProcess]
GONE = MeasurementError("it is gone", kind="evicted")


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(*argv: str, stdin: bytes | IO[bytes] = b"", fate: MeasurementError | None = GONE) -> PodProcess:
            process = PodProcess(cluster, "pod", argv, stdin, lambda: fate)
            stack.callback(process.close)
            return process

        yield started


def test_output_and_exit_status_come_back(start: Start) -> None:
    process = start("sh", "-c", "echo said; echo why >&2; exit 7")
    assert list(process.lines(10)) == ["said"]
    assert (process.wait(10), process.output_tail(), process.running()) == (7, "why\n", False)
    assert start("true").wait(10) == 0


def test_input_has_an_end_and_arrives_whole_while_the_command_answers(start: Start) -> None:
    content = bytes(range(32, 127)) * 20_000
    process = start("cat", stdin=content)
    assert "\n".join(process.lines(30)).encode() == content
    assert process.wait(10) == 0


def test_a_pipe_is_passed_on_as_it_comes_and_its_end_as_an_empty_line(start: Start) -> None:
    reading, writing = os.pipe()
    script = 'while read line && [ -n "$line" ]; do echo got $line; done; echo over'
    process = start("sh", "-c", script, stdin=os.fdopen(reading, "rb"))
    os.write(writing, b"one\n")
    assert next(process.lines(10)) == "got one"
    os.close(writing)
    assert list(process.lines(10)) == ["over"]
    assert process.wait(10) == 0


def test_a_command_that_has_ended_kills_nothing_else_of_its_pod(server: Server, start: Start) -> None:
    """All commands share the pod: the end of a short one must not be the end of the worker."""
    worker = start("sleep", "1000")
    for _ in range(50):
        short = start("echo", "said")
        assert list(short.lines(10)) == ["said"]
        short.close()
    assert worker.running()
    assert not any(each.returncode for each in server.started)


def test_a_command_that_is_killed_with_its_pod_says_so_and_one_that_is_killed_alone_does_not(start: Start) -> None:
    words = ("sh", "-c", "kill -KILL $$")
    with pytest.raises(MeasurementError, match="it is gone"):
        start(*words).wait(10)
    assert start(*words, fate=None).wait(10) == 128 + signal.SIGKILL


def test_a_stream_that_ends_before_its_command_says_why(server: Server, start: Start) -> None:
    server.cuts = True
    process = start("sh", "-c", "echo begun; sleep 1000")
    assert list(process.lines(10)) == ["begun"]
    with pytest.raises(MeasurementError, match="it is gone") as error:
        process.wait(10)
    assert error.value.kind == "evicted"
