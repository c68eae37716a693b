"""Choose the one command that settles what is open in a comparison. There is none where no command would."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.compare.results import Comparison
from analysis.load.plans import extendable, plan_of
from analysis.load.records import run_of
from analysis.report.answers.claim import NO_NUMBER, Claim
from analysis.report.formatting import percent, reachable
from analysis.statistics.ratios import Prospect
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.errors import RequestError
from suite.job.job import SEQUENTIAL
from suite.job.profiles import PROFILES
from suite.measurable import is_measured
from suite.request.next_step import NextStep, bench
from suite.request.repetitions import MARGIN
from suite.request.request import DEFAULT_MARGIN, RunRequest, until_decided
from suite.request.scenario import PlannedScenario, can_take_turns
from suite.request.traits import Traits, traits_of
from suite.results.runs import is_run, sweep_around
from suite.targets import BASELINE, BASES, COMMANDS
from suite.units import count, format_share

_LONG_S = 3600.0
"""An extension that takes longer gives way to turns, where the jobs can take them."""


def next_step(comparison: Comparison, claims: Sequence[Claim]) -> NextStep | None:
    """Return the command that settles the first thing that is open, or explains what is decided."""
    if not claims:
        return _first_comparison(comparison)
    still_open = [claim for claim in claims if claim.awaits_blocks]
    without_number = [claim for claim in claims if claim.word == NO_NUMBER]
    if any(claim.found.measured for claim in without_number):
        return _with_baseline(comparison)
    if still_open:
        return _deciding(comparison, still_open)
    if any(claim.awaits_repair for claim in claims):
        return failures_of(comparison.places)
    probes = all(claim.job.traits.probes for claim in claims)
    return explaining(comparison.places, probes=probes, margin=comparison.requested_margin)


def measure(profiles: Iterable[str]) -> bool:
    """Return whether runs of all these profiles are measurements; those of other packages are."""
    return all(PROFILES[name].decides for name in profiles if name in PROFILES)


def explaining(places: Sequence[Path], *, probes: bool = False, margin: float | None = None) -> NextStep | None:
    """Return the command that shows what is behind a decided comparison of runs, by the margin that it was given."""
    if not places:
        return None
    judged = ("--margin", format_share(margin)) if margin else ()
    if probes:
        return bench("report", *places, *judged, decides="one page")
    return bench("compare", *places, *judged, "--explain", decides="where the time goes")


def failures_of(places: Sequence[Path]) -> NextStep | None:
    """Return the command that shows why trials of the last of some runs or sweeps have failed."""
    if not places:
        return None
    shows = ("results", "show") if is_run(places[-1]) else ("sweep", "status")
    return bench(*shows, places[-1], decides="each failure in full")


def extending(run: Path, more: int, *, block_s: float = 0.0, at_least: bool = False) -> NextStep | None:
    """Return the command that measures ``more`` blocks of ``block_s`` seconds; None for what cannot be continued."""
    plan = plan_of(run)
    if not (plan and plan.request and extendable([run])):
        return None
    words = plan.request.repetitions.extension(plan.blocks + more, block_s)
    decides = count(more, "more block")
    if at_least:
        decides = f"at least {decides}"
    return bench("run", "--continue", run, *words, decides=decides, takes_s=more * block_s)


def _first_comparison(comparison: Comparison) -> NextStep | None:
    """Return the command that makes something to compare, or shows why there is nothing."""
    places = comparison.places
    summaries = comparison.summaries
    if not places:
        return None
    if not summaries:
        return bench("audit", *places, decides="why no record counts")
    if not any(summary.ok for summary in summaries):
        return failures_of(places)
    if {summary.target for summary in summaries} == {BASELINE}:
        request = _request_of(_last_run(comparison))
        return _anew(comparison, request, targets=())
    return bench("compare", *places, "--verbose", decides="every metric")


def _with_baseline(comparison: Comparison) -> NextStep | None:
    """Return the command of the same run with bare metal; where its trials have failed, the one that shows them."""
    if any(summary.target in BASES for summary in comparison.summaries):
        return failures_of(comparison.places)
    request = _request_of(_last_run(comparison))
    targets = request.targets.target if request else ()
    return _anew(comparison, request, targets=(BASELINE, *targets))


def _deciding(comparison: Comparison, still_open: Sequence[Claim]) -> NextStep | None:
    worst = max(still_open, key=_lacking)
    run = _last_run(comparison, worst)
    request = _request_of(run)
    if not measure(claim.job.profile for claim in still_open):
        return _anew(comparison, request)  # another profile: nothing of it is decided
    lacking = _lacking(worst)
    endless = lacking == math.inf
    block_s = worst.around.block_s or 0.0
    if endless or lacking * block_s > _LONG_S:
        in_turns = _in_turns(comparison, still_open, request)
        if in_turns:
            return in_turns
    if endless:
        return _extending_to_a_wider_margin(run, still_open)
    if run is None or sweep_around(run):  # a plan file gives the blocks of a sweep
        return _anew(comparison, request, still_open)
    return extending(
        run,
        int(lacking),
        block_s=block_s,
        at_least=any(claim.withheld for claim in still_open),
    )


def _extending_to_a_wider_margin(run: Path | None, still_open: Sequence[Claim]) -> NextStep | None:
    """Return the command that measures until claims without an end at their margin are decided at a wider one.

    None where a claim is open for another reason, or out of reach at every wider margin.
    """
    if run is None or sweep_around(run):
        return None
    prospects = []
    for claim in still_open:
        prospect = _prospect(claim)
        if prospect is None:
            return None
        prospects.append(prospect)
    margin = max(prospect.margin for prospect in prospects)
    more = max(prospect.more_blocks for prospect in prospects)
    block_s = max(claim.around.block_s or 0.0 for claim in still_open)
    step = extending(run, more, block_s=block_s)
    if step is None:
        return None
    return replace(step, decides=f"{count(more, 'more block')}, which probably decide at {percent(margin)}")


def _prospect(claim: Claim) -> Prospect | None:
    """Return the least wider margin at which more blocks decide a claim within an hour, or else soonest; or None."""
    verdict = claim.found.verdict
    if verdict is None or claim.withheld:
        return None
    in_reach = [prospect for prospect in verdict.prospects if reachable(prospect.more_blocks)]
    block_s = claim.around.block_s or 0.0
    for prospect in in_reach:
        if prospect.more_blocks * block_s <= _LONG_S:
            return prospect
    return min(in_reach, key=_more_blocks, default=None)


def _more_blocks(prospect: Prospect) -> int:
    return prospect.more_blocks


def _lacking(claim: Claim) -> float:
    return math.inf if claim.lacking_blocks is None else claim.lacking_blocks


def _in_turns(comparison: Comparison, still_open: Sequence[Claim], request: RunRequest | None) -> NextStep | None:
    """Return the command of the same run in turns, which are disturbed alike; None unless all jobs can take them."""
    if request is None:
        return None
    for claim in still_open:
        designs = comparison.of(claim.job).trials["design"]
        if (designs != SEQUENTIAL).any() or not _can_take_turns(claim.job.traits, request):
            return None
    return _anew(comparison, request, still_open, design="alternating", steps=None)


def _can_take_turns(traits: type[Traits], request: RunRequest) -> bool:
    if not issubclass(traits, PlannedScenario):
        return False
    try:
        return can_take_turns(traits.of(request), request)
    except RequestError:  # what it needs is not on this machine
        return False


def _last_run(comparison: Comparison, claim: Claim | None = None) -> Path | None:
    """Return the run, or the cell of a sweep, that measured something last, or the arm of a claim."""
    if claim:
        trials = comparison.of(claim.job).trials
    else:
        trials = comparison.trials
    if claim and claim.found.model and len(trials):
        trials = trials[trials["model"] == claim.found.model]
    if len(trials):
        in_order = trials.sort_values("started_at", kind="stable")
        last_record = in_order["path"].iloc[-1]
        return Path(run_of(last_record))
    if comparison.places and is_run(comparison.places[-1]):
        return comparison.places[-1]
    return None


def _request_of(run: Path | None) -> RunRequest | None:
    plan = plan_of(run) if run else None
    return plan.request if plan else None


def _anew(
    comparison: Comparison,
    request: RunRequest | None,
    still_open: Sequence[Claim] = (),
    targets: Sequence[str] | None = None,
    **changes: object,
) -> NextStep | None:
    """Return the command of a request with ``changes`` that goes on until it is decided; None where it cannot be.

    It leaves out what measures nothing: such targets and such a profile.
    """
    if request is None:
        return None
    if targets is None:
        targets = request.targets.target
    if not measure([request.measurement.profile]):
        changes["profile"] = None
    try:
        changed = request.changed(target=_measured(comparison, targets), **changes)
        if not traits_of(request.scenario).normalised:
            repeated = changed.changed(blocks=LEAST_BLOCKS, warmup_blocks=None)
            return bench(*repeated.command()[1:], decides=f"to measure, {count(LEAST_BLOCKS, 'block')}")
        margin = _margin(comparison, request, still_open)
        repeated = until_decided(changed, margin)
    except RequestError:  # an option of this run goes with no verdict
        return None
    decides = f"until decided at {percent(margin)}, within a budget that it prints first"
    return bench(*repeated.command()[1:], decides=decides)


def _margin(comparison: Comparison, request: RunRequest, still_open: Sequence[Claim]) -> float:
    """Return the margin that was chosen for what is compared, or that of a run by default, if it decides more."""
    requested = comparison.requested_margin
    if requested is not None:
        return requested
    chosen = request.repetitions.margin is not None or comparison.least_margin != MARGIN
    decided = [claim for claim in still_open if claim.equivalent_at and claim.equivalent_at <= DEFAULT_MARGIN]
    decides_more = len(decided) < len(still_open) or not still_open
    if decides_more and not chosen:
        return DEFAULT_MARGIN
    return comparison.least_margin


def _measured(comparison: Comparison, targets: Sequence[str]) -> tuple[str, ...] | None:
    """Return the targets without those that only prove their path; None, for those of the machine, if none compares."""
    summaries = comparison.summaries
    path_only = {summary.target for summary in summaries if not is_measured(summary.substitutes)}
    measured = tuple(target for target in targets if target not in path_only)
    two_commands = any(summary.target in COMMANDS for summary in summaries)
    if two_commands or {*measured} - {BASELINE}:
        return measured
    return None
