"""A worker that lies, floods, or is killed: the trial fails within its time, in bounds, and with a record."""

import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from provisioning import bounded_output
from provisioning.machines import running
from provisioning.machines.running import RunningQemu, explained
from provisioning.nodes import LocalNode, local_node
from suite.errors import CommandError, MeasurementError
from tests.hostile.test_fuzz import recorded
from tests.provisioning.conftest import running_qemu
from tests.scenarios.conftest import ScriptedNode, ScriptedProcess
from tests.scenarios.test_job import STORY, event


@pytest.fixture
def node(home: Path) -> Iterator[LocalNode]:
    """This machine, with a home of the test's own."""
    assert not home.exists()
    with local_node((0,), None) as made:
        yield made


HUGE = "9" * 400
LIES = {
    "nested": '{"event": "started", "t": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "digits": f'{{"event": "started", "t": {HUGE}}}',
    "digits in a field": f'{{"event": "error", "t": 1, "message": {HUGE}, "kind": "x"}}',
    "infinity": '{"event": "started", "t": 1e999}',
    "half a character": '{"event": "error", "t": 1, "kind": "data", "message": "\\ud800"}',
    "no kind": '{"event": "error", "t": 1, "kind": "", "message": ""}',
    "a long message": json.dumps({"event": "error", "t": 1, "kind": "data", "message": "x" * 1_000_000}),
    "no steps": "\n".join(line for line in STORY if '"steps"' not in line),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_the_worker_is_a_record_of_its_trial(lie: str, tmp_path: Path) -> None:
    record = recorded(tmp_path, ScriptedNode(process=ScriptedProcess(LIES[lie].split("\n"))))
    assert (record.outcome.status, record.outcome.kind == "mistake") == ("failed", False)
    assert len(record.model_dump_json()) < 100_000


@pytest.mark.parametrize("answer", ["[" * 100_000, f'{{"cpus": {HUGE}}}', '{"kernel": "\\ud800"}', "[]", ""])
def test_a_lie_of_the_attestation_is_a_record_too(answer: str, tmp_path: Path) -> None:
    record = recorded(tmp_path, ScriptedNode(attestation=answer))
    assert (record.outcome.status, record.outcome.kind) == ("failed", "protocol")


def test_numbers_that_no_record_can_hold_fail_the_trial_that_measured_them(tmp_path: Path) -> None:
    story = [event("started", -1e308) if '"started"' in line else line for line in STORY]
    story = [event("imported", 1e308) if '"imported"' in line else line for line in story]
    record = recorded(tmp_path, ScriptedNode(process=ScriptedProcess(story), attestation='{"threads": 2}'))
    assert (record.outcome.status, record.throughput_per_s) == ("failed", None)


def test_an_error_that_nobody_has_foreseen_is_a_record_with_its_traceback(tmp_path: Path) -> None:
    class Broken(ScriptedNode):
        def run(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("by accident")

    record = recorded(tmp_path, Broken())
    assert (record.outcome.kind, record.outcome.message) == ("mistake", "ZeroDivisionError: by accident")
    assert "by accident" in record.outcome.output_tail
    assert "report" in str(record.outcome.remedy)


@pytest.mark.parametrize("code", ["while True: print('x')", "while True: print('x' * 100, end='')"])
def test_a_time_limit_is_kept_while_output_flows(code: str, node: LocalNode) -> None:
    process = node.start([sys.executable, "-c", code])
    begin_s = time.monotonic()
    with pytest.raises((CommandError, MeasurementError)):
        deque(process.lines(0.5), maxlen=0)
    assert time.monotonic() - begin_s < 60
    assert not process.running()


@pytest.mark.parametrize(("code", "said"), [("print('x' * 100, end='')", "one line"), ("print('x')", "more than")])
def test_who_says_too_much_is_ended(code: str, said: str, node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_output, "LONGEST_LINE_BYTES", 1 << 16)
    monkeypatch.setattr(bounded_output, "MOST_OUTPUT_BYTES", 1 << 18)
    with pytest.raises(MeasurementError, match=said) as raised:
        node.run([sys.executable, "-c", f"while True: {code}"])
    assert raised.value.kind == "output"


def test_standard_error_fills_no_disk_and_its_end_is_kept(node: LocalNode) -> None:
    # The process itself says where its standard error goes: looked up from here, it may have ended already.
    code = "import os, sys; sys.stderr.write('x' * 50_000_000 + os.readlink('/proc/self/fd/2'))"
    process = node.start([sys.executable, "-c", code])
    assert process.wait(60) == 0
    tail = process.output_tail()
    assert len(tail) == bounded_output.TAIL_BYTES
    assert re.fullmatch(r"x+pipe:\[\d+\]", tail)


def test_a_daemon_that_holds_standard_error_open_keeps_nobody_waiting(node: LocalNode) -> None:
    begin_s = time.monotonic()
    assert node.run(["sh", "-c", "sleep 600 >/dev/null & echo said >&2"]).stderr == "said\n"
    assert time.monotonic() - begin_s < 60


def guest(node: LocalNode, code: str) -> RunningQemu:
    return running_qemu(node.start([sys.executable, "-c", code]))


def test_a_guest_that_floods_its_console_is_ended_and_the_reason_said(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_output, "MOST_OUTPUT_BYTES", 1 << 18)
    machine = guest(node, f"print({running.READY!r}, flush=True)\nwhile True: print('x' * 50)")
    assert machine.console.wait_until_ready(30)
    machine.process.wait(60)
    error = explained(MeasurementError("ssh ended with exit status 255"), machine)
    machine.console.close()
    assert (error.kind, "wrote more than" in error.message) == ("output", True)
    assert len(machine.console.text) <= running.KEPT_CHARACTERS


def test_a_killed_qemu_is_named_as_that(node: LocalNode) -> None:
    machine = guest(node, f"print({running.READY!r}, flush=True); import time; time.sleep(60)")
    assert machine.console.wait_until_ready(30)
    os.kill(cast("Any", machine.process).popen.pid, signal.SIGKILL)
    error = explained(MeasurementError("the worker ended with exit status 255"), machine)
    assert error.message == "QEMU was ended by SIGKILL: the worker ended with exit status 255"
    assert error.kind == "killed"
    assert error.remedy


def test_a_guest_that_is_never_ready_or_ends_is_waited_for_no_longer_than_that(node: LocalNode) -> None:
    machine = guest(node, "import time; time.sleep(60)")
    assert not machine.console.wait_until_ready(0.2)
    machine.process.kill()
    machine.console.close()
    heard = guest(node, "print('qemu: no such disk')").console
    begin_s = time.monotonic()
    assert not heard.wait_until_ready(30)
    assert time.monotonic() - begin_s < 20
    heard.close()
    assert "no such disk" in heard.text
