"""The worker's arguments, and the part of the worker that each calls. Only the entry point imports this module."""

import sys
from collections.abc import Sequence

from worker.environment import attest
from worker.errors import FAILED, REQUEST, guarded
from worker.protocol import Events, take_stdout
from worker.spec import parse_spec


def main(argv: Sequence[str], *, started_s: float) -> int:
    """Run what the arguments ask for.

    Returns the exit status: 0, 1 when the job failed, 2 when it was asked for wrongly.
    """
    events = Events(take_stdout())
    match argv:
        case []:
            return _train(events, started_s)
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
    known = "--attest, --probe, --aggressor, --page-cache STATE DIRECTORY, --rank NUMBER PORT"
    events.error("request", f"unknown arguments {' '.join(argv)}; known are {known}")
    return REQUEST


def _arrange_page_cache(state: str, directory: str, events: Events) -> int:
    from worker.data.page_cache import arrange

    try:
        events.write(arrange(state, directory))
    except OSError as error:
        print(f"the data set cannot be read: {error}", file=sys.stderr)
        return FAILED
    return 0


def _train(events: Events, started_s: float) -> int:
    events.emit("started", t=started_s)

    def work() -> None:
        spec = parse_spec(sys.stdin.read())
        # Here and not above: the line that says the worker has started comes before torch is imported.
        from worker.training.job import run

        run(spec, events)

    return guarded(events, work)
