"""The functions of ``import virtbench``: thin calls of those behind ``bench run``, ``compare`` and ``results``."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path

import click
import pandas as pd

from analysis.audit.audit import audited
from analysis.compare.comparison import compare as compare_records
from analysis.compare.results import Comparison
from analysis.load.records import load
from analysis.report.answers.answer import Answer, answer
from analysis.report.document import answer_elements, document
from analysis.report.export import trials_table
from analysis.report.page import fragment
from analysis.report.rows import rows
from analysis.report.terminal import Terminal
from commands.run.command import measure, run_store
from commands.run.command import run as run_command
from commands.run.request_command import requested
from provisioning import ledger
from suite.errors import REMEDY_LABEL, BenchError
from suite.results.layout import latest_run, results_directory
from suite.results.runs import find_runs, runs_and_sweeps
from suite.units import parse_share
from suite.untrusted.console import PlainConsole
from suite.untrusted.terminal import clean_streams

_COLUMNS = 100
"""The width of an answer as text."""


@dataclass(frozen=True)
class Result:
    """The answer of one or more runs, which a notebook shows as a table and ``print`` as text."""

    directories: tuple[Path, ...]
    comparison: Comparison

    @cached_property
    def answer(self) -> Answer:
        return answer(self.comparison)

    @property
    def contrasts(self) -> pd.DataFrame:
        """Return a row per target and metric; the columns are those of ``bench compare --csv``."""
        return pd.DataFrame([row.model_dump() for row in rows(self.comparison)])

    @property
    def next(self) -> str | None:
        """Return the command that settles what is still open; None if no command does."""
        return self.answer.next.command if self.answer.next else None

    def __str__(self) -> str:
        output = StringIO()
        console = PlainConsole(file=output, width=_COLUMNS, color_system=None)
        console.print(Terminal(answer_elements(self.answer)))
        # A wrapped line is filled with blanks up to the width.
        return "\n".join(line.rstrip() for line in output.getvalue().splitlines())

    def _repr_html_(self) -> str:
        return fragment(document(self.comparison))


@contextmanager
def _with_remedy() -> Iterator[None]:
    """Add the remedy of an error to its traceback."""
    try:
        yield
    except BenchError as error:
        note = f"{REMEDY_LABEL}{error.remedy}"
        if error.remedy and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


@_with_remedy()
def run(*program: str, out: str | Path | None = None, **options: object) -> Result:
    """Measure as ``bench run`` does, and return the answer.

    ``program`` are the words of a command to measure (``"python", "train.py"``). ``options`` have the names that a plan
    file has: ``target=["bare-metal", "container"], blocks=5``. ``out`` is the directory of the run; an interrupted run
    there continues. Raises RequestError for a request that is wrong. Trials that fail are named by a warning.
    """
    with clean_streams(), click.Context(run_command):
        request, defaults = requested(_given(options), program or None)
        store = run_store(Path(out) if out else None)
        try:
            records = measure(request, store, defaults)
        except KeyboardInterrupt:
            ledger.end_held()
            raise
    failed = [record.trial_id for record in records if record.outcome.status == "failed"]
    if failed:
        warnings.warn(f"{len(failed)} trials failed, such as {store.directory}/{failed[0]}", stacklevel=2)
    return compare(store.directory)


@_with_remedy()
def compare(*directories: str | Path, margin: str | float | None = None, force: bool = False) -> Result:
    """Compare runs with bare metal as ``bench compare`` does; without directories the latest run.

    ``margin`` is a share such as ``"5%"`` or 0.05. ``force`` keeps records that the audit refuses, and marks them.
    Raises RequestError for directories without usable records.
    """
    places = tuple(runs_and_sweeps([*map(Path, directories)])) if directories else (latest_run(results_directory()),)
    share = None if margin is None else parse_share(str(margin))
    return Result(places, compare_records(audited(load(places), force=force), margin=share, force=force))


@_with_remedy()
def read(*directories: str | Path) -> pd.DataFrame:
    """Return a row per trial, failed and warm-up ones too, as ``bench results export`` does.

    docs/reference/outputs.md describes the columns. Without directories all runs of the results directory are read.
    Files that are no records of this suite are left out, each with a warning.
    """
    records = load(find_runs([*map(Path, directories)] or [results_directory()]), warm_ups=True)
    for warning in records.warnings:
        warnings.warn(warning.message, stacklevel=2)
    return trials_table(records)


def _given(options: Mapping[str, object]) -> dict[str, object]:
    """Return options as a request takes them: a list stands for an option that is given several times."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
