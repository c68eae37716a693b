"""Decide when a run has enough blocks: by the width of its intervals, its verdicts, or a difference to detect.

To detect a stated difference, the first blocks of the run itself count in its result, as an internal pilot does (Wittes
and Brittain, Statist. Med. 9 (1990) 65). The plan made from them is kept: looking again and again finds the moment at
which the noise looks small. A pilot that looked quiet by chance is found out only if enough blocks follow it, or else
identical targets are called different too often: hence at least ``GROWTH`` times its blocks. The numbers come from
``benchmarks/power.py``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import pandas as pd

from analysis.compare.comparison import compare
from analysis.compare.contrast_kinds import AGAIN, RATIO, TARGET
from analysis.compare.contrasts import form
from analysis.compare.pairing import plain, to_baseline, with_variants
from analysis.compare.validity import usable
from analysis.compare.verdicts import FAILED_TRIALS
from analysis.load.metrics import METRICS, Metric, by_ratio, metrics_of
from analysis.load.records import Records
from analysis.statistics.margins import log_difference, share_of
from analysis.statistics.power import blocks_needed
from analysis.statistics.ratios import Location, Samples, detectable_share, detection_level, locate
from analysis.statistics.sequential import LEAST_BLOCKS, Decision, should_stop, should_stop_deciding
from suite.plan import Detection
from suite.request.repetitions import MARGIN, Repetitions
from suite.targets import BASELINE, BASES
from suite.units import count

PILOT_BLOCKS = 10
GROWTH = 2
_FEWEST = {"pilot": GROWTH * PILOT_BLOCKS, "earlier": 1}


def should_stop_run(records: Records | None, repetitions: Repetitions, *, max_blocks: int) -> Decision:
    """Decide on the records of one run so far, by the ratio of every target and model to bare metal.

    ``records`` is None as long as none counts. In a run of bare metal alone, twice in every block, the ratio of the two
    counts. Every metric of a probe counts, since none stands for all. A verdict that the answer withholds because of
    failed trials is none. A block counts once the run has begun it; if bare metal or the target failed, or validity
    refuses the pair, it is a block without a ratio. Call this when a block has ended. Warm-up trials are no blocks, and
    ablations are not waited for.
    """
    families = log_ratios(records) if records else {}
    if not repetitions.decides:
        return should_stop(
            _all_ratios(families),
            repetitions.half_width or 0.0,
            max_blocks=max_blocks,
        )
    margin = repetitions.margin_share or MARGIN
    decision = should_stop_deciding(families.values(), margin, max_blocks=max_blocks)
    if records and decision.decided:
        hidden = _hidden(records, margin)
        if hidden:
            return replace(decision, stop=False, reason="; ".join(hidden), at_least=1)
    return decision


def _all_ratios(families: Mapping[str, Mapping[str, Samples]]) -> dict[str, Samples]:
    """Return the ratios of all families, which differ in their names."""
    ratios: dict[str, Samples] = {}
    for family in families.values():
        ratios |= family
    return ratios


def _hidden(records: Records, margin: float) -> list[str]:
    """Return the verdicts that the answer withholds because failed trials may have been slow ones."""
    hidden = []
    comparison = compare(records, margin=margin)
    for group in comparison.groups:
        for contrast in group.contrasts:
            decides = contrast.kind == TARGET.name and contrast.metric in group.deciding
            if not decides or not contrast.verdict:
                continue
            for reason in contrast.verdict.withheld:
                if reason.startswith(FAILED_TRIALS):
                    hidden.append(f"{contrast.model} on {contrast.target}: {reason}")
    return hidden


def intervals(records: Records) -> dict[str, tuple[float, float, float]]:
    """Return each ratio so far with the ends of its interval, by its name; the widest first.

    One of fewer than ``LEAST_BLOCKS`` blocks is not yet measured, and left out.
    """
    ratios: dict[str, tuple[float, float, float]] = {}
    width: dict[str, float] = {}
    for name, location in _locations(records).items():
        if location and location.n >= LEAST_BLOCKS and location.ratio_interval:
            low, high = location.ratio_interval
            ratios[name] = (location.ratio, low, high)
            width[name] = low / high
    widest_first = sorted(ratios, key=lambda name: width[name])
    return {name: ratios[name] for name in widest_first}


def half_widths(records: Records) -> dict[str, float | None]:
    """Return the half width of each interval, as a share, by the name of its ratio; None if it cannot be formed yet."""
    widths: dict[str, float | None] = {}
    for name, location in _locations(records).items():
        width = location.half_width if location else None
        widths[name] = None if width is None else share_of(width)
    return widths


def _locations(records: Records) -> dict[str, Location | None]:
    ratios = _all_ratios(log_ratios(records))
    return {name: locate(values) for name, values in ratios.items()}


def log_ratios(records: Records) -> dict[str, dict[str, Samples]]:
    """Return the log ratios to bare metal by block, by metric's column, which is a family, and ratio's name."""
    trials = plain(with_variants(records.trials))
    # A command that prints no throughput is decided by its elapsed time.
    throughput, elapsed = METRICS[:2]
    deciding = elapsed if trials[throughput.column].isna().all() else throughput
    metrics = [metric for metric in by_ratio(records.metrics) if metric.of_probe or metric.name == deciding.name]
    finished = trials[trials["ok"]]
    blocks = trials[["run_id", "block"]].drop_duplicates()
    index = pd.MultiIndex.from_frame(blocks.sort_values(["run_id", "block"]))
    kinds = ["scenario", "model", "target", "design"]
    others = ~trials["target"].isin(BASES)
    arms = trials.loc[others, kinds].astype(str).drop_duplicates()
    if arms.empty:
        return _against_itself(finished, metrics, index)
    columns = [metric.column for metric in metrics]
    formed, _ = usable(to_baseline(finished, columns))
    ratios: dict[str, dict[str, Samples]] = {}
    for scenario, model, target, design in arms.itertuples(index=False):
        of_model = formed["model"] == model
        on_target = formed["target"] == target
        of_design = formed["design"] == design
        by_block = formed[of_model & on_target & of_design].groupby(["run_id", "block"])
        measured = metrics_of(metrics, scenario, model)
        for metric in measured:
            name = _name(model, target, metric, design)
            means = by_block[metric.column].mean()
            ratios.setdefault(metric.column, {})[name] = list(means.reindex(index))
        if not measured:  # every trial of the probe failed so far
            ratios.setdefault("", {})[f"{model} on {target}"] = [math.nan] * len(index)
    return ratios


def _against_itself(ok: pd.DataFrame, metrics: Sequence[Metric], index: pd.MultiIndex) -> dict[str, dict[str, Samples]]:
    """Return those of the second bare-metal trial over the first, by the name ``resnet50 on bare-metal-again``."""
    formed = form(AGAIN, ok, metrics).ratios
    ratios: dict[str, dict[str, Samples]] = {}
    for metric in metrics:
        of_metric = ratios.setdefault(metric.column, {})
        for (job, model, *_), values in formed[metric.column].items():
            name = _name(model, f"{BASELINE}-again", metric, job.variant)
            of_metric[name] = list(values[RATIO].reindex(index))
    return ratios


def _name(model: str, target: str, metric: Metric, design: str) -> str:
    arm = f"{model} on {target}"
    if metric.of_probe:
        return f"{arm}, {metric.name}"
    return f"{arm}, alternating" if "alternating" in design else arm


class _Candidate(NamedTuple):
    """A ratio that may take the most blocks of all."""

    needed: float
    """The blocks that detect the difference; infinite if no number of them does."""
    deviation: float
    name: str
    location: Location
    family: int
    """The number of ratios in its family."""


def plan_detection(
    records: Records,
    difference: float,
    *,
    most: int,
    source: Literal["pilot", "earlier"],
) -> Detection | None:
    """Return the blocks that detect a difference, as a share, for the ratio that takes the most.

    The records are those of the pilot, or of earlier runs. Of a pilot, a ratio with fewer than ``LEAST_BLOCKS`` blocks
    is left out; of earlier runs every ratio needs ``PILOT_BLOCKS``. None if there is nothing to plan from.
    """
    candidates = []
    for family in log_ratios(records).values():
        for name, values in family.items():
            location = locate(values)
            measured = location.n if location else 0
            if source == "earlier" and measured < PILOT_BLOCKS:
                return None
            if location is None or location.deviation is None or measured < LEAST_BLOCKS:
                continue
            needed = blocks_needed(
                log_difference(difference),
                location.deviation,
                location.degrees_of_freedom,
                level=detection_level(len(family)),
                least=LEAST_BLOCKS,
            )
            candidate = _Candidate(
                math.inf if needed is None else needed,
                location.deviation,
                name,
                location,
                len(family),
            )
            candidates.append(candidate)
    if not candidates:
        return None
    largest = max(candidates, key=lambda candidate: candidate[:2])
    blocks = int(min(max(largest.needed, _FEWEST[source]), most))
    return Detection(
        difference=difference,
        needed=None if math.isinf(largest.needed) else int(largest.needed),
        blocks=blocks,
        detectable=detectable_share(largest.location, largest.family, blocks),
        source=source,
        measured=largest.location.n,
        ratio=largest.name,
        deviation=share_of(largest.deviation),
    )


def should_stop_detecting(records: Callable[[], Records], difference: float, blocks: int, *, most: int) -> Decision:
    """Decide whether the ``blocks`` complete blocks of a run are those that its pilot plans; for a cell of a sweep."""
    pilot = min(PILOT_BLOCKS, most)
    if blocks < pilot:
        return Decision(
            False,
            f"the pilot of {count(pilot, 'block')} is not complete",
            None,
            pilot - blocks,
        )
    planned = plan_detection(pilot_of(records()), difference, most=most, source="pilot")
    if planned is None:
        return Decision(True, "no target has enough ratios to plan from", None, 0)
    reason = f"its pilot plans {count(planned.blocks, 'block')} to detect {difference:.2%}"
    if planned.capped:
        takes = f"{difference:.2%} takes {planned.needed or 'far more'}"
        reason = f"at most {count(planned.blocks, 'block')} may be measured; {takes}"
    return Decision(blocks >= planned.blocks, reason, None, max(planned.blocks - blocks, 0))


def pilot_of(records: Records) -> Records:
    return replace(records, trials=records.trials[records.trials["block"] < PILOT_BLOCKS])
