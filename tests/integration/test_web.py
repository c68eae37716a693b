"""``bench web`` in Chromium: usable by everybody, in both colour schemes, on a phone, and refreshed by its script.

And the page of ``bench report``: on a phone, a tablet and a desk it fits, and it asks the network nothing.
"""

import base64
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import matplotlib.image
import numpy as np
import pytest
from msgspec.structs import replace

from analysis.history.history import history_of
from analysis.load.records import load
from analysis.report.page import write_history, write_report
from suite.results.runs import find_runs
from suite.results.store import LOG
from tests.analysis.test_history import nights
from tests.integration.bench import REPOSITORY
from tests.integration.browser import WAIT_S, Tab, chromium, generating, serving
from tests.test_web import RUNS
from tests.worker.test_serving import serve_spec

pytestmark = pytest.mark.integration
PATHS = (
    *("/", "/runs/synthetic-podman", "/compare", "/compare?run=failed&run=synthetic-podman", "/compare?run=early"),
    *("/delete/failed", "/start", "/start?scenario=shared", "/start/check?cpus=x", "/nothing", "/generate"),
    *("/history", "/history?text=nowhere"),
)

REPORTED = ("synthetic-all", "probe", "failed")
HEIGHT = 2400
LIST_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("web")
    for name in ("failed", "synthetic-podman"):
        shutil.copytree(RUNS / name, made / "results" / name)
    (made / "results" / "early").mkdir()
    (made / "results" / "early" / LOG).write_text("bench: no image\n")
    return made


@pytest.fixture(scope="module")
def site(place: Path) -> Iterator[str]:
    with serving(place / "results", VIRTBENCH_HOME=str(place / "home")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser(place: Path, site: str) -> Iterator[Tab]:
    with chromium(place / "profile") as tab:
        tab.enter(site)
        yield tab


@pytest.fixture(scope="module")
def measuring(place: Path) -> Iterator[str]:
    """The address of a server whose runs are real ones of this machine."""
    (place / "measured").mkdir()
    with serving(place / "measured") as (address, _):
        yield address


def seen(tab: Tab, scheme: str, width: int) -> None:
    """Show pages in a colour scheme, and as wide."""
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)


def violations(tab: Tab) -> list[Any]:
    """Return the rules of axe that the page breaks, with elements that do."""
    spec = importlib.util.find_spec("axe_core_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe-core-python is not installed")
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    tab.run(f"{(Path(spec.origin).parent / 'axe.min.js').read_text()}; 1")
    found = tab.run("axe.run({ exclude: [['iframe']] }).then((result) => JSON.stringify(result.violations))")
    return [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in json.loads(found)]


@pytest.mark.beside
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_passes_the_rules_of_axe_and_fits_a_phone_and_a_desk(
    browser: Tab, site: str, path: str, scheme: str, width: int
) -> None:
    seen(browser, scheme, width)
    browser.open(site.partition("/?")[0] + path)
    assert violations(browser) == []
    for narrower in (width, width - 30):
        seen(browser, scheme, narrower)
        assert browser.run("document.documentElement.scrollWidth") <= narrower


@pytest.mark.beside
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_five_hundred_runs_are_listed_searched_and_turned_over_on_a_phone(
    browser: Tab, place: Path, scheme: str
) -> None:
    results = place / f"many-{scheme}"
    for number in range(500):
        shutil.copytree(RUNS / "failed", results / f"run-{number:03}", copy_function=os.link)
    seen(browser, scheme, 390)
    with serving(results, VIRTBENCH_HOME=str(place / f"home-{scheme}")) as (address, _):
        begun_s = time.monotonic()
        browser.enter(address)
        browser.wait("document.querySelectorAll('tbody tr').length == 50")
        assert time.monotonic() - begun_s < LIST_WITHIN_S
        assert violations(browser) == []
        assert browser.run("document.documentElement.scrollWidth") <= 390
        assert browser.run("document.querySelectorAll('nav[aria-label=\"More runs\"] a').length") == 10
        browser.run("document.querySelector('nav[aria-label=\"More runs\"] a:last-child').click()")
        browser.wait("location.search.includes('page=9') && document.querySelectorAll('tbody tr').length == 50")
        browser.run("document.getElementById('text').value = 'run-123'")
        browser.run("document.querySelector('form[role=search] button').click()")
        browser.wait("document.querySelectorAll('tbody tr').length == 1")
        assert "run-123" in browser.text()


@pytest.mark.beside
def test_a_refused_run_fills_in_the_form_with_its_words(browser: Tab, site: str, place: Path) -> None:
    run = place / "results" / "refused"
    run.mkdir()
    words = "bench run --model vae --margin 10% --cpus 0-999"
    (run / LOG).write_text(f"$ {words} --out {run}\nbench: --cpus 0-999: this machine has 2\n")
    browser.open(site.partition("/?")[0] + "/runs/refused")
    browser.wait_for("State: refused")
    browser.run("document.getElementById('again').click()")
    browser.wait("location.pathname.endsWith('/start')")
    assert browser.run("['margin', 'cpus'].map((name) => document.getElementById(name).value).join()") == "10%,0-999"
    assert browser.run("document.querySelector('input[value=vae]').checked")
    browser.wait("document.getElementById('preview').innerText.includes('--cpus 0-999')")
    shutil.rmtree(run)


@pytest.mark.beside
def test_the_script_shows_what_has_changed_and_keeps_choice_and_focus(browser: Tab, site: str, place: Path) -> None:
    browser.open(site.partition("/?")[0] + "/")
    browser.run("document.querySelector('input[value=failed]').click(); document.getElementById('run-failed').focus()")
    run = place / "results" / "late"
    run.mkdir()
    (run / LOG).write_text("bench: no image\n")
    browser.wait_for("late")
    assert browser.run("document.activeElement.id") == "run-failed"
    assert browser.run("document.querySelector('input[value=failed]').checked")
    browser.open(site.partition("/?")[0] + "/runs/late")
    shutil.copytree(RUNS / "failed", run, dirs_exist_ok=True)
    (run / LOG).write_text("bench: no image\n" * 200)
    browser.wait("document.getElementById('facts') !== null")
    browser.run("document.getElementById('facts').open = true; document.getElementById('delete').focus()")
    browser.run("document.getElementById('log-text').scrollTop = 40; scrollTo(0, 90)")
    (run / LOG).write_text("bench: no image\n" * 200 + "bench: no image at all\n")
    browser.wait_for("no image at all")
    assert browser.run("document.getElementById('facts').open")
    assert browser.run("document.activeElement.id") == "delete"
    assert browser.run("[document.getElementById('log-text').scrollTop, scrollY].join()") == "40,90"
    shutil.rmtree(run)


@pytest.mark.beside
def test_the_form_shows_its_command_as_one_chooses_and_keeps_what_was_refused(browser: Tab, site: str) -> None:
    browser.open(site.partition("/?")[0] + "/start")
    preview = "document.getElementById('preview').innerText"
    browser.wait(f"{preview}.includes('bench run')")
    assert "--" not in browser.run(f"{preview}.split('\\n')[0]"), "untouched, it is the default run"
    browser.run("document.getElementById('margin').value = '10%'")
    browser.run("document.querySelector('input[value=vae]').click()")
    browser.wait(f"{preview}.includes('bench run --model vae --margin 10%')")
    browser.run("document.getElementById('cpus').value = 'nine'")
    browser.wait(f"{preview}.includes('--cpus')")
    browser.run("document.getElementById('check').click()")
    browser.wait("document.querySelector('.notice.problem') !== null")
    assert browser.run("document.getElementById('more').open"), "the field is shown"
    kept = "['margin', 'cpus'].map((name) => document.getElementById(name).value).join()"
    assert browser.run(kept) == "10%,nine"
    assert browser.run("document.querySelector('input[value=vae]').checked")


@pytest.mark.beside
def test_runs_are_chosen_and_compared_by_keyboard_alone(browser: Tab, site: str) -> None:
    browser.open(site.partition("/?")[0] + "/")

    browser.press("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    browser.tab_to("at.value == 'synthetic-podman'")
    browser.press(" ")
    browser.tab_to("at.textContent.trim() == 'Compare the chosen runs'")
    browser.press("Enter")
    browser.wait("location.pathname.endsWith('/compare') && location.search.includes('run=synthetic-podman')")
    browser.wait("document.querySelector('iframe') !== null")


@pytest.mark.beside
def test_two_services_show_equal_images_of_a_seed_or_that_they_differ(browser: Tab, place: Path) -> None:
    results = place / "generated"
    results.mkdir()
    one, other = (replace(serve_spec("worker.workloads.adversarial:GAN", 28, 1), seed=seed) for seed in (1, 2))
    with generating(one) as here, generating(one) as alike, generating(other) as unlike:
        for second, sentence in ((alike, "All images are equal"), (unlike, "The images differ")):
            (place / "services.toml").write_text(f'container = "{here}"\nvm = "{second}"\n')
            with serving(results, "--services", str(place / "services.toml")) as (address, _):
                browser.enter(address, "/generate")
                browser.run("document.getElementById('seed').value = 7; document.querySelector('main button').click()")
                browser.wait("document.querySelectorAll('main img').length == 2")
                assert sentence in browser.text()
                assert all(browser.text().count(unit) == 2 for unit in (" ms", " MiB"))
                assert browser.run("[...document.images].every((image) => image.naturalWidth == 28)")


def listed(run: str, state: str) -> str:
    """Return the condition that the list of runs shows a state that begins like this."""
    return f"document.getElementById('run-{run}')?.closest('tr').children[2].innerText.startsWith('{state}')"


def start_by_keyboard(tab: Tab, address: str) -> str:
    """Start a smoke run on bare metal and in a container without a pointer; return the path of its page."""
    tab.enter(address, "/start")
    for target in ("bare-metal", "container"):
        tab.tab_to(f"at.value == '{target}'")
        tab.press(" ")
    tab.tab_to("at.id == 'profile'")
    for letter in "smoke":
        tab.press(letter)
    tab.tab_to("at.id == 'check'")
    tab.press("Enter")
    tab.wait("document.getElementById('start') !== null")
    command = tab.run("document.querySelector('pre').innerText")
    assert command.startswith("bench run --profile smoke --target bare-metal --target container --out ")
    tab.tab_to("at.id == 'start'")
    tab.press("Enter")
    tab.wait("location.pathname.includes('/runs/')")
    return str(tab.run("location.pathname.slice(location.pathname.indexOf('/runs/'))"))


def test_a_run_of_the_form_is_seen_in_two_tabs_outlives_the_server_and_is_compared(browser: Tab, place: Path) -> None:
    results = place / "started"
    results.mkdir()
    with serving(results) as (address, server):
        path = start_by_keyboard(browser, address)
        browser.wait_for("State: running")
        other = browser.another()
        other.enter(address)
        other.wait(listed(path.rpartition("/")[2], "running"))
        server.kill()
        browser.wait("!document.getElementById('away').hidden")
    with serving(results, "--port", str(urlsplit(address).port)) as (again, _):
        assert again == address, "an address outlives its server"
        other.enter(again, path)
        assert "State: running" in other.text()
        browser.wait("document.getElementById('away').hidden")
        for tab in (other, browser):
            tab.wait_for("State: finished")
            tab.wait_for("2 trials measured, 0 failed")  # said after the run's directory is given back
            tab.wait("document.querySelector('.answer .word') !== null")
        assert browser.run("document.title").startswith("finished: "), "it was open when the run ended"
        assert browser.run("document.querySelector('link[rel=icon]').href").startswith("data:image/svg")
        other.close()
        browser.run("document.getElementById('compare').click()")
        browser.wait("document.querySelector('iframe') !== null")
        saved = browser.run("document.querySelector('#save a').href")
        name = f"fetch({json.dumps(saved)}).then((answer) => answer.headers.get('Content-Disposition'))"
        assert browser.run(name).startswith("attachment; filename=")
        report = f"{again.partition('/?')[0]}/report?run={path.rpartition('/')[2]}"
        with_report = f"fetch({json.dumps(report)}).then((answer) => answer.text())"
        assert "What virtualisation costs this training" in browser.run(with_report)


def test_a_run_of_the_command_line_shows_up_and_is_stopped_in_either_of_two_tabs(
    browser: Tab, measuring: str, place: Path
) -> None:
    browser.enter(measuring)
    other = browser.another()
    other.enter(measuring)
    words = ("run", "--target", "bare-metal", "--model", "alexnet", "--profile", "smoke", "--blocks", "50", "--wait")
    argv = [sys.executable, str(REPOSITORY / "cli.py"), *words, "--out", str(place / "measured" / "typed")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as typed:
        for tab in (browser, other):
            tab.wait(listed("typed", "running 1 of "))
            tab.open(measuring.partition("/?")[0] + "/runs/typed")
        for tab in (other, browser):
            tab.run("document.getElementById('stop')?.click()")
            tab.wait("/State: (stopping|stopped)/.test(document.body?.innerText)")
        for tab in (other, browser):
            tab.wait_for("State: stopped at 1 of 51")
            assert "stopped, as it was asked to" in tab.text()
        typed.wait(WAIT_S)
    other.close()
    browser.enter(measuring)
    browser.wait(listed("typed", "stopped at 1 of"))
    browser.open(measuring.partition("/?")[0] + "/runs/typed")
    browser.run("document.getElementById('delete').click()")
    browser.wait_for("Delete typed?")
    browser.run("document.querySelector('button.danger').click()")
    browser.wait("document.title.startsWith('Runs')")
    assert not (place / "measured" / "typed").exists()


@pytest.fixture(scope="module")
def report(place: Path) -> Path:
    """A page of all targets, probes, failures, and a mark that is one long word."""
    runs = [shutil.copytree(RUNS / name, place / "reported" / name) for name in REPORTED]
    mark = "userland:not-the-image's-and-a-long-word-" * 3
    for record in runs[0].glob("trials/*vm*.json"):
        record.write_text(record.read_text().replace("accelerator:tcg", mark))
    return write_report(load(runs), place / "report.html")


@pytest.fixture(scope="module")
def history(place: Path) -> Path:
    """A page of thirty nights, in one of which the container became slower."""
    nights(place / "nights")
    return write_history(history_of(load(find_runs([place / "nights"]))), place / "history.html")


@pytest.mark.beside
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", ["report", "history"])
def test_what_a_page_frames_passes_the_rules_of_axe_and_fits_too(
    request: pytest.FixtureRequest, browser: Tab, page: str, scheme: str, width: int
) -> None:
    seen(browser, scheme, width)
    browser.open(request.getfixturevalue(page).as_uri())
    assert violations(browser) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelector('.wide img').width") >= 500, "its letters can be read, and it scrolls"


@pytest.mark.beside
def test_a_report_is_printed_in_dark_letters_whatever_the_scheme_of_the_screen(browser: Tab, report: Path) -> None:
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    browser.open(report.as_uri())
    shown = "getComputedStyle(document.querySelector('.dim'))"
    assert browser.run(f"{shown}.color") == "rgb(89, 89, 89)"
    assert browser.run("getComputedStyle(document.querySelector('.wide img')).filter") == "none"
    browser.call("Emulation.setEmulatedMedia", media="", features=[dark])
    assert browser.run(f"{shown}.color") != "rgb(89, 89, 89)"


@pytest.mark.beside
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_a_report_fits_its_width_shows_something_and_fetches_nothing(browser: Tab, report: Path, width: int) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    browser.open(report.as_uri())
    assert "and-a-long-word" in browser.text()
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.documentElement.scrollHeight") > HEIGHT
    assert browser.run("document.querySelectorAll('img').length") == 1 + 6, "a forest of training and of each probe"
    assert browser.run("performance.getEntriesByType('resource').map((each) => each.name)") == []
    picture = io.BytesIO(base64.b64decode(browser.call("Page.captureScreenshot")["data"]))
    pixels = matplotlib.image.imread(picture)[:, :, :3]
    assert pixels.shape[:2] == (HEIGHT, width)
    inked = np.asarray((pixels < 0.9).any(axis=2))
    assert 0.01 < inked.mean() < 0.9
    assert inked[HEIGHT // 2 :].any(), "the lower half is blank"
    assert len(np.unique((pixels * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 20
