"""Decide when a run has enough blocks: by the width of its intervals, its verdicts, or a difference to detect.

To detect a stated difference, the first blocks of the run itself count in its result, as an internal pilot does (Wittes
and Brittain, Statist. Med. 9 (1990) 65). The plan made from them is kept: looking again and again finds the moment at
which the noise looks small. A pilot that looked quiet by chance is found out only if enough blocks follow it, or else
identical targets are called different too often: hence at least ``GROWTH`` times its blocks. The numbers come from
``benchmarks/power.py``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pandas as pd

from analysis.compare.comparison import compare
from analysis.compare.contrasts import AGAIN, FAILED_TRIALS, RATIO, TARGET, form
from analysis.compare.pairing import plain, to_baseline, with_variants
from analysis.compare.validity import usable
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
    if repetitions.decides:
        margin = repetitions.margin_share or MARGIN
        decision = should_stop_deciding(families.values(), margin, max_blocks=max_blocks)
        hidden = _hidden(records, margin) if records and decision.decided else []
        return replace(decision, stop=False, reason="; ".join(hidden), at_least=1) if hidden else decision
    ratios = {name: values for family in families.values() for name, values in family.items()}
    return should_stop(ratios, repetitions.half_width or 0.0, max_blocks=max_blocks)


def _hidden(records: Records, margin: float) -> list[str]:
    """Return the verdicts that the answer withholds because failed trials may have been slow ones."""
    hidden = []
    for group in compare(records, margin=margin).groups:
        for contrast in group.contrasts:
            if contrast.kind == TARGET.name and contrast.metric in group.deciding and contrast.verdict:
                why = [reason for reason in contrast.verdict.withheld if reason.startswith(FAILED_TRIALS)]
                hidden += [f"{contrast.model} on {contrast.target}: {reason}" for reason in why]
    return hidden


def intervals(records: Records) -> dict[str, tuple[float, float, float]]:
    """Return each ratio so far with the ends of its interval, by its name; the widest first.

    One of fewer than ``LEAST_BLOCKS`` blocks is not yet measured, and left out.
    """
    measured = {name: place for name, place in _places(records).items() if place and place.n >= LEAST_BLOCKS}
    known = ((name, place, place.ratio_interval) for name, place in measured.items())
    ratios = {name: (place.ratio, *ends) for name, place, ends in known if ends}
    return dict(sorted(ratios.items(), key=lambda ratio: ratio[1][1] / ratio[1][2]))


def half_widths(records: Records) -> dict[str, float | None]:
    """Return the half width of each interval, as a share, by the name of its ratio; None if it cannot be formed yet."""
    widths = {name: place.half_width if place else None for name, place in _places(records).items()}
    return {name: None if width is None else share_of(width) for name, width in widths.items()}


def _places(records: Records) -> dict[str, Location | None]:
    return {name: locate(values) for family in log_ratios(records).values() for name, values in family.items()}


def log_ratios(records: Records) -> dict[str, dict[str, Samples]]:
    """Return the log ratios to bare metal by block, by metric's column, which is a family, and ratio's name."""
    trials = plain(with_variants(records.trials))
    # A command that prints no throughput is decided by its elapsed time.
    decides = METRICS[int(trials[METRICS[0].column].isna().all())]
    metrics = [one for one in by_ratio(records.metrics) if one.of_probe or one.name == decides.name]
    finished = trials[trials["ok"]]
    index = pd.MultiIndex.from_frame(trials[["run_id", "block"]].drop_duplicates().sort_values(["run_id", "block"]))
    kinds = ["scenario", "model", "target", "design"]
    arms = trials.loc[~trials["target"].isin(BASES), kinds].astype(str).drop_duplicates()
    if arms.empty:
        return _against_itself(finished, metrics, index)
    formed, _ = usable(to_baseline(finished, [metric.column for metric in metrics]))
    ratios: dict[str, dict[str, Samples]] = {}
    for scenario, model, target, design in arms.itertuples(index=False):
        rows = formed[(formed["model"] == model) & (formed["target"] == target) & (formed["design"] == design)]
        by_block = rows.groupby(["run_id", "block"])
        measured = metrics_of(metrics, scenario, model)
        for measure in measured:
            name = _name(model, target, measure, design)
            ratios.setdefault(measure.column, {})[name] = list(by_block[measure.column].mean().reindex(index))
        if not measured:  # every trial of the probe failed so far
            ratios.setdefault("", {})[f"{model} on {target}"] = [math.nan] * len(index)
    return ratios


def _against_itself(ok: pd.DataFrame, metrics: Sequence[Metric], index: pd.MultiIndex) -> dict[str, dict[str, Samples]]:
    """Return those of the second bare-metal trial over the first, by the name ``resnet50 on bare-metal-again``."""
    return {
        metric.column: {
            _name(model, f"{BASELINE}-again", metric, job.variant): list(values[RATIO].reindex(index))
            for (job, model, *_), values in second.items()
        }
        for metric, second in zip(metrics, form(AGAIN, ok, metrics).ratios.values(), strict=True)
    }


def _name(model: str, target: str, metric: Metric, design: str) -> str:
    suffix = f", {metric.name}" if metric.of_probe else ", alternating" if "alternating" in design else ""
    return f"{model} on {target}{suffix}"


def plan_detection(
    records: Records, difference: float, *, most: int, source: Literal["pilot", "earlier"]
) -> Detection | None:
    """Return the blocks that detect a difference, as a share, for the ratio that takes the most.

    The records are those of the pilot, or of earlier runs. Of a pilot, a ratio with fewer than ``LEAST_BLOCKS`` blocks
    is left out; of earlier runs every ratio needs ``PILOT_BLOCKS``. None if there is nothing to plan from.
    """
    candidates = []
    for family in log_ratios(records).values():
        for name, values in family.items():
            place = locate(values)
            measured = 0 if place is None else place.n
            if source == "earlier" and measured < PILOT_BLOCKS:
                return None
            if place is None or place.deviation is None or measured < LEAST_BLOCKS:
                continue
            freedom, level = place.degrees_of_freedom, detection_level(len(family))
            needed = blocks_needed(
                log_difference(difference), place.deviation, freedom, level=level, least=LEAST_BLOCKS
            )
            candidates.append((math.inf if needed is None else needed, place.deviation, name, place, len(family)))
    if not candidates:
        return None
    needed_most, deviation, name, place, members = max(candidates, key=lambda candidate: candidate[:2])
    blocks = int(min(max(needed_most, _FEWEST[source]), most))
    return Detection(
        difference=difference,
        needed=None if math.isinf(needed_most) else int(needed_most),
        blocks=blocks,
        detectable=detectable_share(place, members, blocks),
        source=source,
        measured=place.n,
        ratio=name,
        deviation=share_of(deviation),
    )


def should_stop_detecting(records: Callable[[], Records], difference: float, blocks: int, *, most: int) -> Decision:
    """Decide whether the ``blocks`` complete blocks of a run are those that its pilot plans; for a cell of a sweep."""
    pilot = min(PILOT_BLOCKS, most)
    if blocks < pilot:
        return Decision(False, f"the pilot of {count(pilot, 'block')} is not complete", None, pilot - blocks)
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
