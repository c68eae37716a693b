"""The pages of runs: all of them, one with its state and the end of its log, and the report of several."""

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from commands.compare.kept import KeptOutput
from commands.results.show import run_lines
from commands.run.outlook import interval_texts, intervals_so_far
from commands.web.app import settings
from provisioning import ledger
from suite.errors import RequestError
from suite.process_identity import ProcessIdentity
from suite.results.files import open_regular
from suite.results.runs import SWEEP, RunSummary, find_runs, is_run, summarise
from suite.results.store import PLAN, TRIALS, request_stop, stop_requested

PAGES = Blueprint("runs", __name__)
LOG = "bench.log"
"""The file in a run's directory for the output of a run that a page has started."""
LOG_BYTES, PER_PAGE = 8 << 10, 50
STARTS_WITHIN_S = 60.0
"""How long a run that a page has started may take until its log or the ledger has it."""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
_DRAWING = threading.Lock()
"""Held while a report is made: matplotlib is not made for several threads."""


def located(name: str) -> Path:
    """Return the directory of a run by its path below the results. What is not there, and links, are 404."""
    run, parts = settings().results, name.split("/")
    inside = [run := run / part for part in parts]
    links = any(path.is_symlink() for path in (*inside, run / TRIALS))
    if links or {"", ".", ".."} & {*parts} or not (is_run(run) or (run / LOG).is_file()):
        abort(404, f"there is no run {name}")
    return run


def processes() -> Mapping[Path, ProcessIdentity]:
    """Return the processes that write runs and sweeps of this machine, by their directories, from the ledger."""
    entries = [entry for entry in ledger.living() if entry.kind == "run-directory"]
    return {Path(entry.what).resolve(): entry.owner for entry in entries}


def _controlled(run: Path, running: Mapping[Path, ProcessIdentity]) -> tuple[Path | None, str]:
    """Return the directory by which a run is stopped, its own or its sweep's, and its state."""
    directory = next((path for path in (run, run.parent) if path in running), None)
    if directory:
        return directory, "stopping" if stop_requested(directory) else "running"
    log = (run / LOG).lstat() if (run / LOG).exists() and not is_run(run) else None
    starting = log and log.st_size == 0 and time.time() - log.st_mtime < STARTS_WITHIN_S
    return None, "starting" if starting else "not running"


def _written(run: Path) -> tuple[int, ...]:
    """Return when records, plan and log of a run were last written, in ns; 0 for what is not there."""
    paths = [run / TRIALS, run / PLAN, run / LOG]
    return tuple(path.lstat().st_mtime_ns if path.exists() else 0 for path in paths)


@lru_cache(maxsize=4096)
def _summary(run: Path, _written: tuple[int, ...]) -> RunSummary | None:
    return summarise(run) if is_run(run) else None


def _live(template: str, facts: object, values: Callable[[], Mapping[str, Any]]) -> Response:
    """Return a page, or the part that the script refreshes: nothing, at little cost, if it has seen these facts."""
    tag, layout = hashlib.sha256(repr(facts).encode()).hexdigest(), "part" if "part" in request.args else "base"
    if layout == "part" and tag in request.if_none_match:
        return Response(status=304)
    response = Response(render_template(template, layout=f"{layout}.html.j2", **values()))
    response.set_etag(tag)
    return response


@PAGES.get("/")
def listing() -> Response:
    """Show the runs, those that were written last first."""
    results, number, running = settings().results, max(0, request.args.get("page", 0, int)), processes()
    begun = (path.parent for path in results.glob(f"*/{LOG}") if not path.parent.is_symlink())
    # A name that is not printable has no address.
    written = {run: _written(run) for run in {*find_runs([results]), *begun} if str(run).isprintable()}
    newest = sorted(written, key=lambda run: (max(written[run]), run), reverse=True)
    rows = {run: _controlled(run, running)[1] for run in newest[PER_PAGE * number : PER_PAGE * (number + 1)]}

    def values() -> Mapping[str, Any]:
        shown = [(run.relative_to(results), state, _summary(run, written[run])) for run, state in rows.items()]
        return {"rows": shown, "number": number, "pages": range(-(-len(newest) // PER_PAGE))}

    return _live("runs.html.j2", [(state, run, written[run]) for run, state in rows.items()], values)


@PAGES.get("/runs/<path:name>")
def one(name: str) -> Response:
    """Show a run: its state, counts, intervals so far and the end of its log."""
    run = located(name)
    directory, state = _controlled(run, processes())

    def values() -> Mapping[str, Any]:
        cell = (run.parent / SWEEP).is_file()
        described: dict[str, Any] = {"lines": [], "intervals": [], "problem": "", "log": None, "cell": cell}
        if (run / LOG).is_file():  # else no page has started it
            with open(run / LOG, "rb", opener=open_regular) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
                described["log"] = file.read(LOG_BYTES).decode(errors="replace")
        try:
            if is_run(run):
                described |= {"lines": [*run_lines(run)], "intervals": interval_texts(intervals_so_far(run))}
        except RequestError as error:
            described["problem"] = error.message
        return {"name": name, "run": str(run), "state": state, "sweep": directory == run.parent, **described}

    return _live("run.html.j2", (state, _written(run)), values)


@PAGES.post("/runs/<path:name>")
def control(name: str) -> AnyResponse:
    """Stop a run after its current trial, or cancel it as Ctrl-C does; with a cell its sweep."""
    running = processes()
    directory, _ = _controlled(located(name), running)
    if directory is None:
        raise RequestError(f"{name} does not run any more", remedy="load its page again")
    if request.form.get("action") == "cancel":
        running[directory].terminate()
    else:
        request_stop(directory)
    return redirect(url_for("runs.one", name=name), 303)


@PAGES.get("/compare")
def compare() -> str:
    return render_template("compare.html.j2", runs={name: located(name) for name in request.args.getlist("run")})


@PAGES.get("/report")
def report() -> Response:
    """Return the page that ``bench report`` writes of the chosen runs."""
    runs = [*map(located, request.args.getlist("run"))]
    if not runs:
        raise RequestError("no run is chosen", remedy="choose runs in the list")
    kept = KeptOutput(runs, {"command": "page"})
    with _DRAWING:
        if (printed := kept.read()) is None:
            # Here, since pandas and matplotlib take as long to import as everything else together.
            from commands.compare.show import report_of

            with tempfile.TemporaryDirectory() as directory:
                printed = [(0, report_of(runs, Path(directory) / "report.html").read_text())]
            kept.write(printed)
    return Response(printed[0][1], headers={"Content-Security-Policy": REPORT_POLICY})
