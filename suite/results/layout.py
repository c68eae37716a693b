"""Names the places of a run's files, and finds the latest run, without importing what reads them."""

from pathlib import Path

from suite.errors import RequestError
from suite.results.project import project

RESULTS = Path("results")
PLAN = "plan.json"
SWEEP = "sweep.json"
TRIALS = "trials"
PLOTS = "plots"
FIGURE_FORMATS = ("png", "svg", "pdf")
USUAL_FORMATS = FIGURE_FORMATS[:2]
"""The formats of figures that are written unless others are named."""
KEPT = ".kept"
"""The directory for the output of ``bench compare`` and ``bench report`` on a run."""
REPORT = "report.html"
"""The file that ``bench report`` writes unless it is told another."""
CONVERGED = "converged.json"
POOL = "pool.json"
CLUSTER = "slurm-cluster"
"""Files of a sweep: its cells that need no further block, its machines, and the Slurm cluster that took its jobs."""
FIRING = "schedule.json"
"""The result of one firing of a schedule, in the directory of its sweep."""
LOGS = "logs"
"""The directory for the logs of a sweep's blocks."""
ENDING = ".tar.gz"
"""How the name of a pack ends; see ``suite.results.archive``."""
DOOMED = ".virtbench-removal"
"""How the name of a directory begins whose content is being deleted."""


def results_directory() -> Path:
    """Return the directory for runs: that of the project's file, else ``results``. Raises RequestError for its file."""
    of_project = project()
    return of_project.results if of_project and of_project.results else RESULTS


def latest_run(results: Path | None = None) -> Path:
    """Return the run below ``results`` that was written last; one without records only if none has any.

    Names tell nothing: ``--out`` gives any. Raises RequestError if there is none.
    """
    results = results or results_directory()
    runs = [plan.parent for plan in results.glob(f"*/{PLAN}")]
    if not runs:
        raise RequestError(f"no run in {results}/", remedy="make one with: bench run --target all, or name a directory")
    return max(runs, key=_written)


def empty_after(run: Path) -> Path | None:
    """Return the run beside this one that was begun last, after this one was written, and has no record."""
    plans = run.parent.glob(f"*/{PLAN}")
    written = {plan.parent: _written(plan.parent) for plan in plans}
    later = [other for other, (begun, *when) in written.items() if not begun and when > [*written[run][1:]]]
    return max(later, key=lambda other: written[other], default=None)


def _written(run: Path) -> tuple[bool, int, str]:
    """Return whether a run has records, and when the last one, or its plan, was written."""
    trials = run / TRIALS
    begun = trials.is_dir() and any(trials.iterdir())
    return begun, (trials if begun else run / PLAN).stat().st_mtime_ns, run.name
