"""What Ctrl-C may not cut short."""

import signal
import threading
import time

import pytest

from suite.interruption import cleaning_up, interrupted, uninterrupted, unsuspended


def test_ctrl_c_while_something_is_made_comes_when_it_is_known_and_a_second_one_is_answered(
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = []

    def make(presses: int) -> None:
        with uninterrupted():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            made.append(presses)

    for presses, answer in ((1, ""), (2, "cleaning up, one moment\n")):
        with pytest.raises(KeyboardInterrupt):
            make(presses)
        assert capfd.readouterr().err == answer
    assert made == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_a_first_one_is_being_cleaned_up_after_raises_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert not interrupted()
    signal.signal(signal.SIGINT, cleaning_up)
    assert interrupted()
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == "cleaning up, one moment\n" * 2
    assert interrupted()


def test_ctrl_z_is_refused_where_targets_would_go_on_and_works_again_later(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTSTP)
    with unsuspended():
        signal.raise_signal(signal.SIGTSTP)
    assert "not suspended" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTSTP) == before


def test_whoever_was_stopped_by_what_nothing_can_refuse_learns_when_it_went_on() -> None:
    before_s = time.monotonic()
    with unsuspended() as continued_s:
        assert continued_s == []
        signal.raise_signal(signal.SIGCONT)
    assert before_s <= continued_s[0] <= time.monotonic()
    signal.raise_signal(signal.SIGCONT)
    assert len(continued_s) == 1


def test_another_thread_is_left_as_it_is() -> None:
    seen: list[object] = []

    def look() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
