"""The pages of runs: all of them, one with its state, ratios and log, the report of several, and the end of one.

Reports and answers are made once, in the background, and kept.
"""

import hashlib
import json
import math
import shlex
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

import click
from flask import Blueprint, Response, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from commands.results.removal import described, removable, remove
from commands.results.show import run_lines
from commands.run.command import run as run_command
from commands.run.outlook import interval_text, intervals_so_far
from commands.run.request_command import request_of
from commands.web.app import settings
from commands.web.states import BUSY_FLAGS, WORDS, RunState, facts, processes, state_of, written
from provisioning import ledger, paths
from suite.errors import BenchError, RequestError
from suite.process_identity import ProcessIdentity
from suite.request.request import RunRequest
from suite.results import quality
from suite.results.files import read
from suite.results.notes import RunNotes, matches, readable_notes, write_notes
from suite.results.runs import SWEEP, find_runs, is_run
from suite.results.store import LOG, PLAN, TRIALS, Run, request_stop, stored_plan, write_atomic
from suite.selftest import certificate
from suite.untrusted.parse import has_control_characters
from suite.version import suite_version

PAGES = Blueprint("runs", __name__)
PER_PAGE = 50
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
_FARTHEST = 8.0
"""The axis of ratios ends at this factor; an interval may go on."""
_NOTHING_YET: Mapping[str, Any] = {"rows": [], "next": ""}
_LATER: Mapping[str, Any] = {"rows": [("", "", "after the current run")], "next": ""}
_NO_ANSWER: Mapping[str, Any] = {"rows": [("", "", "no answer")], "next": ""}
MOST_KEPT = 500
"""The files of the cache; the oldest are removed."""
_MAKING: dict[Path, "Future[None]"] = {}
_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""One report at a time: matplotlib is not made for several threads. One answer at a time: it takes a CPU."""


def located(name: str) -> Path:
    """Return the directory of a run by its path below the results. What is not there, and links, are 404."""
    run = settings().results
    parts = name.split("/")
    inside = []
    for part in parts:
        run = run / part
        inside.append(run)
    links = any(path.is_symlink() for path in (*inside, run / TRIALS))
    leads_away = not {"", ".", ".."}.isdisjoint(parts)
    if links or leads_away or not (is_run(run) or (run / LOG).is_file()):
        abort(404, f"there is no run {name}")
    return run


def _live(template: str, shown: object, values: Callable[[], Mapping[str, Any]]) -> Response:
    """Return a page, or the part that the script refreshes: nothing, at little cost, if it has what is ``shown``."""
    description = repr(shown)
    tag = hashlib.sha256(description.encode()).hexdigest()
    layout = "part" if "part" in request.args else "base"
    if layout == "part" and tag in request.if_none_match:
        return Response(status=304)
    page = render_template(template, layout=f"{layout}.html.j2", **values())
    response = Response(page)
    response.set_etag(tag)
    return response


def kept(kind: str, parts: Sequence[object], make: Callable[[], str] | None) -> str | None:
    """Return what was made of these parts by this suite; else have it made, and return None while it is not ready.

    Without ``make``, nothing is begun. Raises what making it has raised: a refusal always, an accident such as a full
    disk once, after which it is made again.
    """
    identity = repr([suite_version(), *parts])
    key = hashlib.sha256(identity.encode()).hexdigest()
    path = paths.state("cache", "web") / f"{kind}-{key}"
    with suppress(FileNotFoundError):
        return read(path).decode()
    begun = _MAKING.get(path)
    if begun and begun.done():
        if not isinstance(begun.exception(), RequestError):
            _MAKING.pop(path, None)
        begun.result()
    elif make and not begun:
        _MAKING[path] = Future()
        thread = threading.Thread(target=_made, args=(kind, path, make), daemon=True)
        thread.start()
    return None


def _made(kind: str, path: Path, make: Callable[[], str]) -> None:
    try:
        with _TURNS[kind]:
            write_atomic(path, make())
            oldest_first = sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime_ns)
            for file in oldest_first[:-MOST_KEPT]:
                file.unlink()
        del _MAKING[path]
    except Exception as error:  # noqa: BLE001 (raised where it is asked for)
        _MAKING[path].set_exception(error)


def digest(run: Path) -> str:
    """Return the digest of a run: where it is, its plan, records and quality, and the certificate of this machine."""
    address = str(run)
    content = hashlib.sha256(address.encode())
    of_machine = paths.home() / certificate.FILE
    files = (run / PLAN, run / quality.FILE, of_machine, *Run(run).record_files())
    for path in files:
        with suppress(OSError):
            of_file = hashlib.sha256(read(path)).digest()
            content.update(f"\n{path.name}\n".encode())
            content.update(of_file)
    return content.hexdigest()


def answer_of(run: Path) -> str:
    """Return the answer of a run as JSON: subject, number and word of each comparison, and the next command."""
    # Here, since pandas takes as long to import as everything else together.
    from analysis.audit.audit import audited
    from analysis.compare.comparison import compare
    from analysis.load.records import load
    from analysis.report.answers.answer import answer

    try:
        records = audited(load([run]))
        comparison = compare(records)
        result = answer(comparison)
    except RequestError:  # the page of the comparison shows why
        return json.dumps(_NO_ANSWER)
    rows = [(row.subject, row.number, row.word) for row in result.rows]
    shown = {
        "rows": rows or _NO_ANSWER["rows"],
        "next": str(result.next or ""),
    }
    return json.dumps(shown)


def _answer(run: Path, state: RunState, running: Mapping[Path, ProcessIdentity]) -> Mapping[str, Any]:
    """Return the answer of a run; nothing while it is not ready, or the run goes on.

    It is made while nothing is measured: that takes a CPU.
    """
    if state.word in ("waiting", "running", "refused"):
        return _NOTHING_YET
    make = None if running else lambda: answer_of(run)
    try:
        made = kept("answers", [run, written(run)], make)
    except (BenchError, OSError):  # a full disk, say: the page shows the rest, and the next one has it made again
        return _NO_ANSWER
    if made:
        return cast("Mapping[str, Any]", json.loads(made))
    return _LATER if running else _NOTHING_YET


@PAGES.get("/")
def listing(*, choosing: bool = False) -> Response:
    """Show the runs as the address sorts and filters them; those that were written last come first."""
    results = settings().results
    running = processes()
    query = request.args
    times = _times(results)
    sort = query.get("sort", "date")
    word = query.get("state", "")
    number = max(0, query.get("page", 0, int))
    text = query.get("text", "").strip()
    chosen = []
    for run in times:
        name = run.relative_to(results)
        if _matches(text, name, run, times):
            chosen.append(run)
    if word in WORDS:
        chosen = [run for run in chosen if state_of(run, running).word == word]
    chosen.sort(key=lambda run: (max(times[run]), run), reverse=True)
    chosen.sort(key=_order(sort, times, running))
    first = PER_PAGE * number
    page = chosen[first : first + PER_PAGE]
    states = [(run, state_of(run, running)) for run in page]
    rows = []
    for run, state in states:
        answers = _answer(run, state, running)["rows"]
        summary = facts(run, times[run]).summary
        notes = readable_notes(run)
        rows.append((run, state, answers, summary, notes))

    def values() -> Mapping[str, Any]:
        page_count = math.ceil(len(chosen) / PER_PAGE)
        return {
            "rows": [(run.relative_to(results), *row) for run, *row in rows],
            "sort": sort,
            "state": word,
            "text": text,
            "words": WORDS,
            "number": number,
            "pages": range(page_count),
            "choosing": choosing,
        }

    return _live("runs.html.j2", rows, values)


def _times(results: Path) -> dict[Path, tuple[int, ...]]:
    """Return when each run was written, also one that has begun and has a log alone."""
    with_log = (path.parent for path in results.glob(f"*/{LOG}"))
    begun = (run for run in with_log if not run.is_symlink())
    runs = {*find_runs([results]), *begun}
    # A name with a line break has no address.
    return {run: written(run) for run in runs if not has_control_characters(str(run))}


def _order(
    sort: str,
    times: Mapping[Path, tuple[int, ...]],
    running: Mapping[Path, ProcessIdentity],
) -> Callable[[Path], Any]:
    """Return a sort key for the runs; for any other name one that changes nothing."""
    orders: Mapping[str, Callable[[Path], Any]] = {
        "run": str,
        "state": lambda run: WORDS.index(state_of(run, running).word),
        "targets": lambda run: getattr(facts(run, times[run]).summary, "targets", ()),
    }
    return orders.get(sort, lambda _: 0)


def _matches(text: str, name: Path, run: Path, times: Mapping[Path, tuple[int, ...]]) -> bool:
    """Return whether a run is one that a search for the text finds."""
    if not text:  # to read a thousand plans for nothing takes seconds
        return True
    summary = facts(run, times[run]).summary
    notes = readable_notes(run)
    return matches(text, str(name), summary, notes)


@PAGES.get("/runs/<path:name>")
def one(name: str) -> Response:
    """Show a run: its state and progress, ratios, the end of its log, and its facts."""
    run = located(name)
    running = processes()
    state = state_of(run, running)
    times = written(run)
    answered = _answer(run, state, running)

    def values() -> Mapping[str, Any]:
        described: dict[str, Any] = {"lines": [], "forest": [], "problem": "", "again": None}
        try:
            described["again"] = _typed(facts(run, times).command)
            if is_run(run):
                described["lines"] = list(run_lines(run))
                described["forest"] = _forest(run, times)
                described["again"] = stored_plan(run).request
        except RequestError as error:
            described["problem"] = error.message
        return {
            **described,
            "name": name,
            "run": run,
            "state": state,
            "about": facts(run, times),
            "answer": answered,
            "cell": (run.parent / SWEEP).is_file(),
            "sweep": state.directory == run.parent,
            "notes": readable_notes(run),
        }

    return _live("run.html.j2", (state, times, answered), values)


@PAGES.post("/notes/<path:name>")
def note(name: str) -> AnyResponse:
    """Put a note and tags on a run. Raises RequestError for what cannot be kept."""
    run = located(name)
    text = request.form.get("text", "")
    tags = request.form.get("tags", "").replace(",", " ")
    notes = RunNotes.of(text, tags.split())
    write_notes(run, notes)
    return redirect(url_for("runs.one", name=name), 303)


def _typed(command: str) -> RunRequest | None:
    """Return the request of a command in a log; None for any other text."""
    try:
        words = shlex.split(command)
        end = words.index("--out")
        request_words = [word for word in words[2:end] if word not in BUSY_FLAGS.values()]
        if words[:2] == ["bench", "run"]:
            return request_of(run_command, request_words)
        return None
    except (ValueError, click.ClickException, RequestError):  # a log that somebody has written, or of an older suite
        return None


@lru_cache(maxsize=256)
def _forest(run: Path, _written: tuple[int, ...]) -> Sequence[tuple[str, str, Sequence[float]]]:
    """Return each ratio so far, as text, and where low end, ratio and high end are on a logarithmic axis, in %.

    Bare metal is in its middle. An interval without a meaning has no place there.
    """
    from analysis.report.formatting import sensible  # as below

    ratios = intervals_so_far(run)
    texts = {name: interval_text(*ratio) for name, ratio in ratios.items()}
    logs: dict[str, list[float]] = {}
    for name, ends in ratios.items():
        if sensible(ends[1:]):
            shown = [min(max(end, 1 / _FARTHEST), _FARTHEST) for end in sorted(ends)]
            logs[name] = [math.log(end) for end in shown]
    distances = map(abs, chain(*logs.values()))
    reach = max(distances, default=0.0) or 1.0
    rows = []
    for name, text in texts.items():
        places_percent = [50 + 48 * log / reach for log in logs.get(name, ())]
        rows.append((name, text, places_percent))
    return rows


@PAGES.post("/runs/<path:name>")
def control(name: str) -> AnyResponse:
    """Stop a run after its current trial, or cancel it as Ctrl-C does; with a cell its sweep."""
    running = processes()
    directory = state_of(located(name), running).directory
    if directory is None:
        raise RequestError(f"{name} does not run any more", remedy="load its page again")
    if request.form.get("action") == "cancel":
        running[directory].terminate()
    else:
        request_stop(directory)
    return redirect(url_for("runs.one", name=name), 303)


@PAGES.route("/delete/<path:name>", methods=["GET", "POST"])
def delete(name: str) -> str | AnyResponse:
    """Ask whether a run is to be deleted with all of its files; delete it when the form is sent."""
    contents = removable(located(name))
    if request.method != "POST":
        foreign = [path.relative_to(contents.directory) for path in contents.foreign]
        return render_template("delete.html.j2", name=name, described=described(contents), foreign=foreign)
    remove(contents)
    return redirect(url_for("runs.listing"), 303)


def _report(runs: Sequence[Path]) -> str | None:
    """Return the page that ``bench report`` writes of runs; None while it is being drawn. Raises RequestError."""

    def draw() -> str:
        # Here, since pandas and matplotlib take as long to import as everything else together.
        from commands.compare.show import report_of

        with ledger.directory(paths.state("scratch"), "report") as directory:
            page = report_of(runs, directory / "report.html")
            return page.read_text()

    return kept("report", [*map(digest, runs)], draw)


@PAGES.get("/compare")
def compare() -> Response:
    """Show the report of the chosen runs, or that it is being drawn, or why it cannot be; or the runs to choose."""
    runs: Mapping[str, Path] = {name: located(name) for name in request.args.getlist("run")}
    if not runs:
        return listing(choosing=True)
    shown: dict[str, Any] = {"runs": runs, "ready": False, "problem": None}
    try:
        shown["ready"] = _report([*runs.values()]) is not None
    except RequestError as error:
        shown["problem"] = error
    return _live("compare.html.j2", shown, lambda: shown)


@PAGES.get("/report")
def report() -> AnyResponse:
    """Return the report of the chosen runs, or with ``save`` as a file."""
    names = request.args.getlist("run")
    if not names:
        raise RequestError("no run is named", remedy="choose runs in the list")
    page = _report([*map(located, names)])
    if page is None:
        return redirect(url_for("runs.compare", run=names), 303)
    return _page(page, Path(names[0]).name)


def _page(page: str, name: str) -> Response:
    """Return a page that a command has written; as a file, of this name, with ``save``."""
    response = Response(page, headers={"Content-Security-Policy": REPORT_POLICY})
    if "save" in request.args:
        response.headers.set("Content-Disposition", "attachment", filename=f"{name}.html")
    return response


@PAGES.get("/history")
def history() -> Response:
    """Show the history of the runs that a search finds, or that it is being drawn, or why it cannot be."""
    text = request.args.get("text", "").strip()
    runs = _ended_runs(text)
    shown: dict[str, Any] = {"text": text, "runs": len(runs), "ready": False, "problem": None}
    try:
        shown["ready"] = bool(runs) and _history(runs) is not None
    except RequestError as error:
        shown["problem"] = error
    return _live("history.html.j2", (shown, _written_of(runs)), lambda: shown)


@PAGES.get("/history/page")
def history_page() -> AnyResponse:
    """Return the history of the runs that a search finds, or with ``save`` as a file."""
    text = request.args.get("text", "").strip()
    runs = _ended_runs(text)
    page = _history(runs) if runs else None
    if page is None:
        return redirect(url_for("runs.history", text=text), 303)
    return _page(page, "history")


def _ended_runs(text: str) -> list[Path]:
    """Return the runs with a plan that a search finds and nothing writes now: each record would draw it anew."""
    results = settings().results
    running = processes()
    times = _times(results)
    ended = []
    for run in sorted(times):
        writes = {run, run.parent} & running.keys()
        if is_run(run) and not writes and _matches(text, run.relative_to(results), run, times):
            ended.append(run)
    return ended


def _written_of(runs: Sequence[Path]) -> list[tuple[Path, tuple[int, ...]]]:
    return [(run, written(run)) for run in runs]


def _history(runs: Sequence[Path]) -> str | None:
    """Return the page that ``bench history`` writes of runs; None while it is being drawn. Raises RequestError."""

    def draw() -> str:
        # As above.
        from analysis.report.page import write_history
        from commands.history import history_over

        with ledger.directory(paths.state("scratch"), "history") as directory:
            page = write_history(history_over(runs), directory / "history.html")
            return page.read_text()

    return kept("report", ["history", *_written_of(runs)], draw)
