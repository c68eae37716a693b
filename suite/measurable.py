"""Judge the worth of a target's numbers by its substitutes.

Decided here alone: for the doctor, the targets that a run takes by default, proposed commands, forecasts and budgets.
Nothing may propose what another part calls no measurement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from suite.targets import BASELINE

EMULATED_CPU = "accelerator:tcg"
"""The substitute of a virtual machine without hardware virtualisation: some 100 times slower."""
OWN_USERLAND = "userland:own-environment"
"""The substitute of bare metal that cannot enter the image's tree: no ratios are formed to it."""
PATH_ONLY = frozenset({EMULATED_CPU, OWN_USERLAND})
"""The substitutes that change what a number means. All others, such as memory without a limit, are named with it."""


def is_measured(substitutes: Iterable[str]) -> bool:
    """Return whether numbers with these substitutes measure the target; else they only prove that its path works."""
    return PATH_ONLY.isdisjoint(substitutes)


@dataclass(frozen=True)
class MeasurableTargets:
    """The targets of a machine or of a run by what their numbers are worth."""

    measured: tuple[str, ...]
    """Those without a substitute that changes what their numbers mean."""
    path_only: Mapping[str, str]
    """The substitute of each that works with one: its numbers prove that the path works, and nothing more."""
    absent: Mapping[str, str]
    """The reason of each that does not work."""

    @property
    def compares(self) -> bool:
        """Return whether a verdict is possible: bare metal is measured, and another target."""
        return BASELINE in self.measured and len(self.measured) > 1

    @property
    def usual(self) -> tuple[str, ...]:
        """Return the targets of a run that names none: those that are measured, or whatever works if none is."""
        return self.measured or tuple(self.path_only)

    @property
    def left_out(self) -> str:
        """Return which targets a run leaves out that names none, why, and how to add them; empty for none."""
        by_reason: dict[str, list[str]] = {}
        substituted = self.path_only if self.measured else {}
        for target, substitute in substituted.items():
            by_reason.setdefault(f"{substitute}: not a measurement; add with --target all", []).append(target)
        for target, reason in self.absent.items():
            by_reason.setdefault(reason, []).append(target)
        groups = [f"{', '.join(targets)} ({reason})" for reason, targets in by_reason.items()]
        if groups:
            return f"left out: {'; '.join(groups)}"
        return ""
