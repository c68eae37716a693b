"""Simulate sweeps with known ratios, to see how often intervals cover and verdicts are false.

    python benchmarks/validity.py [--sweeps 2000] [--seed 1] [--json FILE] [--intervals]

Each sweep is a run of blocks with four targets in random order: bare metal, one of the same speed, one 5 % and one 12 %
slower. ``validity_samples`` has the families of noise, ``validity_rules`` what other tools make of the same samples,
and ``validity_intervals`` (with ``--intervals``) the candidates for the interval of the expected cost.
"""

import json
from collections.abc import Iterable, Sequence
from multiprocessing import get_context

from parts.simulations import parser, show
from parts.validity_intervals import NAMES, coverage
from parts.validity_samples import FAMILIES
from parts.validity_simulation import SIZES, Row, row_of

SHARES = (
    *("typical_covers", "expected_covers", "false_verdicts", "differs_at_no_margin"),
    *("slow_beyond_chance", "bound_covers"),
)


def show_suite(rows: Iterable[Row]) -> None:
    """Show what the suite's own rules make of them."""
    heads = ("noise", "size", "typical covers", "expected covers", "false", "margin 0", "slow", "bound", "identical is")
    texts = []
    for row in rows:
        verdicts = ", ".join(f"{name} {share:.0%}" for name, share in sorted(row["identical"].items()))
        size = row["size"] + (f", {row['blocks']:.0f}" if "until" in row["size"] else "")
        texts.append((row["noise"], size, *(f"{row[name]:.1%}" for name in SHARES), verdicts))
    show("the suite: intervals of 95 %, verdicts at a margin of 2 %", heads, texts)


def show_others(rows: Sequence[Row]) -> None:
    """Show how often other tools call an identical target different."""
    compared = [row for row in rows if row["others"]]
    texts = ((row["noise"], row["size"], *(f"{share:.1%}" for share in row["others"].values())) for row in compared)
    show("other tools on the identical target", ("noise", "size", *compared[0]["others"]), texts)


def show_intervals(sweeps: int, seed: int) -> None:
    """Show how often the candidates for the interval of the expected cost cover."""
    texts = []
    for family in FAMILIES:
        for blocks in SIZES:
            found = coverage(family, sweeps, blocks, seed)
            texts.append((family.name, f"{blocks} blocks", *(f"{found[name]:.1%}" for name in NAMES)))
    show("candidates for the expected cost", ("noise", "size", *NAMES), texts)


def main() -> None:
    asked = parser(__doc__, "sweeps", 2000)
    asked.add_argument("--intervals", action="store_true", help="compare the candidates for the expected cost instead")
    options = asked.parse_args()
    if options.intervals:
        show_intervals(options.sweeps, options.seed)
        return
    tasks = [
        (place, blocks, options.sweeps, options.seed) for place in range(len(FAMILIES)) for blocks in (*SIZES, None)
    ]
    with get_context("spawn").Pool(2) as pool:
        rows = pool.starmap(row_of, tasks, chunksize=1)
    show_suite(rows)
    show_others(rows)
    if options.json:
        found = {"sweeps": options.sweeps, "seed": options.seed, "rows": rows}
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
