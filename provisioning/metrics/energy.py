"""The energy of this host while a job runs, by RAPL. Its counters turn within minutes: a thread reads them in time."""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping

from provisioning.metrics.conditions import Energy, joules, read_energy

MOST_W = 1500.0
"""More than any package, or its memory, can draw: two readings closer than a turn at this power miss no turn."""


class EnergyMeter:
    """Counts joules from ``start`` to ``stop``, once. The thread of a host without counters is never started."""

    def __init__(self) -> None:
        self._joules: defaultdict[str, float] = defaultdict(float)
        self._missed: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_in_time, daemon=True, name="energy")
        self.cpu_s = 0.0
        """The CPU time that the thread has used, in seconds."""

    def start(self) -> bool:
        """Begin to count. Returns whether there is a counter."""
        self._last = read_energy()
        self._last_s = time.monotonic()
        if self._last:
            self._every_s = min(map(_turn_s, self._last.values())) / 2
            self._thread.start()
        return bool(self._last)

    def stop(self) -> tuple[dict[str, float], str | None]:
        """Return the joules by counter, and why there are none if a counter cannot tell how often it has turned."""
        if not self._last:
            return {}, None
        self._ended.set()
        self._thread.join()
        self._add()
        if self._missed:
            return ({}, "; ".join(self._missed.values()))
        return (dict(self._joules), None)

    def _read_in_time(self) -> None:
        while not self._ended.wait(self._every_s):
            self._add()
        self.cpu_s = time.thread_time()

    def _add(self) -> None:
        """Add what was used since the last reading."""
        counters = read_energy()
        now_s = time.monotonic()
        spent = joules(self._last, counters)
        for name, counter in self._last.items():
            if name not in counters:
                self._missed.setdefault(name, f"{name} could not be read all the time")
            elif now_s - self._last_s > _turn_s(counter):
                gap = f"{now_s - self._last_s:.0f} s"
                self._missed.setdefault(name, f"{name} was not read for {gap}, in which it may turn")
            else:
                self._joules[name] += spent[name]
        self._last = counters
        self._last_s = now_s


def _turn_s(counter: Energy) -> float:
    """Return the seconds in which a counter turns at ``MOST_W``."""
    range_uj = counter[1]
    return range_uj / 1e6 / MOST_W


def whole_energy(
    of_host: Mapping[str, float], of_gpus: Mapping[str, float | None], missed: str | None
) -> tuple[dict[str, float] | None, str | None]:
    """Return the joules by counter, or None and the reason if one is unknown: a sum without it would be too small."""
    uncounted = [f"{name} does not count its energy" for name, spent in of_gpus.items() if spent is None]
    reasons = [*filter(None, [missed]), *uncounted]
    if reasons:
        return None, "; ".join(reasons)
    counted = {name: spent for name, spent in of_gpus.items() if spent is not None}
    return {**of_host, **counted} or None, None
