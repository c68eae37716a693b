"""Ctrl-C and its like: what must be done whole is not cut short by them."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run in order."""


def cleaning_up(*_: object) -> None:
    """Handle the signals that follow the first one: what is being cleaned up is not stopped by them."""
    _tell("cleaning up, one moment")


def interrupted() -> bool:
    return signal.getsignal(signal.SIGINT) is cleaning_up


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back the signals that end a run until the context is left: what it makes is known to somebody by then.

    Other threads than the main one are never interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    ends_already = interrupted()

    def hold(number: int, _frame: object) -> None:
        if caught or ends_already:
            cleaning_up()
        else:
            caught.append(number)

    before = {each: signal.signal(each, hold) for each in ENDING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler or signal.SIG_DFL)
        if caught:
            signal.raise_signal(caught[0])


@contextmanager
def unsuspended() -> Iterator[list[float]]:
    """Refuse Ctrl-Z: the targets would go on without this process, and its clocks would count the pause.

    Nothing can refuse SIGSTOP. Yields a list that gets the moment of each SIGCONT, on the monotonic clock; in other
    threads than the main one it stays empty.
    """
    continued_s: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield continued_s
        return
    refusal = "not suspended: the targets would go on, and be timed; Ctrl-C ends the run, and it can be continued"
    refusing = signal.signal(signal.SIGTSTP, lambda *_: _tell(refusal))
    continuing = signal.signal(signal.SIGCONT, lambda *_: continued_s.append(time.monotonic()))
    try:
        yield continued_s
    finally:
        signal.signal(signal.SIGCONT, continuing or signal.SIG_DFL)
        signal.signal(signal.SIGTSTP, refusing or signal.SIG_DFL)


def _tell(text: str) -> None:
    """Write a line to standard error, past its buffer: a signal may come while that is written to."""
    if sys.__stderr__:
        with suppress(OSError):  # the terminal is gone
            os.write(sys.__stderr__.fileno(), f"{text}\n".encode())
