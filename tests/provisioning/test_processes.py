"""Nodes: real children, small ones, and the opening, which what the suite asks for itself does not lengthen."""
# ruff: noqa: ARG001, ARG002 (fakes need few of the arguments)

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from provisioning import ledger
from provisioning.batch.remote import StreamProcess
from provisioning.cgroup.counters import ControlGroup
from provisioning.engines.base import ContainerEngine, ContainerSpec
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import UnlimitedLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines.base import Guest, GuestSpec
from provisioning.nodes import IMAGE_PYTHON, HostProcesses, LocalNode, WrappedNode, local_node
from provisioning.paths import state
from provisioning.processes import TOKEN, carrying, end_all, program_argv, run_apart
from provisioning.remote import agent
from provisioning.remote.connection import marked
from provisioning.sites import here
from suite import interfaces
from suite.errors import CommandError, RequestError
from suite.interfaces import Layer, Node, Stopwatch, open_stack
from suite.job.envelope import GIB, MEMORY_NOT_LIMITED, Envelope
from suite.measurable import OWN_USERLAND
from tests.clock import Clock
from tests.extensions.conftest import REPOSITORY
from tests.provisioning.conftest import MakeImage, Program


def test_a_process_is_given_its_input_and_heard_line_by_line_to_its_end(node: LocalNode) -> None:
    given = os.urandom(100_000).hex()
    script = "cat; printf 'a\\377\\nb c\\n\\nlast'; echo first >&2; echo last >&2; exit 3"
    process = node.start(["sh", "-c", script], stdin=f"{given}\n".encode())
    assert list(process.lines(60)) == [given, "a\N{REPLACEMENT CHARACTER}", "b c", "", "last"]
    assert process.wait(60) == 3
    assert process.output_tail() == "first\nlast\n"
    assert not process.running()
    assert list(node.start(["cat"]).lines(60)) == []


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
    assert next(node.start(["sh", "-c", "sh -c 'sleep 60 & echo up; wait' & wait"]).lines(60)) == "up"
    deadline = time.monotonic() + 60
    # A child that becomes another program has no environment for a moment.
    while len(found := carrying(node.token)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.getpid() not in {each.pid for each in found}
    assert carrying("another") == []


def _parsed_by_node(node: LocalNode, argv: list[str], log: Path) -> str:
    return node.run(argv).stdout


def _parsed_apart(node: LocalNode, argv: list[str], log: Path) -> str:
    return run_apart(argv, 60).stdout


def _parsed_in_a_stream(node: LocalNode, argv: list[str], log: Path) -> str:
    process = StreamProcess(argv, [], log)
    assert list(process.lines()) == []
    process.close()
    return log.read_text()


def _parsed_in_the_agent(node: LocalNode, argv: list[str], log: Path) -> str:
    request = {"number": 1, "do": "run", "argv": argv, "mark": "x.far", "stdin": "", "timeout_s": 60}
    words = program_argv(agent, "x.far")
    ended = subprocess.run(words, input=json.dumps(request) + "\n", capture_output=True, text=True, check=True)
    return str(json.loads(ended.stdout.splitlines()[1])["stdout"])


def _parsed_by_ssh(node: LocalNode, argv: list[str], log: Path) -> str:
    return subprocess.run(marked("x.far", argv), capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("language", ["ja_JP.UTF-8", "de_DE.ISO-8859-1"])
@pytest.mark.parametrize(
    "way", [_parsed_by_node, _parsed_apart, _parsed_in_a_stream, _parsed_in_the_agent, _parsed_by_ssh]
)
def test_a_program_whose_words_are_parsed_speaks_english_in_every_session(
    way: Callable[[LocalNode, list[str], Path], str],
    language: str,
    node: LocalNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LANG", "LC_ALL", "LC_MESSAGES", "LANGUAGE"):
        monkeypatch.setenv(name, language)
    (tmp_path / "logs").mkdir()
    printed = way(node, ["sh", "-c", 'echo "language: $LC_ALL"'], tmp_path / "logs/log")
    assert printed.splitlines()[-1] == "language: C"


@pytest.mark.parametrize("way", [_parsed_by_node, _parsed_in_the_agent, _parsed_by_ssh])
def test_what_a_program_makes_for_a_job_can_be_read_by_the_jobs_user(
    way: Callable[[LocalNode, list[str], Path], str], node: LocalNode, tmp_path: Path
) -> None:
    mask = os.umask(0o077)
    try:
        way(node, ["mkdir", f"{tmp_path}/group"], tmp_path / "log")
    finally:
        os.umask(mask)
    assert (tmp_path / "group").stat().st_mode & 0o777 == 0o755


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
def test_a_program_that_is_not_installed_is_named_with_its_package_and_a_file_that_is_none_with_why(
    node: LocalNode, program: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RequestError, match=f"{program} is not installed") as caught:
        node.start([program])
    assert remedy in str(caught.value.remedy)
    assert "bench doctor" not in str(caught.value.remedy), "it shows this text itself"
    (tmp_path / program).touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="Permission denied"):
        node.start([program])


# ---- the node


def test_a_command_that_fails_is_an_error_with_its_last_words(node: LocalNode) -> None:
    with pytest.raises(CommandError, match="sh ended with exit status 4: why"):
        node.run(["sh", "-c", "echo why >&2; exit 4"])
    with pytest.raises(CommandError, match="said on stdout"):
        node.run(["sh", "-c", "echo said on stdout; exit 1"])


def test_at_the_end_of_a_node_nothing_of_it_is_left() -> None:
    with local_node((0,), None) as node:
        assert next(node.start(["sh", "-c", "setsid sleep 60 & echo up; wait"]).lines(60)) == "up"
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
    words = ["setsid", "--ctty", sys.executable, "-c", HOLDS_A_CONTAINER]
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


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_first_process_of_a_container_is_killed_while_it_is_in_its_group(node: LocalNode, elsewhere: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as first:
        group = ControlGroup({"cpu": "/another"}) if elsewhere else ControlGroup.of_process(first.pid)
        here._kill(WrappedNode(node, list, "container", "/", host_processes=HostProcesses(group, first.pid)))
        if elsewhere:
            assert first.poll() is None
            first.kill()
        else:
            assert first.wait(10) == -9


def test_a_number_that_was_given_again_is_not_killed(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is held before it is looked at: what has its number afterwards is another one."""
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        group, opened = ControlGroup.of_process(first.pid), os.pidfd_open

        def held(pid: int) -> int:
            first.kill()
            first.wait()
            return opened(second.pid if pid == first.pid else pid)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pidfd_open", held)
            here._kill(WrappedNode(node, list, "container", "/", host_processes=HostProcesses(group, first.pid)))
        assert second.poll() is None
        second.terminate()


STARTS_S, ASKS_S = 0.05, 0.5
ENVELOPE = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)
CLOCK = Clock()


class Engine(ContainerEngine):
    """Starts within 50 ms; every question of the suite's takes ten times as long."""

    name, rootfs, commands_are_children = "fake", "directory", True

    def version(self, node: Node) -> str:
        CLOCK.sleep(ASKS_S)
        return "1.0"

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        with node.opening.paused():
            CLOCK.sleep(ASKS_S)
        CLOCK.sleep(STARTS_S)

    def main_pid(self, node: Node, name: str) -> int:
        CLOCK.sleep(ASKS_S)
        return 1

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        return []

    def removal(self, name: str) -> list[list[str]]:
        return []


class Machines:
    """The same of a hypervisor."""

    @contextmanager
    def booted(self, node: Node, spec: GuestSpec) -> Iterator[Guest]:
        with node.opening.paused():
            CLOCK.sleep(ASKS_S)
        CLOCK.sleep(STARTS_S)
        yield Guest(list)


@pytest.mark.parametrize("layers", [("container",), ("vm",), ("vm", "container")])
def test_what_the_suite_asks_for_itself_does_not_lengthen_the_opening(
    layers: tuple[str, ...], node: LocalNode, make_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ledger.KINDS, "container", ledger.LedgerKind(".*", lambda _: None))
    monkeypatch.setattr(interfaces, "time", CLOCK)
    made: dict[str, Layer] = {
        "container": ContainerLayer(Engine(), "f" * 64, GIB),
        "vm": VmLayer(cast("Any", Machines()), GuestSpec(make_image(), "tcg", ENVELOPE)),
    }
    node.userland = "/"
    with open_stack(node, [made[name] for name in layers]) as opened:
        assert [{"boot": "vm"}.get(part, part) for part in opened.opening.parts] == list(layers)
        assert opened.opening.seconds == pytest.approx(STARTS_S * len(layers))


def test_bare_metal_opens_by_entering_it(node: LocalNode) -> None:
    with open_stack(node, [UnlimitedLayer(ENVELOPE)]) as opened:
        assert opened.opening is node.opening
        assert opened.opening.seconds > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(
    ("hidden", "substitutes"),
    [
        ((), (MEMORY_NOT_LIMITED,)),
        (("--unshare-user", "--disable-userns"), (OWN_USERLAND, MEMORY_NOT_LIMITED)),
        (("--dev-bind", "/dev/null", "/usr/bin/bwrap"), (OWN_USERLAND, MEMORY_NOT_LIMITED)),
    ],
    ids=["nothing", "user namespaces", "bubblewrap"],
)
def test_bare_metal_without_root_is_in_the_tree_unless_that_is_hidden_which_enters_it(
    node: LocalNode, hidden: tuple[str, ...], substitutes: tuple[str, ...]
) -> None:
    words = [*("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"), *("bwrap", "--dev-bind", "/", "/")]
    words += [*hidden, "--chdir", "/", "--"]
    user = WrappedNode(node, lambda argv: [*words, *argv], "user", "/", node.cpus, node.local)
    with open_stack(user, [UnlimitedLayer(ENVELOPE)]) as inside:
        assert inside.substitutes == substitutes
        assert inside.run(["id", "-u"]).stdout == "65534\n"
        assert inside.run(["nproc"]).stdout == "1\n"
        assert (inside.run(["ls", "-A", "/run"]).stdout == "") == (len(substitutes) == 1)


def test_a_stopwatch_runs_on_after_a_pause_and_stops_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "time", CLOCK)
    watch = Stopwatch()
    with suppress(KeyError), watch.running("boot"):
        CLOCK.sleep(STARTS_S)
        with watch.paused():
            CLOCK.sleep(ASKS_S)
        CLOCK.sleep(STARTS_S)
        raise KeyError
    stopped_s = watch.seconds
    with watch.paused():
        CLOCK.sleep(STARTS_S)
    assert stopped_s == watch.seconds == pytest.approx(2 * STARTS_S)
