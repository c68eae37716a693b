"""Requests to ``bench web`` that no browser of its user sends, and runs that somebody else has written."""

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands.web import app
from commands.web.app import MOST_REQUEST_BYTES, WebSettings, create_app
from suite.results.store import LOG
from tests.hostile.conftest import RUNS, until_closed
from tests.hostile.mutations import MARKUP, STEERING
from tests.test_web import HOST, PAGES, browser, drawn, post, results, writing
from tests.worker.test_serving import listening
from worker.serving import http_server

__all__ = ["results"]
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ORIGIN = {"Origin": f"http://{HOST}"}


@pytest.fixture
def client(results: Path) -> FlaskClient:
    return browser(results)


@pytest.fixture
def stranger(results: Path) -> FlaskClient:
    """A client without the cookie."""
    return create_app(WebSettings(results, "a-token"), PAGES).test_client()


def refused(answer: Any, status: int = 403) -> None:
    assert answer.status_code == status, answer.text
    assert [word for word in ("synthetic-podman", "Traceback") if word in answer.text] == []


def unchanged(results: Path) -> bool:
    return (results / "synthetic-podman").exists() and not (results / "failed" / ".stop").exists()


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/runs/failed", "/report?run=failed", "/compare", "/delete/failed", "/start/check", "/static/web.js"),
        "/nothing",
    ],
)
def test_without_the_cookie_nothing_is_shown(stranger: FlaskClient, path: str) -> None:
    refused(stranger.get(path))
    stranger.set_cookie("virtbench", "a-token")
    refused(stranger.get(path))


@pytest.mark.parametrize("query", ["token=", "token=a-toke", "token=a-token%00", "token=%ff", "token=" + "a" * 5000])
def test_another_token_gives_no_cookie(stranger: FlaskClient, query: str) -> None:
    answer = stranger.get(f"/?{query}")
    refused(answer)
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost:80@evil", "", "192.0.2.1", "localhost:x"],
)
def test_another_name_of_this_host_is_refused_even_with_the_cookie(client: FlaskClient, host: str) -> None:
    refused(client.get("/", headers={"Host": host}))


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://{HOST}:1", "file://", f"http://{HOST}.evil"]
)
def test_a_form_of_another_site_changes_nothing(
    client: FlaskClient, results: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing(results / "failed", monkeypatch)
    fields = {"form_token": client.environ_base["FORM_TOKEN"], "action": "stop"}
    refused(client.post("/delete/synthetic-podman", data=fields, headers={"Origin": origin}))
    refused(client.post("/runs/failed", data=fields, headers={"Origin": origin}))
    refused(client.post("/runs/failed", data=fields))
    refused(client.get("/", headers={"Origin": origin}))
    assert unchanged(results)


@pytest.mark.parametrize("token", [{}, {"form_token": ""}, {"form_token": "a-token"}, {"form_token": "\x00"}])
def test_a_form_without_its_token_changes_nothing(
    client: FlaskClient, results: Path, token: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writing(results / "failed", monkeypatch)
    refused(client.post("/runs/failed", data={"action": "stop", **token}, headers=ORIGIN))
    refused(client.post("/delete/synthetic-podman", data=token, headers=ORIGIN))
    assert unchanged(results)


def test_a_change_is_no_get_other_methods_are_none_and_a_large_body_is_not_read(client: FlaskClient) -> None:
    assert client.get("/runs/failed?action=cancel").status_code == 200
    for method in ("PUT", "DELETE", "PATCH", "TRACE"):
        assert client.open("/runs/failed", method=method, headers=ORIGIN).status_code in (403, 405)
    refused(post(client, "/runs/failed", action="x" * MOST_REQUEST_BYTES), 413)


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "failed/../../secret", "%2e%2e/secret", "..%2fsecret"),
        *("linked", "failed/linked", "/etc", ".", "failed/."),
    ],
)
def test_no_path_and_no_link_leads_out_of_the_results(client: FlaskClient, results: Path, name: str) -> None:
    secret = results.parent / "secret"
    shutil.copytree(RUNS / "failed", secret)
    for place in (results, results / "failed"):
        (place / "linked").symlink_to(secret)
    for path in (f"/runs/{name}", f"/report?run={name}", f"/compare?run={name}"):
        assert client.get(path, follow_redirects=True).status_code in (404, 405), path
    assert "linked" not in client.get("/").text


def test_links_inside_a_run_are_not_followed(client: FlaskClient, results: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("precious")
    for name in ("log", "records", "plan"):
        shutil.copytree(RUNS / "failed", results / name)
    (results / "log" / LOG).symlink_to(tmp_path / "secret")
    shutil.move(results / "records" / "trials", tmp_path / "trials")
    (results / "records" / "trials").symlink_to(tmp_path / "trials")
    (results / "plan" / "plan.json").unlink()
    (results / "plan" / "plan.json").symlink_to(RUNS / "failed" / "plan.json")
    for name in ("log", "records", "plan"):
        answer = client.get(f"/runs/{name}")
        assert (answer.status_code, "precious" in answer.text) == (404 if name == "records" else 200, False)
    assert "links are not followed" in client.get("/runs/log").text


def test_markup_and_steering_in_records_plans_names_and_logs_are_text(client: FlaskClient, results: Path) -> None:
    hostile = f"{MARKUP}{STEERING}\u202e<script>alert(1)</script>'\"--><img src=x onerror=alert(1)>"
    run = results / "<img src=x onerror=alert(1)>"
    shutil.copytree(RUNS / "failed", run)
    (run / LOG).write_text(hostile)
    for path in (run / "trials").iterdir():
        record = json.loads(path.read_text())
        record["outcome"]["message"] = record["job"]["model"] = hostile
        path.write_text(json.dumps(record))
    plan = json.loads((run / "plan.json").read_text())
    for job in plan["jobs"]:
        job["model"] = hostile
    (run / "plan.json").write_text(json.dumps(plan))
    quoted = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
    addresses = ("runs/{}", "delete/{}", "compare?run={}", "report?run={}", "runs/{}?part=1")
    for address in ("/", *(f"/{each.format(quoted)}" for each in addresses)):
        answer = drawn(client, f"run={quoted}") if "report" in address else client.get(address)
        assert answer.status_code in (200, 400), address
        assert [text for text in ("<script>alert", "<img src=x", "\u202e", "\x1b") if text in answer.text] == []


@MANY
@given(
    path=st.text(max_size=60),
    query=st.dictionaries(st.sampled_from(["run", "page", "part", "token", "x"]), st.text(max_size=30)),
)
def test_any_address_is_answered(client: FlaskClient, path: str, query: dict[str, str]) -> None:
    answer = client.get(f"/runs/{quote(path, errors='ignore')}", query_string=query)
    assert answer.status_code < 500
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@MANY
@given(
    headers=st.dictionaries(
        st.sampled_from(["Host", "Origin", "Cookie", "If-None-Match", "Range"]), st.text('abc:/".*-=,;[]0', max_size=30)
    )
)
def test_any_header_is_answered_and_opens_nothing(
    stranger: FlaskClient, client: FlaskClient, headers: dict[str, str]
) -> None:
    # For its cookies a client parses the Host itself: here they are sent as any other header.
    bare = stranger.application.test_client(use_cookies=False)
    refused(bare.get("/", headers=headers))
    cookies = "; ".join(f"{cookie.key}={cookie.value}" for cookie in (client._cookies or {}).values())
    assert cookies
    opened = client.application.test_client(use_cookies=False)
    assert opened.get("/", headers={**headers, "Cookie": cookies}).status_code < 500


@pytest.fixture
def port(results: Path) -> Iterator[int]:
    app = create_app(WebSettings(results, "a-token"), PAGES)
    most = {"max_request_body_size": MOST_REQUEST_BYTES, "max_request_header_size": MOST_REQUEST_BYTES}
    with listening(app, **most) as number:
        yield number


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"4"),
        (b"GET / HTTP/1.1\r\n\r\n", b"4"),
        (b"GET / HTTP/1.1\r\nHost: [:0]\r\n\r\n", b"4"),
        (b"GET / HTTP/1.1\r\nHost: [\r\nOrigin: []\r\n\r\n", b"4"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"4"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n", b"4"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * MOST_REQUEST_BYTES + b"\r\n\r\n", b"4"),
        (b"\x00\xff\r\n\r\n", b"4"),
    ],
)
def test_what_is_no_proper_request_is_refused_on_the_wire(port: int, sent: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
        with suppress(ConnectionError):
            peer.sendall(sent)
        assert peer.recv(100).partition(b" ")[2][:1] == status


@pytest.fixture
def served(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WebSettings, int]]:
    """The settings and the port of a server as bench web starts it; requests must be whole within a second."""
    monkeypatch.setattr(http_server, "REQUEST_WITHIN_S", 1)
    web = WebSettings(results, "a-token")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pages = create_app(web, PAGES)
        threading.Thread(target=until_closed, args=(app.serve, pages, web, listener), daemon=True).start()
        yield web, int(listener.getsockname()[1])


def asked(port: int, path: str, cookie: str = "") -> tuple[int, str, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers={"Host": "localhost", "Cookie": cookie})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Set-Cookie", ""), answer.read().decode()


def test_the_cookie_is_sent_below_the_secret_path_alone_and_nothing_is_elsewhere(
    served: tuple[WebSettings, int],
) -> None:
    """Cookies know no ports: a job on bare metal that listens on another one is sent those of all its paths."""
    web, port = served
    status, cookie, page = asked(port, f"{web.path}/?token=a-token")
    assert (status, f"; Path={web.path}/;" in cookie, f'href="{web.path}/"' in page) == (200, True, True)
    assert len(web.path) > 40
    pair = cookie.partition(";")[0]
    _, _, listing = asked(port, f"{web.path}/", pair)
    assert f'href="{web.path}/runs/failed"' in listing
    links = re.findall(r'(?:href|src|data-refresh)="(/[^"]*)"', listing)
    assert all(link.startswith(f"{web.path}/") for link in links), links
    for link in (f"{web.path}/static/web.css", f"{web.path}/runs/failed"):
        assert asked(port, link, pair)[0] == 200
    for path in ("/", "/?token=a-token", "/runs/failed", "/static/web.js", web.path[:-1] + "/"):
        status, cookie, page = asked(port, path, pair)
        assert (status, cookie, "synthetic" in page) == (404, "", False)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\nx"])
def test_requests_that_are_half_sent_shut_nobody_out_and_end(served: tuple[WebSettings, int], sent: bytes) -> None:
    web, port = served
    with ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(120)]
        for peer in peers:
            peer.sendall(sent)
        assert asked(port, f"{web.path}/")[0] == 403
        last, ended, end_s = peers[-1], False, time.monotonic() + 10
        last.settimeout(0.2)
        while not ended and time.monotonic() < end_s:
            with suppress(TimeoutError):
                ended = last.recv(100) == b""
            with suppress(OSError):
                last.sendall(sent and b"x")  # a byte now and then
        assert ended, "it is closed, though it goes on sending"
