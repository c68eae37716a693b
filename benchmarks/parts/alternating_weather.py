"""The weather of a shared host, and the arrangements of a block that measure two identical instances in it.

Everything is the logarithm of how long a step takes. Weather goes on from block to block, and both instances of a block
are in it; placement is drawn for every instance, and a burst and a step have noise of their own.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import signal

Logs = npt.NDArray[np.float64]
STEP_S = 0.18
"""AlexNet's step in the profile ``quick`` on two cores, where a trial takes 7.6 s, 3.6 s of them measured."""


@dataclass(frozen=True)
class Neighbours:
    """Neighbours who come by chance, stay for the same time, and take an exponentially distributed share."""

    per_hour: float
    stay_s: float
    slowdown: float


@dataclass(frozen=True)
class Weather:
    """The variation of the times of steps. All numbers but the time scales are standard deviations of logarithms.

    ``burst`` is what taking turns adds to each burst; a trial that runs through has none of it.
    ``drifts`` has the time scale in seconds, and the deviation, of each process of Ornstein and Uhlenbeck (AR(1) from
    step to step) that the host goes through.
    """

    name: str
    drifts: tuple[tuple[float, float], ...] = ()
    neighbours: Neighbours | None = None
    placement: float = 0.005
    burst: float = 0.01
    step: float = 0.02

    def path(self, rng: np.random.Generator, runs: int, steps: int) -> Logs:
        """Return the log times of the steps that a host would take one after the other, by run."""
        found = rng.normal(0, self.step, (runs, steps))
        for scale_s, deviation in self.drifts:
            kept = math.exp(-STEP_S / scale_s)
            shocks = rng.normal(0, deviation, (runs, steps))
            shocks[:, 1:] *= math.sqrt(1 - kept**2)
            found += signal.lfilter([1.0], [1.0, -kept], shocks, axis=1)
        if self.neighbours:
            found += self._visits(self.neighbours, rng, runs, steps)
        return found

    def _visits(self, neighbours: Neighbours, rng: np.random.Generator, runs: int, steps: int) -> Logs:
        stay = round(neighbours.stay_s / STEP_S)
        come = rng.random((runs, stay + steps)) < neighbours.per_hour * STEP_S / 3600
        taken = np.zeros(come.shape)
        taken[come] = rng.exponential(neighbours.slowdown, int(come.sum()))
        total = taken.cumsum(axis=1)
        return np.asarray(total[:, stay:] - total[:, :-stay])


@dataclass(frozen=True)
class Arrangement:
    """A block in units of a step: its pairs open, and in every round each of the two pauses and runs a burst."""

    name: str
    opening: int
    pause: int
    burst: int
    rounds: int
    pairs: int = 1

    @property
    def block_s(self) -> float:
        return self.pairs * (self.opening + self.rounds * 2 * (self.pause + self.burst)) * STEP_S

    def rounds_of(self, weather: Weather, rng: np.random.Generator, runs: int, blocks: int) -> Logs:
        """Return the log ratio of every run, block, pair and round. The order inside each round is random."""
        steps = blocks * round(self.block_s / STEP_S)
        path = weather.path(rng, runs, steps).reshape(runs, blocks, self.pairs, -1)[..., self.opening :]
        bursts = path.reshape(runs, blocks, self.pairs, self.rounds, 2, -1)[..., self.pause :]
        spans = np.log(np.exp(bursts).mean(axis=-1))
        if self.rounds > 1:
            spans += rng.normal(0, weather.burst, spans.shape)
        sides = rng.permuted(spans, axis=-1)
        sides += rng.normal(0, weather.placement, (runs, blocks, self.pairs, 1, 2))
        return np.asarray(sides[..., 1] - sides[..., 0])

    def log_ratios(self, weather: Weather, rng: np.random.Generator, runs: int, blocks: int) -> Logs:
        """Return the log ratio of every run and block; some runs at a time, since steps take memory."""
        at_once = max(1, 4_000_000 // (blocks * round(self.block_s / STEP_S)))
        parts = [min(at_once, runs - begin) for begin in range(0, runs, at_once)]
        return np.concatenate([self.rounds_of(weather, rng, part, blocks).mean(axis=(2, 3)) for part in parts])


SEQUENTIAL = Arrangement("sequential", opening=0, pause=22, burst=20, rounds=1)
"""Two trials of 7.6 s, one after the other."""
ALTERNATING = Arrangement("alternating", opening=42, pause=0, burst=5, rounds=8)
"""The starts of the same two trials, and then turns: 22 s."""
MEASURED = Weather(
    "as measured",
    drifts=((5, 0.0395), (60, 0.05), (3600, 0.03)),
    neighbours=Neighbours(per_hour=15, stay_s=12, slowdown=0.1),
    placement=0.0092,
)
"""A block's log ratio then deviates by 5.5 % in the sequential design and by 1.7 % in the alternating one."""
FAMILIES = (
    MEASURED,
    Weather("seconds (5 s)", drifts=((5, 0.05),)),
    Weather("minutes (60 s)", drifts=((60, 0.05),)),
    Weather("hours", drifts=((3600, 0.05),)),
    Weather("all scales, 1 s to 1 h", drifts=tuple((scale_s, 0.03) for scale_s in (1, 5, 60, 600, 3600))),
    Weather("neighbours, 10 s a minute", neighbours=Neighbours(per_hour=60, stay_s=10, slowdown=0.15)),
    Weather("faster than a burst (0.2 s)", drifts=((0.2, 0.05),)),
    Weather("as measured, placement 4 %", MEASURED.drifts, MEASURED.neighbours, placement=0.04),
)
