"""The pages of runs: all of them, one with its state, ratios and log, the report of several, and the end of one."""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from commands.results.command import refuse_to_remove
from commands.results.show import run_lines
from commands.run.outlook import intervals_so_far
from commands.web.app import settings
from commands.web.kept import answer_of, digest, digest_at, kept
from commands.web.states import WORDS, facts, processes, state_of, written
from suite.errors import RequestError
from suite.process_identity import ProcessIdentity
from suite.results.runs import SWEEP, find_runs, is_run
from suite.results.store import LOG, TRIALS, request_stop, stored_plan

PAGES = Blueprint("runs", __name__)
PER_PAGE = 50
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
_FARTHEST = 4.0
"""The axis of ratios ends at this factor beyond the outermost one."""


def located(name: str) -> Path:
    """Return the directory of a run by its path below the results. What is not there, and links, are 404."""
    run, parts = settings().results, name.split("/")
    inside = [run := run / part for part in parts]
    links = any(path.is_symlink() for path in (*inside, run / TRIALS))
    if links or {"", ".", ".."} & {*parts} or not (is_run(run) or (run / LOG).is_file()):
        abort(404, f"there is no run {name}")
    return run


def _live(template: str, shown: object, values: Callable[[], Mapping[str, Any]]) -> Response:
    """Return a page, or the part that the script refreshes: nothing, at little cost, if it has what is ``shown``."""
    tag, layout = hashlib.sha256(repr(shown).encode()).hexdigest(), "part" if "part" in request.args else "base"
    if layout == "part" and tag in request.if_none_match:
        return Response(status=304)
    response = Response(render_template(template, layout=f"{layout}.html.j2", **values()))
    response.set_etag(tag)
    return response


def _answers(run: Path, running: Mapping[Path, ProcessIdentity]) -> Sequence[Sequence[str]]:
    """Return subject, number and word of each comparison of a run; none while they are not ready, or it runs.

    They are made while nothing is measured: that takes a CPU.
    """
    if state_of(run, running).word not in ("finished", "stopped", "cancelled", "failed"):
        return ()
    make = None if running else lambda: answer_of(run)
    return json.loads(kept("answer", [digest_at(run, written(run))], make) or "[]")


@PAGES.get("/")
def listing(*, choosing: bool = False) -> Response:
    """Show the runs as the address sorts and filters them; those that were written last come first."""
    results, running, query = settings().results, processes(), request.args
    begun = (path.parent for path in results.glob(f"*/{LOG}") if not path.parent.is_symlink())
    # A name that is not printable has no address.
    times = {run: max(written(run)) for run in {*find_runs([results]), *begun} if str(run).isprintable()}
    orders: Mapping[str, Callable[[Path], Any]] = {
        "run": lambda run: str(run),
        "state": lambda run: WORDS.index(state_of(run, running).word),
        "targets": lambda run: _targets(run),
    }
    sort, word, number = query.get("sort", "date"), query.get("state", ""), max(0, query.get("page", 0, int))
    chosen = sorted(times, key=lambda run: (times[run], run), reverse=True)
    if word in WORDS:
        chosen = [run for run in chosen if state_of(run, running).word == word]
    if sort in orders:
        chosen.sort(key=orders[sort])
    page = chosen[PER_PAGE * number : PER_PAGE * (number + 1)]
    rows = [(run, state_of(run, running), _answers(run, running), facts(run, written(run)).summary) for run in page]
    pages = range(-(-len(chosen) // PER_PAGE))

    def values() -> Mapping[str, Any]:
        shown = [(run.relative_to(results), *row) for run, *row in rows]
        place = {"sort": sort, "state": word, "number": number, "pages": pages, "words": WORDS, "choosing": choosing}
        return {"rows": shown, **place}

    return _live("runs.html.j2", rows, values)


def _targets(run: Path) -> tuple[str, ...]:
    summary = facts(run, written(run)).summary
    return summary.targets if summary else ()


@PAGES.get("/runs/<path:name>")
def one(name: str) -> Response:
    """Show a run: its state and progress, ratios, the end of its log, and its facts."""
    run, running = located(name), processes()
    state, answers, times = state_of(run, running), _answers(run, running), written(run)

    def values() -> Mapping[str, Any]:
        about, cell = facts(run, times), (run.parent / SWEEP).is_file()
        described: dict[str, Any] = {"lines": [], "forest": [], "problem": "", "again": {}}
        try:
            if is_run(run):
                described |= {"lines": [*run_lines(run)], "forest": _forest(run, times), "again": _again(run)}
        except RequestError as error:
            described["problem"] = error.message
        sweep = state.directory == run.parent
        return {"name": name, "run": run, "state": state, "about": about, "answers": answers, "cell": cell} | {
            "sweep": sweep,
            **described,
        }

    return _live("run.html.j2", (state, times, answers), values)


def _again(run: Path) -> Mapping[str, Any]:
    """Return the fields of the form that starts such a run again."""
    asked = stored_plan(run).request
    return {name: "on" if value is True else value for name, value in asked.given().items()} if asked else {}


@lru_cache(maxsize=256)
def _forest(run: Path, _written: tuple[int, ...]) -> list[tuple[str, str, tuple[float, ...]]]:
    """Return each ratio so far, as text, and where low end, ratio, high end and bare metal are on the axis, in %."""
    ratios = intervals_so_far(run)
    centres = [1.0, *(centre for centre, _, _ in ratios.values())]
    least, most = min(centres) / _FARTHEST, max(centres) * _FARTHEST
    least = max(least, min([0.8, *(low for _, low, _ in ratios.values())]))
    most = min(most, max([1.25, *(high for _, _, high in ratios.values())]))

    def share(value: float) -> float:
        return round(2 + 96 * math.log(min(max(value, least), most) / least) / math.log(most / least), 1)

    return [
        (name, f"{centre:.3f} ({low:.3f} to {high:.3f})", tuple(map(share, (low, centre, high, 1.0))))
        for name, (centre, low, high) in ratios.items()
    ]


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


@PAGES.get("/delete/<path:name>")
def ask(name: str) -> str:
    """Ask whether a run is to be deleted."""
    refuse_to_remove(run := located(name))
    return render_template("delete.html.j2", name=name, summary=facts(run, written(run)).summary)


@PAGES.post("/delete/<path:name>")
def delete(name: str) -> AnyResponse:
    """Delete a run with all of its files."""
    refuse_to_remove(run := located(name))
    shutil.rmtree(run)
    return redirect(url_for("runs.listing"), 303)


def _report(runs: Sequence[Path]) -> str | None:
    """Return the page that ``bench report`` writes of runs; None while it is being drawn. Raises RequestError."""

    def draw() -> str:
        # Here, since pandas and matplotlib take as long to import as everything else together.
        from commands.compare.command import report_of

        with tempfile.TemporaryDirectory() as directory:
            return report_of(runs, Path(directory) / "report.html").read_text()

    return kept("report", [*map(digest, runs)], draw)


@PAGES.get("/compare")
def compare() -> Response:
    """Show the report of the chosen runs, or that it is being drawn, or why it cannot be; or the runs to choose."""
    runs: Mapping[str, Path] = {name: located(name) for name in request.args.getlist("run")}
    if not runs:
        return listing(choosing=True)
    problem, ready = None, False
    try:
        ready = _report([*runs.values()]) is not None
    except RequestError as error:
        problem = error
    return _live("compare.html.j2", (ready, problem), lambda: {"runs": runs, "ready": ready, "problem": problem})


@PAGES.get("/report")
def report() -> AnyResponse:
    """Return the report of the chosen runs, or with ``save`` as a file."""
    names = request.args.getlist("run")
    if not names:
        raise RequestError("no run is named", remedy="choose runs in the list")
    if (page := _report([*map(located, names)])) is None:
        return redirect(url_for("runs.compare", run=names), 303)
    response = Response(page, headers={"Content-Security-Policy": REPORT_POLICY})
    if "save" in request.args:
        response.headers.set("Content-Disposition", "attachment", filename=f"{Path(names[0]).name}.html")
    return response
