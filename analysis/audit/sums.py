"""The arithmetic of a record, on columns: throughput, steps, phases, timeline and counters sum to each other.

The bounds come from the sample runs; ``docs/method/audit.md`` states them with the largest deviations found there.
"""

from collections.abc import Iterator

import pandas as pd

from analysis.audit.findings import AGAIN, Finding, Kind
from suite.records.record import EPOCH_METRICS

EXACT = 1e-6
"""The share by which numbers may differ that were computed from each other: JSON keeps all digits."""
GAP_SHARE, GAP_S = 0.02, 0.1
"""The time between steps: the share of the span, and the seconds."""
COPY_SHARE = 0.05
"""The share by which phases may exceed their steps where the copy is timed by the device's own clock."""
CLOCKS_SHARE, CLOCKS_S = 0.05, 0.5
"""How far the timeline, on the target's clock, may be from the elapsed time on the host's."""
COUNTING_S = 2.0
"""The seconds that reading the counters around a job may take."""

THROUGHPUT = Kind("throughput", "refused", AGAIN)
STEPS = Kind("steps", "refused", AGAIN)
TIMELINE = Kind("timeline", "refused", AGAIN)
INTERVAL = Kind("interval", "refused", AGAIN)


def sums(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield the contradictions inside the records that are ok; ``devices_asked`` is the number of a job's devices."""
    span = trials["measured_s"].fillna(trials["steps_s"])
    own = trials[trials["ranks"].isna()]
    made = own["batch"] * own["devices_asked"] * own["steps"] / span[own.index]
    # Without a timeline the span is the steps', which leave out what lies between them.
    bound = own["measured_s"].isna() * GAP_SHARE + EXACT
    wrong = (own["throughput_per_s"] - made).abs() > bound * made
    yield from told(THROUGHPUT, own[wrong], made, "throughput_per_s", "per second", "its steps make")

    counted = trials["counted_steps"]
    yield from told(
        STEPS,
        trials[counted.notna() & (counted != trials["steps"])],
        trials["steps"],
        "counted_steps",
        "steps",
        "the job has",
    )
    steps, phases = trials["steps_s"], trials["phases_s"]
    low, high = phases < steps * (1 - EXACT), phases > steps * (1 + EXACT + COPY_SHARE * trials["copied_s"].notna())
    yield from told(STEPS, trials[low | high], steps, "phases_s", "s of phases", "its steps take")
    computed, named = trials["computed_s"], trials["parts_s"]
    over = named > computed * (1 + EXACT) + COPY_SHARE * trials["copied_s"].notna() * steps
    yield from told(STEPS, trials[over], computed, "parts_s", "s of named phases", "computing takes")
    gap = trials["measured_s"] - steps
    # A workload that measures something after each step lengthens the span at will.
    more = trials["metrics"].map(lambda found: isinstance(found, dict) and not set(found) <= set(EPOCH_METRICS))
    late = (gap > GAP_SHARE * trials["measured_s"] + GAP_S) & ~more.astype(bool)
    yield from told(
        STEPS, trials[(gap < -EXACT * steps) | late], trials["measured_s"], "steps_s", "s of steps", "it measured"
    )

    elapsed = trials["elapsed_s"]
    apart = (trials["timeline_s"] - elapsed).abs() > CLOCKS_SHARE * elapsed + CLOCKS_S
    yield from told(TIMELINE, trials[apart], elapsed, "timeline_s", "s in its timeline", "elapsed are")
    interval = trials["interval_s"]
    outside = (interval < elapsed * (1 - EXACT)) | (interval > elapsed * (1 + CLOCKS_SHARE) + COUNTING_S)
    yield from told(INTERVAL, trials[outside], elapsed, "interval_s", "s between its counters", "elapsed are")


def told(
    kind: Kind, wrong: pd.DataFrame, expected: "pd.Series[float]", column: str, unit: str, other: str
) -> Iterator[Finding]:
    """Yield a finding for each row: what its column holds, and what the series expects there."""
    for path, found, wanted in zip(wrong["path"], wrong[column], expected[wrong.index], strict=True):
        yield kind.at(path, f"{found:.6g} {unit}, and {other} {wanted:.6g}")
