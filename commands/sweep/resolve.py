"""Resolve the cells of a plan file: each goes the way of ``bench run``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from commands.run.prepare import Ready, ready
from provisioning import doctor
from provisioning.doctor import Check
from suite.errors import RequestError
from suite.interfaces import Note
from suite.request.request import RunRequest
from suite.sweep.cells import Cell, cells_of, request_of
from suite.sweep.file import plan_file
from suite.sweep.model import Sweep, key_of
from suite.units import count


class PlanFile(click.Path):
    """A plan file of the user's, or the bare name of a plan that comes with the suite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        return plan_file(Path(os.fsdecode(super().convert(value, param, ctx))))


@dataclass(frozen=True)
class Planned:
    """A cell, checked on this machine: ready to run, or refused with a reason."""

    cell: Cell
    request: RunRequest | None = None
    """None if no machine can run the cell."""
    ready: Ready | None = None
    refusal: RequestError | None = None

    @property
    def command(self) -> list[str]:
        """Return the command that runs such a cell by itself; empty if there is none."""
        return self.request.command() if self.request else []


def resolve(sweep: Sweep, note: Note) -> list[Planned]:
    """Return every cell of the sweep, checked on this machine. Nothing is started.

    Raises RequestError for a plan without cells.
    """
    cells = cells_of(sweep)
    note(f"{count(len(cells), 'cell')}; checking this machine")
    requests = [_requested(sweep, cell) for cell in cells]
    named = {asked.targets.engine for asked in requests if isinstance(asked, RunRequest)}
    checks, say = doctor.examine(named), cache(note)  # a note holds for all cells
    return [_planned(sweep, cell, asked, checks, say) for cell, asked in zip(cells, requests, strict=True)]


def _requested(sweep: Sweep, cell: Cell) -> RunRequest | RequestError:
    try:
        return request_of(sweep, cell)
    except RequestError as error:
        return error


def _planned(
    sweep: Sweep, cell: Cell, request: RunRequest | RequestError, checks: Sequence[Check], note: Note
) -> Planned:
    if isinstance(request, RequestError):
        return Planned(cell, refusal=request.spelled(key_of))
    try:
        prepared = ready(request, note, checks)
    except RequestError as error:
        return Planned(cell, request, refusal=error.spelled(key_of))
    plan = prepared.plan.model_copy(update={"blocks": sweep.block_count})
    return Planned(cell, request, replace(prepared, plan=plan))


def refuse_refused(planned: Sequence[Planned]) -> None:
    """Raise RequestError naming every cell that cannot be run."""
    refused = [(cell.cell.cell_id, cell.refusal) for cell in planned if cell.refusal]
    if refused:
        reasons = "; ".join(f"{name}: {error.message}" for name, error in refused if error)
        remedies = dict.fromkeys(error.remedy for _, error in refused if error and error.remedy)
        raise RequestError(
            f"{len(refused)} of {count(len(planned), 'cell')} cannot be run here: {reasons}",
            remedy="; ".join([*remedies, "or exclude such cells in the plan"]),
        )
