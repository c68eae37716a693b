"""Names the processes that take CPU time beside a job, by what the kernel counts of each that lives."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from provisioning.metrics.conditions import PROC, ticks_s
from suite.untrusted.parse import has_control_characters

MOST_NAMED = 3
_KERNEL = "2"
"""The process that starts the kernel's threads."""


class BusyProcess(NamedTuple):
    """A process by its number, its start and its name: never its command line, which may hold secrets."""

    pid: int
    start: str
    name: str


def used_s() -> dict[BusyProcess, float]:
    """Return the CPU seconds of every process that this user may see.

    Threads of the kernel are left out: they also work for the job.
    """
    used: dict[BusyProcess, float] = {}
    for place in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            # proc(5): pid (name) state ..., of which the name may hold anything.
            head, _, tail = (place / "stat").read_text(errors="replace").rpartition(")")
            name = head.partition("(")[2]
            words = tail.split()
            if words[1] != _KERNEL and not has_control_characters(name):
                process = BusyProcess(int(place.name), words[19], name)
                used[process] = ticks_s(int(words[11]) + int(words[12]))
    return used


def spent_s(before: Mapping[BusyProcess, float], after: Mapping[BusyProcess, float]) -> list[tuple[BusyProcess, float]]:
    """Return what each process has used between two readings, the busiest first, without those that were idle."""
    later = after.items()
    spent = ((process, seconds - before.get(process, 0.0)) for process, seconds in later)
    busy = (one for one in spent if one[1] > 0)
    return sorted(busy, key=lambda one: one[1], reverse=True)


def busiest(
    before: Mapping[BusyProcess, float],
    after: Mapping[BusyProcess, float],
    least_s: float,
    owns: Callable[[int], bool | None],
) -> dict[str, float] | None:
    """Return the CPU seconds of the names that used most and at least so much; None if no name did.

    ``owns`` returns whether a process belongs to the job or to the suite.
    """
    by_name: dict[str, float] = defaultdict(float)
    for process, seconds in spent_s(before, after):
        if seconds < least_s / 10:  # a name may stand for several
            break
        if not owns(process.pid):
            by_name[process.name] += seconds
    by_use = sorted(by_name, key=lambda name: by_name[name], reverse=True)
    most = by_use[:MOST_NAMED]
    named = {name: by_name[name] for name in most if by_name[name] >= least_s}
    return named or None
