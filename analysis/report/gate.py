"""A regression between two runs as lines: the answer first, then the rows."""

from collections.abc import Iterator

from analysis.compare.matching import place_of
from analysis.compare.regression import Change, Regression
from analysis.report.elements import Line
from analysis.report.formatting import ends, number, times
from analysis.statistics.power import POWER
from analysis.statistics.ratios import CONFIDENCE


def gate_document(found: Regression) -> Iterator[Line]:
    """Yield a regression: the answer, what is missing, and a line per change."""
    if found.outcome:
        yield Line(answer(found), "strong")
        for missing in found.missing:
            yield Line(f"{missing.name}: {missing.why}", label="missing")
        for name in found.added:
            yield Line(f"{name} was finished in the new run only, and is compared with nothing", label="warning")
    for change in sorted(found.changes, key=_gravity):
        yield Line(change_line(change), change.outcome if change.outcome in ("slower", "cannot tell") else "")
    # Without a bound both runs were pooled before, and the warnings of that comparison name what changed.
    for text, targets in _changed(found).items() if found.outcome else ():
        yield Line(f"{text} on {', '.join(targets)}: it may explain a difference", label="changed")


def _changed(found: Regression) -> dict[str, dict[str, None]]:
    """Return the targets on which each fact changed between the runs."""
    targets: dict[str, dict[str, None]] = {}
    for change in found.changes:
        for text in change.differences:
            targets.setdefault(text, {})[place_of(change.target, change.arm)] = None
    return targets


def answer(found: Regression) -> str:
    """Return the outcome of a gate as a sentence that names what decided it."""
    bound = f"{number((found.fail_above or 0) * 100)} %"
    rows = [change for change in found.changes if change.outcome]
    if found.outcome == "slower":
        names = "; ".join(f"{one.name} by {number(one.slower * 100)} %" for one in found.of("slower"))
        return f"Slower by more than {bound}: {names}."
    if found.outcome == "incomplete":
        lacks = ", ".join(dict.fromkeys(one.name for one in found.missing)) or "anything to compare"
        return f"Incomplete: the new run lacks {lacks}."
    if found.outcome == "cannot tell":
        open_rows = found.of("cannot tell")
        needed = [one.more_blocks for one in open_rows]
        more = max((blocks for blocks in needed if blocks is not None), default=0)
        reachable = None not in needed
        advice = f"about {more} more blocks in each run would tell" if reachable else "no number of blocks would"
        return f"Cannot tell whether {_some(open_rows)} is slower by more than {bound}: {advice}."
    return f"Not slower: all {len(rows)} rows exclude a slowdown of {bound} ({CONFIDENCE:.0%} intervals)."


def change_line(change: Change) -> str:
    """Return ``resnet50 on vm, throughput: 39.0 to 35.0, 0.898x (0.890 to 0.907): slower``."""
    interval = f" ({ends(change.interval)})" if change.interval else f" (no interval: {min(change.trials)} block)"
    values = f"{number(change.old)} to {number(change.new)}, {times(change.ratio)}x{interval}"
    return f"{change.name}: {values}{''.join(_judged(change))}"


def _judged(change: Change) -> Iterator[str]:
    if change.outcome is None:
        return
    yield f": {change.outcome}"
    if change.outcome == "cannot tell":
        seen = "not even a tenfold slowdown" if change.detectable is None else f"{number(change.detectable * 100)} %"
        old, new = change.trials
        yield f"; {old} against {new} blocks could have seen {seen} (power {POWER:.0%})"
        if change.more_blocks is not None:
            yield f"; {change.more_blocks} more in each run would tell"


def _gravity(change: Change) -> int:
    """Return the place of a row: those that decide first, those that fail nothing last."""
    return ["slower", "cannot tell", "not slower", None].index(change.outcome)


def _some(changes: tuple[Change, ...]) -> str:
    others = f" (and {len(changes) - 1} others)" if len(changes) > 1 else ""
    return f"{changes[0].name}{others}"
