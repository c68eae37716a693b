"""Chromium by its DevTools protocol, and the servers whose pages it opens."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import websocket
from msgspec.structs import asdict

from tests.integration.bench import REPOSITORY
from tests.integration.machine import require_chromium
from tests.worker.test_serving import load
from worker.serving.load import wait_for_answer
from worker.spec import ServeSpec

WAIT_S = 180
MOST_STOPS = 200
_KEYS = {"Tab": (9, ""), " ": (32, " "), "Enter": (13, "\r")}
"""The code and the text of keys that are no letters."""


class NavigatedError(Exception):
    """The page was left for another before it had answered."""


class Tab:
    """One page of Chromium."""

    def __init__(self, port: int, page: Mapping[str, Any]) -> None:
        self._port = port
        self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], suppress_origin=True, timeout=WAIT_S)
        self._numbers = itertools.count()
        # A window shows one of its tabs, and only a page that is shown is refreshed.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv())).get("id") != number:
            continue
        if "navigated" in answer.get("error", {}).get("message", ""):
            raise NavigatedError(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, script: str) -> Any:
        """Return the value of a script, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'")

    def enter(self, address: str, path: str = "/") -> None:
        """Open a page of a server by the address that the server has printed."""
        self.open(address)
        self.wait("document.title.startsWith('Runs')")
        if path != "/":
            self.open(address.partition("/?")[0] + path)

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def wait(self, condition: str) -> None:
        """Wait until a condition holds, on whatever page is shown by then."""
        end_s = time.monotonic() + WAIT_S
        while not self._holds(condition):
            assert time.monotonic() < end_s, (condition, self.text())
            time.sleep(0.05)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.run(condition))
        except NavigatedError:
            return False

    def wait_for(self, text: str) -> None:
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})")

    def press(self, key: str) -> None:
        """Press a key: a named one, or one that types its letter."""
        code, text = _KEYS.get(key, (ord(key[0].upper()), key))
        for kind, typed in (("keyDown", text), ("keyUp", "")):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=typed, windowsVirtualKeyCode=code)

    def tab_to(self, condition: str) -> None:
        """Press Tab until the element with the focus, ``at``, meets a condition."""
        for _ in range(MOST_STOPS):
            self.press("Tab")
            if self.run(f"((at) => {condition})(document.activeElement)"):
                return
        raise AssertionError(f"no stop of the keyboard is {condition}")

    def another(self) -> "Tab":
        with urlopen(Request(f"http://127.0.0.1:{self._port}/json/new", method="PUT")) as answer:
            return Tab(self._port, json.load(answer))

    def close(self, what: str = "Page") -> None:
        """Close the page, or with ``Browser`` all of them."""
        self.call(f"{what}.close")
        self._socket.close()


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """Yield the first tab of a browser, which ends with all of its tabs."""
    argv = [require_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    with subprocess.Popen([*argv, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL) as process:
        end_s = time.monotonic() + WAIT_S
        while not (profile / "DevToolsActivePort").is_file() and time.monotonic() < end_s:
            time.sleep(0.05)
        port = int((profile / "DevToolsActivePort").read_text().splitlines()[0])
        with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            tab = Tab(port, next(page for page in json.load(answer) if page["type"] == "page"))
        try:
            yield tab
        finally:
            tab.close("Browser")
            process.wait(WAIT_S)


@contextmanager
def serving(results: Path, *words: str, **more: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Yield the address of a server, which holds its token, and its process."""
    argv = [sys.executable, str(REPOSITORY / "cli.py"), "web", "--port", "0", "--results", str(results), *words]
    environment = {**os.environ, **more}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().decode().strip(), server
        finally:
            server.terminate()


@contextmanager
def generating(spec: ServeSpec) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    argv = [sys.executable, "-m", "worker", "--serve", json.dumps({**asdict(spec), "port": port})]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as process:
        try:
            body = json.dumps({"dataset": spec.dataset, "model": spec.model})
            wait_for_answer(load(port, patience_s=WAIT_S, bodies=[body]))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
