"""Other work on the CPUs of a run: another bench, which is refused, and any load, which is told."""

import errno
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from provisioning import ledger
from provisioning.metrics.conditions import MOST_NAMED, EnvelopeHost, spent_s, used_s
from suite.errors import BenchError, RequestError, option
from suite.interfaces import Note
from suite.job.envelope import format_cpu_list
from suite.results.store import Run
from suite.sweep.estimate import durations_below
from suite.units import format_duration

Busy = Literal["share", "wait"]
"""Measure although another bench measures on the same CPUs, or wait until it has ended."""
NAME = "virtbench-cpu"
"""The name of a lock: an abstract socket (unix(7)) ends with its process, and all users of a machine see it."""
LOOK_S = 0.5
LOOKS = 120
"""How often a lock is looked at, and the looks between two enquiries who holds it: these can take a look at every
process, which would disturb what is waited for."""
MOST_LOAD = 0.05
"""The share of the CPUs that other work may take before it is told."""


@contextmanager
def alone_on(cpus: Sequence[int], note: Note, busy: Busy | None = None) -> Iterator[None]:
    """Hold the CPUs against other benches, and tell what else runs on them.

    If another bench of this user or of root measures on one of them, ``busy`` says what to do; by default RequestError
    is raised. Locks of other users are only told: anybody can take the name of a lock and keep it.
    """
    with ExitStack() as stack:
        holders = _hold(stack, cpus)
        waited_for = None
        while busy == "wait" and (conflict := _conflict(holders)):
            stack.close()  # else two that wait could hold what the other needs
            if conflict != waited_for:
                note(f"waiting: {conflict}{_time_left(holders)}")
            waited_for = conflict
            _wait_for(cpu for held in holders.values() for cpu in held)
            holders = _hold(stack, cpus)
        if not busy and (conflict := _conflict(holders)):
            raise RequestError(
                f"{conflict} now: two runs on the same CPUs disturb each other",
                remedy=f"give --wait, choose others with {option('cpus')}, or give --concurrent to run all the same",
            )
        for holder, shared in holders.items():
            note(f"{holder.name} measures on CPUs {format_cpu_list(shared)}, too: the two disturb each other")
        if cpus and not holders and (load := _load(cpus)):
            note(load)
        yield


class _Holder(NamedTuple):
    """Who holds a lock, and whether it is this user or root."""

    name: str
    believed: bool
    pid: int | None = None


def _hold(stack: ExitStack, cpus: Sequence[int]) -> Mapping[_Holder, list[int]]:
    """Hold the CPUs until the stack is closed; return those that others hold."""
    holders: dict[_Holder, list[int]] = {}
    for cpu in cpus:
        holder = _held(stack, cpu)
        if holder is not None:
            holders.setdefault(holder, []).append(cpu)
    return holders


def _conflict(holders: Mapping[_Holder, list[int]]) -> str:
    believed = ((who.name, cpus) for who, cpus in holders.items() if who.believed)
    return next((f"{name} measures on CPUs {format_cpu_list(cpus)}" for name, cpus in believed), "")


def _held(stack: ExitStack, cpu: int) -> _Holder | None:
    """Hold one CPU until the stack is closed; return who holds it already, None if nobody does."""
    address = _address(cpu)
    lock = stack.enter_context(socket.socket(socket.AF_UNIX))
    try:
        lock.bind(address)
        lock.listen()  # so that another process can ask who this is
    except OSError:
        return _holder(address)
    return None


def _address(cpu: int) -> str:
    return f"\0{NAME}-{cpu}"


def _wait_for(cpus: Iterable[int]) -> None:
    """Wait until the CPUs are free, or it is time to ask again who holds them."""
    held = [*cpus]
    for _ in range(LOOKS):
        time.sleep(LOOK_S)
        if all(map(_is_free, held)):
            return


def _is_free(cpu: int) -> bool:
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(_address(cpu))
        except OSError:
            return False
    return True


def _holder(address: str) -> _Holder:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.setblocking(False)
            asking.connect(address)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, user, _ = struct.unpack("3i", credentials)
        except OSError as error:
            # Every enquiry stays in the queue of one that measures: when it is full, the lock is held all the same.
            listens = error.errno == errno.EAGAIN
            owner = _owner(address) if listens else None
            if owner is None:  # root's from a user's view, or it has just ended, or it does not listen, as a bench does
                return _Holder("another bench" if listens else "a process that does not answer", believed=listens)
            pid, user = owner
    if user not in (0, os.geteuid()):
        return _Holder(f"process {pid} of the user {user}, it says,", believed=False)
    with suppress(OSError):  # it has just ended, or its file system is not seen from here
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        # The interpreter and the program without their directories.
        names = (Path(word).name for word in words[:2])
        command = " ".join([*names, *words[2:]])
        command = re.sub(r"[^ -~]", "?", command.strip())
        return _Holder(f"process {pid} ({command[:60]})", believed=True, pid=pid)
    return _Holder("another bench", believed=True)


def _owner(address: str) -> tuple[int, int] | None:
    """Return the process that has a socket of this name, and its user; None if it is not one that this user sees."""
    for connection in psutil.net_connections("unix"):
        if str(connection.laddr) == address.replace("\0", "@") and connection.pid:
            with suppress(psutil.Error):  # it has just ended
                return connection.pid, psutil.Process(connection.pid).uids().effective
    return None


def _time_left(holders: Iterable[_Holder]) -> str:
    """Return how long the run of a holder still takes, by its plan and records; empty if that is unknown."""
    pids = {who.pid for who in holders if who.believed}
    living = ledger.living()
    entries = (entry for entry in living if entry.kind == "run-directory" and entry.owner.pid in pids)
    remaining = (_left_of(Run(Path(entry.what))) for entry in entries)
    return next(filter(None, remaining), "")


def _left_of(store: Run) -> str:
    with suppress(BenchError, OSError):
        plan = store.plan()
        if plan:
            finished = set(store.finished())
            left = [trial for trial in plan.trials() if trial.trial_id not in finished]
            about = "at least" if plan.request and plan.request.repetitions.open_ended else "about"
            return f", for {about} {format_duration(durations_below(store.directory).guess(*left).seconds)} more"
    return ""


def _load(cpus: Sequence[int]) -> str | None:
    """Return what other work the CPUs do now, and the busiest processes; None where it is little.

    All numbers are shares of the CPUs' time, and those of the processes add up to the whole. A process may have run on
    other CPUs, too: if all together took more than the whole, they are named without numbers.
    """
    host = EnvelopeHost(cpus)
    used_before_s = used_s()
    before = host.read(time.monotonic(), 0.0)
    time.sleep(LOOK_S)
    after = host.read(time.monotonic(), 0.0)
    lasted_s = after.at_s - before.at_s
    other_cpu_s = host.conditions(before, after, 0.0).other_cpu_s or 0.0
    share = other_cpu_s / lasted_s / len(cpus)
    if share <= MOST_LOAD:
        return None
    processes_s = spent_s(used_before_s, used_s())
    spent = [one for one in processes_s if one[0].pid != os.getpid()]
    busiest = spent[:MOST_NAMED]
    named = {f"{who.name}, process {who.pid}": own_s / lasted_s / len(cpus) for who, own_s in busiest}
    finding = f"CPUs {format_cpu_list(cpus)} are {100 * share:.0f} % busy with other work"
    return f"{finding}{_disturbers(share, named)}; what is measured now is disturbed"


def _disturbers(share: float, named: Mapping[str, float]) -> str:
    """Return ``: python3 (40 %), others (12 %)``, which add up to the whole share."""
    if not named:
        return ""
    others = share - sum(named.values())
    if others < 0:
        return f": {', '.join(named)}"
    parts = {**named, **({"others": others} if 100 * others >= 1 else {})}
    return f": {', '.join(f'{name} ({100 * own:.0f} %)' for name, own in parts.items())}"
