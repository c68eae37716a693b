"""Which cells of an open-ended sweep need no further block, as decided by the process that hands out its blocks.

DIR/converged.json is written between two rounds of blocks: all blocks of a round then hold the same cells, one that is
begun again too, whatever the others have measured meanwhile.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from suite.part import Part
from suite.results.store import write_atomic
from suite.sweep.directory import plan_hash
from suite.sweep.model import Sweep

CONVERGED = "converged.json"


class ConvergedCells(Part):
    """The content of the file."""

    sha256: str
    """The hash of the plan: what was decided under another plan does not hold."""
    cells: tuple[str, ...]


def write_converged(directory: Path, sweep: Sweep, cells: Iterable[str]) -> None:
    """Write down the names of the cells. Raises StoreError."""
    content = ConvergedCells(sha256=plan_hash(sweep), cells=tuple(cells))
    write_atomic(directory / CONVERGED, content.model_dump_json() + "\n")


def converged_cells(directory: Path, sweep: Sweep) -> frozenset[str]:
    """Return the names of the cells; none where nothing has been decided yet."""
    try:
        found = ConvergedCells.model_validate_json((directory / CONVERGED).read_bytes())
    except (OSError, ValidationError):
        return frozenset()
    return frozenset(found.cells) if found.sha256 == plan_hash(sweep) else frozenset()
