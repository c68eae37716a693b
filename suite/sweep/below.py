"""Find the sweep around a run, and the runs of a sweep, without importing the model of sweeps where there is none."""

from pathlib import Path
from typing import TYPE_CHECKING

from suite.results.runs import SWEEP
from suite.results.store import TRIALS

if TYPE_CHECKING:
    from suite.sweep.directory import Accepted


def accepted_sweep(directory: Path) -> "Accepted | None":
    """Return the plan in a sweep's directory; None in any other. Raises RequestError for a damaged one."""
    if not (directory / SWEEP).is_file():
        return None
    # Its model has a key for each option of each member of each registry: a fifth of a second to import.
    from suite.sweep.directory import SweepDirectory

    return SweepDirectory(directory).accepted()


def sweep_around(run: Path) -> Path | None:
    """Return the directory of the sweep of which a run is a cell; None for a run alone."""
    return run.parent if (run.parent / SWEEP).is_file() else None


def runs_below(directory: Path) -> list[Path]:
    """Return the runs of a sweep's directory: its cells that were begun. For any other directory, return itself.

    ``DIR/*`` of a shell names ``sweep.json`` too, which is not a run. Raises RequestError for a damaged plan.
    """
    if directory.name == SWEEP and directory.is_file():
        return []
    if (accepted := accepted_sweep(directory)) is None:
        return [directory]
    return [directory / name for name in accepted.cells if (directory / name / TRIALS).is_dir()] or [directory]
