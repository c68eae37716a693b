"""``bench web`` as a browser has it: its pages of runs, asked in this process."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from flask.testing import FlaskClient

import cli
from commands.web import generate, runs, start
from commands.web.app import WebSettings, create_app
from commands.web.runs import LOG
from provisioning import ledger
from suite.results.store import stop_requested

RUNS = Path(__file__).parent / "samples" / "runs"
HOST = "localhost"
PAGES = [runs.PAGES, start.PAGES, generate.PAGES]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two runs, and a home of its own."""
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    place = tmp_path / "results"
    for name in ("failed", "synthetic-podman"):
        shutil.copytree(RUNS / name, place / name)
    return place


@pytest.fixture
def client(results: Path) -> FlaskClient:
    """A browser that has opened the printed address."""
    return browser(results)


def browser(results: Path, **more: Any) -> FlaskClient:
    web = WebSettings(results, "a-token", **more)
    made = create_app(web, PAGES).test_client()
    welcome = made.get("/?token=a-token")
    assert "HttpOnly; Path=/; SameSite=Strict" in welcome.headers["Set-Cookie"]
    made.environ_base["FORM_TOKEN"] = web.secret("form")
    return made


def post(client: FlaskClient, path: str, **fields: Any) -> Any:
    form = {"form_token": client.environ_base["FORM_TOKEN"], **fields}
    return client.post(path, data=form, headers={"Origin": f"http://{HOST}"})


def test_the_list_shows_every_run_with_its_state(client: FlaskClient) -> None:
    page = client.get("/").text
    assert page.count('type="checkbox"') == 2
    assert 'href="/runs/synthetic-podman"' in page
    assert "not running" in page
    assert "synthetic, " in page


def test_the_page_of_a_run_has_its_facts_and_the_command_that_continues_it(client: FlaskClient, results: Path) -> None:
    page = client.get("/runs/synthetic-podman").text
    assert "scenario synthetic" in page
    assert f"bench run --continue {results / 'synthetic-podman'}" in page
    assert "It was started elsewhere" in page
    assert "Ratios to bare metal so far, no verdict" in page
    (results / "sweep.json").write_text("{}")
    assert "bench sweep run FILE" in client.get("/runs/synthetic-podman").text, "a cell is continued with its sweep"


def test_what_has_not_changed_is_not_sent_again(client: FlaskClient, results: Path) -> None:
    for path in ("/?part=1", "/runs/failed?part=1"):
        first = client.get(path)
        assert "<html" not in first.text
        seen = {"If-None-Match": first.headers["ETag"]}
        assert client.get(path, headers=seen).status_code == 304
        (results / "failed" / LOG).write_text(path)
        assert client.get(path, headers=seen).status_code == 200


def test_the_end_of_a_log_is_shown_and_a_run_without_a_plan_is_listed(client: FlaskClient, results: Path) -> None:
    (results / "early").mkdir()
    (results / "early" / LOG).write_text("x" * 20_000 + "\nbench: --cpus 99: this host has 2\n")
    page = client.get("/runs/early").text
    assert "bench: --cpus 99: this host has 2" in page
    assert len(page) < 12_000
    assert "no trial yet" in client.get("/").text


def test_a_run_that_was_just_started_is_neither_running_nor_given_up(client: FlaskClient, results: Path) -> None:
    (results / "new").mkdir()
    (results / "new" / LOG).touch()
    page = client.get("/runs/new").text
    assert "State: <strong>starting<" in page
    assert "Stop after this trial" not in page
    begun_s = time.time() - runs.STARTS_WITHIN_S - 1
    os.utime(results / "new" / LOG, (begun_s, begun_s))
    assert "State: <strong>not running<" in client.get("/runs/new").text


def test_a_run_that_is_written_can_be_stopped_and_cancelled(
    client: FlaskClient, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = ledger.LedgerEntry(
        kind="run-directory", what=str(results / "failed"), boot_id="b", owner_pid=1, owner_started=0
    )
    monkeypatch.setattr(ledger, "living", lambda: [entry])
    ended: list[int] = []
    monkeypatch.setattr("suite.process_identity.ProcessIdentity.terminate", lambda self: ended.append(self.pid))
    assert "Stop after this trial" in client.get("/runs/failed").text
    assert post(client, "/runs/failed", action="stop").location == "/runs/failed"
    assert stop_requested(results / "failed")
    assert "stopping" in client.get("/").text
    assert post(client, "/runs/failed", action="cancel").status_code == 303
    assert ended == [1]
    gone = post(client, "/runs/synthetic-podman", action="cancel")
    assert (gone.status_code, "does not run any more" in gone.text) == (400, True)


def test_a_cell_is_stopped_with_its_sweep(client: FlaskClient, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RUNS / "sweep", results / "sweep")
    cell = next(path.parent.name for path in (results / "sweep").glob("*/plan.json"))
    entry = ledger.LedgerEntry(
        kind="run-directory", what=str(results / "sweep"), boot_id="b", owner_pid=1, owner_started=0
    )
    monkeypatch.setattr(ledger, "living", lambda: [entry])
    assert "Stop the sweep after this trial" in client.get(f"/runs/sweep/{cell}").text
    post(client, f"/runs/sweep/{cell}", action="stop")
    assert stop_requested(results / "sweep")


def test_the_report_is_that_of_bench_report(client: FlaskClient, results: Path, tmp_path: Path) -> None:
    written = CliRunner().invoke(
        cli.main, ["report", str(results / "synthetic-podman"), "--html", str(tmp_path / "report.html")]
    )
    assert written.exit_code == 0, written.output
    shown = client.get("/report?run=synthetic-podman")
    assert shown.text == (tmp_path / "report.html").read_text()
    assert "sandbox" in shown.headers["Content-Security-Policy"]


def test_the_address_says_which_runs_are_compared(client: FlaskClient) -> None:
    page = client.get("/compare?run=synthetic-podman&run=failed").text
    assert 'src="/report?run=synthetic-podman&amp;run=failed"' in page
    assert "Choose runs in" in client.get("/compare").text
    assert client.get("/compare?run=failed&run=gone").status_code == 404
    assert client.get("/report").status_code == 400


def test_a_damaged_run_is_named_where_it_is_shown(client: FlaskClient, results: Path) -> None:
    (results / "failed" / "plan.json").write_text("{")
    assert "is not a plan of this suite" in client.get("/").text
    page = client.get("/runs/failed")
    assert (page.status_code, "is not a plan of this suite" in page.text) == (200, True)


def test_a_thousand_runs_are_listed_within_seconds(results: Path) -> None:
    trial = next((RUNS / "synthetic-podman" / "trials").iterdir())
    for number in range(1000):
        run = results / f"run-{number}"
        (run / "trials").mkdir(parents=True)
        for name in ("plan.json", f"trials/{trial.name}"):
            (run / name).hardlink_to(results / "synthetic-podman" / name)
    client = browser(results)
    client.get("/runs/failed")  # imports what the first page needs
    begin_s = time.process_time()
    page = client.get("/").text
    assert time.process_time() - begin_s < 5
    assert page.count("<tr>") == 1 + runs.PER_PAGE
    assert 'href="/?page=20"' in page


# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.create_server", lambda *_, **__: pytest.fail("it must not listen"))
    return lambda *words: CliRunner().invoke(cli.main, ["web", *words], prog_name="bench")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--results", "not/there"), "No such file or directory"),
        (("--results", str(RUNS / "failed")), "is a run"),
        (("--port", "70000"), "70000 is not in the range"),
    ],
)
def test_what_cannot_be_served_is_refused(bench: Callable[..., Result], words: tuple[str, ...], why: str) -> None:
    done = bench(*words)
    assert (done.exit_code, why in done.output) == (2, True), done.output


def test_a_directory_that_others_may_write_to_is_refused(bench: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results").chmod(0o777)
    done = bench()
    assert (done.exit_code, "others may write to" in done.output) == (2, True)


def test_a_port_in_use_is_named(results: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = ["web", "--results", str(results), "--port", str(listener.getsockname()[1])]
        done = CliRunner().invoke(cli.main, words, prog_name="bench")
    assert (done.exit_code, "in use" in done.output) == (2, True), done.output


def test_without_the_extra_it_names_what_to_install(
    bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "waitress", None)
    monkeypatch.delitem(sys.modules, "commands.web.app")
    done = bench()
    assert (done.exit_code, "pip install 'virtbench[web]'" in done.output) == (2, True)
