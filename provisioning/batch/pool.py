"""Elements of a sweep handed to places as these become free. A place is what can run a command: a machine, or srun."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from suite.errors import BenchError, RequestError

LOSSES_ALLOWED = 3
"""An element that was lost so often, on whatever place, is given up."""
FAILURES_ALLOWED = 2
"""A place that has failed so often in a row gets nothing more."""


class Place(Protocol):
    """Where one element at a time can run."""

    @property
    def name(self) -> str: ...

    def run(self, block: int) -> None:
        """Run the element to its end, its records taken in on the way. Raises BenchError when that did not come."""

    def stop(self) -> None:
        """End what runs there now, in order; ``run`` then raises. Called from another thread."""


class Pool:
    """The elements that are left, and one thread for each place that takes them."""

    def __init__(
        self,
        places: Sequence[Place],
        blocks: Iterable[int],
        note: Callable[[str], None],
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """``stop_requested``: whether no further element is to begin; asked before each."""
        self._stop_requested = stop_requested
        self._places = places
        self._left = deque(blocks)
        self._note = note
        self._running: dict[str, int] = {}
        self._losses: Counter[int] = Counter()
        self._stopped = False
        self._attended = 0
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()

    def run(self) -> list[int]:
        """Until every element has ended or is given up; returns those given up, in order.

        An exception in here (Ctrl-C) stops the places in order, waits for them, and goes on.
        """
        try:
            for place in self._places:
                self._threads.append(threading.Thread(target=self._attend, args=(place,), name=place.name))
                self._threads[-1].start()
            self._wait()
        except BaseException:
            self._stop()
            self._wait()
            raise
        given_up = [block for block, losses in self._losses.items() if losses >= LOSSES_ALLOWED]
        return sorted({*self._left, *given_up})

    def _wait(self) -> None:
        # Not by Thread.join: one that a signal has interrupted takes the thread for ended (CPython, bpo-45274).
        with self._changed:
            self._changed.wait_for(self._all_attended)

    def _all_attended(self) -> bool:
        """Of the threads that were started: Ctrl-C may come between two, and one that begins after it takes nothing."""
        return self._attended >= sum(thread.ident is not None for thread in self._threads)

    def _attend(self, place: Place) -> None:
        try:
            self._serve(place)
        finally:
            with self._changed:
                self._attended += 1
                self._running.pop(place.name, None)
                self._changed.notify_all()

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for place in self._places:
            place.stop()

    def _serve(self, place: Place) -> None:
        failures = 0
        while failures < FAILURES_ALLOWED and (block := self._take(place)) is not None:
            self._note(f"element {block}: to {place.name}")
            try:
                place.run(block)
            except RequestError as error:  # it would refuse the next one, too
                failures = FAILURES_ALLOWED
                self._return(place, back=True)
                self._note(f"element {block}: refused by {place.name}, which gets no more ({error.message})")
            except BenchError as error:
                failures += 1
                self._lose(block, place, error, last=failures == FAILURES_ALLOWED)
            else:
                failures = 0
                self._note(f"element {block}: ended on {place.name}")
                self._return(place)

    def _take(self, place: Place) -> int | None:
        """The next element; waits while one that runs elsewhere could still be lost. None when there is no more."""
        with self._changed:
            while not self._left and self._running and not self._stopped:
                self._changed.wait()
            if self._stopped or not self._left or self._stop_requested():
                return None
            block = self._left.popleft()
            self._running[place.name] = block
            return block

    def _return(self, place: Place, *, back: bool = False) -> None:
        """Its element runs no more; ``back``: that has to go somewhere else."""
        with self._changed:
            block = self._running.pop(place.name)
            if back:
                self._left.append(block)
            self._changed.notify_all()

    def _lose(self, block: int, place: Place, error: BenchError, *, last: bool) -> None:
        self._losses[block] += 1
        self._return(place, back=self._losses[block] < LOSSES_ALLOWED)
        if not self._stopped:
            what = "gets no more" if last else "is tried again"
            self._note(f"element {block}: lost on {place.name}, which {what} ({error.message}; {error.remedy or ''})")
