"""The flow of an aggressor: get ready, say so, then step after step until SIGTERM, telling now and then how far it is.

Events: ``started`` (with the process's number in its own place), ``environment``, ``measuring``, ``progress`` again and
again, ``measured`` after the step in which the signal came, ``done``.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from worker import environment
from worker.aggressors.aggressor import Aggressor, AggressorLoad
from worker.errors import SpecError, guarded
from worker.members import load_member
from worker.protocol import Events
from worker.spec import AggressorRequest, Request, Spec, check, parsed
from worker.usage import whole_usage

REPORT_EVERY_S = 0.25
"""More often would load the host's CPUs with listening; every step that takes longer is reported."""


def main(events: Events, started_s: float) -> int:
    """Load the machine as standard input asks. Returns the exit status, as that of a training job."""
    told: list[int] = []  # SIGTERM is caught before the host learns which process to send it to
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    events.emit("started", t=started_s, pid=os.getpid())
    return guarded(events, lambda: run(parse(sys.stdin.read()), events, told))


def run(asked: Spec | Request, events: Events, told: Sequence[int]) -> None:
    """Emit everything from ``environment`` to ``done``; ``told`` is empty until it has to stop. Raises JobError."""
    with _opened(asked) as load:
        threads = {"threads": asked.threads}
        events.emit("environment", environment={**environment.collect(), **threads, **load.facts})
        load.step()  # the first one pays for what the others find ready
        events.emit("measuring", unit=load.unit)
        steps, work = _until_told(load, events, told)
        events.emit("measured", steps=steps, work=work)
    events.emit("done", usage=whole_usage())


def _until_told(load: AggressorLoad, events: Events, told: Sequence[int]) -> tuple[int, float | None]:
    """Return the steps taken and the work done; None for work that the place cannot tell."""
    steps, reported_s = 0, time.monotonic()
    work: float | None = 0.0
    while not told:
        done = load.step()
        steps += 1
        work = None if work is None or done is None else work + done
        if (now_s := time.monotonic()) - reported_s >= REPORT_EVERY_S:
            events.emit("progress", t=now_s, steps=steps, work=work)
            reported_s = now_s
    return steps, work


def parse(text: str) -> Spec | Request:
    """Return what ``{"training": {...}}`` or ``{"aggressor": {...}}`` asks for. Raises SpecError."""
    work = parsed(AggressorRequest, text).work
    if isinstance(work, Spec):
        check(work)
        if work.data or work.distributed or work.parallel == "ddp":
            raise SpecError("an aggressor trains on drawn data in one process: no data, no distributed job, no ddp")
    return work


def _opened(asked: Spec | Request) -> AbstractContextManager[AggressorLoad]:
    if isinstance(asked, Spec):
        # Here and not above: it imports torch, which an aggressor that is a program does without.
        from worker.aggressors import training

        return training.opened(asked)
    return load_member("member", asked.member, asked.plugin, Aggressor).opened(asked)
