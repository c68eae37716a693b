"""The worker's arguments, and the part of the worker that each calls. Only the entry point imports this module."""

import sys
from collections.abc import Sequence

from worker.environment import attest, collect
from worker.errors import FAILED, REQUEST, guarded
from worker.members import load_member
from worker.probes.probe import Probe
from worker.protocol import Events, take_stdout
from worker.spec import parse_command, parse_request, parse_spec
from worker.usage import whole_usage


def main(argv: Sequence[str], *, started_s: float) -> int:
    """Run what the arguments ask for.

    Returns the exit status: 0, 1 when the job failed, 2 when it was asked for wrongly.
    """
    events = Events(take_stdout())
    match argv:
        case []:
            events.emit("started", t=started_s)
            return guarded(events, lambda: _train(events))
        case ["--attest"]:
            events.write(attest())
            return 0
        case ["--probe"]:
            events.emit("started", t=started_s)
            return guarded(events, lambda: _probe(events))
        case ["--aggressor"]:
            from worker.aggressors import program as aggressor

            return aggressor.main(events, started_s)
        case ["--command"]:
            from worker.command import run

            events.emit("started", t=started_s)
            return guarded(events, lambda: run(parse_command(sys.stdin.read()), events))
        case ["--page-cache", "cold" | "warm" as state, directory]:
            return _arrange_page_cache(state, directory, events)
        case ["--rank", rank, port]:
            from worker.training.ddp import run_rank

            return run_rank(parse_spec(sys.stdin.read()), int(rank), int(port))
    known = "--attest, --probe, --aggressor, --command, --page-cache STATE DIRECTORY, --rank NUMBER PORT"
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


def _train(events: Events) -> None:
    # One line: a job that takes turns reads further ones.
    spec = parse_spec(sys.stdin.readline())
    # Here and not above: the line that says the worker has started comes before torch is imported.
    from worker.training.job import run

    run(spec, events)


def _probe(events: Events) -> None:
    request = parse_request(sys.stdin.read())
    probe = load_member("member", request.member, request.plugin, Probe)
    facts: dict[str, object] = {}
    if probe.computes:
        # Here and not above: it imports torch, which the other probes do without.
        from worker.training.device import prepare

        facts = prepare(request.threads, request.device)
    events.emit("environment", environment={**collect(), "threads": request.threads, **facts})
    measured = probe.measure(request)
    events.emit("metrics", metrics=measured.columns(), details=measured.details)
    events.emit("done", usage=whole_usage())
