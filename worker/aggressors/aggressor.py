"""An aggressor: the worker as the neighbour that loads the machine until SIGTERM.

The host reads declarations, and has no torch: an aggressor that needs torch imports it inside its functions, which run
in the target alone. An aggressor of another package is one module, of which the text is sent into the target.

Events: ``started`` (with the number of the process as it sees it), ``environment``, ``measuring``, ``progress`` again
and again, ``measured`` after the step in which the signal came, ``done``.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from worker.environment import collect, whole_usage
from worker.members import load_member
from worker.probes.probe import writes_nothing
from worker.protocol import Events, SpecError, guarded
from worker.spec import AggressorRequest, Request, Spec, check, parsed

REPORT_EVERY_S = 0.25
"""More often would load the host's CPUs with listening; every step that takes longer is reported."""


@dataclass(frozen=True)
class AggressorLoad:
    """The work of an aggressor, one step after the other.

    ``step`` takes one step and returns the work that it did, in ``unit``; None where the place cannot tell.
    """

    unit: str
    step: Callable[[], float | None]
    facts: Mapping[str, object] = field(default_factory=dict)
    """What torch says of itself, as fields of ``records.Environment``; empty where torch has no part in it."""


@dataclass(frozen=True)
class Aggressor:
    """The declaration of an aggressor. ``opened`` gives the load, and ends it with the block."""

    name: str
    opened: Callable[[Request], AbstractContextManager[AggressorLoad]]
    written_bytes: Callable[[str], int | None] = writes_nothing
    """How many bytes it writes to the data disk, by the profile; see ``worker.probes.probe.Probe``."""


def main(events: Events, started_s: float) -> int:
    """Load the machine as standard input asks. Returns the exit status, as that of a training job."""
    signals: list[int] = []  # SIGTERM is caught before the host learns which process to send it to
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    events.emit("started", t=started_s, pid=os.getpid())
    return guarded(events, lambda: run(parse(sys.stdin.read()), events, signals))


def run(request: Spec | Request, events: Events, signals: Sequence[int]) -> None:
    """Emit everything from ``environment`` to ``done``; stop once there are ``signals``. Raises JobError."""
    if isinstance(request, Spec):
        opened: AbstractContextManager[AggressorLoad] = trained(request)
    else:
        opened = load_member("member", request.member, request.plugin, Aggressor).opened(request)
    with opened as load:
        events.emit("environment", environment={**collect(), "threads": request.threads, **load.facts})
        load.step()  # the first one pays for what the others find ready
        events.emit("measuring", unit=load.unit)
        steps, work = _until_signal(load, events, signals)
        events.emit("measured", steps=steps, work=work)
    events.emit("done", usage=whole_usage())


def _until_signal(load: AggressorLoad, events: Events, signals: Sequence[int]) -> tuple[int, float | None]:
    """Return the steps taken and the work done; None for work that the place cannot tell."""
    steps = 0
    reported_s = time.monotonic()
    work: float | None = 0.0
    while not signals:
        done = load.step()
        steps += 1
        work = None if work is None or done is None else work + done
        now_s = time.monotonic()
        if now_s - reported_s >= REPORT_EVERY_S:
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


@contextmanager
def trained(spec: Spec) -> Iterator[AggressorLoad]:
    """Train; a step is one of the training, and its work is in images."""
    # Here and not above: they import torch, which an aggressor that is a program does without.
    from worker.training.build import build_trainer, opened_batches
    from worker.training.device import numerics_of, open_devices, prepare, torchvision_version
    from worker.training.step import Samples

    numerics_of(spec.recipe, spec.device).apply()
    facts = prepare(spec.threads, spec.device)
    devices = open_devices(spec.device, spec.devices)
    with opened_batches(spec) as batches:
        trainer = build_trainer(spec, devices, batches)
        samples = Samples.allocate(1, trainer.phases, trainer.parts)

        def step() -> float:
            trainer.step(samples, 0)
            return spec.batch * spec.devices

        yield AggressorLoad(spec.load_workload().unit, step, {**facts, "torchvision": torchvision_version()})
