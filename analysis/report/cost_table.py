"""The cost table: what each target takes of the host."""

from collections.abc import Callable, Mapping

from analysis.compare.results import Cost, Group
from analysis.report.formatting import number, times
from analysis.report.table import Cell, Head, Table
from suite.targets import BASELINE

_UNITS = (("GiB", 30), ("MiB", 20), ("KiB", 10))
_COLUMNS: Mapping[str, Callable[[Cost], Cell]] = {
    "CPU s inside": lambda cost: _number(cost.cpu_inside_s),
    "CPU s all-in": lambda cost: _number(cost.cpu_all_in_s),
    "all-in/inside": lambda cost: None if cost.all_in_to_inside is None else times(cost.all_in_to_inside),
    f"all-in to {BASELINE}": lambda cost: cost.normalised if cost.target != BASELINE else _itself(cost),
    "memory": lambda cost: _both(cost.memory_inside_bytes, cost.memory_all_in_bytes),
    "disk read": lambda cost: _both(cost.disk_read_inside_bytes, cost.disk_read_all_in_bytes),
    "disk written": lambda cost: _both(cost.disk_written_inside_bytes, cost.disk_written_all_in_bytes),
    "energy J": lambda cost: _number(cost.energy_j),
}


def cost_table(group: Group) -> Table:
    """Return targets below each other and resources beside each other; no rows where nothing is known."""
    rows = tuple(
        (Head(cost.target, cost.notes), tuple(cell(cost) for cell in _COLUMNS.values())) for cost in group.costs
    )
    caption = (
        f"taken of the host per {group.costs[0].unit}: inside is the job by its own accounting, all-in everything that "
        "serves the target by the host's; memory is the peak, disk is per trial, both inside / all-in; energy is the "
        "whole host's"
        if group.costs
        else ""
    )
    return Table("target", "", tuple(map(Head, _COLUMNS)), rows, caption)


def _itself(cost: Cost) -> str | None:
    return None if cost.cpu_all_in_s is None else "1.000x"


def _number(value: float | None) -> str | None:
    return None if value is None else number(value)


def _both(inside: float | None, all_in: float | None) -> Cell:
    return None if inside is None and all_in is None else (size(inside), size(all_in))


def size(value: float | None) -> str:
    """Return a size as text, ``1.25 GiB``; a dash where it is not known."""
    if value is None:
        return "-"
    for unit, bits in _UNITS:
        if value >= 1 << bits:
            return f"{number(value / (1 << bits))} {unit}"
    return f"{value:.0f} B"
