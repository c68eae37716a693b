"""Measure the suite's training steps against plain loops, and the recipe ``tuned`` against ``reference``.

A loop by hand (``parts/dcgan_loop.py``: PyTorch's example at 64 px; ``parts/transformer_loop.py``: a small GPT-2)
against the worker's step of the recipe ``reference``, and ``tuned`` against ``reference``: on the CPU, each side a
process with the same threads and the job's variables, in pairs whose order is drawn. Prints the trimmed geometric
mean of the pairs' ratios with its 95 % interval.

    python benchmarks/plain_loop.py dcgan --pairs 10
    python benchmarks/plain_loop.py transformer --pairs 10
"""

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

from parts.pairs import paired, parsed, parser_of, ratios_of, report, verdict_of

from scenarios.job import clean_environment

REPOSITORY = Path(__file__).parents[1]
PLAIN, REFERENCE, TUNED = "plain", "reference", "tuned"
PAIRS = ((REFERENCE, PLAIN), (TUNED, REFERENCE))
MARGIN = 0.02
SEED = 3
SIZES = {
    "dcgan": {"batch": 32, "image_px": 64, "channels": 3},
    "transformer": {"batch": 512, "tokens": 128, "depth": 4},
}


def main() -> None:
    options = parse()
    if options.side:
        print(suite_rate(options))
        return
    unit = "tokens" if "tokens" in SIZES[options.workload] else "images"
    for own, base in PAIRS:
        found = paired(own, base, partial(rate, options), options, unit)
        report(found, unit)
        print(verdict_of(ratios_of(found), "pairs", MARGIN))


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("workload", choices=tuple(SIZES))
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=(REFERENCE, TUNED), help=argparse.SUPPRESS)
    return parsed(parser)


def rate(options: argparse.Namespace, side: str) -> float:
    """Return the units per second of a side, in a process that has the job's variables and no others."""
    threads, recipe = str(options.threads), REFERENCE if side == PLAIN else side
    counts = {"--warmup-steps": options.warmup_steps, "--steps": options.steps, "--threads": threads}
    if side == PLAIN:
        sizes = SIZES[options.workload].values()
        loop = str(REPOSITORY / f"benchmarks/parts/{options.workload}_loop.py")
        words = [loop, *map(str, sizes), *map(str, counts.values()), str(SEED)]
    else:
        words = [__file__, options.workload, "--side", side, *(str(word) for pair in counts.items() for word in pair)]
    argv = [*clean_environment(options.threads, recipe, PYTHONPATH=str(REPOSITORY)), sys.executable, *words]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[-1])


def suite_rate(options: argparse.Namespace) -> float:
    """Return the units per second of the worker's own steps."""
    import torch
    from parts.suite_steps import suite_s

    torch.set_num_interop_threads(1)
    torch.set_num_threads(options.threads)
    sizes, more = SIZES[options.workload], {"threads": options.threads, "recipe": options.side, "seed": SEED}
    seconds = suite_s(options.workload, "cpu", options.warmup_steps, options.steps, **sizes, **more)
    return float(sizes["batch"] * options.steps / seconds)


if __name__ == "__main__":
    main()
