"""The answer as sentences: what each target costs, and which part of a trial costs most where that is known."""

from collections.abc import Iterator, Sequence

from analysis.compare.results import Effect, Estimate, Group, Overall, TargetSummary
from analysis.explain.explanation import UNEXPLAINED, Explanation
from analysis.report.formatting import excluded, parting, seconds
from suite.targets import BASELINE


def answers(group: Group, explanations: Sequence[Explanation], margin: float) -> Iterator[str]:
    """Yield one sentence or two per target other than bare metal."""
    explained = {one.target: one for one in explanations if (one.job, one.model) == (group.job, group.model)}
    for summary in group.targets:
        if summary.target != BASELINE:
            cost = _cost(group.model, summary.target, summary.estimates.get("throughput"), margin)
            why = _why(explained[summary.target]) if summary.target in explained else ""
            yield f"{cost}{_caveat(summary)}.{why}"


def overall_answers(found: Sequence[Overall], margin: float) -> Iterator[str]:
    """Yield one sentence per target, over all models."""
    for one in found:
        if effect := one.effects.get("throughput"):
            cost = _cost(f"the {len(one.models)} models together", one.target, effect, margin)
            yield f"{cost}{_caveat(one)}."


def _cost(what: str, target: str, found: Estimate | Effect | None, margin: float) -> str:
    name = f"{'An' if target[0] in 'aeiou' else 'A'} {target} target"
    if not found:
        return f"{name} gave no finished trial of {what}"
    if found.ratio is None:
        return f"{name} trains {what}, but nothing comparable on {BASELINE} says at what cost"
    verdict = found.verdict.name if found.verdict else "undecided"
    if verdict == "equivalent":
        excludes = f"; {excluded(found.slow)} are excluded at 95 %" if found.slow else ""
        return f"{name} is equivalent to {BASELINE} for {what} within {margin * 100:.2g} % ({_change(found)}){excludes}"
    if verdict in ("tail", "typical-only"):
        same = f"A typical trial of {what} is equivalent on {name.lower()} to one on {BASELINE} within"
        return f"{same} {margin * 100:.2g} %, but a long queue of jobs {_pays(verdict)}: {parting(found)}"
    if verdict == "undecided":
        decided = "differs from" if margin == 0 else f"is within {margin * 100:.2g} % of"
        return f"Whether {name.lower()} {decided} {BASELINE} for {what} is undecided ({_change(found)}){_more(found)}"
    if verdict == "slower":
        return f"{name} costs {what} {_share(1 - found.ratio)} of the throughput ({_ends(found, -1)})"
    return f"{name} trains {what} {_share(found.ratio - 1)} faster than {BASELINE} ({_ends(found, 1)})"


def _share(value: float) -> str:
    """Return a share in per cent; close to 100 %, what is left of it deserves one more digit."""
    percent = value * 100
    return f"{percent:.2f} %" if 99 < percent < 100 else f"{percent:.1f} %"


def _change(found: Estimate | Effect) -> str:
    """Return the change of the throughput with its interval."""
    change = (found.ratio or 1.0) - 1
    return f"throughput {'+' if change > 0 else ''}{_share(change)}; {_ends(found, 1)}"


def _ends(found: Estimate | Effect, sign: int) -> str:
    if found.interval is None:
        return "from a single block, which has no interval"
    low, high = sorted(sign * (end - 1) for end in found.interval)
    return f"95 % interval {_share(low).removesuffix(' %')} to {_share(high)}"


def _pays(verdict: str) -> str:
    return "pays for slow trials" if verdict == "tail" else "may pay more"


def _more(found: Estimate | Effect) -> str:
    more = found.verdict.more_blocks if found.verdict else None
    return f"; about {more} more blocks would probably decide" if more else ""


def _caveat(summary: TargetSummary | Overall) -> str:
    return f" [{', '.join(summary.notes)}]" if summary.notes else ""


def _why(one: Explanation) -> str:
    """Name the greatest part of a difference in time; empty where the interval does not exclude zero."""
    interval = one.whole.interval
    if not interval or interval[0] <= 0 <= interval[1]:
        return ""
    sign = 1 if one.whole.difference_s > 0 else -1
    part = max(one.parts, key=lambda part: sign * part.difference_s)
    share = 100 * part.difference_s / one.whole.difference_s
    name = "not explained by its parts" if part.name == UNEXPLAINED else part.name
    how = "longer" if sign > 0 else "shorter"
    took = seconds(one.whole.difference_s).lstrip("+-")
    return f" With opening, a trial takes {took} s {how}; {share:.0f} % of that is {name}."
