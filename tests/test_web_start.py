"""The page of ``bench web`` that starts a run: its form, what it refuses, and what it starts."""

import html
import re
import shlex
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import Mock

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands.run.command import run
from commands.run.request_command import request_of
from commands.web import start
from commands.web.forecasts import Forecasts
from commands.web.start import Examined
from commands.web.states import BUSY_FLAGS
from provisioning.doctor import Check, Diagnosis
from provisioning.processes import start_detached
from suite.registries import SCENARIOS
from suite.request.request import OPTIONS
from suite.results.store import LOG
from tests.test_web import browser, post, results

__all__ = ["results"]
OUT = "20260101T000000-7-0a1b"


CHECKS = [
    Check(kind="engine", name="podman", usable=True, evidence="version 5"),
    Check(kind="target", name="bare-metal", usable=True, evidence="entered"),
    Check(kind="target", name="container", usable=True, evidence="all is there"),
    Check(kind="target", name="vm", usable=True, evidence="all is there", substitute="accelerator:tcg"),
    Check(kind="target", name="container-vm", usable=False, evidence="missing", reason="no QEMU", remedy="install it"),
]


@dataclass
class Machine:
    """What the page has started, and what it was told of a forecast."""

    started: list[tuple[list[str], Path, str]] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)
    forecast: Any = field(default_factory=lambda: CompletedProcess([], 0, "time: about 3 min\n", ""))

    def run(self, argv: list[str], _timeout_s: float) -> Any:
        self.asked.append(argv)
        return self.forecast


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    diagnosis = Diagnosis((), (), (), ("Can be measured here: container.",), "bench run")
    monkeypatch.setattr(start, "examined", lambda: Examined(diagnosis, CHECKS))
    monkeypatch.setattr(start, "start_detached", lambda *given: made.started.append(given))
    monkeypatch.setattr(start, "run_apart", made.run)
    return made


@pytest.fixture
def client(results: Path, machine: Machine) -> FlaskClient:
    del machine
    return browser(results)


def hidden(page: str) -> dict[str, list[str]]:
    """Return the hidden fields of a page."""
    fields: dict[str, list[str]] = {}
    for name, text in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page):
        fields.setdefault(name, []).append(html.unescape(text))
    return fields


@pytest.mark.parametrize("scenario", [*SCENARIOS])
def test_the_form_has_the_options_that_the_scenario_knows(client: FlaskClient, scenario: str) -> None:
    page = client.get(f"/start?scenario={scenario}").text
    assert "Can be measured here: container." in page
    names = {name for name in OPTIONS if f'name="{name}"' in page}
    hidden = {"inventory", "command", "command_files", "versus", "bodies"}
    assert names == {name for name, declared in OPTIONS.items() if declared.known_to(scenario)} - hidden
    assert page.index('name="target"') < page.index('name="seed"'), "the common ones first"
    for identity in re.findall(r'aria-describedby="([^"]+)"', page):
        assert f'id="{identity}"' in page


def test_labels_are_words_and_what_holds_unless_it_is_changed_is_chosen(client: FlaskClient) -> None:
    page = client.get("/start").text
    assert re.search(
        r'<label for="image_px">Image size in px <code>--image-px</code></label>\s*<input name="image_px"', page
    )
    assert "<option selected>quick</option>" in page
    assert page.count('name="target" value="') == 4
    assert not re.search(r'name="target" value="[^"]+" checked', page), "untouched, the machine decides"
    assert re.search(r'<fieldset id="engine".*?<input type="checkbox" name="engine" value="podman">', page, re.DOTALL)
    assert '<option value="wait">wait until it has ended</option>' in page
    again = client.get("/start?target=vm&engine=podman&engine=runc&profile=smoke&aa=on&gpus=7&busy=wait&rates=x").text
    assert len(re.findall(r'name="target" value="[^"]+" checked', again)) == 1
    assert len(re.findall(r'name="engine" value="(podman|runc)" checked', again)) == 2
    assert "<option selected>smoke</option>" in again
    assert '<option value="wait" selected>' in again
    assert "Not for the scenario synthetic, and left out: Rates x." in again
    assert '<input type="hidden" name="command" value="true">' in client.get("/start?command=true").text, (
        "what has no field here is checked all the same"
    )


@pytest.mark.parametrize(("busy", "flag"), [("wait", "--wait"), ("share", "--concurrent"), ("", ""), ("rm", "")])
def test_to_wait_or_to_share_is_a_choice(client: FlaskClient, machine: Machine, busy: str, flag: str) -> None:
    page = client.get("/start/check", query_string={"busy": busy}).text
    assert post(client, "/start", **hidden(page)).status_code == 303
    ((argv, *_),) = machine.started
    assert [word for word in argv if word in BUSY_FLAGS.values()] == [flag] * bool(flag)


@pytest.mark.usefixtures("machine")
def test_with_files_allowed_the_form_has_every_option(results: Path) -> None:
    page = browser(results, allow_files=True).get("/start?scenario=command").text
    assert 'name="command"' in page
    assert 'name="command_files"' in page


@pytest.mark.parametrize(
    ("fields", "name", "why"),
    [
        ({"memory": "4"}, "memory", "is 4G meant?"),
        ({"batch": "x"}, "batch", "is not a number"),
        ({"batch": "-1"}, "batch", "give a number from 1 up"),
        ({"seed": "9" * 30}, "seed", "number up to"),
        ({"target": "container-v"}, "target", "did you mean container-vm?"),
        ({"epochs": "3"}, "", "--epochs does not apply to --scenario synthetic"),
        ({"memory": "4\x00G"}, "memory", "not for command lines"),
        ({"model": "../evil.py"}, "model", "--allow-files"),
        ({"scenario": "real", "data": "mnist:/etc"}, "data", "--allow-files"),
        ({"oci_runtime": "/bin/sh", "engine": "docker"}, "oci_runtime", "--allow-files"),
        ({"ablate": "oci-runtime=/bin/sh"}, "ablate", "--allow-files"),
        ({"scenario": "command", "command": "true"}, "", "--allow-files"),
        ({"scenario": "nothing"}, "", "nothing"),
    ],
)
def test_wrong_input_is_refused_at_its_field(
    client: FlaskClient, machine: Machine, fields: dict[str, str], name: str, why: str
) -> None:
    assert why in post(client, "/start", **fields).text
    page = client.get("/start/check", query_string=fields).text
    assert why in page
    assert page.count('aria-invalid="true"') == bool(name)
    assert not name or f'<a href="#{name}">To the field</a>' in page
    assert (machine.asked, machine.started) == ([], [])


def test_what_this_machine_cannot_run_is_said_at_its_field(client: FlaskClient, machine: Machine) -> None:
    said = "left out: --ablate x\nbench: --cpus 99: this host allows CPUs 0-1\n  what to do: give fewer\n"
    machine.forecast = CompletedProcess([], 2, "", said)
    page = client.get("/start/check?cpus=99").text
    assert "--cpus 99: this host allows CPUs 0-1 - give fewer" in page
    assert 'href="#cpus"' in page
    assert "left out" not in page
    assert "Start it" not in page


def test_the_command_and_its_forecast_stand_before_the_button_and_it_starts_once(
    client: FlaskClient, machine: Machine, results: Path
) -> None:
    chosen = {"target": ["bare-metal", "container"], "model": ["alexnet"]}
    fields = {**chosen, "profile": ["smoke"], "aa": ["on"], "blocks": ["3"]}
    page = client.get("/start/check", query_string=fields).text
    assert "time: about 3 min" in page
    assert page.index("bench run") < page.index("Start it")
    change = html.unescape(re.findall(r'href="(/start\?[^"]+)">Change it', page)[0])
    assert client.get(change).text.count(" checked") == 1 + 4, "the first question, and what was chosen"
    sent = hidden(page)
    assert sent == {**fields, "form_token": sent["form_token"], "out": sent["out"]}
    for _ in range(2):
        answer = post(client, "/start", **sent)
        assert (answer.status_code, answer.location) == (303, f"/runs/{sent['out'][0]}")
    ((argv, log, heading),) = machine.started
    assert log == results / sent["out"][0] / LOG
    log.write_text(f"{heading}bench: the CPUs are taken\n")
    refused_run = client.get(f"/runs/{sent['out'][0]}").text
    assert "refused" in refused_run
    assert "bench: the CPUs are taken" in refused_run
    again = html.unescape(re.findall(r'id="again" href="([^"]+)"', refused_run)[0])
    assert client.get(again).text.count(" checked") == 1 + 4, "the words of a refused run are still there"
    assert f"bench {shlex.join(argv[2:])}" in page
    asked = request_of(run, argv[3:])
    assert ([*asked.targets.target], [*asked.models]) == (chosen["target"], chosen["model"])
    assert asked.repetitions.blocks == 3
    assert argv[-2:] == ["--out", str(log.parent)]


@pytest.mark.parametrize("out", ["../../etc", "/etc/x", "failed", OUT + "/..", ""])
def test_a_forged_directory_is_replaced_by_a_new_one(
    client: FlaskClient, machine: Machine, results: Path, out: str
) -> None:
    assert post(client, "/start", out=out).status_code == 303
    ((_, log, _),) = machine.started
    assert re.fullmatch(rf"{results}/\d+T\d+-\d+-[0-9a-f]+/{LOG}", str(log))


WORDS = st.one_of(
    st.text(max_size=12), st.sampled_from(["all", "--out", "-h", "vm", "1", "0", "a/b", "x.py", "mnist:/"])
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from([*OPTIONS, "out", "further"]), st.lists(WORDS, max_size=3), max_size=4))
def test_any_form_is_answered_and_starts_only_what_the_command_line_takes_without_files(
    client: FlaskClient, machine: Machine, fields: dict[str, list[str]]
) -> None:
    machine.started.clear()
    assert client.get("/start/check", query_string=fields).status_code == 200
    assert machine.started == []
    answer = post(client, "/start", **fields)
    assert answer.status_code in (400, 303)
    for argv, *_ in machine.started:
        out = argv.index("--out")
        assert not any("/" in word or ":" in word for word in argv[2:out])
        assert not any(".py" in model for model in request_of(run, argv[3:]).models)
    assert len(machine.started) == (answer.status_code == 303)


def test_while_a_run_is_measured_this_machine_is_not_examined(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "processes", lambda: {Path("/x"): None})
    assert "A run is being measured" in client.get("/start").text


def test_what_is_started_outlives_who_started_it_and_writes_its_log(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getsid(0) == os.getpid() or os.getsid(0), flush=True); sys.exit('the end')"
    start_detached([sys.executable, "-c", program], tmp_path / LOG)
    end_s = time.monotonic() + 30
    while "the end" not in (tmp_path / LOG).read_text() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert (tmp_path / LOG).read_text().splitlines() == ["True", "the end"]
    with pytest.raises(FileExistsError):
        start_detached(["true"], tmp_path / LOG)


def test_a_machine_is_examined_again_until_a_target_works(monkeypatch: pytest.MonkeyPatch) -> None:
    full, well = (Diagnosis(targets, (), (), ("answer",), "next") for targets in ((), ("vm",)))
    monkeypatch.setattr(start, "_EXAMINED", [])
    monkeypatch.setattr(start, "examine_as_far_as_possible", list)
    monkeypatch.setattr(start, "diagnose", Mock(side_effect=[full, well]))
    assert [start.examined().diagnosis for _ in range(3)] == [full, well, well]


def test_a_card_says_what_each_target_is_worth_here(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    page = client.get("/start").text
    cards = re.findall(r'<label class="target ([^"]*)">.*?<b>([^<]+)</b>.*?</label>', page, re.DOTALL)
    assert cards == [
        ("measured", "bare-metal"),
        ("measured", "container"),
        ("path-only", "vm"),
        ("absent", "container-vm"),
    ]
    for text in ("<small>podman</small>", "<small>accelerator:tcg</small>", "<small>no QEMU. install it</small>"):
        assert text in page
    monkeypatch.setattr(start, "processes", lambda: {Path("/x"): None})
    assert client.get("/start").text.count("not examined") == 4


QUESTIONS = [
    ({"what": "workload", "model": "vae", "file": "x.py", "command": "true"}, "bench run --model vae"),
    ({"what": "file", "model": "vae", "file": "./x.py"}, "bench run --model ./x.py"),
    (
        {"what": "program", "model": "vae", "command": "python train.py", "scenario": "synthetic"},
        "bench run --command 'python train.py' --command-files .",
    ),
    (
        {"what": "program", "command": "true", "command_files": "/work", "margin": "10%"},
        "bench run --margin 10% --command true --command-files /work",
    ),
    ({"what": "program", "command": "python server.py", "scenario": "serve", "port": "80"}, "--port 80"),
]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("fields", "command"), QUESTIONS)
def test_the_first_question_takes_its_chosen_answer_and_keeps_the_others(
    results: Path, fields: dict[str, str], command: str
) -> None:
    client = browser(results, allow_files=True)
    page = client.get("/start/check", query_string=fields).text
    assert command in html.unescape(page)
    change = html.unescape(re.findall(r'href="(/start\?[^"]+)">Change it', page)[0])
    again = client.get(change).text
    assert f'id="what-{fields["what"]}" value="{fields["what"]}" checked' in again
    assert "left out" not in again
    for name in fields.keys() & {"file", "command", "command_files", "margin"}:
        assert re.search(rf'name="{name}" value="{re.escape(fields[name])}"', again), name


def shown(client: FlaskClient, **fields: str) -> str:
    """Return the preview of a form once its forecast is made."""
    end_s = time.monotonic() + 30
    while "data-pending" in (page := client.get("/start/preview", query_string=fields).text):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return html.unescape(page)


def test_while_one_chooses_the_command_and_its_forecast_are_shown(
    client: FlaskClient, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.forecast = CompletedProcess([], 0, "plan: x\ndecides: whether\nends: soon\ntime: about 3 min\n", "")
    untouched = shown(client, what="workload", profile="quick", scenario="synthetic")
    assert ">bench run</pre>" in untouched, "untouched, it is the default run"
    for text in ("<dt>decides</dt><dd>whether", "<dt>ends</dt><dd>soon", "<dt>time</dt><dd>about 3 min"):
        assert text in untouched
    assert "plan: x" not in untouched
    assert "--batch 'x' is not a number" in shown(client, batch="x")
    asked = len(machine.asked)
    machine.forecast = CompletedProcess([], 2, "", "bench: --cpus 99: this host allows CPUs 0-1\n")
    assert "this host allows CPUs 0-1" in shown(client, cpus="99")
    monkeypatch.setattr(start, "processes", lambda: {Path("/x"): None})
    assert "the forecast would disturb it" in shown(client, cpus="1")
    assert len(machine.asked) == asked + 1
    assert machine.started == []


def test_forecasts_are_made_one_at_a_time_and_the_latest_choice_alone() -> None:
    going_on = threading.Event()
    made: list[tuple[str, ...]] = []

    def make(words: tuple[str, ...]) -> str:
        going_on.wait(30)
        made.append(words)
        return " ".join(words)

    forecasts = Forecasts(make)
    assert [forecasts.of((word,)) for word in "abcd"] == [None] * 4
    going_on.set()
    end_s = time.monotonic() + 30
    while (text := forecasts.of(("d",))) is None and time.monotonic() < end_s:
        time.sleep(0.01)
    assert text == "d"
    assert made in ([("a",), ("d",)], [("d",)])
