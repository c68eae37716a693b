"""Saves a guest to a file and loads it in another QEMU: a migration whose other end is the file.

QEMU is given the open file over its control socket, which its seccomp sandbox allows. Everything is asked from this
process: a program of its own for each command would be a part of the time that the guest takes to run on.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from provisioning import ledger
from provisioning.machines import detached, qmp
from provisioning.machines.qemu_command import vcpu_threads
from provisioning.machines.running import RunningQemu
from provisioning.machines.ssh import SshAccess
from provisioning.paths import state
from provisioning.volumes import check_disk_space
from suite.errors import MeasurementError
from suite.interfaces import Node

CONNECTED_WITHIN_S = 60.0
MIGRATED_WITHIN_S = 600.0
POLL_S = 0.002
ENDS_WITHIN_S = 30.0
UNLIMITED_BYTES_PER_S = 1 << 40
"""QEMU limits a migration to what a network bears, 128 MiB a second."""
FILE = "guest"
DETACHED = "/run/virtbench/detached"
"""The directory in the guest of what runs there without a connection."""
_NAME = "snapshot"
"""The name under which QEMU holds the open file."""


@dataclass(frozen=True)
class Monitor:
    """The control socket of a running QEMU. Raises MeasurementError for what QEMU refuses."""

    connection: socket.socket
    lines: TextIO

    def ask(self, command: str, **arguments: object) -> Any:  # noqa: ANN401 (an answer is what the command defines)
        try:
            return qmp.ask(self.lines, command, **arguments)
        except (qmp.RefusedError, OSError) as error:
            raise _failure(str(error)) from error

    def migrate(self, command: str, descriptor: int) -> None:
        """Migrate to or from an open file, and wait until that is done."""
        passed = {"execute": "getfd", "arguments": {"fdname": _NAME}}
        try:
            socket.send_fds(self.connection, [json.dumps(passed).encode() + b"\n"], [descriptor])
            qmp.answer_to("getfd", self.lines)
        except (qmp.RefusedError, OSError) as error:
            raise _failure(str(error)) from error
        self.ask(command, uri=f"fd:{_NAME}")
        deadline_s = time.monotonic() + MIGRATED_WITHIN_S
        while True:
            migration = self.ask("query-migrate")
            status = migration.get("status")
            if status == "completed":
                return
            if status in ("failed", "cancelled"):
                raise _failure(f"{command} {status}: {migration.get('error-desc', 'QEMU gives no reason')}")
            if time.monotonic() > deadline_s:
                raise _failure(f"{command} had not ended after {MIGRATED_WITHIN_S:.0f} s")
            time.sleep(POLL_S)


def _failure(why: str) -> MeasurementError:
    remedy = "measure how the server starts without a snapshot, and see what QEMU says"
    return MeasurementError(f"the guest's snapshot: {why}", kind="snapshot", remedy=remedy)


@contextmanager
def monitor(path: str, running: Callable[[], bool]) -> Iterator[Monitor]:
    """Connect to the control socket of a QEMU of this machine, as soon as it listens and for as long as it runs."""
    deadline_s = time.monotonic() + CONNECTED_WITHIN_S
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(MIGRATED_WITHIN_S)
        while True:
            try:
                connection.connect(path)
                break
            except OSError as error:
                if not running() or time.monotonic() > deadline_s:
                    raise _failure(f"QEMU does not answer at its control socket: {error}") from error
            time.sleep(POLL_S)
        with connection.makefile("rw", encoding="utf-8") as lines:
            lines.readline()  # it greets
            connected = Monitor(connection, lines)
            connected.ask("qmp_capabilities")
            yield connected


@dataclass
class GuestSnapshot:
    """See ``suite.interfaces.Snapshot``. The guest is saved and loaded once."""

    machine: RunningQemu
    node: Node
    access: SshAccess
    python: str
    """The interpreter in the guest."""
    lifetime: ExitStack
    """Closes when the guest has ended."""
    method: str = "the guest was stopped, and QEMU migrated it to a file"
    _directory: Path = field(init=False)
    _monitor: Monitor = field(init=False)

    @property
    def following(self) -> Sequence[str]:
        return self._program("follow")

    def detach(self, argv: Sequence[str], first_line: bytes) -> None:
        command = [*self._program("start"), *argv]
        self.node.run(self.access.wrap(command), stdin=first_line + b"\n")

    def save(self) -> Path:
        spec = self.machine.spec
        parent = state("snapshots")
        check_disk_space(self.node, str(parent), spec.memory_bytes, "the snapshot of the guest")
        self._directory = self.lifetime.enter_context(ledger.directory(parent, "snapshot"))
        self.node.run(self.access.argv("-O", "exit"), check=False)
        with monitor(spec.qmp, self.machine.process.running) as qemu, (self._directory / FILE).open("xb") as file:
            qemu.ask("stop")
            qemu.ask("migrate-set-parameters", **{"max-bandwidth": UNLIMITED_BYTES_PER_S})
            qemu.migrate("migrate", file.fileno())
            os.fsync(file.fileno())
            qemu.ask("quit")
        if not self.machine.wait_for_end(ENDS_WITHIN_S):
            raise _failure(f"QEMU had not ended {ENDS_WITHIN_S:.0f} s after it was asked to")
        return self._directory

    def start(self) -> None:
        self.machine.start(replace(self.machine.spec, incoming=True))

    def connect(self) -> None:
        spec = self.machine.spec
        self._monitor = self.lifetime.enter_context(monitor(spec.qmp, self.machine.process.running))
        if spec.pinned:
            threads = vcpu_threads(self._monitor.ask("query-cpus-fast"))
            for cpu, thread in zip(spec.cpus, threads, strict=True):
                os.sched_setaffinity(thread, {cpu})

    def load(self) -> None:
        with (self._directory / FILE).open("rb") as file:
            self._monitor.migrate("migrate-incoming", file.fileno())
        self._monitor.ask("cont")

    def _program(self, action: str) -> list[str]:
        text = Path(detached.__file__).read_text()
        return [self.python, "-I", "-c", text, action, DETACHED]
