"""Simulate the sequential and the alternating design in the same weather, to see what taking turns gains, and where.

    python benchmarks/alternating_simulation.py [--runs 1000] [--seed 1] [--json FILE]

The two instances of a block are identical, so that the true ratio is 1. Sequential: two trials, one after the other.
Alternating: both are opened, and take turns. ``alternating_weather`` has the weather and the arrangements;
docs/evidence/README.md sums up the tables:

coverage    how often the interval of 95 % covers the truth, after a fixed number of blocks and with ``--until 2%``
precision   the minutes to intervals of several widths, with blocks planned for that and with ``--until``
time scale  the gain in weather of one time scale: the sequential design's time to an interval of any width, over the
            alternating one's
placement   the gain where instances differ by their placement
bursts      the gain of bursts and rounds of other lengths, without and with a step lost at each switch
choice      what ``choose`` makes of pilots
"""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from parts.alternating_weather import ALTERNATING, FAMILIES, MEASURED, SEQUENTIAL, STEP_S, Arrangement, Logs, Weather
from parts.simulations import blocks_until, parser, show

from analysis.statistics.alternating import Costs, Design, choose, components
from analysis.statistics.margins import log_difference
from analysis.statistics.power import degrees_of_freedom
from analysis.statistics.ratios import CONFIDENCE, locate, t_quantile
from analysis.statistics.sequential import LEAST_BLOCKS


class Share(float):
    """A number that is shown in per cent."""


Row = dict[str, str | float]
SIZES = (5, 10, 20, 40)
UNTIL = 0.02
PRECISIONS = (0.05, 0.03, 0.02, 0.01)
MOST_BLOCKS = 150
SCALES_S = (0.2, 1, 5, 20, 60, 300, 1800, 7200)
PLACEMENTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)
BURSTS = (1, 2, 5, 10, 20)
ROUNDS = (2, 4, 8, 16, 32)
COMPONENTS = ("burst", "instance", "block")
PILOT = replace(ALTERNATING, name="pilot", pause=1, pairs=2)
PILOT_BLOCKS = 10
COSTS = Costs(
    round_s=2 * (PILOT.pause + PILOT.burst) * STEP_S,
    instance_s=PILOT.opening * STEP_S,
    burst_steps=PILOT.burst,
    switch_s=2 * PILOT.pause * STEP_S,
)


def covers(values: Logs) -> bool:
    place = locate(values)
    assert place  # noqa: S101
    assert place.interval  # noqa: S101
    return place.interval[0] <= 0 <= place.interval[1]


def spread(ratios: Logs) -> float:
    """Return the standard deviation of one log ratio, as far as it is not trimmed."""
    place = locate(ratios.ravel())
    assert place  # noqa: S101
    return place.deviation or 0.0


def coverage(family: int, arrangement: Arrangement, runs: int, seed: int) -> Row:
    """Return how often the intervals of a design cover in the weather of a family, and how long ``--until`` takes."""
    rng = np.random.default_rng((seed, family))
    ratios = arrangement.log_ratios(FAMILIES[family], rng, runs, MOST_BLOCKS)
    ends = [blocks_until({"identical": values}, UNTIL) for values in ratios]
    return {
        "weather": FAMILIES[family].name,
        "design": arrangement.name,
        "deviation": Share(spread(ratios)),
        **{f"{size} blocks": Share(np.mean([covers(values[:size]) for values in ratios])) for size in SIZES},
        "until 2%": Share(np.mean([covers(values[:end]) for values, end in zip(ratios, ends, strict=True)])),
        "blocks": float(np.mean(ends)),
        "minutes": float(np.mean(ends)) * arrangement.block_s / 60,
    }


def precisions(runs: int, seed: int) -> Iterator[Row]:
    """Yield the minutes that each design takes to intervals of some widths, on a host as it was measured."""
    arrangements = SEQUENTIAL, ALTERNATING, replace(ALTERNATING, name="4 rounds", rounds=4)
    simulated = [each.log_ratios(MEASURED, np.random.default_rng(seed), runs, MOST_BLOCKS) for each in arrangements]
    for half_width in PRECISIONS:
        row: Row = {"half width": f"{half_width:.0%}"}
        for arrangement, ratios in zip(arrangements, simulated, strict=True):
            minutes = arrangement.block_s / 60
            row[arrangement.name] = minutes * planned(spread(ratios), half_width)
            ends = [blocks_until({"identical": values}, half_width) for values in ratios]
            row[f"{arrangement.name}, until"] = minutes * float(np.mean(ends))
        yield row


def planned(deviation: float, half_width: float) -> int:
    """Return the blocks after which the interval is as narrow, if the noise looks as large as it is."""
    widths = (
        (blocks, t_quantile((1 + CONFIDENCE) / 2, degrees_of_freedom(blocks)) * deviation / math.sqrt(blocks))
        for blocks in itertools.count(LEAST_BLOCKS)
    )
    return next(blocks for blocks, width in widths if width <= log_difference(half_width))


@cache
def deviation(weather: Weather, arrangement: Arrangement, runs: int, seed: int) -> float:
    return spread(arrangement.log_ratios(weather, np.random.default_rng(seed), max(1, runs // 40), 100))


def gain(weather: Weather, arrangement: Arrangement, runs: int, seed: int) -> float:
    """Return the time that the sequential design takes to an interval of the same width, over that of another."""
    times = [deviation(weather, each, runs, seed) ** 2 * each.block_s for each in (SEQUENTIAL, arrangement)]
    return times[0] / times[1]


def gains(weathers: Sequence[tuple[str, Weather]], runs: int, seed: int) -> Iterator[Row]:
    for name, weather in weathers:
        yield {
            "weather": name,
            "sequential": Share(deviation(weather, SEQUENTIAL, runs, seed)),
            "alternating": Share(deviation(weather, ALTERNATING, runs, seed)),
            "gain": gain(weather, ALTERNATING, runs, seed),
        }


def lengths(runs: int, seed: int) -> Iterator[Row]:
    """Yield the gain by the length of bursts, without and with a step lost at each switch, and the number of rounds."""
    for pause in (0, 1):
        for burst in BURSTS:
            row: Row = {"steps lost": str(pause), "steps of a burst": str(burst)}
            for rounds in ROUNDS:
                arrangement = replace(ALTERNATING, pause=pause, burst=burst, rounds=rounds)
                row[f"{rounds} rounds"] = gain(MEASURED, arrangement, runs, seed)
            yield row


def chosen(weather: Weather, runs: int, seed: int) -> Row:
    """Return the components that pilots find, the arrangement that ``choose`` mostly makes of them, and its gain."""
    rng = np.random.default_rng(seed)
    pilots = PILOT.rounds_of(weather, rng, max(1, runs // 20), PILOT_BLOCKS)
    found = [components(pilot) for pilot in pilots]
    designs = [choose(each, COSTS, step=2 * weather.step**2) for each in found]
    gained = [gain(weather, arranged(design), runs, seed) for design in designs]
    usual = max(set(designs), key=lambda design: (designs.count(design), design.rounds))
    best = max(gain(weather, arranged(Design(burst, rounds, 1)), runs, seed) for burst in BURSTS for rounds in ROUNDS)
    return {
        "weather": weather.name,
        # Each component as a standard deviation: the root of the mean of its estimates.
        **{name: Share(np.sqrt(np.mean([getattr(each, name) for each in found]))) for name in COMPONENTS},
        "usual choice": f"{usual.rounds} rounds of {usual.burst_steps}",
        "gain": float(np.mean(gained)),
        "best": best,
    }


def arranged(design: Design) -> Arrangement:
    return replace(PILOT, burst=design.burst_steps, rounds=design.rounds, pairs=design.instances)


def cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if isinstance(value, Share) else f"{value:.1f}"


def main() -> None:
    options = parser(__doc__, "runs", 1000).parse_args()
    runs, seed = options.runs, options.seed
    scales = [(f"{scale_s:g} s", Weather("", drifts=((scale_s, 0.05),))) for scale_s in SCALES_S]
    placements = [(f"{share:.1%}", replace(MEASURED, placement=share)) for share in PLACEMENTS]
    tables = {
        "coverage": [
            coverage(family, arrangement, runs, seed)
            for family in range(len(FAMILIES))
            for arrangement in (SEQUENTIAL, ALTERNATING)
        ],
        "precision": list(precisions(runs // 4, seed)),
        "time scale": list(gains(scales, runs, seed)),
        "placement": list(gains(placements, runs, seed)),
        "bursts": list(lengths(runs, seed)),
        "choice": [chosen(weather, runs, seed) for weather in (*FAMILIES[:3], FAMILIES[-1])],
    }
    for title, rows in tables.items():
        show(title, rows[0], (map(cell, row.values()) for row in rows))
    if options.json:
        options.json.write_text(json.dumps({"runs": runs, "seed": seed, **tables}))


if __name__ == "__main__":
    main()
