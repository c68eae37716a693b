"""The flow of one probe: read the request, say where it runs, measure, or say why not."""

import sys

from worker import environment
from worker.errors import guarded
from worker.members import load_member
from worker.probes.probe import Probe
from worker.probes.request import Request, parse_request
from worker.protocol import Events
from worker.usage import whole_usage


def main(events: Events, started_s: float) -> int:
    """Run the probe that standard input asks for. Returns the exit status, as that of a training job."""
    events.emit("started", t=started_s)
    return guarded(events, lambda: run(parse_request(sys.stdin.read()), events))


def run(request: Request, events: Events) -> None:
    """Emit everything from ``environment`` to ``done``. Raises SpecError and JobError."""
    probe = load_member("member", request.member, request.plugin, Probe)
    facts: dict[str, object] = {}
    if probe.computes:
        # Here and not above: it imports torch, which the other probes do without.
        from worker.probes.threads import prepare

        facts = prepare(request)
    events.emit("environment", environment={**environment.collect(), "threads": request.threads, **facts})
    measured = probe.measure(request)
    events.emit("metrics", metrics=measured.columns(), details=measured.details)
    events.emit("done", usage=whole_usage())
