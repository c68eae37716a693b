"""Simulate histories of nightly runs, to see which changes ``bench history`` finds, and what it finds in mere noise.

    python benchmarks/history.py [--years 400] [--watched 100] [--seed 1] [--json FILE]

A year is 365 runs of a number with noise from run to run: ``normal``; ``heavy``, Student's t with 3 degrees of freedom;
``skewed``, a lognormal distribution with its long tail on the slow side; ``lasting``, normal noise of which half stays
until the next run (an autoregression with 0.5), as slow weather does. All are scaled to a standard deviation of 1.

false, one look    the share of years without a change in which the whole year shows one
false, each night  the share of years without a change in which any of its nights, from the tenth on, showed one
found              the share of years with one change, ten runs or more from both ends, that show one
within 1           the share in which a change is placed at the true run, or at one of its neighbours
others             how many changes besides are found in such a year, on average
runs until seen    after how many runs of the new level, following 30 of the old one, half and 95 % of changes are seen
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from parts.simulations import parser, show

from analysis.statistics.change_points import LEAST_RUNS, change_points

Numbers = npt.NDArray[np.float64]
NoiseName = Literal["normal", "heavy", "skewed", "lasting"]
NOISES: tuple[NoiseName, ...] = ("normal", "heavy", "skewed", "lasting")
RUNS = 365
SIZES = (1.0, 2.0, 3.0, 5.0)
"""The sizes of changes, in standard deviations of the noise."""
EDGE = 10
BEFORE, AFTER = 30, 40
LASTING, SKEW = 0.5, 0.75


@dataclass(frozen=True)
class FalseAlarms:
    """The alarms in years without a change, as shares of years; None where it was not simulated."""

    noise: NoiseName
    one_look: float
    each_night: float | None


@dataclass(frozen=True)
class Found:
    """The changes found in years with one; ``half`` and ``most`` are runs until seen, None for never."""

    noise: NoiseName
    size: float
    found: float
    within_one: float
    others: float
    half: int | None
    most: int | None


def raw(rng: np.random.Generator, noise: NoiseName, runs: int) -> Numbers:
    """Return noise with a standard deviation of 1."""
    if noise == "heavy":
        return np.asarray(rng.standard_t(3, runs) / math.sqrt(3))
    if noise == "skewed":
        return np.asarray(-rng.lognormal(0, SKEW, runs) / math.sqrt(math.expm1(SKEW**2) * math.exp(SKEW**2)))
    values = rng.normal(size=runs)
    if noise == "lasting":
        for place in range(1, runs):
            values[place] = LASTING * values[place - 1] + math.sqrt(1 - LASTING**2) * values[place]
    return values


def false_alarms(noise: NoiseName, years: int, watched: int, seed: int) -> FalseAlarms:
    """Look at years without a change: at all of them in the end, and at ``watched`` of them every night."""
    rng = np.random.default_rng(seed)
    one_look = np.mean([bool(change_points(raw(rng, noise, RUNS))) for _ in range(years)])
    nights = [_ever(raw(rng, noise, RUNS)) for _ in range(watched)]
    return FalseAlarms(noise, float(one_look), float(np.mean(nights)) if nights else None)


def _ever(year: Numbers) -> bool:
    return any(change_points(year[:night]) for night in range(2 * LEAST_RUNS, len(year) + 1))


def found(noise: NoiseName, size: float, years: int, seed: int) -> Found:
    rng = np.random.default_rng(seed)
    truths = rng.integers(EDGE, RUNS - EDGE, years, endpoint=True)
    seen = [change_points(_stepped(raw(rng, noise, RUNS), int(truth), size)) for truth in truths]
    near = [any(abs(place - truth) <= 1 for place in places) for places, truth in zip(seen, truths, strict=True)]
    waits = [_runs_until_seen(_stepped(raw(rng, noise, BEFORE + AFTER), BEFORE, size)) for _ in range(years // 4)]
    half, most = (int(wait) if wait <= AFTER else None for wait in np.quantile(waits, (0.5, 0.95), method="higher"))
    return Found(
        noise,
        size,
        found=float(np.mean([bool(places) for places in seen])),
        within_one=float(np.mean(near)),
        others=float(np.mean([max(len(places) - 1, 0) for places in seen])),
        half=half,
        most=most,
    )


def _stepped(values: Numbers, place: int, size: float) -> Numbers:
    return values - size * (np.arange(len(values)) >= place)


def _runs_until_seen(values: Numbers) -> int:
    """Return how many runs of the new level are enough; more than there are where none are."""
    looks = range(1, AFTER + 1)
    return next((runs for runs in looks if change_points(values[: BEFORE + runs])), AFTER + 1)


def _shares(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _show(alarms: list[FalseAlarms], steps: list[Found]) -> None:
    rows = ((one.noise, _shares(one.one_look), _shares(one.each_night)) for one in alarms)
    show("years without a change", ("noise", "false, one look", "false, each night"), rows)
    found = (
        (
            *(step.noise, f"{step.size:g} x", _shares(step.found), _shares(step.within_one), f"{step.others:.3f}"),
            *("never" if wait is None else str(wait) for wait in (step.half, step.most)),
        )
        for step in steps
    )
    heads = ("noise", "change", "found", "within 1", "others", "runs until seen: half", "95 %")
    show("years with one", heads, found)


def main() -> None:
    options = parser(__doc__, "years", 400)
    options.add_argument("--watched", type=int, default=100, help="years that are looked at every night")
    options.add_argument("--noise", choices=NOISES, action="append", help="only this noise; may be repeated")
    options.add_argument("--size", type=float, action="append", help="only changes of this size; may be repeated")
    given = options.parse_args()
    noises: tuple[NoiseName, ...] = tuple(given.noise or NOISES)
    alarms = [false_alarms(noise, given.years, given.watched, given.seed) for noise in noises]
    steps = [found(noise, size, given.years, given.seed) for noise in noises for size in given.size or SIZES]
    _show(alarms, steps)
    if given.json:
        told = {"false_alarms": [asdict(one) for one in alarms], "found": [asdict(one) for one in steps]}
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
