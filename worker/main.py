"""The worker's arguments, and the part of the worker that each calls. Only the entry point imports this module."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

from worker.environment import attest, collect, whole_usage
from worker.members import load_member
from worker.probes.probe import Probe, measured_in_turns
from worker.protocol import FAILED, REQUEST, Events, guarded, take_stdout
from worker.spec import (
    CommandRequest,
    LoadRequest,
    NullServerRequest,
    Request,
    ServerRequest,
    ServeSpec,
    parse_spec,
    parsed,
)


def main(argv: Sequence[str], *, started_s: float) -> int:
    """Run what the arguments ask for.

    Returns the exit status: 0, 1 when the job failed, 2 when it was asked for wrongly.
    """
    events = Events(take_stdout())
    started = partial(_started, events, started_s)
    match argv:
        case []:
            # One line: a job that takes turns reads further ones.
            return started(lambda: _train(sys.stdin.readline(), events))
        case ["--attest"]:
            events.write(attest())
            return 0
        case ["--probe"]:
            return started(lambda: _probe(events))
        case ["--aggressor"]:
            from worker.aggressors import aggressor

            return aggressor.main(events, started_s)
        case ["--command"]:
            from worker.command import run

            # One line: a command that takes turns reads further ones.
            return started(lambda: run(parsed(CommandRequest, sys.stdin.readline()), events, sys.stdin))
        case ["--train", spec]:
            return started(lambda: _train(spec, events))
        case ["--serve"]:
            # One line: the next one ends it.
            return started(lambda: _serve(sys.stdin.readline(), events, sys.stdin.readline))
        case ["--serve", spec]:
            told = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: told.set())
            return started(lambda: _serve(spec, events, told.wait))
        case ["--load" | "--server" | "--null-server" as part]:
            return started(lambda: _serve_own(part, events))
        case ["--page-cache", "cold" | "warm" | "empty" as state, directory, *others]:
            return _arrange_page_cache(state, directory, others, events)
        case ["--rank", rank, port]:
            from worker.training.ddp import run_rank

            return run_rank(parse_spec(sys.stdin.read()), int(rank), int(port))
    known = "--attest, --probe, --aggressor, --command, --train SPEC, --serve [SPEC], --load"
    known += ", --server, --null-server"
    known += ", --page-cache STATE DIRECTORY [FURTHER], --rank NUMBER PORT"
    events.error("request", f"unknown arguments {' '.join(argv)}; known are {known}")
    return REQUEST


def _serve_own(part: str, events: Events) -> None:
    """Run the load generator, a server of the user's own, or the one that answers at once: a line ends the latter."""
    from worker.serving import load, null_server, own_server

    if part == "--load":
        load.run(parsed(LoadRequest, sys.stdin.read()), events)
    elif part == "--server":
        own_server.run(parsed(ServerRequest, _one_line()), events)
    else:
        null_server.run(parsed(NullServerRequest, _one_line()), events, _one_line)


def _one_line() -> str:
    """Read a line of standard input and nothing after it, which a buffer would hide from ``select``."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line.decode()


def _started(events: Events, started_s: float, work: Callable[[], None]) -> int:
    events.emit("started", t=started_s)
    return guarded(events, work)


def _arrange_page_cache(state: str, directory: str, others: Sequence[str], events: Events) -> int:
    from worker.data.page_cache import arrange, empty

    try:
        events.write(empty(directory, others) if state == "empty" else arrange(state, directory))
    except OSError as error:
        print(f"the data set cannot be read: {error}", file=sys.stderr)
        return FAILED
    return 0


def _train(text: str, events: Events) -> None:
    spec = parse_spec(text)
    # Here and not above: the line that says the worker has started comes before torch is imported.
    from worker.training.job import run

    run(spec, events)


def _serve(text: str, events: Events, wait: Callable[[], object]) -> None:
    from worker.serving.service import run

    run(parsed(ServeSpec, text), events, wait)


def _probe(events: Events) -> None:
    # One line: a probe that takes turns reads further ones.
    request = parsed(Request, sys.stdin.readline())
    probe = load_member("member", request.member, request.plugin, Probe)
    facts: dict[str, object] = {}
    if probe.computes:
        # Here and not above: it imports torch, which the other probes do without.
        from worker.training.device import prepare

        facts = prepare(request.threads, request.device)
    facts_of_machine = {**collect(), "threads": request.threads, **facts}
    events.emit("environment", environment=facts_of_machine)
    if request.turns:
        measured = measured_in_turns(probe, request, request.turns, events, sys.stdin)
    else:
        measured = probe.measure(request)
    events.emit("metrics", metrics=measured.columns(), details=measured.details)
    events.emit("done", usage=whole_usage())
