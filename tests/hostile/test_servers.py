"""The pages and a service under connections that ask for nothing: whoever asks properly is answered within a second."""

import logging
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from commands.web import app
from commands.web.app import WebSettings, create_app
from tests.hostile.conftest import until_closed
from tests.worker.judged import SERVICE
from worker.serving import http_server
from worker.serving.http_server import BoundedServer
from worker.serving.service import MOST_REQUEST_BYTES, Service

WITHIN_S = 1.0
HALF = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
WHOLE = b"GET /models HTTP/1.1\r\nHost: localhost\r\n\r\n"
ATTACK = """
import resource, socket, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
sent, slowly = bytes.fromhex(sys.argv[3]), sys.argv[4]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
peers = []
print("begun", flush=True)
for number in range(count):
    peer = socket.socket()
    if slowly:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256)
    peer.settimeout(5)
    try:
        peer.connect(("127.0.0.1", port))
        peer.sendall(sent)
    except OSError:
        pass
    peers.append(peer)
print("open", flush=True)
while True:
    time.sleep(0.1)
    for peer in peers[-300:]:
        try:
            peer.recv(1) if slowly else peer.sendall(sent and b"x")
        except OSError:
            pass
"""


def pages(listener: socket.socket, results: Path) -> None:
    web = WebSettings(results, "a-token")
    app.serve(create_app(web, []), web, listener)


def service(listener: socket.socket, results: Path) -> None:
    del results
    local = Service(SERVICE.generators, SERVICE.trained, local=True)
    BoundedServer(local, listener, threads=1, most_bytes=MOST_REQUEST_BYTES, idle_s=120).run()


@pytest.fixture(params=[pages, service])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The port of the pages, and of a service, as ``bench`` starts them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=until_closed, args=(request.param, listener, tmp_path), daemon=True).start()
        yield int(listener.getsockname()[1])


def asked(port: int, headers: dict[str, str] | None = None, method: str = "GET") -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, "/models", headers=headers or {})
        return connection.getresponse().status


def answered(connection: HTTPConnection) -> int:
    connection.request("GET", "/models")
    answer = connection.getresponse()
    answer.read()
    return answer.status


def waited_s(port: int, seconds: float) -> float:
    """Ask every 50 ms; return within what time nine of ten answers came: the others may have waited for a CPU."""
    times, end_s = [], time.monotonic() + seconds
    while time.monotonic() < end_s:
        begin_s = time.monotonic()
        assert asked(port) in (200, 403, 404)
        times.append(time.monotonic() - begin_s)
        time.sleep(0.05)
    return sorted(times)[len(times) * 9 // 10]


@pytest.mark.parametrize(
    ("count", "sent", "slowly"),
    [
        pytest.param(200, HALF, "", id="200 half requests"),
        pytest.param(1500, b"", "", id="1,500 connections"),
        pytest.param(300, WHOLE * 5, "slowly", id="300 slow readers"),
        pytest.param(300, WHOLE * 200, "slowly", id="300 pipelines", marks=pytest.mark.thorough),
        pytest.param(10_000, HALF, "", id="10,000 half requests", marks=pytest.mark.thorough),
        pytest.param(10_000, b"", "", id="10,000 connections", marks=pytest.mark.thorough),
    ],
)
def test_who_asks_properly_is_answered_within_a_second(port: int, count: int, sent: bytes, slowly: str) -> None:
    asked(port)  # what is imported at first
    argv = [sys.executable, "-c", ATTACK, str(port), str(count), sent.hex(), slowly]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as attack:
        try:
            assert attack.stdout
            assert attack.stdout.readline() == "begun\n"
            during_s = waited_s(port, 2)
            assert attack.stdout.readline() == "open\n"
            after_s = waited_s(port, 2)
        finally:
            attack.kill()
    within_s = WITHIN_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # others may use the CPUs, too
    assert (during_s < within_s, after_s < within_s) == (True, True), (during_s, after_s, within_s)


class GatedPoller:
    """Asks the kernel only while the gate is open, so that it answers for several connections at once."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.rounds = 0
        self._poller = select.epoll()
        self.register = self._poller.register
        self.unregister = self._poller.unregister
        self.modify = self._poller.modify

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        self.rounds += 1
        self.gate.wait()
        return self._poller.poll(timeout_s)


@dataclass
class GatedService:
    """A service whose events a test holds back."""

    server: BoundedServer
    poller: GatedPoller
    port: int

    def connected(self) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.connect()
        return connection

    def wait_for_rounds(self, count: int) -> None:
        """Wait until the server has come so often to its gate."""
        wanted = self.poller.rounds + count
        end_s = time.monotonic() + 10
        while self.poller.rounds < wanted and time.monotonic() < end_s:
            time.sleep(0.01)


@pytest.fixture
def gated() -> Iterator[GatedService]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        local = Service(SERVICE.generators, SERVICE.trained, local=True)
        server = BoundedServer(local, listener, threads=1, most_bytes=MOST_REQUEST_BYTES, idle_s=120)
        poller = GatedPoller()
        server.poller = poller  # type: ignore[assignment] # for longer than the test, whose thread ends after it
        poller.gate.set()
        threading.Thread(target=until_closed, args=(server.run,), daemon=True).start()
        yield GatedService(server, poller, int(listener.getsockname()[1]))
        poller.gate.set()


def test_an_event_of_a_closed_connection_reaches_no_other_that_has_its_number(gated: GatedService) -> None:
    """Of two that are accepted at once, the second is given the number of what was closed for the first."""
    gated.server.most_connections = 2
    with closing(gated.connected()) as oldest, closing(gated.connected()) as old:
        assert [answered(peer) for peer in (oldest, old)] == [200, 200]
        gated.poller.gate.clear()
        gated.wait_for_rounds(1)
        with closing(gated.connected()) as first, closing(gated.connected()) as second:
            oldest.request("GET", "/models")
            gated.poller.gate.set()
            assert [answered(peer) for peer in (first, second)] == [200, 200]


def test_an_urgent_byte_wakes_nobody_without_an_end(gated: GatedService, caplog: pytest.LogCaptureFixture) -> None:
    with closing(gated.connected()) as peer, caplog.at_level(logging.WARNING):
        assert answered(peer) == 200
        peer.sock.send(b"!", socket.MSG_OOB)
        before = gated.poller.rounds
        time.sleep(0.5)
        assert gated.poller.rounds - before < 10
        assert answered(peer) == 200
    assert caplog.messages == []


def test_half_a_request_is_closed_in_time_though_the_clock_is_set_back(
    gated: GatedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_WITHIN_S", 1)
    with socket.create_connection(("127.0.0.1", gated.port), timeout=10) as peer:
        now_s = time.time()
        monkeypatch.setattr(time, "time", lambda: now_s - 3600)
        peer.sendall(HALF)
        assert peer.recv(1) == b""


def test_a_service_that_may_open_few_files_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=until_closed, args=(service, listener, Path()), daemon=True).start()
        assert asked(int(listener.getsockname()[1])) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.nip.io"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
def test_another_site_gets_nothing(port: int, headers: dict[str, str]) -> None:
    assert asked(port, headers) in (400, 403, 404)
    assert asked(port, headers, "POST") in (400, 403, 404, 405)


def test_what_is_too_large_or_no_method_is_refused(port: int) -> None:
    assert asked(port, {"X": "x" * 300_000}) in (400, 431)
    assert asked(port, {"Content-Length": str(1 << 40)}) == 413
    assert asked(port, method="DELETE") in (403, 404, 405)


def pages_answer(host: str, results: Path) -> bool:
    web = WebSettings(results, "a-token")
    return create_app(web, []).test_client().get("/?token=a-token", headers={"Host": host}).status_code == 200


def service_answers(host: str, server: Service) -> bool:
    started: list[str] = []
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": "/health", "HTTP_HOST": host}
    list(server(asked, lambda status, _: started.append(status)))
    return started == ["200 OK"]


NAMES = ("gan-serve", "gan-serve.lab.svc")


@pytest.mark.parametrize(
    ("host", "locally", "elsewhere"),
    [
        ("localhost:8642", True, True),
        ("127.0.0.1", True, True),
        ("10.0.0.7:5000", False, True),
        ("[fd00::7]:5000", False, True),
        ("gan-serve:80", False, True),
        ("GAN-serve.lab.svc", False, True),
        ("gan-serve.evil.example", False, False),
        ("evil.example", False, False),
        ("10.0.0.7.nip.io", False, False),
        ("localhost.evil.example", False, False),
        ("10.0.0.7@evil.example", False, False),
        ("gan-serve:80:80", False, False),
        ("127.0.0.1:99999999", False, False),
        ("", False, False),
    ],
)
def test_a_server_answers_to_its_names_and_addresses_alone(
    host: str, locally: bool, elsewhere: bool, tmp_path: Path
) -> None:
    """A page of another site that leads its own name here, by DNS, sends that name."""
    reached = Service(SERVICE.generators, names=NAMES)
    assert service_answers(host, Service(SERVICE.generators, local=True)) == locally
    assert pages_answer(host, tmp_path) == locally
    assert service_answers(host, reached) == elsewhere
