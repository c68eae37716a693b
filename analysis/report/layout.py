"""Borderless tables for the terminal."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text


def empty_table(titles: Sequence[Text | str], gap: int = 2) -> Table:
    """Return a table without rows or borders: the first column to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place else "left", no_wrap=place > 0)
    return table


def fits(console: Console, options: ConsoleOptions, table: Table, heads: Sequence[str]) -> bool:
    """Return whether a table fits if the words of its first column, ``heads``, may stand below each other."""
    first = table.columns[0]
    first.min_width = max((len(word) for head in heads for word in head.split()), default=0)
    spare = max(map(len, heads), default=0) - first.min_width
    # Measured on a console without an end: on this one rich would take any table to fit, and cut its cells.
    needed = console.measure(table, options=options.update(max_width=10_000)).maximum - max(spare, 0)
    return needed <= options.max_width
