"""The course of a run: its trials in time, and what should have stayed as it is."""

import datetime
import itertools
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.audit.findings import Finding, Kind
from analysis.audit.parts import TURNS
from analysis.audit.sums import CLOCKS_SHARE, COUNTING_S
from analysis.warnings.changes import ARM, changed_arms
from suite.job.job import SEQUENTIAL

SAME_TIME = Kind(
    "same-time",
    "refused",
    "neither trial had the machine alone: run them again, or see whether the host's clock was set",
)
APART = Kind(
    "block-apart", "named", "the host may have changed meanwhile: read the ratio with care, or run the block again"
)
ORDER = Kind("block-order", "named", "trials that are tried again, and those of a resumed run, come late")
CHANGED = Kind("changed", "named", "the trials of a run are samples of one thing: compare those of each state alone")
MIXED = Kind("mixed-block", "named", "no ratio is formed between trials of two runs: merge runs of whole blocks")
_TOGETHER = ["warm_up", "block", "model", "design", "block_s"]
TOLERANCE_S = 2.0
"""Starts are whole seconds, and the clock of the day is corrected in small steps."""
ALWAYS_S = 60.0
"""The pause that is always allowed: attesting a slow guest, filling a page cache, pressing Ctrl-C and going on."""
UNTIMED_S = 6 * 3600.0
"""The pause that is allowed after a failed trial where no plan tells its time limit."""


def course(run: Path, trials: pd.DataFrame, timeout_s: float | None) -> Iterator[Finding]:
    """Yield what is wrong with the course of a run."""
    begun = pd.to_datetime(trials["started_at"], format="ISO8601", errors="coerce", utc=True)
    begin_s = (begun - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    yield from _turns(trials.assign(begin_s=begin_s))
    taken_s = trials[["open_s", "elapsed_s", "close_s"]].sum(axis=1).mask(trials["block_s"].notna(), trials["block_s"])
    timed = trials.assign(begin_s=begin_s, taken_s=taken_s, end_s=begin_s + taken_s)
    timed = timed.sort_values(["warm_up", "block", "begin_s", "position"])
    # Trials that take turns overlap on purpose: the first stands for all of its block.
    timed = timed[(timed["design"] == SEQUENTIAL) | (timed["block_s"].notna() & ~timed.duplicated(_TOGETHER))]
    block = [timed["warm_up"], timed["block"]]
    before = timed.groupby(block, sort=False)[["end_s", "path", "ok", "position"]].shift()
    pause_s = timed["begin_s"] - before["end_s"]
    for row in timed.assign(pause_s=pause_s, before=before["path"])[pause_s < -TOLERANCE_S].to_dict("records"):
        for path, other in ((row["path"], row["before"]), (row["before"], row["path"])):
            yield SAME_TIME.at(path, f"it ran at the same time as {Path(other).stem}, for {-row['pause_s']:.3g} s")
    untimed_s = (before["ok"] == False) * (timeout_s or UNTIMED_S)  # noqa: E712 (the first of a block has none before)
    bound_s = timed.groupby(block, sort=False)["taken_s"].transform("sum").clip(lower=ALWAYS_S) + untimed_s
    for (warm_up, number), pauses in pause_s[pause_s > bound_s].groupby(block):
        named = f"{'warm-up ' if warm_up else ''}block {number}"
        pause = datetime.timedelta(seconds=round(float(pauses.max())))
        yield APART.at(run, f"{named}: up to {pause} h lie between its trials, more than they all take")
    late = timed[timed["position"] < before["position"]]
    for (warm_up, number), _ in late.groupby(["warm_up", "block"]):
        yield ORDER.at(
            run, f"{'warm-up ' if warm_up else ''}block {number}: its trials began in another order than planned"
        )
    yield from _changes(run, trials)
    if trials["run_id"].nunique() < 2:
        return
    for (warm_up, number), ids in trials["run_id"].astype(object).groupby([trials["warm_up"], trials["block"]]):
        if len(names := sorted(ids.unique())) > 1:
            yield MIXED.at(run, f"{'warm-up ' if warm_up else ''}block {number} is of the runs {', '.join(names)}")


def _turns(trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield the trials of a block that did not take their turns together, or that computed at the same time."""
    taking = trials[trials["alternation"].notna()]
    for (_, number, *_), rows in taking.groupby(_TOGETHER[:-1], observed=True):
        if rows["block_s"].nunique() > 1 or rows["begin_s"].max() - rows["begin_s"].min() > rows["block_s"].max():
            for path in rows["path"]:
                yield TURNS.at(path, f"the trials of block {number} did not take their turns together")
            continue
        instances = {taken.instances for taken in rows["alternation"]}
        places = [(one.round, one.position) for taken in rows["alternation"] for one in taken.bursts]
        if len(instances) > 1 or len(rows) > max(instances) or len(set(places)) < len(places):
            for path in rows["path"]:
                yield TURNS.at(path, f"the turns of block {number} are not those of its {max(instances)} instances")
        last_s = max(taken.bursts[-1].ended_s for taken in rows["alternation"])
        apart = (rows["interval_s"] < last_s) | (rows["interval_s"] > last_s * (1 + CLOCKS_SHARE) + COUNTING_S)
        for path, interval_s in rows.loc[apart, ["path", "interval_s"]].itertuples(index=False):
            yield TURNS.at(path, f"its counters enclose {interval_s:.6g} s, and the last turn ended after {last_s:.6g}")
        turns = sorted(
            (burst.begun_s, burst.ended_s, path)
            for path, taken in zip(rows["path"], rows["alternation"], strict=True)
            for burst in taken.bursts
        )
        for (_, ended_s, path), (begun_s, _, other) in itertools.pairwise(turns):
            if begun_s < ended_s:
                yield TURNS.at(path, f"its turn ended {ended_s - begun_s:.3g} s after {Path(other).stem} had begun one")


def _changes(run: Path, trials: pd.DataFrame) -> Iterator[Finding]:
    """Yield what differs among the finished trials of one arm on one host."""
    found: dict[str, dict[str, None]] = {}
    # Probes look at different facts, so that each is held against itself.
    for (_, target, *_), texts in changed_arms(trials[trials["ok"].astype(bool)], ("model", *ARM)):
        found.setdefault(target, {}).update(dict.fromkeys(texts))
    for target, named in found.items():
        yield CHANGED.at(run, f"{target} was not the same all the time: {'; '.join(named)}")
