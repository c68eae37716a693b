"""The circumstances of each group: engine, hosts, what a further block takes, and what disturbed its trials."""

from collections import defaultdict
from collections.abc import Mapping

import pandas as pd

from analysis.compare.pairing import GROUP
from analysis.compare.results import Circumstances, ComparedJob, Disturbed

_BLOCK = ["run_id", "block"]
Key = tuple[ComparedJob, str]
"""A job and a model."""


def circumstances(
    trials: pd.DataFrame, disturbed: Mapping[tuple[ComparedJob, str, str], tuple[Disturbed, ...]]
) -> dict[Key, Circumstances]:
    """Return the circumstances by job and model. ``trials`` are all that count, failed ones too, with ``variant``."""
    block_s = _block_seconds(trials)
    by_target: dict[Key, dict[str, tuple[Disturbed, ...]]] = defaultdict(dict)
    for (job, model, target), found in disturbed.items():
        by_target[job, model][target] = found
    made = {}
    for key, rows in trials.groupby(GROUP):
        *parts, model = (str(part) for part in key)
        group = ComparedJob(*parts), model
        spans = block_s[block_s.index.get_level_values("run_id").isin(rows["run_id"].unique())]
        made[group] = Circumstances(
            engine=", ".join(sorted(rows["engine"].dropna().astype(str).unique())),
            hosts=tuple(sorted(rows["hostname"].dropna().astype(str).unique())),
            block_s=float(spans.median()) if len(spans) else None,
            disturbed=by_target[group],
        )
    return made


def _block_seconds(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the seconds of every block, all models and targets of its run together.

    The times from start to start hold what lies between the trials; where there are none, those of the trials count.
    """
    starts = pd.to_datetime(trials["started_at"], utc=True, errors="coerce", format="ISO8601")
    # Trials that take turns are open at once: each has its share of their block.
    of_turns = trials["block_s"] / trials.groupby([*_BLOCK, "model", "design"])["block_s"].transform("count")
    of_trials = trials[["open_s", "elapsed_s"]].sum(axis=1).mask(of_turns.notna(), of_turns)
    table = pd.DataFrame({**{name: trials[name] for name in _BLOCK}, "start": starts, "seconds": of_trials})
    blocks = table.groupby(_BLOCK)
    count = blocks.size()
    between = (blocks["start"].max() - blocks["start"].min()).dt.total_seconds() / (count - 1).where(count > 1)
    both = pd.DataFrame({"between": between * count, "seconds": blocks["seconds"].sum()})
    spans: pd.Series[float] = both.max(axis=1)
    return spans[spans > 0]
