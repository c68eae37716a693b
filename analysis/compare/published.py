"""Published claims: the verdict of the records on what papers report. ``published.toml`` holds them, and their grammar.

A claim selects contrasts of a kind, or sides between which one is formed. Verdicts come from the interval and the
verdict of each contrast, never from its value; ``verdicts`` decides which of them count. Every one has to confirm a
claim, and one is enough to contradict it. A claim speaks of every target and model that it names: where some of these
were not measured, it is confirmed in part.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from itertools import permutations, product
from typing import Any, NamedTuple

from analysis.compare.allocation import with_allocation
from analysis.compare.by import between_cells, stand_between
from analysis.compare.combined import Side, between, sweeps_of, unknown_spread
from analysis.compare.contrast_kinds import (
    ABLATION,
    AGGRESSOR,
    ALLOCATION,
    BY,
    JOBS,
    RATIO,
    TARGET,
)
from analysis.compare.matching import named
from analysis.compare.pairing import GROUP, grouped, matches_any
from analysis.compare.results import (
    Arm,
    CellTrials,
    ClaimEvidence,
    ClaimVerdict,
    Comparison,
    Contrast,
    JudgedClaim,
    PublishedClaim,
)
from analysis.compare.verdicts import with_standing

_NAMED = ("target", "model", "place")
"""The facts of which a claim names all that it speaks of; those of other facts stand for each other."""
_OF_PLACES = ("place", "context")
"""The keys whose values are the place of a claim."""
_BY_WORK: Mapping[str, ClaimVerdict] = {"weights": "confirmed", "other": "contradicted"}


@cache
def _shipped() -> Mapping[str, Any]:
    import tomllib  # not at the top: few comparisons judge claims, and the answer waits for every import

    file = files("analysis.compare") / "published.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def published_claims(paper: str = "") -> list[PublishedClaim]:
    """Return the claims of the shipped file, or of one paper by its key, in their order."""
    claims = []
    for claim in _shipped()["claim"]:
        key, *_ = claim["paper"].split()
        if paper in ("", key):
            cited = citation(key)
            claims.append(PublishedClaim(**claim, cited=cited))
    return claims


def citation(paper: str) -> str:
    return str(_shipped()["papers"][paper])


def judge_claims(comparison: Comparison, paper: str = "") -> Comparison:
    """Return the comparison with the published claims, or those of one paper, and what the records have on them.

    A comparison of cells judges the claims about these, and any other one all.
    """
    of_cells = bool(comparison.cells)
    if not of_cells:
        comparison = with_allocation(comparison)
    items = list(_items(comparison))
    claims = []
    for claim in published_claims(paper):
        if of_cells and claim.kind != BY.name:
            continue
        evidence = tuple(_evidence_of(claim, items, comparison))
        measured = {item.part for item in evidence}
        missing = tuple(part for part in parts_of(claim) if part not in measured)
        verdict = _verdict_of(claim, evidence, missing)
        claims.append(JudgedClaim(claim, verdict, evidence, missing))
    return replace(comparison, claims=tuple(claims))


def _evidence_of(claim: PublishedClaim, items: "Sequence[_Item]", comparison: Comparison) -> Iterator[ClaimEvidence]:
    if claim.kind == BY.name:
        return _between_places(claim, comparison)
    if claim.over:
        return _across(claim, items, comparison)
    if claim.where:
        return _inside(claim, items, comparison)
    return iter(())


def _verdict_of(claim: PublishedClaim, evidence: Sequence[ClaimEvidence], missing: Sequence[str]) -> ClaimVerdict:
    if not claim.where:
        return "not testable"
    verdicts = {item.verdict for item in evidence}
    if "contradicted" in verdicts:
        return "contradicted"
    if verdicts != {"confirmed"}:
        return "undecided"
    return "confirmed in part" if missing else "confirmed"


def parts_of(claim: PublishedClaim) -> list[str]:
    """Return the parts of a claim: each target, model and place that it names, over each that it divides by."""
    own_names = [claim.where.get(name, ("",)) for name in _NAMED]
    base_names = [claim.over.get(name, ("",)) for name in _NAMED]
    own_sides = product(*own_names)
    base_sides = product(*base_names)
    parts = []
    for own, base in product(own_sides, base_sides):
        of_one_place = own[-1] and own[-1] == base[-1]
        if not of_one_place:
            parts.append(_part_name(own, base))
    return parts


def _part_name(own: Sequence[str], base: Sequence[str]) -> str:
    own_names = ", ".join(filter(None, own))
    base_names = ", ".join(filter(None, base))
    part = " over ".join(filter(None, (own_names, base_names)))
    return part.replace("*", "")


def _part(claim: PublishedClaim, own: Mapping[str, str], base: Mapping[str, str]) -> str:
    """Return the part of a claim that a contrast of these facts, over one of those, belongs to."""
    own_patterns = _matching(claim.where, own)
    base_patterns = _matching(claim.over, base)
    return _part_name(own_patterns, base_patterns)


def _matching(side: Mapping[str, Sequence[str]], facts: Mapping[str, str]) -> list[str]:
    """Return the pattern that each of the facts matches; empty for one that matches none."""
    patterns = []
    for name in _NAMED:
        fact = facts.get(name, "")
        matching = (pattern for pattern in side.get(name, ()) if fnmatchcase(fact, pattern))
        patterns.append(next(matching, ""))
    return patterns


def selected(facts: Mapping[str, str], patterns: Mapping[str, Sequence[str]]) -> bool:
    """Return whether each of the facts that are named matches one of its patterns."""
    return all(matches_any(facts.get(name, ""), of_name) for name, of_name in patterns.items())


class _Item(NamedTuple):
    """A contrast with the facts that claims select by."""

    contrast: Contrast
    facts: Mapping[str, str]

    def common(self, claim: PublishedClaim) -> frozenset[tuple[str, str]]:
        """Return the facts in which both sides of a claim agree."""
        free = ["variant", *claim.over]
        following = _shipped()["follow"]
        for key in claim.over:
            free += following.get(key, ())
        shared = [(name, value) for name, value in self.facts.items() if not matches_any(name, free)]
        return frozenset(shared)

    def differing(self, other: "_Item", claim: PublishedClaim) -> str:
        """Return the facts by which a claim tells this one from another."""
        texts = []
        for name in claim.over:
            value = self.facts.get(name)
            if value != other.facts.get(name):
                texts.append(f"{name}={value or 'none'}")
        return ", ".join(texts)

    def side(self, claim: PublishedClaim, comparison: Comparison) -> Side:
        """Return the values of the trials, or their ratios, as one side of a claim."""
        arm = self.contrast.arm
        metric = self.contrast.metric
        if claim.kind != JOBS.name:
            of_kind = comparison.ratios[self.contrast.kind]
            ratios = of_kind[metric.column][arm][[RATIO]]
            slow_downs = -ratios if metric.more_is_faster else ratios
            return Side(arm, metric, slow_downs)
        trials = comparison.of(arm.job).trials
        of_model = trials["model"] == arm.model
        on_target = trials["target"] == arm.target
        trials = trials[of_model & on_target].assign(**{RATIO: metric.logs})
        by_block = trials.set_index(["run_id", "block"])
        return Side(arm, metric, by_block[[RATIO]])


def _items(comparison: Comparison) -> Iterator[_Item]:
    if len(comparison.trials):
        trials = dict(grouped(comparison.trials, GROUP))
    else:
        trials = {}
    for group in comparison.groups:
        if group.key not in trials:
            continue
        key = trials[group.key]["settings"].iloc[0]
        of_group = {**dict(key.pairs), "hosts": ", ".join(group.circumstances.hosts)}
        for contrast in group.contrasts:
            if contrast.kind in (TARGET.name, ABLATION.name, AGGRESSOR.name) and contrast.measured:
                arm = contrast.arm
                switches = {"ablation": arm.ablation, "aggressor": arm.aggressor}
                facts = of_group | _facts_of(contrast) | switches
                yield _Item(contrast, facts)
    for contrast in comparison.contrasts:
        if contrast.kind == ALLOCATION.name:
            yield _Item(contrast, _facts_of(contrast))


def _facts_of(contrast: Contrast) -> dict[str, str]:
    return {
        **vars(contrast.job),
        "model": contrast.model,
        "target": contrast.target,
        "metric": contrast.metric.name,
    }


def _wanted(claim: PublishedClaim) -> Mapping[str, Sequence[str]]:
    return {
        "ablation": [""],
        "aggressor": [""],
        "metric": [claim.metric],
        **claim.where,
    }


def _inside(claim: PublishedClaim, items: Sequence[_Item], comparison: Comparison) -> Iterator[ClaimEvidence]:
    """Yield the contrasts of a claim's kind that the comparison holds, or how the weights of trials agree."""
    if claim.metric == "weights":
        yield from _weights(claim, items, comparison)
    wanted = _wanted(claim)
    for contrast, facts in items:
        if contrast.kind == claim.kind and contrast.verdict and selected(facts, wanted):
            yield _evidence(
                claim,
                named(contrast.arm),
                contrast,
                _part(claim, facts, {}),
            )


def _weights(claim: PublishedClaim, items: Sequence[_Item], comparison: Comparison) -> Iterator[ClaimEvidence]:
    wanted = dict(_wanted(claim))
    del wanted["metric"]
    arms = {}
    for item in items:
        if selected(item.facts, wanted):
            arms[item.contrast.arm] = item.facts
    for group in comparison.groups:
        for work, (arm, facts) in product(group.same_work, arms.items()):
            if (arm[:2], arm.target) == (group.key, work.arm):
                same = "the same, bit for bit"
                if work.kind != "weights":
                    same = f"unknown: {work.kind} alone agree"
                yield ClaimEvidence(
                    named(arm),
                    _BY_WORK.get(work.kind, "undecided"),
                    None,
                    work.text or same,
                    _part(claim, facts, {}),
                )


def _across(claim: PublishedClaim, items: Sequence[_Item], comparison: Comparison) -> Iterator[ClaimEvidence]:
    """Yield the contrasts between two sides of a claim, such as two jobs on one target, or two models over theirs."""
    sides_of_items = [item for item in items if _can_be_side(claim, item.contrast)]
    pairs = _pairs(claim, sides_of_items)
    if not pairs:
        return
    sides = [(base.side(claim, comparison), own.side(claim, comparison)) for base, own in pairs]
    contrasts = between(
        claim.kind,
        sides,
        sweeps_of(comparison.trials),
        comparison.common_terms,
    )
    circumstances = {group.key: group.circumstances for group in comparison.groups}
    rows = with_standing(contrasts, circumstances)
    for contrast, (base, own) in zip(rows, pairs, strict=True):
        part = _part(claim, own.facts, base.facts)
        yield _evidence(
            claim,
            f"{named(contrast.arm)} over {base.differing(own, claim)}",
            contrast,
            part,
        )


def _can_be_side(claim: PublishedClaim, contrast: Contrast) -> bool:
    """Return whether a contrast stands for a side: a target's values, or the ratio of a target or a victim."""
    if claim.kind == JOBS.name:
        return contrast.kind == TARGET.name
    return bool(contrast.verdict) and contrast.kind in (TARGET.name, AGGRESSOR.name)


def _between_places(claim: PublishedClaim, comparison: Comparison) -> Iterator[ClaimEvidence]:
    """Yield a claim's contrasts between cells of other places, which agree in all else."""
    pairs = list(_pairs_of_places(claim, comparison))
    formed = [between_cells(arm, base, own, claim.metric) for arm, base, own in pairs]
    rows = stand_between(formed, comparison.cells, comparison.common_terms)
    for row, (_, base, own) in zip(rows, pairs, strict=True):
        own_facts = _of_place(own, row.target)
        base_facts = _of_place(base, row.target)
        part = _part(claim, own_facts, base_facts)
        sides = f"{named(row.arm)}, {', '.join(own.name)} over {', '.join(base.name)}"
        evidence = _evidence(claim, sides, row, part)
        unknown = [warning.finding for warning in unknown_spread([row])]
        texts = filter(None, (evidence.text, *unknown))
        yield replace(evidence, text="; ".join(texts))


def _pairs_of_places(claim: PublishedClaim, comparison: Comparison) -> Iterator[tuple[Arm, CellTrials, CellTrials]]:
    """Yield the cells of an arm that a claim divides by each other, the base first."""
    for arm, cells in comparison.cells.items():
        measured = [cell for cell in cells if claim.metric in cell.metrics]
        for base, own in permutations(measured, 2):
            base_facts = _of_place(base, arm.target)
            own_facts = _of_place(own, arm.target)
            is_base = selected(base_facts, {**claim.where, **claim.over})
            if is_base and selected(own_facts, claim.where):
                yield arm, base, own


def _of_place(cell: CellTrials, target: str) -> Mapping[str, str]:
    """Return the facts of a cell; without a place unless it is that of all its trials."""
    by_key = zip(cell.keys, cell.values, strict=True)
    places = (value for key, value in by_key if key in _OF_PLACES)
    return {**cell.settings, "target": target, "place": next(places, "")}


def _pairs(claim: PublishedClaim, items: Sequence[_Item]) -> list[tuple[_Item, _Item]]:
    """Return each selected item, after one that it is divided by."""
    wanted = _wanted(claim)
    wanted_of_base = {**wanted, **claim.over}
    bases = defaultdict[frozenset[tuple[str, str]], list[_Item]](list)
    for item in items:
        if selected(item.facts, wanted_of_base):
            bases[item.common(claim)].append(item)
    pairs = []
    for item in items:
        if selected(item.facts, wanted):
            alike = bases[item.common(claim)]
            pairs += [(base, item) for base in alike if base is not item]
    return pairs


def _evidence(claim: PublishedClaim, sides: str, contrast: Contrast, part: str) -> ClaimEvidence:
    reasons = contrast.verdict.withheld if contrast.verdict else ()
    in_short = [why.partition(" (")[0] for why in reasons]
    return ClaimEvidence(
        sides,
        _decided(claim, contrast),
        contrast,
        ", ".join(in_short),
        part,
    )


def _decided(claim: PublishedClaim, contrast: Contrast) -> ClaimVerdict:
    """Return the verdict of a ratio on a claim: of its interval for a range, else of its own verdict."""
    verdict = contrast.verdict.name if contrast.verdict else None
    if not claim.between or verdict is None or contrast.interval is None:
        if verdict == claim.expected:
            return "confirmed"
        if verdict in ("equivalent", "slower", "faster"):
            return "contradicted"
        return "undecided"
    low, high = contrast.interval
    least, most = claim.between
    if least <= low and high <= most:
        return "confirmed"
    if high < least or most < low:
        return "contradicted"
    return "undecided"
