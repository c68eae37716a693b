"""Simulate runs that are planned to detect a difference, to see whether they detect it as often as was promised.

    python benchmarks/power.py [--runs 4000] [--seed 1] [--json FILE]

Each run measures its first blocks, plans the number of all blocks from them, goes on to that number and tests its
ratios by the trimmed mean of all blocks, as ``bench run --detect`` and ``bench compare`` do. Bare metal and the targets
have the same noise, 3 % from trial to trial as far as it is not trimmed: ``normal``; ``heavy``, Student's t with 3
degrees of freedom; ``skewed``, a lognormal distribution with its long tail on the slow side.

power           how often a target that differs is called different; 80 % are promised
false positive  how often any of the identical targets is called different; 5 % are allowed
plug-in         the same with a plan that takes the pilot's deviation for the true one, as textbooks do
at once         the same without going on to at least twice the pilot
known           plans from earlier runs have nothing in common with the run: its blocks are simulated anew
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from parts.simulations import parser, show
from scipy import special

from analysis.compare.convergence import GROWTH, PILOT_BLOCKS
from analysis.statistics.margins import log_difference
from analysis.statistics.power import degrees_of_freedom, detectable, trimmed
from analysis.statistics.ratios import detection_level
from analysis.statistics.sequential import LEAST_BLOCKS

Numbers = npt.NDArray[np.float64]
NoiseName = Literal["normal", "heavy", "skewed"]
How = Literal["ours", "plug-in", "at once", "known"]
NOISES: tuple[NoiseName, ...] = ("normal", "heavy", "skewed")
DIFFERENCES = (0.01, 0.02, 0.05)
DEVIATION = 0.03 * math.sqrt(2)
"""The standard deviation of a block's log ratio."""
PILOTS = (6, 8, 10, 14)
MOST_BLOCKS = 1000


@dataclass(frozen=True)
class Setting:
    noise: NoiseName
    difference: float
    targets: int = 1
    pilot: int = PILOT_BLOCKS
    how: How = "ours"


@dataclass(frozen=True)
class Places:
    """Trimmed means of many runs: an array of centres and standard errors, and the degrees of freedom of all."""

    centres: Numbers
    errors: Numbers
    freedom: int


def located(values: Numbers) -> Places:
    """Return what ``ratios.locate`` returns, for runs along the first axis and blocks along the second."""
    n = values.shape[1]
    cut = trimmed(n)
    ordered = np.sort(values, axis=1)
    inner = ordered[:, cut : n - cut]
    winsorised = np.clip(ordered, inner[:, :1], inner[:, -1:])
    squares = ((winsorised - winsorised.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    kept = n - 2 * cut
    return Places(inner.mean(axis=1), np.sqrt(squares / (kept * (kept - 1))), degrees_of_freedom(n))


def raw(rng: np.random.Generator, noise: NoiseName, shape: tuple[int, ...]) -> Numbers:
    if noise == "normal":
        return rng.normal(size=shape)
    return rng.standard_t(3, shape) if noise == "heavy" else -rng.lognormal(0, 1, shape)


@cache
def scale(noise: NoiseName) -> float:
    """Return what makes the deviation of a ratio, as it is estimated, ``DEVIATION``."""
    many = raw(np.random.default_rng(0), noise, (2, 1, 200_000))
    return DEVIATION / float(located(many[0] - many[1]).errors[0] * math.sqrt(many.shape[2]))


def ratios(rng: np.random.Generator, setting: Setting, runs: int, blocks: int) -> Numbers:
    """Return log ratios of identical targets: run, block, target. The targets of a block share its bare metal."""
    trials = scale(setting.noise) * raw(rng, setting.noise, (runs, blocks, 1 + setting.targets))
    return trials[:, :, 1:] - trials[:, :, :1]


@cache
def per_deviation(setting: Setting) -> Numbers:
    """Return the difference that 0, 1, 2, ... blocks detect, per deviation of the pilot."""
    level, freedom = detection_level(setting.targets), degrees_of_freedom(setting.pilot)
    found = [
        detectable(1.0, 1e6 if setting.how == "plug-in" else freedom, blocks, level=level)
        for blocks in range(MOST_BLOCKS + 1)
    ]
    return np.array([math.inf] * LEAST_BLOCKS + found[LEAST_BLOCKS:])


def planned(setting: Setting, pilot: Numbers) -> npt.NDArray[np.int64]:
    """Return the number of blocks of each run, planned from its pilot: run, block, target."""
    deviations = located(pilot).errors * math.sqrt(setting.pilot)
    enough = deviations.max(axis=1)[:, None] * per_deviation(setting)[None] <= log_difference(setting.difference)
    needed = np.where(enough.any(axis=1), enough.argmax(axis=1), MOST_BLOCKS)
    least = {"ours": GROWTH * setting.pilot, "known": LEAST_BLOCKS}.get(setting.how, setting.pilot)
    return np.maximum(needed, least)


def simulated(setting: Setting, runs: int, seed: int) -> dict[str, object]:
    """Return the power, the false positives and the blocks of a setting."""
    rng = np.random.default_rng(seed)
    pilot = ratios(rng, setting, runs, setting.pilot)
    blocks = planned(setting, pilot)
    seen = wrong = 0
    for count in np.unique(blocks):
        first = pilot[blocks == count][:, : 0 if setting.how == "known" else None]
        more = ratios(rng, setting, len(pilot[blocks == count]), int(count) - first.shape[1])
        places = located(np.concatenate([first, more], axis=1))
        bound = special.stdtrit(places.freedom, 1 - detection_level(setting.targets)) * places.errors
        wrong += int((abs(places.centres) > bound).any(axis=1).sum())
        seen += int((places.centres[:, 0] - log_difference(setting.difference) < -bound[:, 0]).sum())
    return {**asdict(setting), "power": seen / runs, "false_positive": wrong / runs, "blocks": float(blocks.mean())}


def settings() -> Iterator[Setting]:
    for noise in NOISES:
        for difference in DIFFERENCES:
            yield from (Setting(noise, difference, targets) for targets in (1, 3))
            yield Setting(noise, difference, how="plug-in")
            yield Setting(noise, difference, how="known")
    for pilot in PILOTS:
        for how in ("ours", "plug-in", "at once"):
            yield Setting("normal", 0.02, pilot=pilot, how=how)


def _cell(name: str, value: object) -> str:
    if name in ("power", "false_positive"):
        return f"{value:.1%}"
    return f"{value:.0f}" if isinstance(value, float) and value > 1 else str(value)


def main() -> None:
    options = parser(__doc__, "runs", 4000).parse_args()
    rows = [simulated(setting, options.runs, options.seed) for setting in settings()]
    texts = ([_cell(name, value) for name, value in row.items()] for row in rows)
    show(f"{options.runs} runs each; promised: a power of 80 %, at most 5 % false positives", rows[0], texts)
    if options.json:
        options.json.write_text(json.dumps({"runs": options.runs, "seed": options.seed, "rows": rows}))


if __name__ == "__main__":
    main()
