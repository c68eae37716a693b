"""The server's side of ``exec``, version 4 of its protocol: a command of this machine behind a WebSocket.

What would kill everything in a pod kills here what the server has started, and nothing else: this is no pod, and a
``kill -1`` of root would end the whole machine.
"""

import base64
import hashlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import IO, Any

from websocket import ABNF, frame_buffer

from provisioning.kubernetes.execution import KILL_ALL

MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, 1.3."""

Started = list["subprocess.Popen[bytes]"]


def serve(handler: BaseHTTPRequestHandler, argv: Sequence[str], started: Started, *, cut: bool = False) -> None:
    """Run the command behind the stream; with ``cut`` the stream ends with the first line of its output.

    ``started`` is everything that runs for this server, in sessions of their own; the command is added to it.
    """
    if tuple(argv) == KILL_ALL:
        end(started)
        argv = ["true"]
    key = handler.headers["Sec-WebSocket-Key"] + MAGIC
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    accepted = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest())
    handler.send_header("Sec-WebSocket-Accept", accepted.decode())
    handler.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
    handler.end_headers()
    handler.close_connection = True
    pipe = subprocess.PIPE
    process: Any
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        started.append(process)
        lock = threading.Lock()
        threading.Thread(target=_hear, args=(handler.rfile, process), daemon=True).start()
        complaints = threading.Thread(target=_say, args=(handler.wfile, 2, process.stderr, lock), daemon=True)
        complaints.start()
        if cut:
            _frame(handler.wfile, ABNF.OPCODE_BINARY, b"\1" + process.stdout.readline(), lock)
            end([process])
        else:
            _say(handler.wfile, 1, process.stdout, lock)
            complaints.join()
            status = process.wait()
            causes = [{"reason": "ExitCode", "message": str(status if status >= 0 else 128 - status)}]
            failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
            said = {"status": "Success"} if status == 0 else failed
            _frame(handler.wfile, ABNF.OPCODE_BINARY, b"\3" + json.dumps(said).encode(), lock)
        _frame(handler.wfile, ABNF.OPCODE_CLOSE, b"", lock)


def end(started: Started) -> None:
    """Kill these commands and their children."""
    for process in started:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _say(place: BufferedIOBase, channel: int, source: IO[bytes], lock: threading.Lock) -> None:
    while content := source.read1(32768):  # type: ignore[attr-defined]
        _frame(place, ABNF.OPCODE_BINARY, bytes([channel]) + content, lock)


def _frame(place: BufferedIOBase, code: int, content: bytes, lock: threading.Lock) -> None:
    with lock:
        place.write(ABNF(fin=1, opcode=code, mask_value=0, data=content).format())
        place.flush()


def _hear(place: BufferedIOBase, process: Any) -> None:
    """Pass on what the client sends. As of version 4, there is no end of it."""

    def read(size: int) -> bytes:
        if content := place.read(size):
            return content
        raise EOFError

    frames = frame_buffer(read, skip_utf8_validation=True)
    # The command may end, its input be closed, and the connection be cut, at every moment of this.
    with suppress(EOFError, OSError, ValueError):
        while (frame := frames.recv_frame()).opcode != ABNF.OPCODE_CLOSE:
            process.stdin.write(frame.data[1:])
            process.stdin.flush()
