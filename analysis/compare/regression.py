"""Regression: what has become slower between runs of the same jobs, as contrasts of a run over others.

The runs share no block, so their blocks are independent samples; see ``statistics.two_samples``. A row is slower when
its whole interval is beyond the bound, and not slower when all of it is within, and that of the mean too, in which slow
trials count; else the blocks cannot tell. Neither can trials that carry no verdict; see ``verdicts``. Trials that
failed are compared by their shares, and hide verdicts that they may make false. If both runs have bare metal, the
change of the ratio to bare metal shows whether the target has changed or the whole host.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import pandas as pd

from analysis.compare import validity
from analysis.compare.contrast_kinds import RELATIVE, RUN, ContrastKind
from analysis.compare.matching import (
    Missing,
    by_row,
    logs_of,
    matched,
    missing,
    name_of,
    tables,
)
from analysis.compare.pairing import ROW, SWITCHES, filled, have_failed
from analysis.compare.results import Arm, Circumstances, Contrast, Disturbed
from analysis.compare.verdicts import FAILED_TRIALS, effect, with_standing, withheld
from analysis.load.metrics import Metric, in_units, metrics_of
from analysis.load.records import Records, run_of
from analysis.statistics.counts import MeanDifference, between_runs
from analysis.statistics.margins import log_slower_by, slower_by
from analysis.statistics.power import TRIM
from analysis.statistics.ratios import (
    FAILS_MORE,
    SIGNIFICANCE,
    Location,
    Samples,
    Verdict,
    VerdictName,
    exp,
    holm,
    locate,
)
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.statistics.tails import Mean
from analysis.statistics.two_samples import Runs, detectable, mean_shift, more_blocks, shift
from analysis.warnings.conditions import TAKES_CPUS, disturbed, least_elapsed
from suite.targets import BASELINE

Outcome = Literal["slower", "fails more", "incomplete", "cannot tell", "not slower"]
EXIT_CODES: Mapping[Outcome, int] = {"slower": 3, "fails more": 3, "incomplete": 1, "cannot tell": 4, "not slower": 0}
"""The outcomes of a gate, the one that decides before others first, each with the exit code of the command."""
_OUTCOMES: Mapping[VerdictName | None, Outcome] = {
    "slower": "slower",
    FAILS_MORE: "fails more",
    "not slower": "not slower",
}
FAILED = Metric("failed-trials", "failed", "%", compared="difference")
"""The share of the trials that failed, or did before they were repeated: a finding, not a gap."""


@dataclass(frozen=True, kw_only=True)
class Change(Contrast):
    """One metric of one arm, new over old; ``notes`` are the facts that changed between the runs, and may explain it.

    There is no verdict without a bound, and on what fails no run: openings, and ratios to bare metal.
    """

    samples: tuple[int, int]
    """The blocks of the old runs, and those of the new one, that hold the metric."""
    spread: float | None
    """The standard deviation between old runs, as a share, of a count in its unit; None where too few show it."""
    beside_load: bool = False
    """Whether it is slower although other work disturbed the trials: beyond what the CPU time of others can delay."""

    @property
    def outcome(self) -> Outcome | None:
        if self.verdict:
            return _OUTCOMES.get(self.verdict.name, "cannot tell")
        return None

    @property
    def left_open_by_failures(self) -> bool:
        """Return whether failed trials alone leave it open: more blocks decide nothing until fewer fail."""
        if self.metric == FAILED:
            return True
        if self.verdict:
            return any(why.startswith(FAILED_TRIALS) for why in self.verdict.withheld)
        return False

    @property
    def old(self) -> float:
        if self.difference:
            return (self.value or 0.0) - self.difference.mean
        return exp(math.log(self.value or 1.0) - math.log(self.ratio or 1.0))

    @property
    def slower(self) -> float | None:
        """Return the share of a rate that is lost, or of a time that is added; negative is faster.

        None for a count that was zero before, of which no share can be added.
        """
        if not self.difference:
            return slower_by(self.ratio or 1.0, more_is_faster=self.metric.more_is_faster)
        if not self.old:
            return None
        worse = self.difference.mean
        if self.metric.more_is_faster:
            worse = -worse
        return worse / abs(self.old)

    @property
    def name(self) -> str:
        """Return ``resnet50 on vm (engine=podman), throughput``."""
        relative = f", relative to {BASELINE}" if self.kind == RELATIVE.name else ""
        return f"{name_of(self.arm)}, {self.metric.name}{relative}"


@dataclass(frozen=True)
class Regression:
    """The changes between two runs, and what the new one lacks of the old one."""

    changes: tuple[Change, ...]
    fail_above: float | None
    missing: tuple[Missing, ...]
    added: tuple[str, ...]
    """Rows that the new run alone has finished: nothing says how fast they were."""
    places: tuple[Path, ...] = ()
    """The directories of the old runs and, as the last one, of the new run."""

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome of the gate; None without a bound. Nothing is green that was not compared."""
        if self.fail_above is None:
            return None
        outcomes = {change.outcome for change in self.changes} - {None} or {"incomplete"}
        if self.missing:
            outcomes.add("incomplete")
        return next(outcome for outcome in EXIT_CODES if outcome in outcomes)

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command that ends with this outcome; 0 without a bound."""
        return EXIT_CODES[self.outcome] if self.outcome else 0

    @property
    def spread_unknown(self) -> bool:
        """Return whether some row is judged without the spread between runs of the same thing."""
        return any(change.outcome and change.spread is None for change in self.changes)

    def of(self, outcome: Outcome) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.outcome == outcome)


_NO_DIFFERENCE = MeanDifference(0.0, None, 1.0, 0)


class _Side:
    """The old runs or the new one: finished trials and pairs with bare metal by row, and what has disturbed trials."""

    def __init__(self, trials: pd.DataFrame, metrics: Sequence[Metric]) -> None:
        ok = trials[trials["ok"]]
        failed_percent = 100.0 * have_failed(trials)
        self.tables = tables(ok, metrics)
        self.metrics = metrics
        self.every = by_row(trials.assign(failed=failed_percent))
        # What runs beside a victim does not disturb it.
        without_aggressor = ok[ok["aggressor"].isna()]
        self._disturbed = disturbed(filled(without_aggressor), [*ROW, *SWITCHES])

    def samples(self, kind: ContrastKind, arm: Arm, metric: Metric) -> list[list[float]]:
        """Return the logarithms of a metric, or of its ratios to bare metal, by old run and block."""
        if metric not in self.metrics:
            return []
        return _by_draw(logs_of(kind, self.tables[kind].get(arm), metric))

    def failed(self, arm: Arm) -> list[list[float]]:
        """Return the share of the trials that failed, in per cent, by old run and block."""
        return _by_draw(logs_of(RUN, self.every[arm], FAILED))

    def undelayed(self, arm: Arm, elapsed: Metric) -> list[list[float]]:
        """Return the logarithms of the elapsed time as if the CPU time of others had been that of the job."""
        trials = self.tables[RUN][arm]
        least = {elapsed.column: least_elapsed(trials)}
        return _by_draw(logs_of(RUN, trials.assign(**least), elapsed))

    def disturbed(self, arm: Arm) -> tuple[Disturbed, ...]:
        job = vars(arm.job).values()
        return self._disturbed.get((*job, *arm[1:5]), ())


def _by_draw(logs: Mapping[str, list[float]]) -> list[list[float]]:
    """Return what the blocks of each old run hold, of a sweep together."""
    runs: dict[str, list[float]] = defaultdict(list)
    for run, blocks in logs.items():
        _, draw, *_ = run.split("/")
        runs[draw] += blocks
    return list(runs.values())


def regress(
    old: Records,
    new: Records,
    fail_above: float | None = None,
    *,
    open_ended: bool = False,
    baselines: Mapping[str, int] = MappingProxyType({}),
) -> Regression:
    """Compare every metric of every row of the old runs with the new one, and its ratio to bare metal.

    ``fail_above`` (0.05 is 5 %) is the bound of the gate. Openings never fail a run, and neither do ratios to bare
    metal: the same trials would count twice. ``open_ended``: see ``missing``. ``baselines`` numbers the old runs by
    directory, a sweep as one run, the last one last: the new run must have what that one has.
    """
    number = old.trials["path"].map(lambda path: baselines.get(run_of(path), 0))
    draw_ids = number.astype(str) + "/" + old.trials["run_id"].astype(str)
    draws = old.trials.assign(draw=number, run_id=draw_ids)
    olds, news = matched(draws, new.trials)
    before = _Side(olds, old.metrics)
    after = _Side(news, new.metrics)
    last_draw = olds[olds["draw"] == number.max()]
    lacks = missing(by_row(last_draw), by_row(news), open_ended=open_ended)
    failing: dict[Arm, Change] = {}
    if fail_above is not None:
        failing = _failing(before, after, fail_above)
    results: list[Contrast | Missing] = [*lacks, *failing.values()]
    added = [name_of(arm) for arm in after.tables[RUN] if arm not in before.tables[RUN]]
    for arm in before.tables[RUN]:
        if arm in after.tables[RUN]:
            compared = _compared(arm, before, after, fail_above)
            results += [_unhidden(result, failing) for result in compared]
    return Regression(
        changes=tuple(result for result in results if isinstance(result, Change)),
        fail_above=fail_above,
        missing=tuple(result for result in results if isinstance(result, Missing)),
        added=tuple(added),
        places=(*old.places, *new.places),
    )


def _failing(old: _Side, new: _Side, bound: float) -> dict[Arm, Change]:
    """Return whether the trials of each row fail more often than before; those of all rows are one family.

    A row that fails no more often than it did has not become worse. Without a test that shows more, the whole interval
    must exclude that more trials fail by the bound.
    """
    changes = {}
    for arm in old.every:
        if arm in new.every:
            before = old.failed(arm)
            after = np.concatenate(new.failed(arm))
            if after.any() or np.any(np.concatenate(before)):
                changes[arm] = _count_change(arm, FAILED, (before, [after]), None)
    shifts = [change.difference or _NO_DIFFERENCE for change in changes.values()]
    levels = holm([shares.p for shares in shifts])
    judged = {}
    for (arm, change), shares, level in zip(changes.items(), shifts, levels, strict=True):
        name = _failing_more(shares, level, bound)
        verdict = Verdict(name, level, margin=bound)
        judged[arm] = replace(change, verdict=verdict)
    return judged


def _failing_more(shares: MeanDifference, level: float, bound: float) -> VerdictName:
    most = shares.interval[1] if shares.interval else math.inf
    if shares.mean <= 0 or most <= 100 * bound:
        return "not slower"
    return FAILS_MORE if level <= SIGNIFICANCE else "undecided"


def _unhidden(result: "Contrast | Missing", failing: Mapping[Arm, Change]) -> "Contrast | Missing":
    """Return a change without its verdict if trials that failed may have been slow ones, which would make it false."""
    if not isinstance(result, Change) or not result.verdict or result.arm not in failing:
        return result
    shares = failing[result.arm]
    hidden = False
    if result.outcome == "not slower":
        hidden = shares.outcome != "not slower"
    elif result.outcome == "slower":
        hidden = shares.old > 100 * TRIM
    if not hidden:
        return result
    why = f"{FAILED_TRIALS} ({shares.value:.0f} % of the new run, {shares.old:.0f} % before)"
    verdict = replace(result.verdict, name=None, more_blocks=None, withheld=(why,))
    return replace(result, verdict=verdict)


def _compared(arm: Arm, old: _Side, new: _Side, fail_above: float | None) -> Iterator[Contrast | Missing]:
    old_trials = old.tables[RUN][arm]
    new_trials = new.tables[RUN][arm]
    notes = validity.changes(old_trials["facts"].unique(), new_trials["facts"].unique())
    sides = {"of the old run": old.disturbed(arm), "of the new run": new.disturbed(arm)}
    # More blocks mend nothing if the trials decide nothing in any number of them.
    decides = not withheld(arm.job.profile, LEAST_BLOCKS, sides)
    metrics = metrics_of(old.metrics, arm.job.scenario, arm.model)
    for metric, kind in product(metrics, (RUN, RELATIVE)):
        before = old.samples(kind, arm, metric)
        after = new.samples(kind, arm, metric)
        if metric.supporting or not before:
            continue
        (named,) = in_units([metric], old_trials["unit"].iloc[0])
        gates = kind is RUN and not metric.of_target
        if after:
            bound = fail_above if gates else None
            change = _change(kind, arm, named, (before, after), bound, decides=decides)
            yield _standing(replace(change, notes=notes), sides, old, new)
        elif gates:
            name = f"{name_of(arm)}, {metric.name}"
            yield Missing("metric", name, f"the new run has none in {named.unit}")


def _standing(change: Change, sides: Mapping[str, tuple[Disturbed, ...]], old: _Side, new: _Side) -> Contrast:
    """Return a change without its verdict if its trials do not carry it.

    Beside other work "slower" stands where it would be so if the new run had had the CPU time of others, too.
    """
    group = (change.job, change.model)
    (standing,) = with_standing([change], {group: Circumstances(disturbed=sides)})
    verdict = change.verdict
    if verdict is None or verdict.name != "slower" or standing.verdict == verdict:
        return standing
    if not change.metric.of_whole_job:
        return standing
    unloaded = {}
    for side, disturbances in sides.items():
        unloaded[side] = tuple(other for other in disturbances if other.kind not in TAKES_CPUS)
    before = old.samples(RUN, change.arm, change.metric)
    undelayed = new.undelayed(change.arm, change.metric)
    least = _change(RUN, change.arm, change.metric, (before, undelayed), verdict.margin, decides=False)
    if least.outcome != "slower":
        return standing
    beside_load = replace(change, beside_load=True)
    (standing,) = with_standing([beside_load], {group: Circumstances(disturbed=unloaded)})
    return standing


def _change(
    kind: ContrastKind,
    arm: Arm,
    metric: Metric,
    runs: Sequence[Sequence[Samples]],
    bound: float | None,
    *,
    decides: bool,
) -> Change:
    if metric.by_difference:
        return _count_change(arm, metric, runs, bound)
    samples = [np.concatenate(side) for side in runs]
    sign = -1 if metric.more_is_faster else 1
    # The blocks of the new run or sweep are one draw.
    sides = (runs[0], [samples[1]])
    change = shift(*sides)
    new = locate(samples[1])
    assert change and new, "samples without a value are not compared"  # noqa: S101, PT018
    verdict = None
    if bound is not None:
        mean = mean_shift(*(sign * logs for logs in samples))
        verdict = _verdict(change, sides, mean, sign, bound, decides=decides)
    return Change(
        kind=kind.name,
        arm=arm,
        metric=metric if kind is RUN else replace(metric, unit="x"),
        value=new.ratio,
        trials=len(samples[1]),
        samples=(len(samples[0]), len(samples[1])),
        spread=change.spread_share,
        **vars(effect(change, verdict)),
    )


def _count_change(arm: Arm, metric: Metric, runs: Sequence[Sequence[Samples]], bound: float | None) -> Change:
    """Compare a metric that can be zero by the difference of the means of the old runs and the new one."""
    old, new = (np.concatenate(side) for side in runs)
    difference_of_means = between_runs(runs[0], [new])
    assert difference_of_means, "samples without a value are not compared"  # noqa: S101
    verdict = None
    if bound is not None:
        name = _decided_by_difference(
            difference_of_means,
            old,
            new,
            bound,
            more=metric.more_is_faster,
        )
        verdict = Verdict(name, difference_of_means.p, margin=bound)
    return Change(
        kind=RUN.name,
        arm=arm,
        metric=metric,
        value=float(new.mean()),
        trials=len(new),
        samples=(len(old), len(new)),
        spread=difference_of_means.spread,
        blocks=difference_of_means.n,
        difference=difference_of_means,
        verdict=verdict,
    )


def _decided_by_difference(
    difference_of_means: MeanDifference,
    old: Samples,
    new: Samples,
    bound: float,
    *,
    more: bool,
) -> VerdictName:
    """Return the verdict on a count by a bound, a share of the old mean; ``more`` is better, or less.

    Nothing is less than none: a new run with nothing but zeros has not become worse, however few they are.
    """
    if not more and not np.any(new):
        return "not slower"
    if difference_of_means.interval is None:
        return "undecided"
    allowed = bound * abs(float(np.mean(old)))
    low, high = difference_of_means.interval
    least, most = (-high, -low) if more else (low, high)
    if least > allowed:
        return "slower"
    if most <= allowed:
        return "not slower"
    return "undecided"


def _verdict(
    change: Location,
    sides: tuple[Runs, Runs],
    mean: Mean | None,
    sign: int,
    fail_above: float,
    *,
    decides: bool,
) -> Verdict:
    """Judge a change by a bound, a share; see ``Change.slower``. ``sign`` is that of a log ratio by which it is a loss.

    ``detectable`` is a slowdown. ``decides``: whether some number of blocks carries a verdict.
    """
    half = change.half_width
    bound = sign * log_slower_by(fail_above, more_is_faster=sign < 0)
    beyond = sign * change.centre - bound
    most = mean.interval[1] if mean else None
    name, reasons = _decided(beyond, half, most, bound, sign)
    needed = None
    least = LEAST_BLOCKS - change.n
    if decides and (name == "undecided" or least > 0):
        needed = least
        if half is not None:
            needed = more_blocks(*sides, abs(beyond))
    if needed is not None:
        needed = max(needed, least)
    smallest = detectable(*sides)
    share = None
    if smallest is not None and smallest < math.log(10):
        share = slower_by(exp(sign * smallest), more_is_faster=sign < 0)
    return Verdict(name, None, needed, share, withheld=reasons, margin=fail_above)


def _decided(
    beyond: float,
    half: float | None,
    most: float | None,
    bound: float,
    sign: int,
) -> tuple[VerdictName, tuple[str, ...]]:
    """Return the verdict on a loss that is ``beyond`` the bound, and why it is no verdict on the mean.

    As a verdict of a comparison is, "not slower" is held against what a long queue of jobs pays: ``most``.
    """
    if half is None or most is None or abs(beyond) <= half:
        return "undecided", ()
    if beyond > 0:
        return "slower", ()
    if most < bound:
        return "not slower", ()
    share = slower_by(exp(sign * most), more_is_faster=sign < 0)
    why = f"a typical block is not slower, but with slow trials the mean may be {100 * share:.3g} % slower"
    return "typical-only", (why,)
