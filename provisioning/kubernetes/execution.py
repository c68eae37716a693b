"""The inside of a pod: a node whose commands start over the WebSocket of the API server's ``exec``, and its processes.

No client program is started for a command: its start would be part of the measured time.
"""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import psutil

from provisioning.bounded_output import BoundedProcess, PipeTail
from provisioning.kubernetes.cluster import Cluster, client_library
from provisioning.kubernetes.states import fate
from provisioning.nodes import WrappedNode
from suite.errors import BenchError, CommandError, MeasurementError
from suite.interfaces import COMMAND_WITHIN_S, Completed
from suite.job.envelope import parse_cpu_list
from suite.process_identity import BOOT_ID

STDIN = 0
STDOUT = 1
STDERR = 2
STATUS = 3
CLOSE = 255
"""The channels of the stream: the first byte of each message. The last closes another, from version 5 on."""
ENDED_HERE = ("sh", "-c", 'head -c "$0" | "$@"')
"""Gives a command the end of its input, which the stream lacks before version 5 (servers before 1.30).

The number of bytes and the command follow this constant text as words.
"""
KILL_ALL = ("kill", "-KILL", "--", "-1")
"""Kills everything in the pod but its first process: nothing ends with the stream that has started it."""
CLOSES = "v5.channel.k8s.io"
KILLED_WITHIN_S = 20.0
ENDED_WITHIN_S = 30.0
NOT_STARTED = 126
"""The exit status of a command that could not be started, as shells have it."""
_CHUNK = 1 << 16


class PodProcess(BoundedProcess):
    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        argv: Sequence[str],
        fate: Callable[[], BenchError | None],
        connection: Any,  # noqa: ANN401 (a WebSocket of its library)
        pipes: tuple[IO[bytes], PipeTail],
    ) -> None:
        """Describe a command that runs; see ``start``. ``pipes`` are its output and its errors."""
        self.argv = list(argv)
        self._cluster = cluster
        self._pod = pod
        self._fate = fate
        self._socket = connection
        self._stdout, self._stderr = pipes
        self._library = client_library("websocket")
        self._killed = False
        self._status: int | None = None
        self._ended = threading.Event()
        self._reader = threading.Thread()

    @classmethod
    def start(
        cls,
        cluster: Cluster,
        pod: str,
        argv: Sequence[str],
        stdin: bytes | IO[bytes],
        fate: Callable[[], BenchError | None],
    ) -> "PodProcess":
        """Start the command. ``fate`` returns why the pod does not run any more; None if it runs."""
        if isinstance(stdin, bytes) and stdin:
            words = [*ENDED_HERE, str(len(stdin)), *argv]
        else:
            words = list(argv)
        query = [("command", word) for word in words]
        query += [(name, "true") for name in ("stdout", "stderr", *(["stdin"] if stdin else []))]
        connection = cluster.websocket(cluster.path("pods", pod, part="exec"), query)
        reading, writing = os.pipe()
        error_reading, error_writing = os.pipe()
        pipes = (os.fdopen(reading, "rb"), PipeTail(error_reading))
        process = cls(cluster, pod, argv, fate, connection, pipes)
        process._follow(writing, error_writing)
        if stdin:
            # A thread: the output must be read at the same time, or both sides block.
            feeder = threading.Thread(target=process._feed, args=(stdin,), daemon=True, name="standard input")
            feeder.start()
        return process

    def _follow(self, stdout: int, stderr: int) -> None:
        """Read what comes over the connection in a thread, and write it to these ends of the pipes."""
        self._reader = threading.Thread(target=self._read, args=(stdout, stderr), daemon=True, name="exec")
        self._reader.start()

    def lines(self, timeout_s: float) -> Iterator[str]:
        if self._stdout.closed:
            return
        yield from self._bounded(self._stdout, timeout_s)
        self._stdout.close()

    def wait(self, timeout_s: float) -> int:
        self._reader.join(None if timeout_s == float("inf") else timeout_s)
        if self._reader.is_alive():
            self.kill()
            raise CommandError(self.argv, None, self.output_tail())
        if self._status is None:
            raise self._fate() or MeasurementError(
                "the connection to the pod was cut before the command had ended; the pod itself runs",
                kind="kubernetes-away",
                remedy="see whether the API server, the kubelet or something on the way was started anew",
            )
        if self._status == 128 + signal.SIGKILL and not self._killed and (why := self._fate()):
            raise why
        return self._status

    def running(self) -> bool:
        return not self._ended.is_set()

    def kill(self) -> None:
        if self._ended.is_set():
            self._stdout.close()
            return
        self._killed = True
        with suppress(BenchError):  # a pod that is gone has nothing left to kill
            killer = PodProcess.start(self._cluster, self._pod, KILL_ALL, b"", self._fate)
            # Waited for without being killed in turn, where nothing in the pod gets on any more.
            killer._reader.join(KILLED_WITHIN_S)
            killer._socket.shutdown()
            killer._stdout.close()
        self._reader.join(KILLED_WITHIN_S)
        self._socket.shutdown()

    def output_tail(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        self.kill()
        self._stdout.close()

    def _send(self, channel: int, content: bytes) -> None:
        # The server may have closed the stream: the reader finds out why.
        with suppress(OSError, self._library.WebSocketException):
            self._socket.send_binary(bytes([channel]) + content)

    def _feed(self, source: bytes | IO[bytes]) -> None:
        """Pass on all bytes, or what comes out of a pipe until it is closed; called by a thread."""
        if isinstance(source, bytes):
            for begin in range(0, len(source), _CHUNK):
                self._send(STDIN, source[begin : begin + _CHUNK])
            return
        with source:
            while content := os.read(source.fileno(), _CHUNK):
                self._send(STDIN, content)
        # A worker that takes turns, the one that reads a pipe, takes an empty line for the end.
        closing = self._socket.subprotocol == CLOSES
        self._send(CLOSE if closing else STDIN, bytes([STDIN]) if closing else b"\n")

    def _read(self, stdout: int, stderr: int) -> None:
        # The pipes are closed in every case: their readers wait for that.
        with os.fdopen(stdout, "wb", buffering=0) as output, os.fdopen(stderr, "wb", buffering=0) as errors:
            try:
                with suppress(OSError, self._library.WebSocketException):
                    while content := self._next():
                        channel = content[0]
                        content = content[1:]
                        if channel == STATUS:
                            self._status, why = exit_status(content)
                            channel = STDERR
                            content = why.encode()
                        pipe = {STDOUT: output, STDERR: errors}.get(channel)
                        while pipe and content:
                            content = content[pipe.write(content) :]
            finally:
                # Before the pipes are closed: a reader that has seen the end of the output must kill nothing else.
                self._ended.set()
            self._socket.shutdown()

    def _next(self) -> bytes:
        while True:
            code, content = self._socket.recv_data()
            if code == self._library.ABNF.OPCODE_CLOSE:
                return b""
            if content:
                return bytes(content)


def exit_status(content: bytes) -> tuple[int, str]:
    """Return the exit status in the last message of a stream, and why there is none of the command's own."""
    status = json.loads(content)
    if status.get("status") == "Success":
        return 0, ""
    causes = (status.get("details") or {}).get("causes") or []
    if status.get("reason") == "NonZeroExitCode" and causes:
        return int(causes[0]["message"]), ""
    return NOT_STARTED, str(status.get("message"))


@dataclass(kw_only=True)
class PodNode(WrappedNode):
    """A pod: its commands are started by the API server, and by no command of the node below."""

    cluster: Cluster
    pod: str

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_WITHIN_S,
        check: bool = True,
    ) -> Completed:
        return self.start(argv, stdin=stdin).completed(timeout_s, check=check)

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> PodProcess:
        fate_of_pod = partial(fate, self.cluster, self.pod)
        return PodProcess.start(self.cluster, self.pod, argv, stdin, fate_of_pod)


def cpus_inside(node: PodNode) -> tuple[int, ...]:
    """Return the CPUs that the pod may use, in the numbers of its node's kernel."""
    status = node.run(["cat", "/proc/self/status"]).stdout
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    if not match:
        raise MeasurementError("the pod does not report which CPUs it may use", kind="engine")
    return parse_cpu_list(match[1])


def kernel_inside(node: PodNode) -> tuple[str, str]:
    """Return the number of the boot of the kernel that the pod sees, and what its /proc/cpuinfo holds."""
    # A sandbox with a kernel of its own may lack the first file: what then stands there is no number of a boot.
    answer = node.run(["cat", str(BOOT_ID), "/proc/cpuinfo"], check=False)
    boot, _, cpuinfo = answer.stdout.partition("\n")
    return boot, cpuinfo


def first_process(pod: str) -> psutil.Process | None:
    """Return the first process of the pod's container on this machine; None if it cannot be seen.

    Its runtime gives it the pod's name as the name of its host.
    """
    candidates = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOSTNAME") == pod and process.status() != psutil.STATUS_ZOMBIE:
                candidates.append((process.create_time(), process.pid, process))
        except psutil.Error:
            continue
    if candidates:
        return min(candidates)[2]
    return None


def await_end(pod: str) -> None:
    """Return when no process of the pod is left on this machine: the server forgets it up to 2 s before its end."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    while first_process(pod):
        if time.monotonic() > deadline:
            raise MeasurementError(
                f"the pod {pod} still runs {ENDED_WITHIN_S:g} s after it was deleted",
                kind="kubernetes",
                remedy="see whether the kubelet of its node runs; bench clean tries it again",
            )
        time.sleep(0.05)
