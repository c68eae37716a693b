"""The page that starts a run: three questions, all other options, the command that they stand for, and its forecast."""

import re
import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from commands.run.request_command import Value, grouped_options, usual_of_program
from commands.web.app import settings
from commands.web.forecasts import Forecasts, Words
from commands.web.states import BUSY_FLAGS, COMMAND_LINE, processes
from provisioning.doctor import Check, Diagnosis, diagnose, examine_as_far_as_possible
from provisioning.paths import bench_argv
from provisioning.processes import run_apart, start_detached
from suite.errors import REMEDY_LABEL, CommandError, RequestError, option
from suite.job.command import COMMAND
from suite.measurable import is_measured
from suite.registries import SCENARIOS
from suite.request.option import Option
from suite.request.repetitions import DECIDING_BUDGETS, DECIDING_MARGIN
from suite.request.request import OPTIONS, RunRequest
from suite.results.store import LOG, new_run_directory
from suite.targets import TARGETS
from suite.untrusted.parse import has_control_characters

PAGES = Blueprint("start", __name__)
_NAME = re.compile(r"\d{8}T\d{6}-\d+-[0-9a-f]{4}")
FORECAST_WITHIN_S = 120.0
WHAT = ("workload", "file", "program")
"""The answers to the first question, in its field ``what``. An address without it takes every option."""
FILE = "file"
"""The field with the file of an own workload, which is a value of the option ``model``."""
QUESTIONS = ("model", COMMAND, "command_files", "target", "margin", "budget", "profile")
"""The options that the three questions ask for; all others are folded."""
_LABELS = {
    "aa": "Bare metal twice per block (A/A)",
    "ablate": "Ablations",
    "accel": "Acceleration of VMs",
    "budget": "At most",
    "cpus": "CPUs",
    "detect": "Difference to detect",
    "engine": "Container engines",
    "gpus": "GPUs",
    "image_px": "Image size in px",
    "isa": "Instruction set of VMs",
    "lab": "Lab network",
    "margin": "Difference that does not matter",
    "model": "Workloads",
    "oci_runtime": "OCI runtime",
    "probe": "Probes",
    "profile": "Size of the work",
    "ps": "Parameter servers",
    "target": "Targets",
    "until": "Add blocks until",
}
_LEADING = ("decides", "ends", "time")
"""The lines of a forecast that a reader looks for first."""


class TargetCard(NamedTuple):
    """A target, and what its numbers would be worth on this machine."""

    name: str
    worth: str
    """``measured``, ``path-only``, ``absent``; empty while that is not known."""
    why: str


class Examined(NamedTuple):
    """This machine, as it was examined."""

    diagnosis: Diagnosis
    checks: Sequence[Check]


_EXAMINED: list[Examined] = []


def examined() -> Examined:
    """Examine this machine, which takes seconds; once a target has worked, return what was found then."""
    if not _EXAMINED:
        checks = examine_as_far_as_possible()
        machine = Examined(diagnose(checks), checks)
        if not machine.diagnosis.works:  # a full disk, say: that passes
            return machine
        _EXAMINED.append(machine)
    return _EXAMINED[0]


def _cards(checks: Sequence[Check]) -> list[TargetCard]:
    """Return a card for each target. Without checks nothing is known of them."""
    engines = [check.name for check in checks if check.kind == "engine" and check.usable]
    by_name = {check.name: check for check in checks if check.kind == "target"}
    cards = []
    for name in TARGETS:
        check = by_name.get(name)
        if check is None:
            cards.append(TargetCard(name, "", ""))
        elif not check.usable:
            cards.append(TargetCard(name, "absent", f"{check.reason}. {check.remedy or ''}"))
        elif check.substitute and not is_measured([check.substitute]):
            cards.append(TargetCard(name, "path-only", check.substitute))
        else:
            details = engines if name == "container" else filter(None, [check.substitute])
            cards.append(TargetCard(name, "measured", ", ".join(details)))
    return cards


def _values(declared: Option, texts: list[str]) -> list[Any]:
    """Return the values of an option in a form. Raises RequestError for one that pages do not take."""
    if declared.repeatable:
        words = " ".join(texts).split()
    else:
        stripped = (text.strip() for text in texts)
        words = [text for text in stripped if text]
    if any(map(has_control_characters, words)):
        raise RequestError(f"{option(declared.name)} has a character that is not for command lines", remedy="remove it")
    if not settings().allow_files and any(map(declared.reaches_out, words)):
        why = f"{option(declared.name)} names a file, a device or a program of this machine"
        raise RequestError(why, remedy="start bench web with --allow-files, or leave it out")
    value = Value(declared)
    return [value.convert(word, None, None) for word in words]


def _texts() -> dict[str, list[str]]:
    """Return the texts of the form by option; of the first question those of its chosen answer alone."""
    texts = {name: request.values.getlist(name) for name in OPTIONS}
    what = request.values.get("what")
    if what == "file":
        texts["model"] = request.values.getlist(FILE)
    if what == "program":
        texts["model"] = []
        if not OPTIONS[COMMAND].known_to(_scenario()):
            texts["scenario"] = [COMMAND]
    elif what:
        texts |= {COMMAND: [], "command_files": []}
    return texts


def _scenario() -> str:
    """Return the scenario of the form; the usual one where none, or an unknown one, is named."""
    scenario = request.values.get("scenario", "")
    if scenario in SCENARIOS:
        return scenario
    return str(OPTIONS["scenario"].default)


def _words() -> Words:
    """Return the words after ``bench`` that the form stands for. Raises RequestError at its first mistake."""
    chosen: dict[str, object] = {}
    for name, texts in _texts().items():
        declared = OPTIONS[name]
        values = _values(declared, texts)
        if not values:
            continue
        if declared.kind is bool:
            chosen[name] = True
        elif declared.repeatable:
            chosen[name] = tuple(values)
        else:
            chosen[name] = values[0]
    if request.values.get("what") == "program":
        scenario = str(chosen.get("scenario", COMMAND))
        chosen = {**usual_of_program(scenario), **chosen}
    words = RunRequest.of(chosen).command()[1:]
    busy = BUSY_FLAGS.get(request.values.get("busy", ""))
    if busy:
        return (*words, busy)
    return tuple(words)


def _fields(without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the fields of the request that say what is to be run, in the order of the options."""
    fields = []
    for name in ("what", FILE, *OPTIONS, "busy"):
        if name in without:
            continue
        texts = request.values.getlist(name)
        fields += [(name, text) for text in texts if text]
    return fields


def _new_run() -> Path:
    return settings().results / f"{new_run_directory().name}-{token_hex(2)}"


def _forecast_of(results: Path, words: Words) -> str:
    """Return what a run with these words below ``results`` is expected to take. Raises RequestError, CommandError."""
    directory = results / new_run_directory().name
    argv = [*bench_argv(), *words, "--out", str(directory), "--dry-run"]
    answer = run_apart(argv, FORECAST_WITHIN_S)
    if answer.returncode:
        error = answer.stderr.rpartition("bench: ")[2]
        message, _, remedy = error.partition(REMEDY_LABEL)
        raise RequestError(message.strip(), remedy=remedy.strip() or None)
    return answer.stdout


def _led(forecast: str) -> dict[str, str]:
    """Return the lines of a forecast that a reader looks for first, by their names."""
    lines = dict(line.partition(": ")[::2] for line in forecast.splitlines())
    return {name: lines[name] for name in _LEADING if name in lines}


def _problem(error: RequestError | CommandError) -> str:
    return " - ".join(filter(None, (error.message, error.remedy)))


@PAGES.get("/start/preview")
def preview() -> str:
    """Return the command that the fields stand for, with its forecast once that is made; or the mistake in them."""
    shown: dict[str, Any] = {"problem": "", "command": "", "forecast": {}, "measuring": bool(processes())}
    try:
        words = _words()
        shown["command"] = shlex.join(["bench", *words])
        if not shown["measuring"]:
            forecast = _forecasts().of(words)
            shown["forecast"] = forecast
            if forecast is not None:
                shown["forecast"] = _led(forecast)
    except (RequestError, CommandError) as error:
        shown["problem"] = _problem(error)
    return render_template("preview.html.j2", **shown)


_FORECASTS: dict[Path, Forecasts] = {}


def _forecasts() -> Forecasts:
    """Return the forecasts of runs below the results of this server."""
    results = settings().results
    return _FORECASTS.setdefault(results, Forecasts(lambda words: _forecast_of(results, words)))


@PAGES.get("/start/check")
def check() -> str:
    """Show the command that the fields stand for, with its forecast; or the form with what is wrong in it."""
    # Chosen with the check, so that a form that is sent twice starts one run.
    run = _new_run()
    try:
        words = _words()
        forecast = _forecast_of(settings().results, words)
    except (RequestError, CommandError) as error:
        return form(_problem(error))
    command = shlex.join(["bench", *words, "--out", str(run)])
    shown = {"command": command, "forecast": forecast, "led": _led(forecast)}
    return render_template("check.html.j2", **shown, out=run.name, fields=_fields())


@PAGES.post("/start")
def start() -> AnyResponse:
    """Start the run that was checked, once. Raises RequestError for fields that no check has shown."""
    name = request.form.get("out", "")
    if _NAME.fullmatch(name):
        run = settings().results / name
    else:
        run = _new_run()
    words = [*_words(), "--out", str(run)]
    command = shlex.join(["bench", *words])
    with suppress(FileExistsError):
        run.mkdir()
        start_detached([*bench_argv(), *words], run / LOG, f"{COMMAND_LINE}{command}\n")
    return redirect(url_for("runs.one", name=run.name), 303)


def label_of(name: str) -> str:
    """Return what an option is called on the pages."""
    return _LABELS.get(name, name.replace("_", " ").capitalize())


def _quoted(name: str) -> str:
    return f"\N{LEFT DOUBLE QUOTATION MARK}{label_of(name)}\N{RIGHT DOUBLE QUOTATION MARK}"


def help_of(declared: Option) -> str:
    """Return the help of an option, in which other options are named as on the pages."""
    return declared.description(_quoted, listed=False)


def _what() -> str:
    """Return the answer to the first question that is chosen: as the form says, else as the options of an address."""
    what = request.values.get("what")
    if what:
        return what if what in WHAT else WHAT[0]
    if request.values.get(COMMAND):
        return "program"
    models = request.values.getlist("model")
    workloads = OPTIONS["model"].choices()
    if settings().allow_files and not {*models} <= {*workloads}:
        return "file"
    return "workload"


@PAGES.get("/start")
def form(problem: str = "") -> str:
    """Show the form, filled in as the address says, with what is wrong in it."""
    what = _what()
    selected = _scenario()
    scenario = selected
    if what == "program" and not OPTIONS[COMMAND].known_to(selected):
        scenario = COMMAND
    questions = _questions({scenario, selected})
    folded = _folded(scenario)
    folded_names = (declared.name for declared in chain(*folded.values()))
    offered = {*questions, *folded_names}
    foreign = _foreign(scenario)
    # The checks would disturb what is measured.
    machine = None if processes() else examined()
    values: dict[str, Any] = {
        "given": request.values,
        "what": what,
        "scenario": scenario,
        "selected": selected,
        "scenarios": OPTIONS["scenario"].choices(),
        "groups": folded,
        "questions": questions,
        # What cannot be shown is checked all the same, or named: nothing is left out in silence.
        "hidden": _fields({*offered, *foreign, "scenario", "what", FILE, "busy"}),
        "foreign": [(label_of(name), " ".join(request.values.getlist(name))) for name in foreign],
        "cards": _cards(machine.checks if machine else ()),
        "diagnosis": machine.diagnosis if machine else None,
        "directory": Path.cwd(),
        "usual_margin": DECIDING_MARGIN,
        "usual_budget": DECIDING_BUDGETS[0],
    }
    return render_template(
        "start.html.j2",
        problem=problem,
        field=_field_of(problem, offered),
        flag=bool,
        label_of=label_of,
        help_of=help_of,
        **values,
    )


def _field_of(problem: str, offered: Collection[str]) -> str:
    """Return the first field that a problem names, of those that the form offers; empty if there is none."""
    flags = re.findall(r"--([a-z][a-z-]*)", problem)
    names = [name.replace("-", "_") for name in flags]
    return next((name for name in names if name in offered), "")


def _foreign(scenario: str) -> list[str]:
    """Return the options that have a value in the form, or the address, and that its scenario does not know."""
    valued = [name for name, texts in _texts().items() if any(texts)]
    return [name for name in valued if not OPTIONS[name].known_to(scenario)]


def _questions(scenarios: Collection[str]) -> dict[str, Option]:
    """Return the options of the three questions that the form offers: of a command always, else of these scenarios."""
    questions = {}
    for name in QUESTIONS:
        declared = OPTIONS[name]
        of_question = declared.scenario == COMMAND
        if _is_offered(declared) and (of_question or any(map(declared.known_to, scenarios))):
            questions[name] = declared
    return questions


def _folded(scenario: str) -> dict[str, list[Option]]:
    """Return the other options that the form offers for a scenario, by the titles of their groups."""
    groups = grouped_options(scenario)
    return {title: list(filter(_is_folded, options)) for title, options in groups.items()}


def _is_folded(declared: Option) -> bool:
    return _is_offered(declared) and declared.name not in (*QUESTIONS, "scenario")


def _is_offered(declared: Option) -> bool:
    """Return whether the form has the option: files and programs of this machine only if this server starts such."""
    return settings().allow_files or not (declared.kind is Path or declared.about.runs_program)
