"""Simulate what ``bench run`` does by default: turns of short bursts, until decided at 5 %, at most 10 minutes.

    python benchmarks/deciding_by_default.py [--runs 2000] [--seed 1] [--json FILE]

Two identical instances, one of which is slower by a known share of the margin, in the weather of
``alternating_weather``: how many minutes a verdict takes, how often there is one within 5 minutes and within the
budget, and how often it is false. Beside it stands ``--until decided`` of sequential trials, with no budget and with
the same. Minutes hold the warm-up block and the start of the command. The looks and their levels are those of
``deciding``; a run that its budget ends is judged at the level of its next look.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from deciding import MARGIN, MOST_BLOCKS, Rule, levels
from parts.alternating_weather import ALTERNATING, FAMILIES, MEASURED, SEQUENTIAL, STEP_S, Arrangement, Logs, Weather
from parts.simulations import parser, show

from analysis.statistics.margins import bounds_of
from analysis.statistics.sequential import LEAST_BLOCKS, level_after, looks
from suite.request.parts import BURST_STEPS, ROUNDS
from suite.request.repetitions import DECIDING_BUDGETS
from suite.units import parse_duration_s

START_S = 12.0
"""The check of the machine, and the answer at the end."""
SLOW_STEP_S = 0.39
"""ResNet-50's step in the profile ``quick``, where AlexNet's is ``STEP_S``."""
IDLE = Weather("idle", drifts=((5, 0.02), (60, 0.02)))
"""A block's log ratio then deviates by 1 to 2 % in turns, as it did on an idle host."""
WEATHERS = (IDLE, replace(MEASURED, name="shared cores"), FAMILIES[5])
TRUTHS = {"identical": 0.0, "half the margin": 0.5, "on the margin": 1.0, "twice the margin": 2.0}


@dataclass(frozen=True)
class Way:
    """A way to come to a verdict: how a block is arranged, and after how many seconds no block begins."""

    name: str
    arrangement: Arrangement
    budget_s: float = math.inf

    @property
    def most_blocks(self) -> int:
        in_budget = (self.budget_s - START_S) / self.arrangement.block_s
        return int(min(MOST_BLOCKS, math.ceil(in_budget) - 1)) if math.isfinite(in_budget) else MOST_BLOCKS

    def seconds(self, blocks: Logs) -> Logs:
        return np.asarray(START_S + (blocks + 1) * self.arrangement.block_s)

    @property
    def rule(self) -> Rule:
        taken = [look for look in looks(LEAST_BLOCKS, self.most_blocks) if look < self.most_blocks]
        ends = [*taken, self.most_blocks]
        return Rule(self.name, ends, [level_after(blocks, LEAST_BLOCKS) for blocks in ends])


def turns(name: str, step_s: float, rounds: int, burst_steps: int, budget_s: float = math.inf) -> Way:
    """Return the way of taking turns with steps of so many seconds; the simulation counts in those of AlexNet."""
    burst = max(1, round(burst_steps * step_s / STEP_S))
    return Way(name, replace(ALTERNATING, burst=burst, rounds=rounds), budget_s)


BUDGET_S = parse_duration_s(DECIDING_BUDGETS[0])
WAYS = (
    Way("sequential", SEQUENTIAL),
    Way("sequential, 10 min", SEQUENTIAL, BUDGET_S),
    turns("default, AlexNet", STEP_S, ROUNDS, BURST_STEPS, BUDGET_S),
    turns("default, ResNet-50", SLOW_STEP_S, ROUNDS, BURST_STEPS, BUDGET_S),
)


@dataclass(frozen=True)
class Ends:
    """How runs end: minutes on average, and the shares that decide within 5 minutes and at all, by verdict."""

    minutes: float
    in_five: float
    within: float
    beyond: float

    @property
    def texts(self) -> tuple[str, ...]:
        return f"{self.minutes:.1f}", f"{self.in_five:.0%}", f"{self.within:.1%}", f"{self.beyond:.1%}"


def simulated(way: Way, weather: Weather, truth: float, runs: int, seed: int) -> Ends:
    """Return how runs end in a weather; ``truth`` is the distance of the true ratio from 1, in margins."""
    ratio = truth * bounds_of(MARGIN).low
    rng = np.random.default_rng((seed, WEATHERS.index(weather)))
    values = way.arrangement.log_ratios(weather, rng, runs, way.most_blocks) + ratio
    rule = way.rule
    found = [levels(values, blocks, ratio)[:2] for blocks in rule.looks]
    holds = np.array([found_at <= level for found_at, level in zip(found, rule.levels, strict=True)])
    decided = holds.any(axis=1)
    last = np.where(decided.any(axis=0), decided.argmax(axis=0), len(rule.looks) - 1)
    seconds = way.seconds(np.array(rule.looks)[last])
    verdicts = holds[last, :, np.arange(runs)]
    in_five = verdicts.any(axis=1) & (seconds <= 300)
    within, beyond = verdicts.mean(axis=0)
    return Ends(float(seconds.mean()) / 60, float(in_five.mean()), float(within), float(beyond))


def rows(runs: int, seed: int) -> Iterator[tuple[str, str, str, Ends]]:
    for weather in WEATHERS:
        for name, truth in TRUTHS.items():
            for way in WAYS:
                yield weather.name, name, way.name, simulated(way, weather, truth, runs, seed)


def main() -> None:
    options = parser(__doc__, "runs", 2000).parse_args()
    found = list(rows(options.runs, options.seed))
    heads = ("weather", "truth", "rule", "minutes", "decided in 5 min", "within", "beyond")
    show(f"margin {MARGIN:.0%}", heads, ((*names, *ends.texts) for *names, ends in found))
    if options.json:
        told = [[*names, vars(ends)] for *names, ends in found]
        options.json.write_text(json.dumps({"runs": options.runs, "seed": options.seed, "rows": told}))


if __name__ == "__main__":
    main()
