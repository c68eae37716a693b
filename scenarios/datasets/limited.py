"""Reads a user's data set in a process of its own whose memory is limited: a few bytes can ask for gigabytes."""

import multiprocessing
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from suite.errors import BenchError
from worker.data.kinds.kind import DataSetError

_LEAST_BYTES = 2 << 30
"""The names of a few million files."""
_COPIES, _MOST_IN_MEMORY_BYTES = 4, 1 << 30
"""A format that is read into memory is copied and turned there; its files have less than 1 GiB."""


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
        found = receiver.recv()
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
    if isinstance(found, int):
        return found
    raise found if isinstance(found, OSError) else DataSetError(found[0], remedy=found[1])


def _send(work: Callable[[], int], size_bytes: int, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and ends this process
    most_bytes = _LEAST_BYTES + _COPIES * min(size_bytes, _MOST_IN_MEMORY_BYTES)
    pages, *_ = Path("/proc/self/statm").read_text().split()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = int(pages) * resource.getpagesize() + most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    found: int | OSError | tuple[str, str]
    try:
        found = work()
    except DataSetError as error:
        found = str(error), error.remedy
    except OSError as error:
        found = error
    except MemoryError:
        found = (
            f"reading it takes more than {most_bytes / 1e9:.1f} GB of memory, and its files have "
            f"{size_bytes / 1e9:.1f} GB",
            "name a copy that is as its authors give it out",
        )
    sender.send(found)
