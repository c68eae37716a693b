"""A server in the place of a language model, whose times are known: ``model_server.py PORT [--step-s 0.02 ...]``.

It speaks a part of OpenAI's interface. Each token takes ``--step-s``, every ``--stall-every``-th ``--stall-s``; the
text of a prompt decides that of its answer. Its requests wait for each other as those of one GPU without batching do.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

SPUN_S = 0.002
"""Before the end of a wait the thread spins: a sleep ends up to a millisecond late."""


def wait_until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - SPUN_S - time.monotonic()))
    while time.monotonic() < moment_s:
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    options: ClassVar[argparse.Namespace]
    one_at_a_time = threading.Lock()
    served = 0

    def do_GET(self) -> None:
        ready = time.monotonic() - self.options.begun_s > self.options.loading_s
        if self.path == "/wait":
            with self.one_at_a_time:
                Handler.served += 1
                stalls = self.options.stall_every and Handler.served % self.options.stall_every == 0
                wait_until(time.monotonic() + (self.options.stall_s if stalls else self.options.step_s))
        self.answer(200 if ready else 503, b'{"data": [{"id": "stand-in"}]}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.options.needs_model and asked.get("model") != "stand-in":
            self.answer(404, b"no such model")
            return
        if self.options.status != 200:
            self.answer(self.options.status, b"no")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        digest = hashlib.sha256(json.dumps(asked["messages"]).encode()).hexdigest()
        with self.one_at_a_time:
            due_s = time.monotonic()
            for number in range(1, asked["max_tokens"] + 1):
                stalls = self.options.stall_every and number % self.options.stall_every == 0
                due_s += self.options.stall_s if stalls else self.options.step_s
                wait_until(due_s)
                self.event({"choices": [{"delta": {"content": digest[number % 64]}}]})
        self.event({"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, value: dict[str, Any]) -> None:
        self.chunk(b"data: %s\n\n" % json.dumps(value).encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        if self.options.log_bytes:
            sys.stderr.write("x" * self.options.log_bytes + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="")
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--stall-every", type=int, default=0)
    parser.add_argument("--stall-s", type=float, default=0.2)
    parser.add_argument("--loading-s", type=float, default=0.0)
    parser.add_argument("--status", type=int, default=200)
    parser.add_argument("--log-bytes", type=int, default=0)
    parser.add_argument("--log-mib", type=int, default=0, help="written before it listens")
    parser.add_argument("--die-after-s", type=float, default=0.0)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--fork", action="store_true")
    parser.add_argument("--needs-model", action="store_true")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    options.begun_s = time.monotonic()
    Handler.options = options
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.fork and os.fork():
        return
    if options.child and not os.fork():
        time.sleep(600)
    for _ in range(options.log_mib):
        sys.stderr.write(("x" * 1023 + "\n") * 1024)
    if options.die_after_s:
        threading.Timer(options.die_after_s, lambda: os._exit(3)).start()
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
