"""``bench web`` in Chromium: usable by everybody, in both colour schemes, on a phone, and refreshed by its script."""

import importlib.util
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import websocket
from msgspec.structs import asdict

from commands.web.runs import LOG
from tests.test_web import RUNS
from tests.worker.test_serving import load, serve_spec
from worker.serving.load import wait_for_answer

pytestmark = pytest.mark.integration
REPOSITORY = Path(__file__).parents[2]
PATHS = (
    "/",
    "/runs/synthetic-podman",
    "/compare?run=failed&run=synthetic-podman",
    "/start",
    "/start?scenario=shared",
    "/generate",
)
WAIT_S = 180


class Browser:
    """One page of Chromium, by its DevTools protocol."""

    def __init__(self, port: int) -> None:
        with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            page = next(each for each in json.load(answer) if each["type"] == "page")
        self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], suppress_origin=True, timeout=WAIT_S)
        self._numbers = itertools.count()

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv())).get("id") != number:
            continue
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, script: str) -> Any:
        """Return the value of a script, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState == 'complete' && location.href != 'about:blank' && {json.dumps(address)}")

    def wait(self, condition: str) -> None:
        end_s = time.monotonic() + WAIT_S
        while not self.run(condition):
            assert time.monotonic() < end_s, (condition, self.run("document.body.innerText"))
            time.sleep(0.05)

    def close(self) -> None:
        self.call("Browser.close")
        self._socket.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("web")
    for name in ("failed", "synthetic-podman"):
        shutil.copytree(RUNS / name, made / "results" / name)
    return made


@contextmanager
def serving(results: Path, *words: str, **more: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Yield the address of a server, which holds its token, and its process."""
    argv = [sys.executable, str(REPOSITORY / "cli.py"), "web", "--port", "0", "--results", str(results), *words]
    environment = {**os.environ, **more}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as server:
        assert server.stdout
        yield server.stdout.readline().decode().strip(), server
        server.terminate()


@pytest.fixture(scope="module")
def site(place: Path) -> Iterator[str]:
    with serving(place / "results", VIRTBENCH_HOME=str(place / "home")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser(place: Path, site: str) -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    profile = place / "profile"
    argv = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    with subprocess.Popen([*argv, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL) as process:
        end_s = time.monotonic() + WAIT_S
        while not (profile / "DevToolsActivePort").is_file() and time.monotonic() < end_s:
            time.sleep(0.05)
        made = Browser(int((profile / "DevToolsActivePort").read_text().splitlines()[0]))
        made.open(site)
        made.wait("document.title.startsWith('Runs')")
        yield made
        made.close()
        process.wait(WAIT_S)


@pytest.mark.beside
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_passes_the_rules_of_axe_and_fits_a_phone(browser: Browser, site: str, path: str, scheme: str) -> None:
    spec = importlib.util.find_spec("axe_core_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe-core-python is not installed")
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    browser.open(site.partition("/?")[0] + path)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    browser.run(f"{(Path(spec.origin).parent / 'axe.min.js').read_text()}; 1")
    found = browser.run("axe.run({ exclude: [['iframe']] }).then((result) => JSON.stringify(result.violations))")
    rules = [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in json.loads(found)]
    assert rules == []
    assert browser.run("document.documentElement.scrollWidth") <= 360


@pytest.mark.beside
def test_the_script_shows_what_has_changed_and_keeps_choice_and_focus(browser: Browser, site: str, place: Path) -> None:
    browser.open(site.partition("/?")[0] + "/")
    browser.run("document.querySelector('input[value=failed]').click(); document.getElementById('run-failed').focus()")
    run = place / "results" / "late"
    run.mkdir()
    (run / LOG).write_text("bench: no image\n")
    browser.wait("document.body.innerText.includes('late')")
    assert browser.run("document.activeElement.id") == "run-failed"
    assert browser.run("document.querySelector('input[value=failed]').checked")
    browser.open(site.partition("/?")[0] + "/runs/late")
    (run / LOG).write_text("bench: no image at all\n")
    browser.wait("document.body.innerText.includes('no image at all')")
    shutil.rmtree(run)


@pytest.mark.beside
def test_runs_are_chosen_and_compared_by_keyboard_alone(browser: Browser, site: str) -> None:
    browser.open(site.partition("/?")[0] + "/")

    def press(key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            browser.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode={"Tab": 9, " ": 32, "Enter": 13}[key],
            )

    press("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    for _ in range(30):
        if browser.run("document.activeElement.value == 'synthetic-podman'"):
            press(" ", " ")
        if browser.run("document.activeElement.tagName == 'BUTTON'"):
            break
        press("Tab")
    press("Enter", "\r")
    browser.wait("location.pathname == '/compare' && location.search.includes('run=synthetic-podman')")
    browser.wait("document.querySelector('iframe') !== null")


@contextmanager
def generating(seed: int) -> Iterator[str]:
    """Yield the address of a service of a GAN whose weights are drawn from the seed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    spec = {**asdict(serve_spec("worker.workloads.adversarial:GAN", 28, 1)), "port": port, "seed": seed}
    argv = [sys.executable, "-m", "worker", "--serve", json.dumps(spec)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as process:
        wait_for_answer(load(port, patience_s=WAIT_S))
        yield f"http://127.0.0.1:{port}"
        process.terminate()


@pytest.mark.beside
def test_two_services_show_equal_images_of_a_seed_or_that_they_differ(browser: Browser, place: Path) -> None:
    results = place / "generated"
    results.mkdir()
    with generating(1) as here, generating(1) as alike, generating(2) as unlike:
        for others, sentence in ((alike, "All images are equal"), (unlike, "The images differ")):
            (place / "services.toml").write_text(f'container = "{here}"\nvm = "{others}"\n')
            with serving(results, "--services", str(place / "services.toml")) as (address, _):
                browser.open(address)
                browser.wait("document.title.startsWith('Runs')")
                browser.open(f"{address.partition('/?')[0]}/generate")
                browser.run("document.getElementById('seed').value = 7; document.querySelector('main button').click()")
                browser.wait("document.querySelectorAll('main img').length == 2")
                text = browser.run("document.body.innerText")
                assert sentence in text
                assert all(text.count(unit) == 2 for unit in (" ms", " MiB"))
                assert browser.run("[...document.images].every((image) => image.naturalWidth == 28)")


def test_a_run_is_started_by_the_form_outlives_the_server_and_is_compared(browser: Browser, place: Path) -> None:
    results = place / "started"
    results.mkdir()
    with serving(results) as (address, server):
        browser.open(address)
        browser.wait("document.title.startsWith('Runs')")
        browser.open(f"{address.partition('/?')[0]}/start")
        for name, value in (("target", "bare-metal"), ("target", "container"), ("model", "alexnet")):
            browser.run(f"document.querySelector('input[name={name}][value={value}]').click()")
        browser.run("document.getElementById('profile').value = 'smoke'; document.getElementById('blocks').value = '1'")
        browser.run("document.querySelector('button[value=check]').click()")
        browser.wait("document.querySelector('button[value=start]') !== null || document.querySelector('.problem')")
        assert "bench run" in browser.run("document.querySelector('pre').innerText")
        browser.run("document.querySelector('button[value=start]').click()")
        browser.wait("location.pathname.startsWith('/runs/')")
        path = browser.run("location.pathname")
        browser.wait("document.body.innerText.includes('State: running')")
        server.kill()
    with serving(results) as (address, _):
        browser.open(address)
        browser.wait("document.title.startsWith('Runs')")
        browser.open(address.partition("/?")[0] + path)
        browser.wait("document.body.innerText.includes('State: not running')")
        assert "2 trials measured, 0 failed" in browser.run("document.body.innerText")
        browser.run("document.querySelector('main a').click()")
        browser.wait("document.querySelector('iframe') !== null")
        with_report = f"fetch({json.dumps('/report?run=' + path.rpartition('/')[2])}).then((answer) => answer.text())"
        assert "What virtualisation costs this training" in browser.run(with_report)
