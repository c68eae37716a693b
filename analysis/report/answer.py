"""The answer: one sentence for each comparison with bare metal, or one for all where there are more than a few."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TypeAlias

from analysis.compare.results import (
    Circumstances,
    ComparedJob,
    Comparison,
    Group,
    SameImage,
    SameWork,
    TargetSummary,
)
from analysis.load.computed import AGREEMENTS, Kind
from analysis.load.metrics import METRICS
from analysis.load.plans import plan_of
from analysis.report.claim import OUTCOMES, Claim, direction, lower, on_hosts
from analysis.report.formatting import duration, excluding, percent
from analysis.statistics.ratios import slower_by
from suite.job.ablations import label_of
from suite.job.profiles import PROFILES
from suite.request.repetitions import RepetitionOptions
from suite.targets import BASELINE
from suite.units import count, number

MOST_SENTENCES = 3
"""More comparisons than these are answered by one sentence, which counts them and names the one that costs most."""
_OTHER = "generated other images"
_Arm: TypeAlias = tuple[str, str, SameWork]
"""The name of an arm, its model, and what it computed."""


def answer(comparison: Comparison, run: Path | None = None) -> list[str]:
    """Return the sentences with which the output of a run or a comparison begins; at least one.

    Of a single ``run``, which can be extended, the last is what would decide what is open.
    """
    found = claims(comparison)
    if not found:
        return [_nothing(comparison), *same_work(comparison)]
    # Several numbers without a verdict have the same reasons.
    together = len(found) > MOST_SENTENCES or (len(found) > 1 and all(one.withheld for one in found))
    sentences = [_together(found)] if together else [one.sentence for one in found]
    return [*sentences, *switched(comparison), *same_work(comparison), *(next_steps(comparison, run) if run else ())]


def switched(comparison: Comparison) -> Iterator[str]:
    """Yield the sentence on the ablations that make their targets slower or faster; none without such a verdict."""
    clauses: dict[str, list[str]] = {}
    for group in comparison.groups:
        for (arm, found), metric in product(group.of_kind("ablation").items(), group.deciding):
            one = found.get(metric.name)
            if one and one.ratio and one.verdict and one.verdict.name in ("slower", "faster"):
                what = f"{group.model} {metric.name}" if metric.of_probe else group.model
                slower = direction(slower_by(one.ratio, more_is_faster=metric.more_is_faster))
                clauses.setdefault(f"{arm.target}, {label_of(arm.ablation)}", []).append(f"{what} {slower}")
    if clauses:
        more = {name: len(own) - MOST_SENTENCES for name, own in clauses.items()}
        named = (
            f"{name}: {', '.join(own[:MOST_SENTENCES])}{f' and {more[name]} more' if more[name] > 0 else ''}"
            for name, own in clauses.items()
        )
        yield f"Switched in the same blocks: {'; '.join(named)}."


def next_steps(comparison: Comparison, run: Path) -> Iterator[str]:
    """Yield what would decide the comparisons that are open: more blocks of the run, another profile, turns."""
    found = [one for one in claims(comparison) if one.outcome in ("undecided", "no verdict")]
    for profile in dict.fromkeys(one.job.profile for one in found):
        if profile in PROFILES and not PROFILES[profile].decides:
            yield f"The {profile} profile decides nothing: measure with --profile quick."
            return
    blocks, lacking, block_s = (max(column) for column in zip((0, 0, 0.0), *map(_extension, found), strict=True))
    if 0 < lacking < math.inf:
        spent = f", about {duration(lacking * block_s)}" if block_s else ""
        plan = plan_of(run)
        repetitions = plan.request.repetitions if plan and plan.request else RepetitionOptions()
        words = f"{shlex.quote(str(run))} {repetitions.extension(int(blocks + lacking), block_s)}".strip()
        yield f"To decide it ({_least(found)}{count(int(lacking), 'more block')}{spent}): bench run --continue {words}"
    if lacking > blocks and _can_take_turns(comparison, found):
        yield "Turns, in which other work disturbs all targets alike, may decide sooner: --design alternating"


def _least(found: Sequence[Claim]) -> str:
    """Return ``at least `` where blocks are lacking for any verdict: their number does not promise one."""
    return "at least " if any(one.withheld for one in found) else ""


def _extension(one: Claim) -> tuple[float, float, float]:
    """Return the blocks that a claim has, those that it lacks, and the seconds of one."""
    lacking = math.inf if one.lacking_blocks is None else one.lacking_blocks
    return one.found.blocks, lacking, one.around.block_s or 0.0


def _can_take_turns(comparison: Comparison, found: Sequence[Claim]) -> bool:
    """Return whether all jobs could take turns, and none does."""
    in_turns = {group.job for group in comparison.groups if group.turns}
    return all(hasattr(one.job.traits, "turn_taker") and one.job not in in_turns for one in found)


def same_work(comparison: Comparison) -> Iterator[str]:
    """Yield what the targets computed, and which images they generated, beside bare metal of their blocks, if known."""
    found = [(one.arm, group.model, one) for group in comparison.groups for one in group.same_work]
    by_kind: dict[str, list[_Arm]] = {}
    for each in sorted(found, key=lambda each: AGREEMENTS.index(each[2].kind)):
        by_kind.setdefault(each[2].kind, []).append(each)
    told = {_computed([one for *_, one in own]): own for own in by_kind.values()}
    yield from _beside_baseline(told, found, same="other" not in by_kind)
    by_images: dict[str, list[_Arm]] = {}
    for each in found:
        if image := each[2].image:
            by_images.setdefault(_generated(image), []).append(each)
    yield from _beside_baseline(by_images, found, same=not any(text.startswith(_OTHER) for text in by_images))


def _beside_baseline(told: dict[str, list[_Arm]], found: Sequence[_Arm], *, same: bool) -> Iterator[str]:
    """Yield the sentence on what arms did, by its words; ``same``: those of all may be true of bare metal, too."""
    if len(told) == 1 and same:
        yield f"All targets {next(iter(told))}."
    elif told:
        clauses = (f"{_arms(own, found)} {text}" for text, own in reversed(told.items()))
        alone = ", or for victims the target alone" if any("-beside-" in work.arm for *_, work in found) else ""
        yield f"Beside {BASELINE}{alone}, {'; '.join(clauses)}."


def _generated(image: SameImage) -> str:
    images = _OTHER if image.other_pixels else "generated the same images"
    weights = "other" if image.other_weights else "the same"
    apart = "" if image.mean is None else f": pixels at most {image.most} of 255 apart, {number(image.mean)} on average"
    return f"{images} from {weights} weights{apart}"


_PROVEN: Mapping[Kind, str] = {
    "weights": "computed the same weights, bit for bit",
    "losses": "computed the same losses, bit for bit",
    "drawn": "drew the same data, order and seed",
    "steps": "ended at the same step",
}
_UNPROVEN = ", which does not prove the same data, order or seed"


def _computed(alike: Sequence[SameWork]) -> str:
    """Return what arms of one kind of agreement computed."""
    kind, apart = alike[0].kind, _extreme(max, (one.apart for one in alike))
    share = f"{number(apart * 100)} %" if apart else ""
    if kind == "other":
        return ", ".join(dict.fromkeys(one.text for one in alike)) + (f" ({share} apart)" if share else "")
    return _PROVEN[kind] if kind in _PROVEN and apart is None else _near(alike, kind, share)


def _near(alike: Sequence[SameWork], kind: Kind, share: str) -> str:
    """Return what arms computed whose early losses are this share apart."""
    drew = f"{_PROVEN['drawn']} and " if all(one.drawn for one in alike) else ""
    why = ", ".join(dict.fromkeys(one.rounding for one in alike))
    seeds = _extreme(min, (one.seeds_apart for one in alike))
    spread = f"other seeds: {number(seeds * 100)} %" if seeds else "no other seed was measured"
    within = f" within {share} ({why}; {spread})" if share else f" ({why})"
    losses = "the same losses" if kind == "near" else "losses"
    return f"{drew}computed {losses}{within}{_UNPROVEN if kind == 'unproven' else ''}"


def _extreme(choose: Callable[[list[float]], float], shares: Iterable[float | None]) -> float | None:
    """Return one of the shares that are known; None if none is."""
    known = [share for share in shares if share is not None]
    return choose(known) if known else None


def _arms(alike: Sequence[_Arm], found: Sequence[_Arm]) -> str:
    """Return the names of arms; with the models where not all of an arm's are meant."""
    names = {arm: [model for other, model, _ in alike if other == arm] for arm, *_ in alike}
    of = {arm: sum(other == arm for other, *_ in found) for arm in names}
    return ", ".join(arm if len(own) == of[arm] else f"{arm} ({', '.join(own)})" for arm, own in names.items())


def claims(comparison: Comparison) -> list[Claim]:
    """Return every comparison with bare metal, of victims beside aggressors with the same target alone."""
    found = [claim for group in comparison.groups for claim in claims_of(group, comparison.margin)]
    for one in comparison.contrasts:
        if one.kind == "isolation":
            around = _around(comparison, one.job)
            found.append(Claim(one, "victims beside aggressors", comparison.margin, around, one.notes))
    return found


def claims_of(group: Group, margin: float) -> Iterator[Claim]:
    """Yield the claims of one job and model: the throughput of a training, every metric of a probe.

    Of a command that prints no throughput it is the elapsed time.
    """
    if not group.job.traits.normalised:
        return
    for summary in group.targets:
        for metric in group.deciding if summary.target != BASELINE else ():
            one = group.over_base(summary.target, metric)
            yield Claim(one, group.model, margin, group.circumstances, _notes(summary))


def overall_claims(comparison: Comparison) -> Iterator[Claim]:
    """Yield a claim for each target over all models."""
    for one in comparison.contrasts:
        if one.kind == "models" and one.metric == METRICS[0]:
            what, around = f"the {len(one.members)} models together", _around(comparison, one.job)
            yield Claim(one, what, comparison.margin, around, one.notes)


def _around(comparison: Comparison, job: ComparedJob) -> Circumstances:
    """Return the circumstances of the first model of a job, which its others share."""
    return next((group.circumstances for group in comparison.groups if group.job == job), Circumstances())


def _notes(summary: TargetSummary) -> tuple[str, ...]:
    """Return substitutes and marks, but for the one that only counts what is named elsewhere."""
    return summary.substitutes + (summary.marks[:-1] if summary.differences else summary.marks)


def _together(found: Sequence[Claim]) -> str:
    """Return one sentence for many claims."""
    outcomes = Counter(one.outcome for one in found)
    what = f"{len(found)} comparisons{_context(found)}"
    if len(found) == outcomes["no verdict"]:
        return f"No verdict yet on {what}: {_reasons(found)}{_disturbed(found)}."
    counts = ", ".join(f"{outcomes[name]} {name}{_why(found, name)}" for name in OUTCOMES if outcomes[name])
    worst = max(found, key=lambda one: -math.inf if one.withheld or one.slower is None else one.slower)
    most = f"; most: {lower(worst.subject)} {worst.costs}" if worst.slower and worst.slower > 0 else ""
    return f"{what}: {counts}{most}{_disturbed(found)}."


def _disturbed(found: Sequence[Claim]) -> str:
    """Return what disturbed trials and is no reason to withhold a verdict."""
    named = " ".join(why for one in found for why in one.withheld)
    disturbances = (one.finding for claim in found for each in claim.around.disturbed.values() for one in each)
    findings = dict.fromkeys(finding for finding in disturbances if finding not in named)
    return f"; disturbed within bounds: {', '.join(findings)}" if findings else ""


def _reasons(found: Sequence[Claim]) -> str:
    """Return why there is no verdict, without the bounds and counts of each claim."""
    return "; ".join(dict.fromkeys(why.partition(" (")[0] for one in found for why in one.withheld))


def _context(found: Sequence[Claim]) -> str:
    """Return `` of throughput with bare-metal on host node7 (runc, 20 blocks, margin 2 %)``."""
    hosts = dict.fromkeys(host for one in found for host in one.around.hosts)
    engines = dict.fromkeys(one.around.engine for one in found if one.around.engine)
    metrics = {one.metric for one in found}
    blocks = sorted({one.found.blocks for one in found if one.found.measured})
    spread = count(blocks[-1], "block") if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]} blocks" if blocks else ""
    of = f" of {metrics.pop()}" if len(metrics) == 1 else ""
    context = filter(None, (", ".join(engines), spread, f"margin {percent(found[0].margin)}"))
    return f"{of} with {BASELINE}{on_hosts(hosts)} ({', '.join(context)})"


def _why(found: Sequence[Claim], outcome: str) -> str:
    """Return of all claims with this outcome why there is no verdict, what would decide, or what they exclude."""
    own = [one for one in found if one.outcome == outcome]
    if outcome == "no verdict":
        return f" ({_reasons(own)})"
    most = max(own, key=lambda one: one.more_blocks or 0)
    if outcome != "undecided" or not most.more_blocks:
        return excluding(one.bound for one in own)
    spent = f", {duration(most.more_s)}," if most.more_s else ""
    within = "all of them" if all(one.more_blocks for one in own) else "those within reach"
    return f" (about {count(most.more_blocks, 'more block')}{spent} would decide {within})"


def _nothing(comparison: Comparison) -> str:
    """Return why there is no comparison, and what would make one."""
    targets = {summary.target for group in comparison.groups for summary in group.targets}
    if not targets:
        return "Nothing was measured: no trial has finished."
    models = ", ".join(dict.fromkeys(group.model for group in comparison.groups))
    failed = sum(summary.failed for group in comparison.groups for summary in group.targets)
    if not any(summary.ok for group in comparison.groups for summary in group.targets):
        return f"Nothing to compare: {count(failed, 'trial')} of {models} failed, and none has finished."
    if targets == {BASELINE}:
        return f"Nothing to compare: {models} ran on {BASELINE} alone; add a target, such as --target container."
    return f"Nothing to compare: no metric of {models} was measured on two targets."
