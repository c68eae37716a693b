"""Simulate sweeps with known ratios, to see how often intervals cover and verdicts are false.

    python benchmarks/validity.py [--sweeps 2000] [--seed 1] [--json FILE] [--intervals]

Each sweep is a run of blocks with four targets in random order: bare metal, one of the same speed, one 5 % and one 12 %
slower. ``validity_samples`` has the families of noise, ``validity_rules`` what other tools make of the same samples,
and ``validity_intervals`` (with ``--intervals``) the candidates for the interval of the expected cost.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from multiprocessing import get_context

from parts.simulations import parser
from parts.validity_intervals import NAMES, coverage
from parts.validity_samples import FAMILIES
from parts.validity_simulation import SIZES, Row, Task, row_of
from rich.console import Console
from rich.table import Table


def suite_table(rows: Iterable[Row]) -> Table:
    """Return what the suite's own rules show."""
    heads = ("noise", "size", "typical covers", "expected covers", "false", "margin 0", "slow", "bound", "identical is")
    table = Table(*heads, title="the suite: intervals of 95 %, verdicts at a margin of 2 %", title_justify="left")
    for row in rows:
        shares = (row.typical_covers, row.expected_covers, row.false_verdicts, row.differs_at_no_margin)
        slow = (row.slow_beyond_chance, row.bound_covers)
        verdicts = ", ".join(f"{name} {share:.0%}" for name, share in sorted(row.identical.items()))
        size = row.size if "until" not in row.size else f"{row.size}, {row.blocks:.0f}"
        table.add_row(row.noise, size, *(f"{share:.1%}" for share in (*shares, *slow)), verdicts)
    return table


def others_table(rows: Sequence[Row]) -> Table:
    """Return how often other tools call an identical target different."""
    names = list(next(row.others for row in rows if row.others))
    table = Table("noise", "size", *names, title="other tools on the identical target", title_justify="left")
    for row in rows:
        if row.others:
            table.add_row(row.noise, row.size, *(f"{row.others[name]:.1%}" for name in names))
    return table


def intervals_table(sweeps: int, seed: int) -> Table:
    """Return how often the candidates for the interval of the expected cost cover."""
    table = Table("noise", "size", *NAMES, title="candidates for the expected cost", title_justify="left")
    for family in FAMILIES:
        for blocks in SIZES:
            found = coverage(family, sweeps, blocks, seed)
            table.add_row(family.name, f"{blocks} blocks", *(f"{found[name]:.1%}" for name in NAMES))
    return table


def main() -> None:
    asked = parser(__doc__, "sweeps", 2000)
    asked.add_argument("--intervals", action="store_true", help="compare the candidates for the expected cost instead")
    options = asked.parse_args()
    console = Console(width=160)
    if options.intervals:
        console.print(intervals_table(options.sweeps, options.seed))
        return
    tasks = [
        Task(place, blocks, options.sweeps, options.seed) for place in range(len(FAMILIES)) for blocks in (*SIZES, None)
    ]
    with get_context("spawn").Pool(2) as pool:
        rows = pool.map(row_of, tasks, chunksize=1)
    console.print(suite_table(rows))
    console.print(others_table(rows))
    if options.json:
        found = {"sweeps": options.sweeps, "seed": options.seed, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
