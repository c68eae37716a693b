"""Ctrl-C and its like: what must be done whole is not cut short by them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back the signals that end a run until the context is left: what it makes is known to somebody by then.

    Other threads than the main one are never interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, lambda number, _frame: caught.append(number)) for each in ending}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler or signal.SIG_DFL)
        if caught:
            signal.raise_signal(caught[0])
