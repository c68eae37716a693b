"""A server whose latency is known: ``known_server.py SERVICE_S STALL_EVERY STALL_S`` prints its port.

It answers one request after the other, in the order in which they come, each after SERVICE_S; every STALL_EVERY-th
takes STALL_S. It ends with its standard input.
"""

import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE, Popen

PNG = b"\x89PNG\r\n\x1a\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n%s" % (len(PNG), PNG)
SPUN_S = 0.002
"""Before the end of a wait the thread spins: a sleep ends up to a millisecond late."""


@dataclass(frozen=True)
class Service:
    """The times that requests take."""

    usual_s: float
    stall_every: int
    stall_s: float

    def of(self, number: int) -> float:
        """Return the seconds of a request, counted from 0."""
        return self.stall_s if number % self.stall_every == self.stall_every - 1 else self.usual_s

    def latencies_s(self, due_s: Sequence[float], before: int) -> list[float]:
        """Return the true latencies of requests that are due at these times, after so many others (Lindley 1952)."""
        found, free_s = [], 0.0
        for number, due in enumerate(due_s, start=before):
            free_s = max(due, free_s) + self.of(number)
            found.append(free_s - due)
        return found


def serve(service: Service) -> None:
    """Answer until standard input ends."""
    waiting: queue.Queue[socket.socket] = queue.Queue()

    def accept() -> None:
        while True:
            peer, _ = listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=read, args=(peer,), daemon=True).start()

    def read(peer: socket.socket) -> None:
        had = b""
        while more := peer.recv(4096):
            had += more
            head, blank, body = had.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0)
            if blank and len(body) >= length:
                had = b""
                waiting.put(peer)

    def answer() -> None:
        number = 0
        while True:
            peer = waiting.get()
            until_s = time.monotonic() + service.of(number)
            time.sleep(max(0.0, until_s - SPUN_S - time.monotonic()))
            while time.monotonic() < until_s:
                pass
            peer.sendall(ANSWER)
            number += 1

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        for work in (accept, answer):
            threading.Thread(target=work, daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        sys.stdin.read()


@contextmanager
def serving(service: Service) -> Iterator[int]:
    """Run a server in a process of its own, and yield its port."""
    argv = [sys.executable, __file__, str(service.usual_s), str(service.stall_every), str(service.stall_s)]
    with Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline() if process.stdout else 0)
        finally:
            process.kill()


if __name__ == "__main__":
    serve(Service(float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
