"""Diagnosis of a machine from its checks: what can be measured, what only proves the path, and what to do next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provisioning.doctor import Check
from suite.targets import BASELINE


@dataclass(frozen=True)
class Diagnosis:
    """The targets of a machine by what their numbers would be worth."""

    measurable: tuple[str, ...]
    """Those without a substitute: the numbers mean what they say."""
    path_only: tuple[str, ...]
    """Those that run with a substitute: their numbers say that the path works, and nothing more."""
    absent: tuple[str, ...]
    lines: tuple[str, ...]
    """The two sentences of the answer."""
    next_step: str

    @property
    def works(self) -> bool:
        """Return whether any target works."""
        return bool(self.measurable or self.path_only)


def diagnose(checks: Sequence[Check]) -> Diagnosis:
    """Return the diagnosis from the checks of ``doctor.examine``."""
    targets = [check for check in checks if check.kind == "target"]
    measurable = tuple(one.name for one in targets if one.usable and not one.substitute)
    path_only = tuple(one.name for one in targets if one.usable and one.substitute)
    absent = tuple(one.name for one in targets if not one.usable)
    engines = [check.name for check in checks if check.kind == "engine" and check.usable]
    with_engines = [f"{name} ({', '.join(engines)})" if name == "container" else name for name in measurable]
    first = f"Can be measured here: {', '.join(with_engines) or 'nothing'}."
    substitutes = ", ".join(dict.fromkeys(one.substitute for one in targets if one.usable and one.substitute))
    path = f"Only proves the path: {', '.join(path_only)} ({substitutes})." if path_only else ""
    reasons = dict.fromkeys(str(one.reason) for one in targets if not one.usable)
    gone = f"Does not work: {', '.join(absent)} ({'; '.join(reasons)})." if absent else ""
    second = " ".join(filter(None, (path, gone))) or "No target needs a substitute."
    return Diagnosis(measurable, path_only, absent, (first, second), next(_next(checks, measurable, path_only)))


def _next(checks: Sequence[Check], measurable: Sequence[str], path_only: Sequence[str]) -> Iterator[str]:
    """Yield what to do next, what comes first before the rest."""
    yield from (f"{one.remedy}" for one in checks if one.kind == "image" and not one.usable and one.remedy)
    if BASELINE in measurable and len(measurable) > 1:
        chosen = " ".join(f"--target {name}" for name in measurable)
        yield f"bench run {chosen} --profile quick --blocks 20 --aa"
    # The first missing target is the one with the fewest layers.
    yield from (f"{one.remedy}" for one in checks if one.kind == "target" and not one.usable and one.remedy)
    chosen = " ".join(f"--target {name}" for name in (*measurable, *path_only))
    yield f"bench run {chosen} --profile smoke"
