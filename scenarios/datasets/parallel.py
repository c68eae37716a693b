"""Runs one function over many tasks in several processes: drawing and hashing keep a CPU busy each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from suite.errors import BenchError, RequestError

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""


def worker_count(asked: int | None) -> int:
    """Return the number asked for, or one for each CPU that this process may use. Raises RequestError."""
    if asked is not None and asked < 1:
        raise RequestError(f"--workers {asked}", remedy="give a number from 1 up")
    return asked or len(os.sched_getaffinity(0))


def spread(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Generator[Result, None, None]:
    """Yield the results as they come, in any order. Closed early, let what is being worked on come to its end.

    Raises what the function raised, and BenchError when a process was killed.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    rest = iter(tasks)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_settle)
    try:
        # A window, and not everything at once: a million images are a hundred thousand tasks.
        running = {pool.submit(function, task) for task in islice(rest, 2 * workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(function, task) for task in islice(rest, len(done))}
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise BenchError(
            "one of the worker processes was killed", remedy="was there too little memory? try fewer with --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _settle() -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the parent: files stay whole."""

    def leave_with_parent() -> None:
        """End with the parent: one that was killed cannot say so, and its workers would wait for ever."""
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()
