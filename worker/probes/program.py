"""The flow of one probe: read the request, say where it runs, measure, or say why not."""

import sys
import traceback
from collections.abc import Callable

from worker import environment
from worker.errors import JobError
from worker.main import FAILED, REQUEST, kind_of
from worker.probes.reading import Measured, ProbeError
from worker.probes.request import Request, parse_request
from worker.protocol import Events
from worker.spec import SpecError
from worker.usage import whole_usage


def main(events: Events, started_s: float) -> int:
    """Returns the exit status, as that of a training job."""
    events.emit("started", t=started_s)
    return guarded(events, lambda: run(parse_request(sys.stdin.read()), events))


def guarded(events: Events, work: Callable[[], None]) -> int:
    """Do the work; whatever it fails by becomes an event and an exit status."""
    try:
        work()
    except SpecError as error:
        events.error("request", str(error))
        return REQUEST
    except ProbeError as error:
        events.emit("error", kind=error.kind, message=str(error), remedy=error.remedy)
    except JobError as error:
        events.error(error.kind, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the record
        traceback.print_exc()
        events.error(kind_of(error), f"{type(error).__name__}: {error}")
    else:
        return 0
    return FAILED


def run(request: Request, events: Events) -> None:
    """Emit everything from ``environment`` to ``done``. Raises JobError."""
    measure, facts = _chosen(request)
    events.emit("environment", environment={**environment.collect(), "threads": request.threads, **facts})
    measured = measure(request)
    events.emit("metrics", metrics=measured.columns(), details=measured.details)
    events.emit("done", usage=whole_usage())


def _chosen(request: Request) -> tuple[Callable[[Request], Measured], dict[str, object]]:
    """What measures, and the facts of torch where it needs torch. Each is imported for its own probe alone."""
    match request.probe:
        case "disk":
            from worker.probes import disk

            return disk.measure, {}
        case "network":
            from worker.probes import network

            return network.measure, {}
        case "syscall":
            from worker.probes import syscalls

            return syscalls.measure, {}
        case "memory":
            from worker.probes import memory, threads

            return memory.measure, threads.prepare(request)
    from worker.probes import cpu, threads

    return cpu.measure, threads.prepare(request)
