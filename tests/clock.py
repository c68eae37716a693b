"""A clock of tests, in the place of the module ``time``."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Goes on only while somebody sleeps by it, and by ``tick_s`` with each look: a busy machine adds nothing."""

    now_s: float = 1000.0
    tick_s: float = 0.0

    def monotonic(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
