"""What targets take of the host, as a table of texts: the same in the terminal, in Markdown and on the page."""

from analysis.compare.results import Cost, Effect, Group
from analysis.report.formatting import ends, number, times
from suite.plan import BASELINE

HEADER = (
    "target",
    "CPU s inside",
    "CPU s all-in",
    "all-in/inside",
    f"all-in to {BASELINE}",
    "memory",
    "disk read",
    "disk written",
    "energy J",
)
_UNITS = (("GiB", 30), ("MiB", 20), ("KiB", 10))


def caption(group: Group) -> str:
    """What the columns mean; empty where nothing is known."""
    if not group.costs:
        return ""
    return (
        f"taken of the host per {group.costs[0].unit}: inside is the job by its own accounting, all-in everything that "
        "serves the target by the host's; memory is the peak, disk is per trial, both inside / all-in; energy is the "
        "whole host's"
    )


def cells(cost: Cost) -> tuple[str, ...]:
    """Under ``HEADER``; what is not known is a dash."""
    return (
        cost.target,
        _number(cost.cpu_inside_s),
        _number(cost.cpu_all_in_s),
        "-" if cost.all_in_to_inside is None else times(cost.all_in_to_inside),
        _ratio(cost.normalised) if cost.target != BASELINE else _own(cost),
        _both(cost.memory_inside_bytes, cost.memory_all_in_bytes),
        _both(cost.disk_read_inside_bytes, cost.disk_read_all_in_bytes),
        _both(cost.disk_written_inside_bytes, cost.disk_written_all_in_bytes),
        _number(cost.energy_j),
    )


def _own(cost: Cost) -> str:
    return "-" if cost.cpu_all_in_s is None else "1.000x"


def _ratio(effect: Effect | None) -> str:
    if effect is None:
        return "-"
    return f"{times(effect.ratio)}x" + (f" ({ends(effect.interval)})" if effect.interval else "")


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)


def _both(inside: float | None, all_in: float | None) -> str:
    return "-" if inside is None and all_in is None else f"{size(inside)} / {size(all_in)}"


def size(value: float | None) -> str:
    """``1.25 GiB``; a dash where it is not known."""
    if value is None:
        return "-"
    for unit, bits in _UNITS:
        if value >= 1 << bits:
            return f"{number(value / (1 << bits))} {unit}"
    return f"{value:.0f} B"
