"""Measure what the confinement of bare metal costs: the same training confined, as root, and by a bare script as root.

Every block holds one trial of each, in drawn order: the first two by ``bench run``, where the job is a user of its own
without capabilities, or (``--ablate confinement``) root; the bare script as ``intrusion.py`` has it. Prints the medians
and, for each pair, the trimmed geometric mean of the ratios inside the blocks with its 95 % interval, and whether that
is within 1 %.

    python benchmarks/confinement.py --model resnet50 --blocks 20
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intrusion import MARGIN, bare_throughput, newest_tree, output
from parts.pairs import interval, parsed, parser_of, verdict_of

from suite.plan import balanced

CONFINED, ROOT, BARE = "confined", "root", "bare script"
PAIRS = ((CONFINED, ROOT), (CONFINED, BARE), (ROOT, BARE))
COUNTED = ("throughput", "elapsed")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--bench", default="bench", help="the suite's command, such as '.venv/bin/bench'")
    options = parsed(parser, "blocks", 20)
    tree = newest_tree(options.bench.split())
    # Not counted: it says which sizes and envelope the profile means on this machine, and warms the page cache.
    record = suite_trials(options, seed=options.seed)[CONFINED]
    seeds = random.Random(options.seed)  # noqa: S311 - of weights, not a secret
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in (CONFINED, ROOT, BARE)}
    for number in range(1, options.blocks + 1):
        for side in balanced(("suite", BARE), number - 1, str(options.seed)):
            if side == BARE:
                found[BARE].append({"throughput": bare_throughput(tree, record)})
                continue
            for name, trial in suite_trials(options, seed=seeds.randrange(1 << 31)).items():
                found[name].append({"throughput": trial["throughput_per_s"], "elapsed": trial["elapsed_s"]})
        last = ", ".join(f"{name} {values[-1]['throughput']:.2f}" for name, values in found.items())
        print(f"block {number}: {last} images/s", flush=True)
    report(options, found)


def suite_trials(options: argparse.Namespace, *, seed: int) -> dict[str, dict[str, Any]]:
    """Run one block of bare metal, confined and as root, in the order that the seed gives; return both records."""
    words = ["--target", "bare-metal", "--ablate", "confinement", "--scenario", "synthetic", "--model", options.model]
    with tempfile.TemporaryDirectory() as directory:
        place = ["--profile", options.profile, "--blocks", "1", "--seed", str(seed), "--out", directory, "--json"]
        output([*options.bench.split(), "run", *words, *place])
        records = [json.loads(path.read_text()) for path in Path(directory).glob("trials/*.json")]
    for record in records:
        if record["outcome"]["status"] != "ok":
            raise SystemExit(f"{record['trial_id']} failed: {record['outcome']['message']}")
    return {ROOT if record["ablation"] else CONFINED: record for record in records}


def report(options: argparse.Namespace, found: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    print(f"{options.model}, profile {options.profile}, {options.blocks} blocks")
    for metric in COUNTED:
        for name, values in found.items():
            if all(metric in value for value in values):
                print(f"  {metric:10} {name:12} median {statistics.median(value[metric] for value in values):10.3f}")
        for one, other in PAIRS:
            both = list(zip(found[one], found[other], strict=True))
            if all(metric in value for pair in both for value in pair):
                print(f"  {metric:10} {one} / {other}: {told([a[metric] / b[metric] for a, b in both])}")


def told(ratios: Sequence[float]) -> str:
    centre, low, high = interval(ratios)
    said = f"{centre:.4f}, 95 % interval {low:.4f} to {high:.4f}"
    return "; ".join(filter(None, [said, verdict_of(ratios, "blocks", MARGIN)]))


if __name__ == "__main__":
    main()
