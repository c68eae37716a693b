"""Real children, small ones."""

import os
import pty
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from provisioning import ledger
from provisioning.cgroup.counters import ControlGroup
from provisioning.nodes import IMAGE_PYTHON, HostProcesses, LocalNode, WrappedNode, local_node, write_file
from provisioning.paths import state
from provisioning.processes import TOKEN, carrying, end_all
from provisioning.sites import here
from suite.errors import CommandError, RequestError
from tests.extensions.conftest import REPOSITORY
from tests.provisioning.conftest import Program

PYTHON = sys.executable


def test_output_comes_line_by_line_and_the_last_needs_no_end(node: LocalNode) -> None:
    process = node.start(["printf", "a\\377\\nb c\\n\\nlast"])
    assert list(process.lines(60)) == ["a\N{REPLACEMENT CHARACTER}", "b c", "", "last"]
    assert process.wait(60) == 0
    assert not process.running()


def test_standard_input_is_given_and_then_at_its_end(node: LocalNode) -> None:
    given = os.urandom(100_000).hex().encode()
    assert list(node.start(["cat"], stdin=given).lines(60)) == [given.decode()]
    assert list(node.start(["cat"]).lines(60)) == []


def test_an_exit_status_is_told_and_what_was_said_last_is_kept(node: LocalNode) -> None:
    process = node.start(["sh", "-c", "echo first >&2; echo last >&2; exit 3"])
    assert process.wait(60) == 3
    assert process.output_tail() == "first\nlast\n"


@pytest.mark.parametrize("way", ["lines", "wait"])
def test_the_time_limit_ends_the_process_with_its_children(node: LocalNode, way: str) -> None:
    process = node.start(["sh", "-c", "echo slow >&2; echo started; sleep 600 & sleep 600"])
    next(process.lines(60))
    begin = time.monotonic()
    with pytest.raises(CommandError, match="sh outlived its time limit: slow") as caught:
        list(process.lines(0.1)) if way == "lines" else process.wait(0.1)
    assert time.monotonic() - begin < 60
    assert caught.value.returncode is None
    assert caught.value.command[:2] == ("sh", "-c")
    assert not process.running()
    psutil.wait_procs(carrying(node.token), timeout=60)
    assert carrying(node.token) == []


def test_the_token_is_in_the_environment_of_children_and_theirs(node: LocalNode) -> None:
    assert next(node.start(["sh", "-c", f"echo ${TOKEN}; env"]).lines(60)) == node.token
    process = node.start(["sh", "-c", "sh -c 'sleep 60 & echo up; wait' & wait"])
    assert next(process.lines(60)) == "up"
    deadline = time.monotonic() + 60
    # A child that becomes another program has no environment for a moment.
    while len(found := carrying(node.token)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.getpid() not in {each.pid for each in found}
    assert carrying("another") == []


def test_grandchildren_that_left_the_session_are_found_and_ended(node: LocalNode) -> None:
    # It is said when the grandchild is what it is to be: by then it is in a session of its own.
    process = node.start(["sh", "-c", "setsid sleep 60 & until grep -qx sleep /proc/$!/comm; do :; done; echo gone"])
    assert "gone" in process.lines(60)
    process.kill()
    (left,) = carrying(node.token)
    assert left.name() == "sleep"
    end_all(node.token)
    assert carrying(node.token) == []
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("program", "remedy"),
    [("docker", "package docker.io; in"), ("runc", "package runc; in"), ("no-such-program", "directory to PATH")],
)
def test_a_program_that_is_not_installed_is_named_with_its_package(
    node: LocalNode, program: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RequestError, match=f"{program} is not installed") as caught:
        node.start([program])
    assert remedy in str(caught.value.remedy)
    assert "bench doctor" not in str(caught.value.remedy), "it shows this text itself"


def test_a_file_that_is_no_program_is_named_with_why(node: LocalNode, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="Permission denied"):
        node.start([str(tmp_path / "file")])


# ---- the node


def test_a_command_that_fails_is_an_error_with_its_last_words_unless_asked_otherwise(node: LocalNode) -> None:
    argv = ["sh", "-c", "echo why >&2; exit 4"]
    with pytest.raises(CommandError, match="sh ended with exit status 4: why") as caught:
        node.run(argv)
    assert caught.value.command == tuple(argv)
    assert caught.value.returncode == 4
    assert node.run(argv, check=False).returncode == 4
    with pytest.raises(CommandError, match="said on stdout"):
        node.run(["sh", "-c", "echo said on stdout; exit 1"])


def test_at_the_end_of_a_node_nothing_of_it_is_left() -> None:
    with local_node((0,), None) as node:
        process = node.start(["sh", "-c", "setsid sleep 60 & echo up; wait"])
        assert next(process.lines(60)) == "up"
        token = node.token
        assert carrying(token)
        held = {(entry.kind, entry.what) for entry in entries()}
        assert held == {("processes", token), ("directory", node.directory)}
        assert Path(node.directory).is_dir()
    assert carrying(token) == []
    assert entries() == []
    assert not Path(node.directory).exists()


SLOW_PODMAN = """[ "$1" = rm ] || exit 0
touch "$0.begun"
until [ -e "$0.pressed" ]; do sleep 0.05; done
sleep 0.7
touch "$0.done"
"""
HOLDS_A_CONTAINER = """
import cli
from provisioning import ledger
cli._end_in_order_on_signals()
with ledger.holding("container", "podman:virtbench-0123456789ab"):
    pass
"""


def test_ctrl_c_in_a_terminal_does_not_cut_a_containers_removal_short(program: Program) -> None:
    podman, (keyboard, screen) = program("podman", SLOW_PODMAN), pty.openpty()
    words = ["setsid", "--ctty", PYTHON, "-c", HOLDS_A_CONTAINER]
    with subprocess.Popen(words, stdin=screen, stderr=subprocess.PIPE, cwd=REPOSITORY) as bench:
        os.close(screen)
        deadline = time.monotonic() + 60
        while not podman.with_suffix(".begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.write(keyboard, b"\x03")  # the terminal turns it into SIGINT for all of its foreground
        podman.with_suffix(".pressed").touch()
        _, said = bench.communicate(timeout=60)
    os.close(keyboard)
    assert said.splitlines()[-1].startswith(b"KeyboardInterrupt"), "it came when the container was gone"
    assert podman.with_suffix(".done").exists()
    assert entries() == []


def entries() -> list[ledger.LedgerEntry]:
    return [ledger.LedgerEntry.model_validate_json(path.read_bytes()) for path in state("ledger").glob("*.json")]


def test_a_place_reached_through_words_adds_its_facts_and_substitutes(node: LocalNode) -> None:
    def place(parent: LocalNode | WrappedNode, word: str) -> WrappedNode:
        wrapped = WrappedNode(parent, lambda argv: ["env", f"WORD={word}", *argv], word, None, (0,), local=True)
        return replace(wrapped, facts={word: 1, "last": word}, substitutes=(f"{word}:x",))

    inner = place(place(node, "outer"), "inner")
    assert inner.python == node.python
    assert place(replace(node, python=("python3", "")), "target").python == IMAGE_PYTHON, "a machine has no worker"
    assert inner.facts == {**node.facts, "outer": 1, "inner": 1, "last": "inner"}
    assert inner.substitutes == ("outer:x", "inner:x")
    assert inner.run(["sh", "-c", "echo $WORD"]).stdout == "inner\n"
    assert list(inner.start(["printenv", "WORD"]).lines(60)) == ["inner"]


def test_a_file_is_written_on_a_node_with_its_directory(node: LocalNode, tmp_path: Path) -> None:
    path = tmp_path / "a b/c"
    write_file(node, str(path), b"\0\n$x")
    assert path.read_bytes() == b"\0\n$x"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_first_process_of_a_container_is_killed_while_it_is_in_its_group(node: LocalNode, elsewhere: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as first:
        group = ControlGroup({"cpu": "/another"}) if elsewhere else ControlGroup.of_process(first.pid)
        inside = WrappedNode(node, list, "container", "/", host_processes=HostProcesses(group, first.pid))
        here._kill(inside)
        if elsewhere:
            assert first.poll() is None
            first.kill()
        else:
            assert first.wait(10) == -9
