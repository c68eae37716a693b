"""The cost of a plan here: cells, trials, time, data that are made first, and why cells cannot run."""

from collections.abc import Collection, Iterator, Sequence

from commands.data import MissingSet, missing_set
from commands.reproduce.parts import least_blocks
from commands.sweep.plan import PlannedCell, PlannedOutput, described
from suite.errors import RequestError
from suite.interfaces import Note
from suite.job.datasets import SYNTHETIC
from suite.job.profiles import PROFILES
from suite.request.scenario import scenario_of
from suite.results.layout import results_directory
from suite.sweep.cells import Cell, cells_of, request_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import Sweep
from suite.units import count, format_duration


def described_here(sweep: Sweep, note: Note) -> PlannedOutput:
    return described(sweep, SweepDirectory(results_directory() / sweep.name), note)


def unsaid(_text: str) -> None:
    """Leave out a note that was printed before."""


def summary(sweep: Sweep, planned: PlannedOutput, missing: Collection[str]) -> str:
    """Return what a plan takes here; its cells that wait for ``missing`` data sets are not refused."""
    waiting = _waiting(sweep, missing)
    refused = [cell for cell in planned.cells if cell.refused and cell.cell_id not in waiting]
    if is_hopeless(sweep, planned, missing):
        return f"{count(len(planned.cells), 'cell')}; nothing can run here: {refusals(refused)}"
    parts = [_amount(planned)]
    if waiting and planned.trials:
        parts.append(f"{len(waiting)} of the cells wait for data that it makes first: their trials come on top")
    elif waiting:
        parts.append("all wait for data that it makes first; their time is unknown until then")
    if planned.path_only:
        parts.append(f"no measurement here: {', '.join(planned.path_only)}")
    if planned.early_end:
        parts.append(planned.early_end)
    if refused:
        parts.append(f"{len(refused)} refused: {refusals(refused)}")
    parts += _undecided_by(sweep)
    return "; ".join(parts)


def _amount(planned: PlannedOutput) -> str:
    """Return ``4 cells, 24 trials, about 12 min``, as far as it is known."""
    text = count(len(planned.cells), "cell")
    if planned.trials:
        text += f", {count(planned.trials, 'trial')}"
        if planned.total_s is not None:
            text += f", about {format_duration(planned.total_s)}"
    return text


def _undecided_by(sweep: Sweep) -> Iterator[str]:
    """Yield why no claim can be decided, whatever is measured."""
    decides = False
    for cell in cells_of(sweep):
        profile = PROFILES.get(str(cell.settings.get("profile")))
        if profile is None or profile.decides:
            decides = True
    if not decides:
        yield "it decides no claim: the smoke profile is no measurement"
        return
    least = least_blocks(sweep)
    if sweep.block_count < least and not sweep.until:
        yield f"it decides no claim: a verdict takes {least} blocks"


def refusals(cells: Sequence[PlannedCell]) -> str:
    """Return why cells are refused and what to do, each reason once."""
    reasons = [f"{cell.refused} ({cell.remedy})" for cell in cells if cell.refused]
    return "; ".join(dict.fromkeys(reasons))


def is_hopeless(sweep: Sweep, planned: PlannedOutput, missing: Collection[str]) -> bool:
    """Return whether every cell that waits for no data is refused: data for the others would be made in vain."""
    waiting = _waiting(sweep, missing)
    for cell in planned.cells:
        if cell.cell_id not in waiting and not cell.refused:
            return False
    return len(planned.cells) > len(waiting)


def _waiting(sweep: Sweep, missing: Collection[str]) -> set[str]:
    """Return the cells that wait for data sets that are ``missing``."""
    return {cell.cell_id for cell in cells_of(sweep) if _read_by(sweep, cell)[0] in missing}


def missing_sets(sweep: Sweep) -> dict[str, MissingSet]:
    """Return the data sets that cells of a plan read and that are not there, by their ``--data``, for the largest."""
    images: dict[str, int] = {}
    for cell in cells_of(sweep):
        data, number = _read_by(sweep, cell)
        images[data] = max(number, images.get(data, 0))
    missing = {}
    for data, number in images.items():
        data_set = missing_set(data, number)
        if data_set:
            missing[data] = data_set
    return missing


def _read_by(sweep: Sweep, cell: Cell) -> tuple[str, int]:
    """Return the ``--data`` of a cell, and how many images its largest job takes."""
    try:
        request = request_of(sweep, cell)
        return scenario_of(request).images_read(request)
    except RequestError:  # what cannot be requested reads nothing
        return SYNTHETIC, 0
