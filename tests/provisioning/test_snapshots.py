"""Snapshots of guests: the dialogue with QEMU, and what runs in a guest without a connection."""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from provisioning.machines import detached
from provisioning.machines.running import RunningQemu
from provisioning.machines.snapshot import GuestSnapshot
from provisioning.machines.ssh import SshAccess
from provisioning.nodes import LocalNode
from suite.errors import MeasurementError
from suite.interfaces import Completed, Process
from tests.provisioning.conftest import fake_node, raises
from tests.rendered import VM

STATE = b"the memory of a guest"


class PlayedQemu:
    """Answers at a control socket as QEMU does, and migrates a text. It is the process, too, and ends at ``quit``."""

    def __init__(self, path: str, migration: str) -> None:
        self.told: list[str] = []
        self.loaded = b""
        self._migration = migration
        self._passed: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX)
        Path(path).unlink(missing_ok=True)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            connection.sendall(b'{"QMP": {"version": {}}}\n')
            heard = b""
            while "quit" not in self.told:
                data, passed, _, _ = socket.recv_fds(connection, 1 << 16, 1)
                if not data:
                    return
                self._passed += passed
                heard += data
                *lines, heard = heard.split(b"\n")
                for line in lines:
                    command = json.loads(line)
                    answer = self._answer(command["execute"], command["arguments"])
                    connection.sendall(b'{"event": "X"}\n' + json.dumps({"return": answer}).encode() + b"\n")

    def _answer(self, command: str, arguments: dict[str, Any]) -> object:
        self.told.append(command)
        if command in ("migrate", "migrate-incoming"):
            assert arguments == {"uri": "fd:snapshot"}
            (descriptor,) = self._passed
            if command == "migrate":
                os.write(descriptor, STATE)
            else:
                self.loaded = os.read(descriptor, 1 << 16)
            os.close(descriptor)
        if command == "query-cpus-fast":
            return [{"cpu-index": 0, "thread-id": threading.get_native_id()}]
        if command == "query-migrate":
            return {"status": self._migration, "error-desc": "no room"}
        return {}

    def lines(self, _: float) -> Iterator[str]:
        return iter(())

    def wait(self, _: float) -> int:
        return 0

    def running(self) -> bool:
        return self._thread.is_alive()

    def kill(self) -> None: ...

    def output_tail(self) -> str:
        return ""


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Callable[..., tuple[GuestSnapshot, list[PlayedQemu]]]]:
    """``played("completed")``: a guest's snapshot whose migrations end so, and the QEMUs that were started."""
    with ExitStack() as lifetime:

        def make(migration: str) -> tuple[GuestSnapshot, list[PlayedQemu]]:
            spec = replace(VM, directory=str(tmp_path), cpus=(min(os.sched_getaffinity(0)),), memory_bytes=1 << 20)
            started: list[PlayedQemu] = []

            def run(asked: Any) -> Any:
                assert asked.incoming == bool(started)
                started.append(PlayedQemu(asked.qmp, migration))
                return nullcontext(started[-1])

            machine = RunningQemu(spec, run, lifetime)
            machine.start(spec)
            node = fake_node({("df",): Completed(0, "Avail\n999999999999\n", "")})
            return GuestSnapshot(machine, node, SshAccess("/r", 22), "python3", lifetime), started

        yield make


def test_a_guest_is_stopped_saved_and_loaded_by_another_qemu(played: Any) -> None:
    snapshot, started = played("completed")
    directory = snapshot.save()
    assert [path.read_bytes() for path in directory.iterdir()] == [STATE]
    saved = ["qmp_capabilities", "stop", "migrate-set-parameters", "getfd", "migrate", "query-migrate", "quit"]
    assert started[0].told == saved
    assert snapshot.node.ran[-1][-3:] == ["-O", "exit", "root@127.0.0.1"], "no connection is saved with it"
    snapshot.start()
    snapshot.connect()
    snapshot.load()
    loaded = ["qmp_capabilities", "query-cpus-fast", "getfd", "migrate-incoming", "query-migrate", "cont"]
    assert started[1].told == loaded
    assert started[1].loaded == STATE
    snapshot.lifetime.close()
    assert not directory.exists()


def test_a_migration_that_fails_says_why_and_leaves_no_file(played: Any) -> None:
    snapshot, _ = played("failed")
    with raises(MeasurementError, "migrate failed: no room", "without a snapshot"):
        snapshot.save()
    snapshot.lifetime.close()
    assert list((Path(os.environ["VIRTBENCH_HOME"]) / "snapshots").glob("snapshot-*")) == []


def test_a_qemu_that_ended_or_refuses_is_named(played: Any) -> None:
    snapshot, started = played("completed")
    snapshot.save()
    with raises(MeasurementError, "QEMU does not answer at its control socket"):
        snapshot.connect()
    assert not started[0].running()


COMMAND = """
import sys
print(sys.stdin.readline().strip(), flush=True)
print("last words", file=sys.stderr)
line = sys.stdin.readline().strip()
print(line, flush=True)
sys.exit(int(line))
"""


def program(*words: str) -> list[str]:
    return [sys.executable, "-I", "-c", Path(detached.__file__).read_text(), *words]


@contextmanager
def following(node: LocalNode, place: str) -> Iterator[tuple[Process, IO[bytes]]]:
    """Follow what is detached, whose input is the file."""
    reading, writing = os.pipe()
    process = node.start(program("follow", place), stdin=os.fdopen(reading, "rb"))
    with os.fdopen(writing, "wb", buffering=0) as orders:
        yield process, orders


def test_what_is_detached_outlives_its_connections_and_is_followed_from_its_first_line(
    node: LocalNode, tmp_path: Path
) -> None:
    place = str(tmp_path / "detached")
    node.run([*program("start", place), sys.executable, "-c", COMMAND], stdin=b"first\n")
    with following(node, place) as (process, _):
        assert next(process.lines(60)) == "first"
    assert process.wait(60) == 0, "its input has ended, the command has not"
    with following(node, place) as (process, orders):
        orders.write(b"3\n")
        assert list(process.lines(60)) == ["first", "3"]
        assert process.wait(60) == 3
    assert process.output_tail() == "last words\n"


def test_a_command_that_was_killed_has_the_status_of_a_shell(node: LocalNode, tmp_path: Path) -> None:
    place = str(tmp_path / "detached")
    node.run([*program("start", place), "sh", "-c", "kill -9 $$"])
    with following(node, place) as (process, _):
        assert process.wait(60) == 128 + 9
