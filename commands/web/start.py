"""The page that starts a run: a form of its options, the command that it stands for, and the forecast."""

import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from commands.run.request_command import Value, grouped_options
from commands.web.app import settings
from commands.web.states import BUSY_FLAGS, COMMAND_LINE, processes
from provisioning.doctor import Diagnosis, diagnose, examine_as_far_as_possible
from provisioning.paths import bench_argv
from provisioning.processes import run_apart, start_detached
from suite.errors import CommandError, RequestError, option
from suite.registries import SCENARIOS
from suite.request.option import Option
from suite.request.request import OPTIONS, RunRequest
from suite.results.store import LOG, new_run_directory
from suite.untrusted.parse import has_control_characters

PAGES = Blueprint("start", __name__)
_NAME = re.compile(r"\d{8}T\d{6}-\d+-[0-9a-f]{4}")
FORECAST_WITHIN_S = 120.0
_FOUND: list[Diagnosis] = []


def diagnosis() -> Diagnosis:
    """Examine this machine, which takes seconds; once a target has worked, return what was found then."""
    if not _FOUND:
        found = diagnose(examine_as_far_as_possible())
        if not found.works:  # a full disk, say: that passes
            return found
        _FOUND.append(found)
    return _FOUND[0]


def _values(declared: Option, texts: list[str]) -> list[Any]:
    """Return the values of an option in a form. Raises RequestError for one that pages do not take."""
    words = [word for text in texts for word in (text.split() if declared.repeatable else [text.strip()]) if word]
    if any(map(has_control_characters, words)):
        raise RequestError(f"{option(declared.name)} has a character that is not for command lines", remedy="remove it")
    if not settings().allow_files and any(map(declared.reaches_out, words)):
        why = f"{option(declared.name)} names a file, a device or a program of this machine"
        raise RequestError(why, remedy="start bench web with --allow-files, or leave it out")
    return [Value(declared).convert(word, None, None) for word in words]


def _words(run: Path) -> list[str]:
    """Return the words after ``bench`` that the form stands for. Raises RequestError at its first mistake."""
    chosen: dict[str, object] = {}
    for name, declared in OPTIONS.items():
        values = _values(declared, request.values.getlist(name))
        if values:
            chosen[name] = True if declared.kind is bool else tuple(values) if declared.repeatable else values[0]
    busy = BUSY_FLAGS.get(request.values.get("busy", ""))
    return [*RunRequest.of(chosen).command()[1:], *([busy] if busy else []), "--out", str(run)]


def _fields(without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the fields of the request that say what is to be run, in the order of the options."""
    names = (name for name in (*OPTIONS, "busy") if name not in without)
    return [(name, text) for name in names for text in request.values.getlist(name) if text]


@PAGES.get("/start/check")
def check() -> str:
    """Show the command that the fields stand for, with its forecast; or the form with what is wrong in it."""
    # Chosen with the check, so that a form that is sent twice starts one run.
    run = settings().results / f"{new_run_directory().name}-{token_hex(2)}"
    try:
        words = _words(run)
        answer = run_apart([*bench_argv(), *words, "--dry-run"], FORECAST_WITHIN_S)
        if answer.returncode:
            raise RequestError(answer.stderr.rpartition("bench: ")[2].strip())
    except (RequestError, CommandError) as error:
        return form(" - ".join(filter(None, (error.message, error.remedy))))
    command = shlex.join(["bench", *words])
    return render_template("check.html.j2", command=command, forecast=answer.stdout, out=run.name, fields=_fields())


@PAGES.post("/start")
def start() -> AnyResponse:
    """Start the run that was checked, once. Raises RequestError for fields that no check has shown."""
    name = request.form.get("out", "")
    run = settings().results / (name if _NAME.fullmatch(name) else f"{new_run_directory().name}-{token_hex(2)}")
    words = _words(run)
    with suppress(FileExistsError):
        run.mkdir()
        start_detached([*bench_argv(), *words], run / LOG, f"{COMMAND_LINE}{shlex.join(['bench', *words])}\n")
    return redirect(url_for("runs.one", name=run.name), 303)


@PAGES.get("/start")
def form(problem: str = "") -> str:
    """Show the form, filled in as the address says, with what is wrong in it."""
    submitted = request.values
    scenario = submitted.get("scenario", "")
    scenario = scenario if scenario in SCENARIOS else str(OPTIONS["scenario"].default)
    groups = grouped_options(scenario)
    for options in () if settings().allow_files else groups.values():
        options[:] = [declared for declared in options if not (declared.kind is Path or declared.about.runs_program)]
    offered = {declared.name for declared in chain(*groups.values())}
    # What cannot be shown is checked all the same: nothing is left out in silence.
    hidden = _fields({*offered, "busy"})
    named = [word.replace("-", "_") for word in re.findall(r"--([a-z][a-z-]*)", problem)]
    values: dict[str, Any] = {"given": submitted, "scenario": scenario, "groups": groups, "flag": bool}
    values |= {"scenarios": OPTIONS["scenario"].choices(), "hidden": hidden, "problem": problem}
    field = next((word for word in named if word in offered - {"scenario"}), "")
    # The checks would disturb what is measured.
    return render_template("start.html.j2", field=field, diagnosis=None if processes() else diagnosis(), **values)
