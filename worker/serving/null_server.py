"""A server that answers at once: what a request to it takes is the cost of network and client, without any service."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from worker.environment import collect, whole_usage
from worker.protocol import Events
from worker.spec import NullServerRequest

BACKLOG = 1024
TOKENS = 16
"""The tokens of an answer to a request that names no number of them."""
_READ_BYTES = 1 << 16
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def run(request: NullServerRequest, events: Events, wait: Callable[[], object]) -> None:
    """Answer every request until ``wait`` returns, and emit everything from ``environment`` to ``done``."""
    events.emit("environment", environment={**collect(), "threads": request.threads})
    listener = socket.create_server(("", request.port), backlog=BACKLOG)
    threading.Thread(target=_accept, args=(listener, request.api), daemon=True).start()
    events.emit("launched")
    wait()
    events.emit("done", usage=whole_usage())


def _accept(listener: socket.socket, api: str) -> None:
    while True:
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(peer, api), daemon=True).start()


def _answer(peer: socket.socket, api: str) -> None:
    """Answer the requests of a connection, which come one after the other, until it is closed."""
    pending = b""
    with peer, suppress(OSError):
        while more := peer.recv(_READ_BYTES):
            pending += more
            head, blank, body = pending.partition(b"\r\n\r\n")
            if blank and len(body) >= _length(head):
                pending = b""
                peer.sendall(_stream_of(body) if api == "openai" and body else _ANSWER)


def _length(head: bytes) -> int:
    """Return the length of the body that the head of a request announces."""
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return 0


def _stream_of(body: bytes) -> bytes:
    """Return a stream of as many tokens as the request lets a server answer with."""
    tokens = json.loads(body).get("max_tokens", TOKENS)
    text = b"0"
    chat = b'data: {"choices": [{"delta": {"content": "%s"}, "text": "%s"}]}\n\n' % (text, text)
    events = [chat] * tokens + [b"data: [DONE]\n\n"]
    chunks = (b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return b"".join((_STREAM, *chunks, b"0\r\n\r\n"))
