"""A job that takes turns with others on the same CPUs: one for each line of the host's, and nothing between them.

While it waits nothing of the job computes: this thread blocks on its input, the threads of OpenMP are given the time to
fall asleep, and loader processes are stopped.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from worker.environment import between, usage
from worker.protocol import BURST, Events, JobError

RESTS_WITHIN_S = 1.0
LOOK_S = 0.005
AT_REST = 0.2
"""The share of the CPU that looking takes itself, and no spinning thread stays below."""


def each_turn(
    rounds: int,
    orders: TextIO,
    events: Events,
    take: Callable[[int], None],
    told: Callable[[int], Mapping[str, object]] = lambda _: {},
) -> dict[str, float]:
    """Emit ``measuring`` when the job is at rest, take the turn of each order, and emit ``burst`` when it is so again.

    ``computed`` comes before that, as soon as the turn is taken: the host holds the span against its own clock.
    A turn has a number, from 0; ``told`` returns what else ``burst`` says of it.

    Returns what was used from the first order until the last turn ended. Raises JobError where the orders end early.
    """
    come_to_rest()
    events.emit("measuring")
    first = ended = usage()
    for number in range(rounds):
        with _stopped_children():
            order = orders.readline()
        if order.strip() != BURST:
            raise JobError(f"the host has ended the job after {number} of {rounds} bursts", kind="ended")
        begun = usage()
        begin_s = time.monotonic()
        take(number)
        end_s = time.monotonic()
        events.emit("computed", t=end_s)
        used = between(begun, usage())
        waited = between(ended, begun)
        come_to_rest()
        events.emit("burst", t=end_s, span_s=end_s - begin_s, usage=used, waited=waited, **told(number))
        ended = usage()
    with _stopped_children():
        orders.readline()
    return between(first, ended)


def come_to_rest(started: Callable[[], bool] = lambda: False) -> float:
    """Wait until no thread of this process computes: those of OpenMP spin for milliseconds in case there is more.

    Wait, too, while a process runs that was ``started``. Returns the seconds until then, at most ``RESTS_WITHIN_S``.
    """
    begin_s = time.monotonic()
    before_s = time.process_time()
    while (waited_s := time.monotonic() - begin_s) < RESTS_WITHIN_S:
        time.sleep(LOOK_S)
        now_s = time.process_time()
        if now_s - before_s < AT_REST * LOOK_S and not started():
            break
        before_s = now_s
    return waited_s


@contextmanager
def _stopped_children() -> Iterator[None]:
    """Stop the processes that read ahead for as long as the context lasts: it is another job's turn."""
    children = [child.pid for child in multiprocessing.active_children() if child.pid]
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in children:
            os.kill(pid, signal.SIGCONT)
