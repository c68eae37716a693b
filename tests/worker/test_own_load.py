"""The load of a server of the user's own, against a stand-in whose times are known, and against no service at all."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from provisioning.machines.ssh import free_port
from tests.worker.conftest import fails
from worker.protocol import JobError
from worker.serving.answers import ServerAnswer
from worker.serving.load import LoadRun, Sent, answers_of, closed_loop, open_loop, wait_for_answer, wait_until_ready
from worker.serving.null_server import _accept
from worker.serving.own_server import listening
from worker.spec import LoadRequest, parsed

STAND_IN = Path(__file__).parents[1] / "stand_ins/model_server.py"
CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "stream": True})


@contextmanager
def stand_in(*words: str) -> Iterator[int]:
    """Run the stand-in with these words until the end; yields its port."""
    port = free_port()
    with subprocess.Popen([sys.executable, STAND_IN, str(port), *words]) as process:
        try:
            wait_until_ready(load(port))
            yield port
        finally:
            process.kill()


def load(port: int, **changes: Any) -> LoadRequest:
    usual = {"address": "127.0.0.1", "port": port, "bodies": [""], "requests": 40, "clients": 4, "rates": [50.0]}
    more = {"seed": 1, "timeout_s": 10, "patience_s": 10, "threads": 1}
    own = {"api": "http", "method": "GET", "path": "/wait", "ready": "/"}
    return parsed(LoadRequest, json.dumps({**usual, **more, **own, **changes}))


def chats(port: int, **changes: Any) -> LoadRequest:
    return load(port, api="openai", method="POST", path="/v1/chat/completions", bodies=[CHAT], **changes)


def queued_ms(sent: list[Sent], service_s: float) -> list[float]:
    """Return the latencies of one queue for requests that were due as these were (Lindley 1952)."""
    latencies, free_s = [], 0.0
    for each in sent:
        free_s = max(each.due_s, free_s) + service_s
        latencies.append((free_s - each.due_s) * 1e3)
    return sorted(latencies)


def test_a_queue_of_equal_services_has_the_latencies_of_its_theory() -> None:
    with stand_in("--step-s", "0.01") as port:
        run = open_loop(load(port, requests=100), 60.0)
    true_ms = queued_ms(list(run.sent), 0.01)
    readings = run.readings()
    # Not closer, and not from above: on a busy machine the stand-in itself is late.
    assert readings["latency-p50"].value > 0.9 * true_ms[49]
    assert readings["latency-p95"].value > 0.9 * true_ms[94] > 20


def test_a_stall_of_two_seconds_is_in_the_percentiles_of_all_that_it_kept_waiting() -> None:
    with stand_in("--step-s", "0.002", "--stall-every", "60", "--stall-s", "2") as port:
        opened = open_loop(load(port, requests=100), 50.0).readings()
    with stand_in("--step-s", "0.002", "--stall-every", "60", "--stall-s", "2") as port:
        closed = closed_loop(load(port), 1, 100).readings()
    assert opened["latency-p95"].value > 1500, "at 50 a second, some 40 requests were due meanwhile"
    assert closed["latency-p95"].value < 100, "one client alone meets the stall once"


def test_tokens_come_at_the_pace_of_the_server_and_a_stall_is_a_gap() -> None:
    with stand_in("--step-s", "0.01", "--stall-every", "5", "--stall-s", "0.1") as port:
        run = closed_loop(chats(port), 1, 20)
    readings = run.readings()
    assert 10 <= readings["first-token-p50"].value < 25
    assert readings["per-token-p50"].value == pytest.approx((4 * 10 + 100) / 5, rel=0.2)
    assert readings["token-gap-p50"].value == pytest.approx(10, rel=0.5)
    assert readings["token-gap-p95"].value == pytest.approx(100, rel=0.2)
    assert run.tokens == 20 * 6
    found = answers_of([run], 1)
    assert (found["failed"], found["answers_differ"]) == ({}, 0)


@pytest.mark.parametrize(("status", "said"), [(500, "500 Internal Server Error: no"), (422, "422 Unprocessable")])
def test_a_server_that_answers_with_errors_ends_the_measurement(status: int, said: str) -> None:
    with stand_in("--status", str(status)) as port, fails(JobError, "serve", f"requests failed; .* {said}"):
        closed_loop(chats(port), 2, 10)


def test_a_server_that_never_gets_ready_is_given_up_with_its_last_answer() -> None:
    port = free_port()
    with fails(JobError, "network", "not ready after 1 s: .*refused"):
        wait_until_ready(load(port, patience_s=1))


def test_a_lost_request_for_a_connection_is_repeated_sooner_than_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection
    waited_s: list[float] = []

    def lose_six(address: tuple[str, int], timeout: float, *words: Any) -> socket.socket:
        waited_s.append(timeout)
        if len(waited_s) in (2, 3, 4, 5, 6, 8):
            raise TimeoutError("timed out")
        return connect(address, timeout, *words)

    with stand_in() as port:
        monkeypatch.setattr(socket, "create_connection", lose_six)
        request = load(port, timeout_s=1)
        wait_until_ready(request)
        wait_until_ready(request)
        wait_for_answer(request)
    assert waited_s == [0.1, 0.1, 0.2, 0.4, 0.8, 1, 1, 0.1, 0.2]


def test_what_answers_at_once_speaks_both_interfaces() -> None:
    for api, request_of in (("http", load), ("openai", chats)):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]

            def accept(listener: socket.socket = listener, api: str = api) -> None:
                with suppress(OSError):
                    _accept(listener, api)

            threading.Thread(target=accept, daemon=True).start()
            run = closed_loop(request_of(port), 1, 20)
            assert list(listening(port)) == ["127.0.0.1"]
        assert run.readings()["latency-p50"].value < 10
        assert run.tokens == (20 * 6 if api == "openai" else 0)


def sent(number: int, late_s: float = 0.0, sha256: str = "a", problem: str = "") -> Sent:
    return Sent(
        number, number, number, number + late_s, ServerAnswer(200, number + 0.1, number + 0.1, 0, (), sha256, problem)
    )


def test_a_generator_that_is_late_itself_or_busy_is_the_reason_to_withhold() -> None:
    on_time = [sent(number) for number in range(20)]
    assert LoadRun.of(on_time, 0.0, 20.0, 1.0).saturated == ""
    assert "used 90% of a CPU" in LoadRun.of(on_time, 0.0, 20.0, 18.0).saturated
    late = [sent(number, 0.02) for number in range(20)]
    assert "20 ms late" in LoadRun.of(late, 0.0, 20.0, 1.0).saturated


def test_answers_are_the_same_only_if_each_body_has_one() -> None:
    run = LoadRun.of(
        [sent(0), sent(1, sha256="b"), sent(2), sent(3, sha256="c"), sent(4, problem="500")], 0.0, 5.0, 0.1
    )
    found = answers_of([run], 2)
    assert found["answers_differ"] == 1
    assert found["failed"] == {"500": 1}
    assert len(run.latencies_s) == 4
    again = answers_of([LoadRun.of([sent(0), sent(1, sha256="b")], 0.0, 5.0, 0.1)], 2)
    assert again["answers_sha256"] == found["answers_sha256"]


def test_a_connection_that_the_server_closed_while_it_was_idle_is_opened_again() -> None:
    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        run = closed_loop(load(listener.getsockname()[1]), 1, 5)
    assert [each.answer.status for each in run.sent] == [200] * 5
