"""Processes that draw, hash or read data sets: several for many tasks, or one whose memory is limited."""

import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from suite.errors import BenchError, RequestError
from worker.data.kinds.kind import DataSetError

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""
_LEAST_BYTES = 2 << 30
"""The names of a few million files."""
_COPIES = 4
_MOST_IN_MEMORY_BYTES = 1 << 30
"""A format that is read into memory is copied and turned there; its files have less than 1 GiB."""


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
        first = islice(rest, 2 * workers)
        running = {pool.submit(function, task) for task in first}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            next_tasks = islice(rest, len(done))
            running |= {pool.submit(function, task) for task in next_tasks}
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
        parent = multiprocessing.parent_process()
        if parent:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()


def limited(work: Callable[[], int], size_bytes: int) -> int:
    """Return what ``work`` returns, done in a child process with the memory that files of ``size_bytes`` need.

    Raises DataSetError, also for what needs more memory, OSError, and BenchError when the process was killed.
    """
    # Forked: a kind of another package is known to this process, and to one that begins anew perhaps not.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, size_bytes, sender), daemon=True)
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError as error:
        process.join()
        raise BenchError(
            f"the process that read the data set has ended with status {process.exitcode}",
            remedy="was it killed for want of memory? if not, report it with what was printed",
        ) from error
    finally:
        process.kill()
        process.join()
        receiver.close()
    if isinstance(result, int):
        return result
    raise result if isinstance(result, OSError) else DataSetError(result[0], remedy=result[1])


def _send(work: Callable[[], int], size_bytes: int, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and ends this process
    most_bytes = _LEAST_BYTES + _COPIES * min(size_bytes, _MOST_IN_MEMORY_BYTES)
    pages, *_ = Path("/proc/self/statm").read_text().split()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = int(pages) * resource.getpagesize() + most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    result: int | OSError | tuple[str, str]
    try:
        result = work()
    except DataSetError as error:
        result = str(error), error.remedy
    except OSError as error:
        result = error
    except MemoryError:
        result = (
            f"reading it takes more than {most_bytes / 1e9:.1f} GB of memory, and its files have "
            f"{size_bytes / 1e9:.1f} GB",
            "name a copy that is as its authors give it out",
        )
    sender.send(result)
