"""The worker's flow: read the specification, import torch, run the job, or say why not."""

import sys
import traceback
from collections.abc import Sequence

from worker.attest import attest
from worker.errors import JobError
from worker.protocol import Events, take_stdout
from worker.spec import SpecError, parse_spec

FAILED, REQUEST = 1, 2


def main(argv: Sequence[str], *, started_s: float) -> int:
    """Returns the exit status: 0, 1 when the job failed, 2 when it was asked for wrongly."""
    events = Events(take_stdout())
    match argv:
        case []:
            return _job(events, started_s)
        case ["--attest"]:
            events.write(attest())
            return 0
        case ["--probe"]:
            from worker.probes import program

            return program.main(events, started_s)
        case ["--aggressor"]:
            from worker.aggressors import program as aggressor

            return aggressor.main(events, started_s)
        case ["--page-cache", "cold" | "warm" as state, directory]:
            return _arrange_page_cache(state, directory, events)
        case ["--rank", rank, port]:
            from worker.training.ddp import run_rank

            return run_rank(parse_spec(sys.stdin.read()), int(rank), int(port))
    events.error("request", f"unknown arguments {' '.join(argv)}; known is --attest")
    return REQUEST


def _arrange_page_cache(state: str, directory: str, events: Events) -> int:
    from worker.data.page_cache import arrange

    try:
        events.write(arrange(state, directory))
    except OSError as error:
        print(f"the data set cannot be read: {error}", file=sys.stderr)
        return FAILED
    return 0


def _job(events: Events, started_s: float) -> int:
    events.emit("started", t=started_s)
    try:
        spec = parse_spec(sys.stdin.read())
    except SpecError as error:
        events.error("request", str(error))
        return REQUEST
    try:
        # Here and not above: the line that says the worker has started comes before torch is imported.
        from worker.training.job import run

        run(spec, events)
    except JobError as error:
        events.error(error.kind, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the record
        traceback.print_exc()
        events.error(kind_of(error), f"{type(error).__name__}: {error}")
    else:
        return 0
    return FAILED


def kind_of(error: Exception) -> str:
    """torch has a type for a GPU that is full only; that the host's memory is, it says in words."""
    if isinstance(error, ImportError):
        return "import"
    said = str(error).lower()
    full = isinstance(error, MemoryError) or "can't allocate memory" in said or "not enough memory" in said
    return "out-of-memory" if full or type(error).__name__ == "OutOfMemoryError" else "exception"
