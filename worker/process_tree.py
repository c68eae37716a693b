"""The processes that a program of the user's own consists of: listed, stopped, and let run on."""

import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from worker.environment import read
from worker.protocol import JobError

STOPS_WITHIN_S = 5.0
LOOK_S = 0.0005
LOOKS = 4
_ENDED = ("Z", "X")
_STOPPED = ("T", "t", *_ENDED)
_RUNNABLE = "R"
_IN_KERNEL = "D"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def descendants() -> list[int]:
    """Return the processes that come from this one and still run, by their parent or the session that it leads.

    gVisor knows no subreaper: there an orphan becomes a child of the first process.
    """
    above: dict[int, set[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        fields = _fields(f"proc/{pid}/stat")
        if fields and fields[0] not in _ENDED:
            _, parent, _, session = fields[:4]
            above[int(pid)] = {parent, session}
    tree = [os.getpid()]
    for member in tree:
        tree += [pid for pid, ids in above.items() if str(member) in ids and pid not in tree]
    return tree[1:]


def process_tree() -> list[int]:
    """Return the same as ``descendants``, without scanning other processes where the kernel lists children."""
    if not Path("/proc/thread-self/children").exists():
        return descendants()
    tree = [os.getpid()]
    for member in tree:
        tree += _children(member)
    return tree[1:]


def live_children() -> set[int]:
    """Return the processes that this one has started and that have not ended; none if the kernel lists no children."""
    live = set[int]()
    for child in _children(os.getpid()):
        fields = _fields(f"proc/{child}/stat")
        if fields and fields[0] not in _ENDED:
            live.add(child)
    return live


def stop() -> float:
    """Stop the processes, and those that they start meanwhile. Returns the moment. Raises JobError if one runs on."""
    begin_s = stopped_s = time.monotonic()
    signalled = set[int]()
    running = process_tree()
    while running:
        _signal(running, signal.SIGSTOP)
        stopped_s = time.monotonic()
        signalled.update(running)
        if stopped_s - begin_s > STOPS_WITHIN_S:
            raise JobError(f"{len(running)} processes of the command cannot be stopped", kind="command")
        time.sleep(LOOK_S)
        running = [pid for pid in process_tree() if not _is_stopped(pid, is_signalled=pid in signalled)]
    return stopped_s


def resume() -> None:
    """Resume all processes."""
    _signal(process_tree(), signal.SIGCONT)


def is_waiting() -> bool:
    """Return whether none of the processes' threads computes, or could if it had a CPU.

    Two that take turns may each be read while the other computes, and one that starts another waits until it is listed:
    so it is looked at several times.
    """
    return not any(_is_runnable(process_tree()) for _ in range(LOOKS))


def usage() -> dict[str, float]:
    """Return the CPU time and the faults of this process and of all that come from it, ended or not."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    user_s = sum(part.ru_utime for part in parts)
    system_s = sum(part.ru_stime for part in parts)
    faults = sum(part.ru_minflt for part in parts)
    for pid in process_tree():
        # Those of its children that have ended are in every second number.
        fields = _fields(f"proc/{pid}/stat")[7:15]
        own_faults, childrens_faults, _, _, user, system, childrens_user, childrens_system = map(int, fields or "0" * 8)
        faults += own_faults + childrens_faults
        user_s += (user + childrens_user) / _TICKS_PER_S
        system_s += (system + childrens_system) / _TICKS_PER_S
    return {"user_s": user_s, "system_s": system_s, "minor_faults": faults}


def _is_runnable(tree: Iterable[int]) -> bool:
    return any(_RUNNABLE in _states(pid) for pid in tree)


def _is_stopped(pid: int, *, is_signalled: bool) -> bool:
    """Return whether no thread of a process runs.

    What sleeps in the kernel takes the signal when it wakes, before anything else. A parent in vfork does only after
    its child has gone on, which may be stopped.
    """
    stopped = (*_STOPPED, _IN_KERNEL) if is_signalled else _STOPPED
    return all(state in stopped for state in _states(pid))


def _states(pid: int) -> set[str]:
    """Return the states of the threads of a process; none if it has ended."""
    states = set[str]()
    for task in _tasks(pid):
        fields = _fields(f"{task}/stat")
        if fields:
            states.add(fields[0])
    return states


def _children(pid: int) -> Iterator[int]:
    for task in _tasks(pid):
        yield from map(int, (read(f"{task}/children") or "").split())


def _tasks(pid: int) -> list[str]:
    """Return the directories of the threads of a process; none if it has ended."""
    directory = f"/proc/{pid}/task"
    with suppress(OSError):
        return [f"{directory}/{name}" for name in os.listdir(directory)]
    return []


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):  # it has ended, or may not be signalled and will be found running
            os.kill(pid, number)


def _fields(stat: str) -> list[str]:
    """Return the fields of a file of the kernel after the name of the program; none if it has ended."""
    return (read(stat) or "").rpartition(")")[2].split()
