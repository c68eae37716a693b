"""The measured steps of a job that takes turns with others on the same CPUs: a burst for each line of the host's.

Between two bursts nothing of the job computes: this thread blocks on its input, the threads of OpenMP sleep since the
launching command says so (OMP_WAIT_POLICY=passive), and loader processes are stopped.
"""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from worker.errors import JobError
from worker.protocol import BURST, Events
from worker.spec import Spec, Turns
from worker.training.measure import OwnMetrics, finite_losses, warm_up
from worker.training.trainer import Trainer
from worker.usage import between, usage


def take_turns(spec: Spec, turns: Turns, trainer: Trainer, events: Events, orders: TextIO) -> None:
    """Warm up, wait, take a burst of steps on each order, and emit everything from ``warmup`` to ``steps``.

    ``measuring`` says that the job is ready for its first turn. Raises JobError, above all where the orders end early.
    """
    own = OwnMetrics(spec.load_workload(), trainer)
    samples = warm_up(spec, trainer, events)
    events.emit("measuring", steps=spec.steps)
    first = ended = usage()
    for number in range(turns.rounds):
        with _stopped_children():
            order = orders.readline()
        if order.strip() != BURST:
            raise JobError(f"the host has ended the job after {number} of {turns.rounds} bursts", kind="ended")
        begun, begin_s = usage(), time.monotonic()
        burst = slice(number * turns.burst_steps, (number + 1) * turns.burst_steps)
        for index in range(burst.start, burst.stop):
            trainer.step(samples, index)
            if own.per_step:
                own.after_step()
        end_s = time.monotonic()
        used, waited = between(begun, usage()), between(ended, begun)
        events.emit("burst", t=end_s, span_s=end_s - begin_s, steps=samples.columns(burst), usage=used, waited=waited)
        ended = usage()
    with _stopped_children():
        orders.readline()
    gc.enable()
    events.emit("measured")
    losses = finite_losses(samples)
    events.emit("steps", losses=losses, usage=between(first, ended), metrics=own.columns(samples))


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
