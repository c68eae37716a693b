"""Noticing that the job has failed elsewhere: that another rank has said so, or says nothing more.

A rank that is killed closes its connections, and whoever waits for it mostly hears of that at once. One that is
stopped, or behind a link that was cut, closes nothing; and how long a step may take cannot be known where the CPU is
emulated. So every rank counts at the rendezvous, and looks whether the others do.
"""

import threading
import time
from collections.abc import Callable

from torch import distributed

from worker.distributed.rendezvous import LEFT, Rendezvous
from worker.spec import Membership

_LONGEST_BEAT_S = 1.0
_LOST_AFTER = 0.75
"""The share of the timeout after which a rank is lost; the ranks end in what remains."""


class Heartbeat:
    """A thread that beats, and calls ``on_failure`` once, by then knowing the ``reason`` and who is ``lost``."""

    def __init__(self, membership: Membership, rendezvous: Rendezvous, on_failure: Callable[[], None]) -> None:
        self.interval_s = min(_LONGEST_BEAT_S, membership.timeout_s / 20)
        self.reason = ""
        self.lost: list[int] = []
        self._membership = membership
        self._limit_s = membership.timeout_s * _LOST_AFTER
        # torch's store waits for an answer once, and once more for that to its word that it waits no longer.
        self._rendezvous = rendezvous.twin(self._limit_s / 2)
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._left = False
        self._beating = threading.Lock()
        self._beats = [""] * membership.world
        self._heard_s = [time.monotonic()] * membership.world
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def silent(self, since_s: float) -> list[int]:
        """Return the other ranks that have neither beaten since then nor left."""
        return [rank for rank in self._membership.others if self._heard_s[rank] < since_s and self._beats[rank] != LEFT]

    def leave(self) -> None:
        """Say that this rank needs the others no more. Only rank 0 goes on to listen to them."""
        with self._beating:
            self._left = True
            self._rendezvous.beat(LEFT)
        if self._membership.rank:
            self._stop.set()

    def wait_until_left(self, limit_s: float) -> None:
        """Wait until all others have left or are lost."""
        end_s = time.monotonic() + limit_s
        while any(self._beats[rank] != LEFT and rank not in self.lost for rank in self._membership.others):
            if time.monotonic() > end_s:
                return
            time.sleep(self.interval_s / 4)

    def stop(self) -> None:
        """End the thread. One that hangs in a connection that was cut is left to the end of the process."""
        self._stop.set()
        self._thread.join(self.interval_s * 2)

    def _run(self) -> None:
        count, own = 0, self._membership.name(self._membership.rank)
        while not self._stop.wait(self.interval_s):
            count += 1
            try:
                with self._beating:
                    if not self._left:
                        self._rendezvous.beat(str(count))
                reason, beats = self._rendezvous.look()
                self._hear(beats)
                self.lost = self.lost or self.silent(time.monotonic() - self._limit_s)
                if self.lost and not reason:
                    reason = self._rendezvous.blame(f"{own} hears no more of {self._membership.names(self.lost)}")
            except (distributed.DistError, RuntimeError):
                self.lost = [0]
                reason = f"{self._membership.name(0)}, which holds the rendezvous, is gone"
            if reason and not self.reason and not self._stop.is_set():
                self.reason = reason
                self._on_failure()
            if 0 in self.lost:
                return

    def _hear(self, beats: list[str]) -> None:
        now_s = time.monotonic()
        for rank, beat in enumerate(beats):
            if beat != self._beats[rank]:
                self._beats[rank], self._heard_s[rank] = beat, now_s
