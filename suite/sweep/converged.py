"""Which cells of a sweep with ``until`` need no further block, as whoever hands out its blocks has decided.

DIR/enough.json is written between two rounds of blocks: all elements of a round then run the same cells, one that is
begun again too, whatever the others have measured meanwhile.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from suite.results.store import write_atomic
from suite.sweep.directory import plan_hash
from suite.sweep.model import Sweep

ENOUGH = "enough.json"


class _Decided(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    """Of the plan; what was decided under another one holds no more."""
    cells: tuple[str, ...]


def decide(directory: Path, sweep: Sweep, cells: Iterable[str]) -> None:
    """Raises StoreError."""
    told = _Decided(sha256=plan_hash(sweep), cells=tuple(cells))
    write_atomic(directory / ENOUGH, told.model_dump_json() + "\n")


def decided(directory: Path, sweep: Sweep) -> frozenset[str]:
    """The names of the cells; none where nobody has decided yet."""
    try:
        found = _Decided.model_validate_json((directory / ENOUGH).read_bytes())
    except (OSError, ValidationError):
        return frozenset()
    return frozenset(found.cells) if found.sha256 == plan_hash(sweep) else frozenset()
