"""Simulate sweeps with known ratios, to see whether intervals cover and identical targets are left alone.

    python benchmarks/validity.py [--sweeps 2000] [--seed 1] [--json FILE]

Each sweep is a run of blocks with four targets in random order: bare metal, one that is identical to it, one 5 % and
one 12 % slower. A trial's log throughput holds a drift over the run (a trend and a random walk), an effect of its
block, a drift inside the block, heavy-tailed noise (Student t, 3 degrees of freedom, 1.2 %) and, in 4 % of the trials,
an outlier: some 20 % slower. The first table is without all this: only normal noise, for which Student's t is exact.

The same samples go through two other tools' rules, as their documentation describes them:

pyperf     ``compare_to`` calls a difference significant when a two-sample, two-sided Student t test of all values of
           one against all of the other is, at 95 % (pyperf.readthedocs.io). It gives no interval of the ratio.
hyperfine  reports the ratio of the two means, plus or minus a standard deviation propagated from those of the two
           samples (``relative_speed`` in its source). A reader takes 1.05 +- 0.02 as a difference.

Both run all repetitions of one command before the next: rows "in its own order" give them trials taken so, with the
same drift.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy import stats

from analysis.statistics.ratios import judge, locate
from analysis.statistics.sequential import should_stop

Logs = npt.NDArray[np.float64]
TRUTH = {"identical": 0.0, "5 % slower": math.log(0.95), "12 % slower": math.log(0.88)}
SIZES = (5, 10, 20, 40)
MOST_BLOCKS = 120
UNTIL = {"normal": (0.02, 0.01), "nasty": (0.03, 0.015)}


@dataclass(frozen=True)
class Noise:
    """The noise of log throughput: standard deviations, a trend, and a share of outliers."""

    name: str
    heavy: bool
    trend: float
    """The drift over 100 trials."""
    walk: float
    """The standard deviation of the random walk from trial to trial."""
    block: float
    position: float
    """What each place in a block loses against the one before."""
    outliers: float

    def trials(self, rng: np.random.Generator, count: int, per_block: int) -> Logs:
        """Return the noise of ``count`` trials, one after the other."""
        place = np.arange(count)
        slow = (rng.random(count) < self.outliers) * rng.lognormal(math.log(0.2), 0.5, count)
        noise = 0.012 * (rng.standard_t(3, count) if self.heavy else rng.normal(0, 1, count))
        block = np.repeat(rng.normal(0, self.block, -(-count // per_block)), per_block)[:count]
        walk = rng.normal(0, self.walk, count).cumsum() if self.walk else 0.0
        return noise - slow + block + walk + self.trend * place / 100 - self.position * (place % per_block)


NOISES = (
    Noise("normal", heavy=False, trend=0, walk=0, block=0, position=0, outliers=0),
    Noise("nasty", heavy=True, trend=0.1, walk=0.001, block=0.05, position=0.002, outliers=0.04),
)


def sweep(rng: np.random.Generator, noise: Noise, blocks: int) -> tuple[Logs, dict[str, Logs]]:
    """Return the log throughput of bare metal and of each target, per block."""
    targets = 1 + len(TRUTH)
    seen = noise.trials(rng, blocks * targets, targets).reshape(blocks, targets)
    seen = rng.permuted(seen, axis=1)
    return seen[:, 0], {name: seen[:, place] + truth for place, (name, truth) in enumerate(TRUTH.items(), start=1)}


def in_a_row(rng: np.random.Generator, noise: Noise, runs: int, truth: float) -> tuple[Logs, Logs]:
    """Return all trials of bare metal and then all of the target: how pyperf and hyperfine run them."""
    seen = noise.trials(rng, 2 * runs, 1 + len(TRUTH))
    return seen[:runs], seen[runs:] + truth


Count = dict[tuple[str, str, str], list[bool]]


def fixed(rng: np.random.Generator, noise: Noise, blocks: int, counts: Count) -> None:
    """Simulate and judge one sweep of a size chosen beforehand."""
    base, targets = sweep(rng, noise, blocks)
    size = f"{blocks} blocks"
    ours(base, targets, size, counts)
    for name, values in targets.items():
        others(base, values, TRUTH[name], size, "", name, counts)
        others(*in_a_row(rng, noise, blocks, TRUTH[name]), TRUTH[name], size, ", in its own order", name, counts)


def sequential(rng: np.random.Generator, noise: Noise, until: float, counts: Count) -> int:
    """Simulate and judge one sweep that ends when all three intervals are narrow enough; return its blocks."""
    base, targets = sweep(rng, noise, MOST_BLOCKS)
    for blocks in range(1, MOST_BLOCKS + 1):
        ratios = {name: (values - base)[:blocks] for name, values in targets.items()}
        if should_stop(ratios, until, max_blocks=MOST_BLOCKS).stop:
            break
    ours(base[:blocks], {name: values[:blocks] for name, values in targets.items()}, f"until {until:.1%}", counts)
    return blocks


def ours(base: Logs, targets: dict[str, Logs], size: str, counts: Count) -> None:
    places = [locate(values - base) for values in targets.values()]
    for margin, method in ((0.02, "virtbench"), (0.0, "virtbench, margin 0")):
        for name, place, verdict in zip(targets, places, judge(places, margin), strict=True):
            assert place  # noqa: S101
            assert verdict  # noqa: S101
            assert place.interval  # noqa: S101
            low, high = place.interval
            counts[method, size, f"covers {name}"].append(low <= TRUTH[name] <= high)
            counts[method, size, f"differs {name}"].append(verdict.name in ("slower", "faster"))


def others(base: Logs, values: Logs, truth: float, size: str, order: str, name: str, counts: Count) -> None:
    one, other = np.exp(base), np.exp(values)
    test = stats.ttest_ind(one, other)
    counts[f"pyperf{order}", size, f"differs {name}"].append(bool(test.pvalue < 0.05))
    ratio = other.mean() / one.mean()
    spread = ratio * math.hypot(one.std(ddof=1) / one.mean(), other.std(ddof=1) / other.mean())
    counts[f"hyperfine{order}", size, f"differs {name}"].append(bool(abs(ratio - 1) > spread))
    counts[f"hyperfine{order}", size, f"covers {name}"].append(bool(abs(ratio - math.exp(truth)) <= spread))


def rows(noise: Noise, sweeps: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield the shares of the sweeps, per method and size."""
    rng = np.random.default_rng(seed)
    counts: Count = defaultdict(list)
    blocks = {f"until {until:.1%}": [0] * sweeps for until in UNTIL[noise.name]}
    for number in range(sweeps):
        for size in SIZES:
            fixed(rng, noise, size, counts)
        for until in UNTIL[noise.name]:
            blocks[f"until {until:.1%}"][number] = sequential(rng, noise, until, counts)
    for key in dict.fromkeys(key[:2] for key in sorted(counts, key=lambda key: not key[0].startswith("virtbench"))):
        method, label = key
        shares = {what: float(np.mean(found)) for (*where, what), found in counts.items() if tuple(where) == key}
        mean = float(np.mean(blocks[label])) if label in blocks else float(label.split()[0])
        yield {"noise": noise.name, "method": method, "size": label, "blocks": mean, **shares}


def show(found: Sequence[dict[str, object]], noise: str, sweeps: int) -> Table:
    title = (
        f"{noise} noise, {sweeps} sweeps; an interval of 95 % should cover 95 %, 'identical' should differ in <= 5 %"
    )
    table = Table(title=title, title_justify="left")
    for column in ("method", "size", "blocks"):
        table.add_column(column)
    shares = [f"{what} {name}" for what in ("covers", "differs") for name in TRUTH]
    for column in shares:
        table.add_column(column, justify="right")
    for row in found:
        cells = [f"{row[column]:.1%}" if column in row else "-" for column in shares]
        table.add_row(str(row["method"]), str(row["size"]), f"{row['blocks']:.3g}", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the shares to this file as well")
    options = parser.parse_args()
    everything = []
    for noise in NOISES:
        found = list(rows(noise, options.sweeps, options.seed))
        Console(width=140).print(show(found, noise.name, options.sweeps))
        everything += found
    if options.json:
        options.json.write_text(json.dumps({"sweeps": options.sweeps, "seed": options.seed, "rows": everything}))


if __name__ == "__main__":
    main()
