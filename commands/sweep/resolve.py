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
from suite.sweep.file import Sweep, key_of, plan_file
from suite.units import count


class PlanFile(click.Path):
    """A plan file of the user's, or the bare name of a plan that comes with the suite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        path = super().convert(value, param, ctx)
        return plan_file(Path(os.fsdecode(path)))


@dataclass(frozen=True)
class Planned:
    """A cell, checked on this machine: ready to run, or refused with a reason."""

    cell: Cell
    request: RunRequest | None = None
    """None if no machine can run the cell."""
    ready: Ready | None = None
    refusal: RequestError | None = None


def resolve(sweep: Sweep, note: Note) -> list[Planned]:
    """Return every cell of the sweep, checked on this machine. Nothing is started.

    Raises RequestError for a plan without cells.
    """
    cells = cells_of(sweep)
    note(f"{count(len(cells), 'cell')}; checking this machine")
    planned = [_requested(sweep, cell) for cell in cells]
    engines = {cell.request.targets.engine for cell in planned if cell.request}
    checks = doctor.examine(engines)
    say = cache(note)  # a note holds for all cells
    return [_checked(sweep, cell, checks, say) for cell in planned]


def _requested(sweep: Sweep, cell: Cell) -> Planned:
    try:
        return Planned(cell, request_of(sweep, cell))
    except RequestError as error:
        return Planned(cell, refusal=error.spelled(key_of))


def _checked(sweep: Sweep, cell: Planned, checks: Sequence[Check], note: Note) -> Planned:
    if cell.request is None:
        return cell
    try:
        prepared = ready(cell.request, note, checks)
    except RequestError as error:
        return replace(cell, refusal=error.spelled(key_of))
    plan = prepared.plan.model_copy(update={"blocks": sweep.block_count})
    of_sweep = replace(prepared, plan=plan)
    return replace(cell, ready=of_sweep)


def resolve_all(sweep: Sweep, note: Note) -> list[Planned]:
    """Return every cell, checked on this machine. Raises RequestError that names all that cannot be run here."""
    planned = resolve(sweep, note)
    refused = {cell.cell.cell_id: cell.refusal for cell in planned if cell.refusal}
    if refused:
        reasons = "; ".join(f"{name}: {error.message}" for name, error in refused.items())
        all_remedies = (error.remedy for error in refused.values())
        remedies = dict.fromkeys(filter(None, all_remedies))
        raise RequestError(
            f"{len(refused)} of {count(len(planned), 'cell')} cannot be run here: {reasons}",
            remedy="; ".join([*remedies, "or exclude such cells in the plan"]),
        )
    return planned
