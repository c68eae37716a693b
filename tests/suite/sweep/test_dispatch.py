"""The dispatcher: every block ends somewhere, and what is lost goes to another executor."""

import signal
import threading
import time

import pytest

from commands.sweep.backends.dispatch import FAILURES_ALLOWED, LOSSES_ALLOWED, BlockProcess, Dispatcher, Executor
from suite.errors import MeasurementError, RequestError


def never(block: int) -> BlockProcess:
    raise NotImplementedError(block)


class FakeExecutor(Executor):
    """Ends every block at once, but for the first ``failing`` of them, which it loses."""

    def __init__(self, name: str, failing: int = 0) -> None:
        super().__init__(name, never, print)
        self.failing = failing
        self.done: list[int] = []
        self.lost: list[int] = []

    def run(self, block: int) -> None:
        if len(self.lost) < self.failing:
            self.lost.append(block)
            raise MeasurementError("the connection broke", remedy="look at the cable")
        self.done.append(block)

    def stop(self) -> None:
        """Nothing runs for long."""


class Waiting(Executor):
    """Holds its block until it is stopped."""

    def __init__(self) -> None:
        super().__init__("slow", never, print)
        self.began, self.stopped, self.ended = threading.Event(), threading.Event(), threading.Event()

    def run(self, block: int) -> None:
        del block
        self.began.set()
        self.stopped.wait(60)
        time.sleep(0.3)  # to end in order takes a while
        self.ended.set()
        raise MeasurementError("stopped")

    def stop(self) -> None:
        self.stopped.set()


def test_every_block_runs_once() -> None:
    places = [FakeExecutor("a"), FakeExecutor("b")]
    Dispatcher(places, range(20), lambda _text: None).run()
    assert sorted(places[0].done + places[1].done) == list(range(20))


def test_a_block_that_is_lost_goes_to_another_executor_and_it_is_said() -> None:
    said: list[str] = []
    broken, whole = FakeExecutor("broken", failing=99), FakeExecutor("whole")
    Dispatcher([broken, whole], range(6), said.append).run()
    assert sorted(whole.done) == list(range(6))
    assert len(broken.lost) <= FAILURES_ALLOWED
    if broken.lost:  # threads: the other may have taken all before
        assert any("lost on broken" in line and "the connection broke" in line for line in said)


def test_an_executor_that_failed_once_is_tried_again() -> None:
    place = FakeExecutor("a", failing=1)
    Dispatcher([place], [7], lambda _text: None).run()
    assert (place.lost, place.done) == ([7], [7])


def test_an_executor_that_refuses_is_asked_once() -> None:
    said: list[str] = []
    refusing, whole = FakeExecutor("unequal"), FakeExecutor("whole")
    asked: list[int] = []

    def refuse(block: int) -> None:
        asked.append(block)
        raise RequestError("kernel 6.1 and 6.2")

    refusing.run = refuse  # type: ignore[method-assign]
    Dispatcher([refusing, whole], range(6), said.append).run()
    assert sorted(whole.done) == list(range(6))
    assert len(asked) <= 1
    assert not asked or any("refused by unequal" in line and "kernel 6.1 and 6.2" in line for line in said)


def test_what_no_executor_could_run_is_told() -> None:
    said: list[str] = []
    Dispatcher([FakeExecutor("a", failing=99)], [3, 1, 2], said.append).run()
    assert any("gets no more" in line for line in said)


def test_a_block_that_every_executor_loses_is_given_up_and_the_others_go_on() -> None:
    class Picky(FakeExecutor):
        def run(self, block: int) -> None:
            if block == 1:
                self.lost.append(block)
                raise MeasurementError("this one never")
            self.done.append(block)

    places = [Picky("a"), Picky("b"), Picky("c")]
    Dispatcher(places, range(10), lambda _text: None).run()
    assert sum(len(place.lost) for place in places) == LOSSES_ALLOWED


def test_an_interruption_stops_the_places_and_waits_for_them() -> None:
    place = Waiting()

    def interrupt() -> None:
        assert place.began.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    # Whoever starts the tests in the background may have told them to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            Dispatcher([place], [0, 1], lambda _text: None).run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert place.stopped.is_set()
    assert place.ended.is_set()
