"""Two sides that are measured in pairs whose order is drawn, and their ratio by the suite's own estimator and rules."""

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis.statistics.ratios import judge, locate
from suite.plan import balanced

Rates = dict[str, list[float]]


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the first line of a module's docstring."""
    return argparse.ArgumentParser(description=description.splitlines()[0] if description else None)


def parsed(parser: argparse.ArgumentParser, repeated: str = "pairs", usual: int = 10) -> argparse.Namespace:
    """Add the number of pairs or blocks and the seed of their order, and parse."""
    parser.add_argument(f"--{repeated}", type=int, default=usual, help="at least 2 (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help=f"random seed of the order in each {repeated[:-1]}")
    options = parser.parse_args()
    if getattr(options, repeated) < 2:
        parser.error(f"--{repeated} must be at least 2: one ratio has no interval")
    return options


def paired(own: str, base: str, measure: Callable[[str], float], options: argparse.Namespace, unit: str) -> Rates:
    """Measure both sides of each pair, and print their rates and the ratio. Returns the rates of each side."""
    found: Rates = {own: [], base: []}
    for number in range(1, options.pairs + 1):
        for side in balanced((base, own), number - 1, f"{options.seed}/{own}"):
            found[side].append(measure(side))
        last, before = found[own][-1], found[base][-1]
        print(f"pair {number}: {base} {before:.2f}, {own} {last:.2f} {unit}/s, ratio {last / before:.4f}", flush=True)
    return found


def ratios_of(found: Mapping[str, Sequence[float]]) -> list[float]:
    return [own / base for own, base in zip(*found.values(), strict=True)]


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the trimmed geometric mean of pairs, and its 95 % interval, by the suite's own estimator.

    On a machine with neighbours a pair in ten is far off.
    """
    place = locate(np.log(ratios))
    if place is None or place.interval is None:
        raise SystemExit("at least 2 pairs are needed")
    low, high = (math.exp(end) for end in place.interval)
    return math.exp(place.centre), low, high


def report(found: Rates, unit: str) -> None:
    """Print the median of each side, and the ratio with its interval."""
    own, base = found
    for side, rates in found.items():
        print(f"  {side:22} {statistics.median(rates):10.2f} {unit}/s (median)")
    centre, low, high = interval(ratios_of(found))
    print(f"  {f'{own} / {base}':22} {centre:10.4f}   95 % interval {low:.4f} to {high:.4f}")


def verdict_of(ratios: Sequence[float], unit: str, margin: float) -> str:
    """Return whether the ratio is within the margin, by the suite's own rules; nothing if that cannot be judged."""
    (verdict,) = judge([locate(np.log(ratios))], margin)
    if verdict is None:
        return ""
    more = f", some {verdict.more_blocks} more {unit} would decide" if verdict.more_blocks else ""
    return f"within {margin:.0%}: {verdict.name}{more}"
