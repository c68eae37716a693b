"""Simulate targets of which some trials time out, to see how often they are called equivalent.

    python benchmarks/failures.py [--runs 2000] [--seed 1] [--json FILE]

The trials of target and bare metal that finish are alike: a deviation of 1.2 %. Of the others, the share that is named,
no time is ever known. They are the target's alone, or as many on both sides.

finished only   ``equivalent`` or ``typical-only`` by the trials that finished, as if the others had never been
said            the same by the suite; false where trials fail on the target alone
fails more      the suite's word for them; false where as many fail on both sides
too small       the share of the target's failures is above the bound that an ``equivalent`` excludes; at most 5 %
covers          the 95 % interval of that share holds it
"""

import json
from collections import Counter
from itertools import product

import numpy as np
from parts.simulations import parser, show
from parts.validity_samples import SIGMA

from analysis.statistics.failures import count_failures, failing_more, may_hide
from analysis.statistics.ratios import FAILS_MORE, judge, locate
from analysis.statistics.tails import qualified, tail_of
from suite.request.repetitions import MARGIN

SHARES, BLOCKS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4), (10, 20, 40)
ALIKE = ("equivalent", "typical-only")
COLUMNS = ("finished only", "said", "fails more", "too small", "covers")


def rates(share: float, blocks: int, *, both: bool = False, runs: int = 2000, seed: int = 1) -> dict[str, float]:
    """Return the shares of the runs; ``both``: the trials of bare metal fail as often."""
    rng = np.random.default_rng((seed, blocks, int(share * 1000), both))
    counts: Counter[str] = Counter()
    for _ in range(runs):
        times = rng.normal(0, SIGMA, (2, blocks))
        failed = rng.random((2, blocks)) < np.array([[share if both else 0.0], [share]])
        base, own = times[:, ~failed.any(axis=0)]
        failures = count_failures(failed[1], failed[0])
        counts["covers"] += failures.low <= share <= failures.high
        place, tail = locate(own - base), tail_of(own - base, base, more_is_faster=False, failures=failures)
        found = qualified(judge([place], more_is_faster=False), [place], [tail], MARGIN)
        unaware = tail_of(own - base, base, more_is_faster=False)
        (before,) = qualified(judge([place], more_is_faster=False), [place], [unaware], MARGIN)
        (verdict,) = failing_more(found, [failures])
        if verdict is None or verdict.name is None or tail is None:
            continue
        said = verdict.name in ALIKE and not may_hide(verdict.name, failures, MARGIN)
        counts["finished only"] += before is not None and before.name in ALIKE
        counts["said"] += said
        counts["fails more"] += verdict.name == FAILS_MORE
        counts["too small"] += said and tail.slow.excluded < share
    return {name: counts[name] / runs for name in COLUMNS}


def main() -> None:
    options = parser(__doc__, "runs", 2000).parse_args()
    rows = []
    for both, share, blocks in product((False, True), SHARES, BLOCKS):
        found = rates(share, blocks, both=both, runs=options.runs, seed=options.seed)
        rows.append({"both": both, "share": share, "blocks": blocks, **found})
    texts = []
    for row in rows:
        sides = "both" if row["both"] else "target"
        texts.append((sides, f"{row['share']:.0%}", f"{row['blocks']}", *(f"{row[name]:.1%}" for name in COLUMNS)))
    show("trials that time out", ("fails", "share", "blocks", *COLUMNS), texts)
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
