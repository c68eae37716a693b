"""A small server that answers as an API server does, for what a real one says only when it is broken."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from provisioning.kubernetes.cluster import Cluster
from tests.provisioning.kubernetes.exec_server import Started, end, serve

Answer = tuple[int, dict[str, Any] | str]


@dataclass
class Server:
    """What it answers, by method and path without the query, and what it was asked."""

    answers: dict[str, Answer | Callable[[], Answer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    """The bodies of the requests that have one, and their types."""
    url: str = ""
    cuts: bool = False
    """Whether it ends the streams of commands with their first output."""
    started: Started = field(default_factory=list)
    """The commands that it was asked to run."""

    def kubeconfig(self, path: Path, *, current: str = "") -> str:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "lab"}}],
            **({"current-context": current} if current else {}),
        }
        path.write_text(json.dumps(config))
        return str(path)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            if sent := self.rfile.read(int(self.headers.get("Content-Length") or 0)):
                found.sent.append(sent.decode())
                found.types.append(self.headers["Content-Type"])
            if self.headers.get("Upgrade"):
                words = [value for key, value in parse_qsl(urlsplit(self.path).query) if key == "command"]
                serve(self, words, found.started, cut=found.cuts)
                return
            found.asked.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
            answer = found.answers.get(f"{self.command} {self.path.partition('?')[0]}", (404, {"message": "not found"}))
            status, body = answer() if callable(answer) else answer
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 (the library's names)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        found.url = f"http://127.0.0.1:{listening.server_port}"
        yield found
        end(found.started)
        listening.shutdown()


@pytest.fixture
def cluster(server: Server, tmp_path: Path) -> Cluster:
    return Cluster.connect("here", config=server.kubeconfig(tmp_path / "config"))
