"""Reports and answers that are made once, in the background, and kept."""

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from provisioning.paths import home, state
from suite import __version__
from suite.errors import RequestError
from suite.results import quality
from suite.results.files import read
from suite.results.store import PLAN, Run, write_atomic
from suite.selftest import certificate

MOST_KEPT = 500
"""The files of the cache; the oldest are removed."""
_MAKING: dict[Path, "Future[None]"] = {}
_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""One report at a time: matplotlib is not made for several threads. One answer at a time: it takes a CPU."""


def kept(kind: str, parts: Sequence[object], make: Callable[[], str] | None) -> str | None:
    """Return what was made of these parts by this suite; else have it made, and return None while it is not ready.

    Without ``make``, nothing is begun. Raises what making it has raised.
    """
    path = state("cache", "web") / f"{kind}-{hashlib.sha256(repr([__version__, *parts]).encode()).hexdigest()}"
    with suppress(FileNotFoundError):
        return read(path).decode()
    begun = _MAKING.get(path)
    if begun and begun.done():
        begun.result()
    elif make and not begun:
        _MAKING[path] = Future()
        threading.Thread(target=_made, args=(kind, path, make), daemon=True).start()
    return None


def _made(kind: str, path: Path, make: Callable[[], str]) -> None:
    try:
        with _TURNS[kind]:
            write_atomic(path, make())
            for old in sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime_ns)[:-MOST_KEPT]:
                old.unlink()
        del _MAKING[path]
    except Exception as error:  # noqa: BLE001 (raised where it is asked for)
        _MAKING[path].set_exception(error)


def digest(run: Path) -> str:
    """Return the digest of a run: where it is, its plan, records and quality, and the certificate of this machine."""
    content = hashlib.sha256(str(run).encode())
    for path in (run / PLAN, run / quality.FILE, home() / certificate.FILE, *Run(run).record_files()):
        with suppress(OSError):
            content.update(f"\n{path.name}\n".encode() + hashlib.sha256(read(path)).digest())
    return content.hexdigest()


def answer_of(run: Path) -> str:
    """Return subject, number and word of each comparison of a run, as JSON."""
    # Here, since pandas takes as long to import as everything else together.
    from analysis.audit.audit import audited
    from analysis.compare.comparison import compare
    from analysis.load.plans import margin_of
    from analysis.load.records import load
    from analysis.report.answers.answer import answer

    try:
        rows = answer(compare(audited(load([run])), margin=margin_of([run]))).rows
    except RequestError:  # the page of the comparison shows why
        rows = ()
    return json.dumps([(row.subject, row.number, row.word) for row in rows] or [("", "", "no answer")])
