"""``bench web`` as a browser has it: its pages of runs, asked in this process."""

import errno
import html
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result
from flask.testing import FlaskClient

import cli
from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.report.answers.answer import answer
from commands.web import generate, runs, start, states
from commands.web.address import Address, address, keep
from commands.web.app import WebSettings, create_app
from provisioning import ledger
from provisioning.paths import home
from suite.errors import RequestError
from suite.process_identity import ProcessIdentity
from suite.results import summary
from suite.results.store import LOG, StoreError, stop_requested
from tests.commands.conftest import ended_well, refused

RUNS = Path(__file__).parent / "samples" / "runs"
HOST = "localhost"
ANSWER_OF = runs.answer_of
PAGES = [runs.PAGES, start.PAGES, generate.PAGES]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two runs, and a home of its own."""
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(runs, "answer_of", lambda _run: '{"rows": [], "next": ""}')
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
    assert "HttpOnly; Path=/; SameSite=Strict" in made.get("/?token=a-token").headers["Set-Cookie"]
    made.environ_base["FORM_TOKEN"] = web.secret("form")
    return made


def writing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process write a run or a sweep."""
    entry = ledger.LedgerEntry(kind="run-directory", what=str(run), boot_id="b", owner_pid=1, owner_started=0)
    monkeypatch.setattr(ledger, "living", lambda: [entry])


def post(client: FlaskClient, path: str, /, **fields: Any) -> Any:
    form = {"form_token": client.environ_base["FORM_TOKEN"], **fields}
    return client.post(path, data=form, headers={"Origin": f"http://{HOST}"})


def test_the_list_shows_every_run_with_its_state_also_without_a_plan_and_the_page_the_end_of_its_log(
    client: FlaskClient, results: Path
) -> None:
    page = client.get("/").text
    assert page.count('type="checkbox"') == 2
    assert 'href="/runs/synthetic-podman"' in page
    assert '<span class="state finished">finished</span>' in page
    assert '<span class="state failed">failed: 2 of 4</span>' in page
    assert "synthetic, alexnet" in page
    (results / "early").mkdir()
    (results / "early" / LOG).write_text("x" * 20_000 + "\nbench: --cpus 99: this host has 2\n")
    page = client.get("/runs/early").text
    assert "bench: --cpus 99: this host has 2" in page
    assert len(page) < 12_000
    assert "no trial yet" in client.get("/").text


def test_the_page_of_a_run_has_its_facts_and_the_command_that_continues_it(client: FlaskClient, results: Path) -> None:
    page = client.get("/runs/synthetic-podman").text
    assert "scenario synthetic" in page
    assert f"bench run --continue {results / 'synthetic-podman'}" in page
    assert "It has no log" in page
    again = html.unescape(re.findall(r'id="again" href="([^"]+)"', page)[0])
    assert "&target=bare-metal&target=container&engine=podman&" in again
    assert 'name="blocks" value="3"' in client.get(again).text
    assert 'class="base"' not in page, "three blocks of five show no ratio"
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


SIX = "bench.log of six trials\n[2/6] block 0, alexnet on vm: 3 s, about 4 min to go\n"


@pytest.mark.parametrize(
    ("trials", "log", "age_s", "runs_now", "stop", "shown"),
    [
        (6, None, 0, False, False, ("finished", "finished")),
        (6, SIX + "interrupted: everything started is ended\n", 0, False, False, ("finished", "finished")),
        (2, SIX, 0, True, False, ("running", "running 3 of 6")),
        (2, SIX, 0, True, True, ("running", "stopping after this trial")),
        (1, None, 0, True, False, ("running", "running 2 of 6")),
        (0, "waiting: process 7 measures on CPUs 0-1\n", 0, True, False, ("waiting", "waiting for another bench")),
        (2, SIX + "interrupted: everything started is ended\n", 0, False, False, ("cancelled", "cancelled at 2 of 6")),
        (2, SIX + "stopped, as it was asked to\n2 trials\n", 0, False, True, ("stopped", "stopped at 2 of 6")),
        (2, SIX + "bench: no space left\n  what to do: x\n", 0, False, False, ("failed", "failed at 2 of 6")),
        (2, SIX, 0, False, False, ("failed", "failed at 2 of 6")),
        (2, None, 0, False, False, ("stopped", "stopped at 2 of 6")),
        (None, "bench: --cpus 99: this host has 2\n", 0, False, False, ("refused", "refused")),
        (None, "", 0, False, False, ("waiting", "starting")),
        (None, "", 61, False, False, ("failed", "failed")),
        (None, "", 0, True, False, ("waiting", "starting")),
        (2, "[999999/0]\n[1/9999999999]\n[3/2] \n", 0, True, False, ("running", "running 3 of 3")),
    ],
)
def test_the_state_of_a_run_in_words(
    results: Path, trials: int | None, log: str | None, age_s: float, runs_now: bool, stop: bool, shown: tuple[str, str]
) -> None:
    run = results / "run"
    run.mkdir()
    if trials is not None:
        shutil.copytree(RUNS / "synthetic-podman", run, dirs_exist_ok=True)
        for record in sorted((run / "trials").iterdir())[trials:]:
            record.unlink()
    if log is not None:
        (run / LOG).write_text(log)
        os.utime(run / LOG, (time.time() - age_s,) * 2)
    if stop:
        (run / ".stop").touch()
    state = states.state_of(run, {run: ProcessIdentity.own()} if runs_now else {})
    assert (state.word, state.text) == shown
    assert state.word in states.WORDS
    assert (state.directory == run) == runs_now


def test_ratios_stand_on_an_axis_whose_middle_is_bare_metal(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {"gan on vm": (0.5, 0.25, 1.0), "gan on container": (1.0, 0.1, 9.0)}
    monkeypatch.setattr(runs, "intervals_so_far", lambda _run: ratios)
    (_, text, first), (_, _, second) = runs._forest(results / "drawn", ())
    assert text == "0.500 (0.250 to 1.000)"
    assert first == pytest.approx([50 - 48 * 2 / 3, 50 - 48 / 3, 50])
    assert second == pytest.approx([2, 50, 98])


def test_an_interval_beyond_a_factor_of_a_hundred_has_no_place_on_the_axis(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "intervals_so_far", lambda _run: {"gan on vm": (4.797, 0.030, 773.953)})
    monkeypatch.setattr(runs, "answer_of", ANSWER_OF)
    runs._forest.cache_clear()
    page = client.get("/runs/synthetic-podman").text
    assert "too noisy to say" in page
    assert "773" not in page
    assert "<circle" not in page


def test_a_run_that_is_written_has_its_progress_and_can_be_stopped_and_cancelled(
    client: FlaskClient, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing(results / "failed", monkeypatch)
    (results / "failed" / LOG).write_text(SIX)
    page = client.get("/runs/failed").text
    assert '<progress id="bar" value="2" max="6"' in page
    assert "2 of 6 trials, about 4 min to go" in page
    assert "Delete" not in page
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


def test_links_sort_and_filter_the_list(client: FlaskClient, results: Path) -> None:
    (results / "early").mkdir()
    (results / "early" / LOG).write_text("bench: no image\n")

    def named(query: str) -> list[str]:
        return re.findall(r'<tr id="row-([^"]+)">', client.get(f"/{query}").text)

    assert named("?sort=run") == ["early", "failed", "synthetic-podman"]
    assert named("?sort=state") == ["synthetic-podman", "early", "failed"]
    assert named("?sort=targets") == ["early", "synthetic-podman", "failed"]
    assert named("?sort=evil&state=evil")[0] == "early", "written last"
    words = ("finished", "refused", "running")
    assert [named(f"?state={word}") for word in words] == [["synthetic-podman"], ["early"], []]
    assert "No run is running." in client.get("/?state=running").text
    page = client.get("/?state=refused&sort=run").text
    assert 'aria-sort="ascending"><a href="/?sort=run&amp;state=refused" aria-current="true"' in page
    assert 'data-refresh="/?sort=run&amp;state=refused&amp;page=0&amp;part=1"' in page


def test_the_list_is_searched_by_words_of_name_model_and_target(client: FlaskClient) -> None:
    def found(text: str) -> list[str]:
        return re.findall(r'id="run-([^"]+)"', client.get("/", query_string={"text": text}).text)

    assert found("podman") == ["synthetic-podman"]
    assert found("ALEXNET synthetic-pod") == ["synthetic-podman"]
    assert found("alexnet nowhere") == []
    assert "No run is like this." in client.get("/?text=nowhere").text
    assert 'value="nowhere"' in client.get("/?text=nowhere").text


def test_a_note_and_tags_are_kept_beside_a_run_shown_and_found(client: FlaskClient, results: Path) -> None:
    page = client.get("/runs/failed").text
    assert 'action="/notes/failed"' in page
    records = {path: path.read_bytes() for path in (results / "failed").rglob("*.json")}
    assert (
        post(client, "/notes/failed", text="after <b>the update", tags="kernel-6.9, baseline").location
        == "/runs/failed"
    )
    assert {path: path.read_bytes() for path in records} == records
    page = client.get("/runs/failed").text
    assert "after &lt;b&gt;the update</textarea>" in page
    assert 'value="kernel-6.9 baseline"' in page
    page = client.get("/", query_string={"text": "update kernel-6.9"}).text
    assert re.findall(r'id="run-([^"]+)"', page) == ["failed"]
    assert '<span class="tag">baseline</span>' in page
    refused_note = post(client, "/notes/failed", text="", tags="<b>")
    assert (refused_note.status_code, "is no tag" in refused_note.text) == (400, True)
    assert post(client, "/notes/failed").status_code == 303
    assert 'class="tag"' not in client.get("/").text
    assert post(client, "/notes/gone", text="x").status_code == 404


def test_an_address_stays_the_same_until_its_token_is_revoked(results: Path) -> None:
    del results  # whose home it is

    def begun(port: int | None, *, new_token: bool = False) -> Address:
        used = address(port, new_token=new_token)
        keep(used)
        return used

    first = begun(None)
    assert first.port == 8642
    assert begun(9000) == Address(9000, first.token)
    assert begun(None) == Address(9000, first.token), "the port is kept, too"
    assert begun(0) == Address(0, first.token)
    assert begun(None).port == 9000, "any free port is not kept"
    again = begun(None, new_token=True)
    assert again.token != first.token
    assert begun(None) == again
    file = home() / "web.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(RequestError, match="is not yours alone"):
        address(None, new_token=False)


def test_a_run_is_deleted_after_a_question(client: FlaskClient, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = client.get("/delete/failed").text
    assert "Delete failed?" in asked
    assert "4 trials" in asked
    (results / "failed" / "notes").write_text("mine")
    assert "These are not of the suite, and stay: notes" in client.get("/delete/failed").text
    assert (results / "failed").exists()
    assert post(client, "/delete/failed").location == "/"
    assert [path.name for path in (results / "failed").iterdir()] == ["notes"]
    (results / "early").mkdir()
    (results / "early" / LOG).write_text("bench: no image\n")
    assert post(client, "/delete/early").status_code == 303
    writing(results / "synthetic-podman", monkeypatch)
    for path in ("/delete/synthetic-podman", "/delete/gone", "/delete/../home"):
        assert (client.get(path).status_code, post(client, path).status_code) in ((400, 400), (404, 404), (404, 405))
    assert (results / "synthetic-podman").exists()


def test_a_cell_is_stopped_with_its_sweep(client: FlaskClient, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RUNS / "sweep", results / "sweep")
    cell = next(path.parent.name for path in (results / "sweep").glob("*/plan.json"))
    writing(results / "sweep", monkeypatch)
    min((results / "sweep" / cell / "trials").iterdir()).unlink()
    assert "Stop the sweep after this trial" in client.get(f"/runs/sweep/{cell}").text
    post(client, f"/runs/sweep/{cell}", action="stop")
    assert stop_requested(results / "sweep")


def shown_at_last(client: FlaskClient, path: str, ready: Callable[[str], bool]) -> str:
    end_s = time.monotonic() + 120
    while not ready(page := client.get(path).text) and time.monotonic() < end_s:
        time.sleep(0.1)
    return page


def drawn(client: FlaskClient, query: str) -> Any:
    """Return the report of the runs once it is drawn."""
    shown_at_last(client, f"/compare?{query}", lambda text: "drawing …" not in text)
    return client.get(f"/report?{query}")


def test_the_report_is_that_of_bench_report_drawn_once_and_again_for_another_record(
    client: FlaskClient, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ["report", str(results / "synthetic-podman"), "--html", str(tmp_path / "report.html")]
    ended_well(CliRunner().invoke(cli.main, report))
    page = client.get("/compare?run=synthetic-podman").text
    assert ("drawing …" in page, '<noscript><meta http-equiv="refresh"' in page) == (True, True)
    answer = client.get("/report?run=synthetic-podman")
    assert (answer.status_code, answer.location) == (303, "/compare?run=synthetic-podman")
    shown = drawn(client, "run=synthetic-podman")
    assert shown.text == (tmp_path / "report.html").read_text()
    assert "sandbox" in shown.headers["Content-Security-Policy"]
    saved = client.get("/report?run=synthetic-podman&save=1")
    assert saved.headers["Content-Disposition"] == "attachment; filename=synthetic-podman.html"
    assert saved.text == shown.text
    calls: list[object] = []

    def report_of(runs: object, path: Path) -> Path:
        calls.append(runs)
        path.write_text("another")
        return path

    monkeypatch.setattr("commands.compare.show.report_of", report_of)
    assert drawn(client, "run=synthetic-podman").text == shown.text
    next((results / "synthetic-podman" / "trials").iterdir()).unlink()
    assert drawn(client, "run=synthetic-podman").text == "another"
    monkeypatch.setattr(runs, "suite_version", lambda: "next")
    assert drawn(client, "run=synthetic-podman").text == "another"
    assert len(calls) == 2


def test_why_there_is_no_report_stands_on_the_page_that_compares(client: FlaskClient, results: Path) -> None:
    for record in (results / "failed" / "trials").iterdir():
        record.write_text("{")
    assert drawn(client, "run=failed").status_code == 400
    page = client.get("/compare?run=failed")
    assert page.status_code == 200
    assert "<h1>Compare</h1>" in page.text
    assert 'role="alert"' in page.text
    assert "<iframe" not in page.text


def test_the_list_and_the_run_show_number_and_word_once_they_are_made(
    client: FlaskClient, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "answer_of", ANSWER_OF)
    page = shown_at_last(client, "/", lambda text: "no-verdict" in text)
    text = 'container (podman) <b>not yet measured: 3 blocks of 5</b> <span class="word no-verdict">no verdict<'
    assert text in page
    page = client.get("/runs/synthetic-podman").text
    assert text in page
    next_step = answer(compare(load([results / "synthetic-podman"]))).next
    (pasted,) = re.findall(r'<pre id="next"[^>]*>(.*)</pre>', page)
    assert html.unescape(pasted) == str(next_step)
    begun: list[object] = []
    monkeypatch.setattr(runs, "kept", lambda _kind, _digests, make: begun.append(make))
    writing(results / "failed", monkeypatch)
    assert "after the current run" in client.get("/").text
    assert begun == [None], "nothing is made while a run is measured"


@pytest.mark.parametrize("accident", [StoreError("No space left on device"), OSError(28, "No space left on device")])
def test_an_accident_is_not_kept_and_takes_down_no_page(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, accident: Exception
) -> None:
    monkeypatch.setattr(runs, "answer_of", Mock(return_value='{"rows": [["podman", "", "slower"]], "next": ""}'))
    with monkeypatch.context() as patch:
        patch.setattr(runs, "write_atomic", Mock(side_effect=accident))
        shown_at_last(client, "/", lambda text: "no answer" in text)
        assert [client.get(path).status_code for path in ("/", "/runs/synthetic-podman")] == [200, 200]
    assert "slower" in shown_at_last(client, "/runs/synthetic-podman", lambda text: "slower" in text)


def test_what_could_not_be_read_once_is_read_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = results / "synthetic-podman"
    times = states.written(run)
    with monkeypatch.context() as patch:
        patch.setattr(summary, "read_head", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        starved = states.facts(run, times)
    assert starved.done == 0
    assert states.facts(run, times).done == 6


def asked_until_it_raises(parts: list[str], make: Mock) -> None:
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        runs.kept("answer", parts, make)
        time.sleep(0.01)


@pytest.mark.usefixtures("results")
def test_a_refusal_is_kept_and_an_accident_is_tried_again() -> None:
    made: list[Exception] = [RequestError("nothing to compare"), StoreError("the disk is full")]
    for error in made:
        make = Mock(side_effect=error)
        parts = [str(error)]
        for _ in range(2):
            with pytest.raises(type(error)):
                asked_until_it_raises(parts, make)
        assert make.call_count == (1 if isinstance(error, RequestError) else 2)


def test_the_address_says_which_runs_are_compared(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_report", lambda _: "the page")
    drawn(client, "run=synthetic-podman&run=failed")
    page = client.get("/compare?run=synthetic-podman&run=failed").text
    assert 'src="/report?run=synthetic-podman&amp;run=failed"' in page
    assert "Choose runs to compare" in client.get("/compare").text
    assert client.get("/compare?run=failed&run=gone").status_code == 404
    assert client.get("/report").status_code == 400


def test_the_history_is_that_of_bench_history_of_the_runs_that_a_search_finds(
    client: FlaskClient, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = ["history", str(results / "synthetic-podman"), "--html", str(tmp_path / "history.html")]
    ended_well(CliRunner().invoke(cli.main, written))
    page = shown_at_last(client, "/history?text=podman", lambda text: "drawing …" not in text)
    assert 'src="/history/page?text=podman"' in page
    assert "1 run." in page
    shown = client.get("/history/page?text=podman")
    assert shown.text == (tmp_path / "history.html").read_text()
    assert shown.text.count("data:image/svg+xml") > 1
    assert "No change can be found yet" in shown.text
    assert "sandbox" in shown.headers["Content-Security-Policy"]
    assert "history.html" in client.get("/history/page?text=podman&save=1").headers["Content-Disposition"]
    assert "No run has ended that is like this." in client.get("/history?text=nowhere").text
    assert client.get("/history/page?text=nowhere").status_code == 303
    writing(results / "synthetic-podman", monkeypatch)
    assert "No run has ended that is like this." in client.get("/history?text=podman").text


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
    for path, most_s in (("/", 1), ("/?sort=targets&state=stopped", 8), ("/?sort=state", 1)):
        begin_s = time.thread_time()
        page = client.get(path).text
        assert time.thread_time() - begin_s < most_s, path
        assert page.count("<tr") == 1 + runs.PER_PAGE
    assert 'href="/?sort=state&amp;state=&amp;page=20"' in page


def test_what_cannot_be_served_is_refused_before_it_listens(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(*words: str) -> Result:
        return CliRunner().invoke(cli.main, ["web", "--results", *words], prog_name="bench")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        refused(bench(str(results), "--port", str(listener.getsockname()[1])), "in use")
    monkeypatch.setattr("socket.create_server", lambda *_, **__: pytest.fail("it must not listen"))
    (results / "open").mkdir()
    (results / "open").chmod(0o777)
    refused(bench(str(RUNS / "failed")), "is a run")
    refused(bench(str(results / "nowhere")), "no directory", "mkdir")
    assert not (results / "nowhere").exists()
    refused(bench(str(results / "open")), "others may write to")
    monkeypatch.setitem(sys.modules, "waitress.adjustments", None)
    for module in ("commands.web.app", "worker.serving.http_server"):
        monkeypatch.delitem(sys.modules, module)
    refused(bench(str(results)), "pip install 'virtbench[web]'")
