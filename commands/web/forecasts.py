"""Forecasts while somebody chooses: made in the background, one at a time, and of the latest choice alone."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

Words = tuple[str, ...]
HOLDS_S = 60.0
"""How long a forecast holds: a run that has ended meanwhile makes the next one better."""


class _Latest(NamedTuple):
    words: Words
    at_s: float
    outcome: "Future[str]"


class Forecasts:
    """The latest forecast, by the words of its command.

    ``make`` returns the forecast of such words, or raises its refusal. It takes seconds of a CPU.
    """

    def __init__(self, make: Callable[[Words], str]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._wanted: Words = ()
        self._busy = False
        self._latest: _Latest | None = None

    def of(self, words: Words) -> str | None:
        """Return the forecast; None while it is made, so ask again. Raises what making it has raised."""
        with self._lock:
            latest = self._latest
            if latest and latest.words == words and time.monotonic() - latest.at_s < HOLDS_S:
                return latest.outcome.result()
            self._wanted = words
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._make_wanted, daemon=True).start()
        return None

    def _make_wanted(self) -> None:
        """Make the wanted forecast, until no other has been wanted meanwhile."""
        while True:
            with self._lock:
                words = self._wanted
            outcome: Future[str] = Future()
            try:
                outcome.set_result(self._make(words))
            except Exception as error:  # noqa: BLE001 (raised where it is asked for)
                outcome.set_exception(error)
            with self._lock:
                self._latest = _Latest(words, time.monotonic(), outcome)
                if self._wanted == words:
                    self._busy = False
                    return
