"""What Ctrl-C may not cut short."""

import signal
import threading

import pytest

from suite.interruption import uninterrupted


def test_ctrl_c_while_something_is_made_comes_when_it_is_known() -> None:
    made = []

    def make() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            made.append("it")

    with pytest.raises(KeyboardInterrupt):
        make()
    assert made == ["it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_is_left_as_it_is() -> None:
    seen: list[object] = []

    def look() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
