"""Give the simulations their options, their tables, and the stop rule at work on simulated ratios."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from analysis.statistics.ratios import Samples
from analysis.statistics.sequential import should_stop


def parser(description: str | None, repeated: str, times: int) -> argparse.ArgumentParser:
    """Return a parser of the number of runs, named after what is repeated, the seed, and the file of the result."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument(f"--{repeated}", type=int, default=times)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--json", type=Path, help="write the rows to this file as well")
    return found


def show(title: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    table = Table(*heads, box=box.MARKDOWN, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


def blocks_until(log_ratios: Mapping[str, Samples], half_width: float) -> int:
    """Return the blocks after which the stop rule ends a run; all of them if it does not."""
    most = min(map(len, log_ratios.values()))
    blocks = 1
    while True:
        begun = {name: values[:blocks] for name, values in log_ratios.items()}
        decision = should_stop(begun, half_width, max_blocks=most)
        if decision.stop:
            return blocks
        # It says itself how many more are certainly needed: asking after each of these would change nothing.
        blocks = min(blocks + decision.at_least, most)
