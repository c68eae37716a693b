"""A command that takes turns with others on the same CPUs: it runs for a slice of time, and is stopped until the next.

Its processes are stopped by a signal that they cannot refuse. Their own clocks count the stops, and what they wait for
goes on meanwhile: so its time is taken here, and how often it was waiting when it was stopped is counted.
"""

import time
from typing import TextIO

from worker import process_tree
from worker.environment import between
from worker.program import Ended, ProgramRun
from worker.protocol import BURST, Events, JobError


class Slices:
    """The turns of a command, each begun by a line of ``orders``."""

    def __init__(self, slice_s: float, orders: TextIO, events: Events) -> None:
        self._slice_s = slice_s
        self._orders = orders
        self._events = events
        self._before = process_tree.usage()
        """What was used until the wait for the present turn."""
        self._begun = self._before
        """What was used until the present turn."""
        self._begin_s = 0.0
        self._stops = 0
        self._stops_waiting = 0
        self.over_s = 0.0
        """The moment at which the turns of all were over."""

    def await_first(self) -> None:
        """Return in the first turn. Raises JobError where there is none."""
        self._events.emit("measuring")
        self._await_turn()

    def run(self, program: ProgramRun) -> Ended:
        """Run a program, which was started in the first turn, to its end. Raises JobError.

        Its last turn ends only after the processes that it leaves behind have ended.
        """
        try:
            while program.runs_until(self._begin_s + self._slice_s):
                stopped_s = self._stop()
                self._end_turn(stopped_s, ended=False)
                self._await_turn()
                process_tree.resume()
            ended = program.to_its_end()
        except BaseException:
            program.end()
            raise
        self._end_turn(ended.ended_s, ended=True)
        self._orders.readline()
        self.over_s = time.monotonic()
        return ended

    def counts(self) -> dict[str, int]:
        """Return how often it was stopped, and how often it was waiting then."""
        return {"stops": self._stops, "stops_waiting": self._stops_waiting}

    def _await_turn(self) -> None:
        order = self._orders.readline()
        if order.strip() != BURST:
            raise JobError("the host has ended the job before its command", kind="ended")
        self._begun = process_tree.usage()
        self._begin_s = time.monotonic()

    def _stop(self) -> float:
        self._stops += 1
        self._stops_waiting += process_tree.is_waiting()
        return process_tree.stop()

    def _end_turn(self, end_s: float, *, ended: bool) -> None:
        self._events.emit("computed", t=end_s)
        used = process_tree.usage()
        self._events.emit(
            "burst",
            t=end_s,
            span_s=end_s - self._begin_s,
            usage=between(self._begun, used),
            waited=between(self._before, self._begun),
            ended=ended,
        )
        self._before = used
