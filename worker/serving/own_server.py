"""Runs a server of the user's own as a child of the worker, until a line on standard input ends it."""

import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict
from ipaddress import ip_address

from suite.errors import ending, signal_of
from worker.command import remedy_of, usage_since
from worker.environment import collect, read
from worker.printed.reader import NumberReader
from worker.program import Ended, ProgramRun
from worker.protocol import Events, JobError
from worker.spec import ServerRequest
from worker.surroundings import level, usable_cpus, writable_copy

_LISTENING = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""


def run(request: ServerRequest, events: Events) -> None:
    """Start the server and emit everything from ``environment`` to ``done``. Raises JobError if it ends by itself."""
    log = NumberReader(None)
    substitutes = dict(level(request.tmpfs_bytes))
    with writable_copy(request.directory, request.scratch) as copy:
        events.emit("environment", environment={**collect(), "threads": request.threads}, substitutes=substitutes)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        program = ProgramRun(request, copy.directory, log, stop=sys.stdin.fileno())
        events.emit("launched")

        def report_stop() -> None:
            addresses = list(listening(request.port))
            events.emit("stopping", listening=addresses)

        ended = program.to_its_end(before_stop=report_stop)
    if ended.stopped_s is None:
        raise _ended_early(ended, log)
    details = {
        "exit_status": ended.status,
        "ended_by": "KILL" if ended.killed else "TERM",
        "ending_s": ended.ended_s - ended.stopped_s,
        "processes_left": ended.left,
        "working_directory": asdict(copy),
        "python_cpu_count": usable_cpus(),
    }
    events.emit("done", usage=usage_since(before, program.memory.peak_bytes), details=details)


def _ended_early(ended: Ended, log: NumberReader) -> JobError:
    last = log.printed_last()
    if ended.left and not ended.status:
        names = ", ".join(ended.left)
        return JobError(
            f"the server went into the background: its first process ended, and left {names}",
            kind="command",
            remedy="start it in the foreground, without an option such as --daemon",
        )
    how = ending(ended.status) if signal_of(ended.status) else f"ended by itself with exit status {ended.status}"
    return JobError(f"the server {how}{last}", kind="command", remedy=remedy_of(ended.status, last))


def listening(port: int) -> Iterator[str]:
    """Yield the addresses at which a socket of this network namespace listens on a port, as the kernel lists them."""
    for table in ("tcp", "tcp6"):
        content = read(f"proc/net/{table}") or ""
        for line in content.splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            address, _, number = local.partition(":")
            if state == _LISTENING and int(number, 16) == port:
                yield _address_of(address)


def _address_of(words: str) -> str:
    """Return the address of hexadecimal words, each of four bytes in the order of this machine."""
    packed = b""
    for start in range(0, len(words), 8):
        word = int(words[start : start + 8], 16)
        packed += word.to_bytes(4, sys.byteorder)
    return str(ip_address(packed))
