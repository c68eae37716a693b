"""Published claims: the verdict of the records on what papers report. ``published.toml`` holds them, and their grammar.

Verdicts come from the interval and the verdict of each selected ratio, never from its value; ``standing`` decides which
of them count. Every selected ratio has to confirm a claim, and one is enough to contradict it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import NamedTuple

import pandas as pd

from analysis.compare import results
from analysis.compare.contrasts import effect
from analysis.compare.matching import place_of
from analysis.compare.pairing import GROUP, by_block, grouped
from analysis.compare.results import ClaimEvidence, ClaimVerdict, Effect, JudgedClaim, Measured, PublishedClaim
from analysis.compare.standing import withheld
from analysis.statistics.ratios import judge, locate
from analysis.statistics.two_samples import difference
from suite.job.job import settings_in

_SAME: Mapping[str, str] = {"weights": "the same, bit for bit"}
_BY_WORK: Mapping[str, ClaimVerdict] = {"weights": "confirmed", "other": "contradicted"}


def published_claims() -> list[PublishedClaim]:
    """Return the claims of the shipped file, in its order."""
    import tomllib  # not at the top: few comparisons judge claims, and the answer waits for every import

    text = (files("analysis.compare") / "published.toml").read_text(encoding="utf-8")
    shipped = tomllib.loads(text)
    return [PublishedClaim(**claim, cited=shipped["papers"][claim["paper"].split()[0]]) for claim in shipped["claim"]]


def judge_claims(comparison: results.Comparison) -> results.Comparison:
    """Return the comparison with every published claim, and what the records have on it."""
    trials = dict(grouped(comparison.trials, GROUP)) if len(comparison.trials) else {}
    arms = [arm for group in comparison.groups if group.key in trials for arm in _arms(group, trials[group.key])]
    claims = []
    for claim in published_claims():
        evidence = tuple(_across(claim, arms, comparison.margin) if claim.over else _inside(claim, arms))
        verdicts = {item.verdict for item in evidence}
        agreed: ClaimVerdict = "confirmed" if verdicts == {"confirmed"} else "undecided"
        decided = "contradicted" if "contradicted" in verdicts else agreed
        claims.append(JudgedClaim(claim, decided if claim.where else "not testable", evidence))
    return replace(comparison, claims=tuple(claims))


class _Arm(NamedTuple):
    """A target of a job, as it is or with an ablation: the facts that claims select by, its ratios and trials."""

    group: results.Group
    facts: Mapping[str, str]
    effects: Measured
    trials: pd.DataFrame

    @property
    def name(self) -> str:
        settings = (self.group.job.variant, self.facts["ablation"])
        return f"{self.group.model} on {place_of(self.facts['target'], *settings)}"

    @property
    def disturbed(self) -> Mapping[str, Sequence[results.Disturbed]]:
        """Return what has disturbed its trials, as a side of a ratio."""
        return {f"of {self.name}": self.group.circumstances.disturbed.get(self.facts["target"], ())}

    def selected(self, patterns: Mapping[str, Sequence[str]]) -> bool:
        """Return whether each of the facts that are named matches one of its patterns."""
        wanted = {"ablation": [""], **patterns}
        return all(any(fnmatchcase(self.facts.get(name, ""), one) for one in wanted[name]) for name in wanted)

    def common(self, claim: PublishedClaim) -> frozenset[tuple[str, str]]:
        """Return the facts in which both jobs of a claim agree."""
        return frozenset(fact for fact in self.facts.items() if fact[0] not in (*claim.over, "variant"))

    def logs(self, name: str) -> list[float]:
        """Return the logarithms of a metric by block."""
        return by_block(self.trials, self.effects[name].metric.logs(self.trials))


def _arms(group: results.Group, trials: pd.DataFrame) -> Iterator[_Arm]:
    facts = {**settings_in(str(trials["settings"].iloc[0])), **vars(group.job), "model": group.model}
    facts["hosts"] = ", ".join(group.circumstances.hosts)
    for kind in ("target", "ablation"):
        for arm, measured in group.of_kind(kind).items():
            own = trials[(trials["target"] == arm.target) & (not arm.ablation)]
            yield _Arm(group, {**facts, "target": arm.target, "ablation": arm.ablation}, measured, own)


def _inside(claim: PublishedClaim, arms: Sequence[_Arm]) -> Iterator[ClaimEvidence]:
    """Yield what the comparison found inside the blocks, of each selected arm."""
    for arm in arms if claim.where else ():
        if not arm.selected(claim.where):
            continue
        if (result := arm.effects.get(claim.metric)) and result.verdict:
            yield _evidence(claim, arm.name, result)
        for work in arm.group.same_work if claim.metric == "weights" else ():
            if work.arm == arm.facts["target"]:
                yield ClaimEvidence(
                    arm.name,
                    _BY_WORK.get(work.kind, "undecided"),
                    None,
                    work.text or _SAME.get(work.kind, f"unknown: {work.kind} alone agree"),
                )


def _across(claim: PublishedClaim, arms: Sequence[_Arm], margin: float) -> Iterator[ClaimEvidence]:
    """Yield the ratio of two jobs on one target and host. They share no block: their trials are two samples."""
    pairs = _pairs(claim, [arm for arm in arms if claim.metric in arm.effects])
    shifts = [difference(*filter(None, (locate(arm.logs(claim.metric)) for arm in pair))) for pair in pairs]
    faster = any(arm.effects[claim.metric].metric.more_is_faster for _, arm in pairs)
    for (base, arm), shift, verdict in zip(pairs, shifts, judge(shifts, margin, more_is_faster=faster), strict=True):
        if verdict and (why := withheld(arm.group.job.profile, shift.n, {**base.disturbed, **arm.disturbed})):
            verdict = replace(verdict, name=None, withheld=why)
        yield _evidence(claim, f"{arm.name} over {base.name}", effect(shift, verdict))


def _pairs(claim: PublishedClaim, arms: Sequence[_Arm]) -> list[tuple[_Arm, _Arm]]:
    """Return each selected arm, after the one that it is divided by."""
    bases = {arm.common(claim): arm for arm in arms if arm.selected({**claim.where, **claim.over})}
    selected = [arm for arm in arms if arm.selected(claim.where) and arm.common(claim) in bases]
    return [(bases[arm.common(claim)], arm) for arm in selected]


def _evidence(claim: PublishedClaim, what: str, result: Effect) -> ClaimEvidence:
    reasons = result.verdict.withheld if result.verdict else ()
    return ClaimEvidence(what, _decided(claim, result), result, ", ".join(why.partition(" (")[0] for why in reasons))


def _decided(claim: PublishedClaim, result: Effect) -> ClaimVerdict:
    """Return the verdict of a ratio on a claim: of its interval for a range, else of its own verdict."""
    verdict = result.verdict.name if result.verdict else None
    if not claim.between or verdict is None or result.interval is None:
        wanted = "slower" if claim.kind == "order" else "equivalent"
        others = {"equivalent", "slower", "faster"} - {wanted}
        return "confirmed" if verdict == wanted else "contradicted" if verdict in others else "undecided"
    (low, high), (least, most) = result.interval, claim.between
    if least <= low and high <= most:
        return "confirmed"
    return "contradicted" if high < least or most < low else "undecided"
