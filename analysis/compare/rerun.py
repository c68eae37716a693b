"""Holds a rerun against earlier records of the same jobs: whether its numbers agree with theirs within the margin.

Both are compared as the two values of a key, on every target: times and rates and, where bare metal was measured with
a target, what the target has over it. Between machines only the latter can agree. Trials with an ablation or next to an
aggressor are in no such ratio.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.compare.by import SOURCE, compare_by
from analysis.compare.pairing import BLOCK, plain, to_baseline, with_variants
from analysis.compare.results import Comparison
from analysis.compare.validity import usable
from analysis.load.metrics import METRICS
from analysis.load.records import Records, run_of
from analysis.statistics.ratios import exp
from suite.errors import RequestError
from suite.job.job import IN_COLUMNS, ComparisonKey, Job, comparison_key
from suite.results.runs import runs_below
from suite.targets import BASELINE, BASES

EARLIER = "earlier"
RERUN = "rerun"
_COLUMNS = ("throughput_per_s", "elapsed_s")
OVER_BASE = tuple(
    replace(metric, name=f"{metric.name} over {BASELINE}", column=f"{metric.column} over {BASELINE}", unit="x")
    for metric in METRICS[:2]
)
"""What a target's speed and time are over bare metal of the same block."""
_IMAGE = "image"

Facts = Mapping[str, str]
"""Everything that keeps two jobs apart, by name; an image is built again at will."""


def facts_of(job: Job) -> Facts:
    texts = [str(getattr(job, name)) for name in IN_COLUMNS]
    return _facts(texts, comparison_key(job))


def _facts(columns: Sequence[str], key: ComparisonKey) -> Facts:
    in_columns = zip(IN_COLUMNS, columns, strict=True)
    settings = key.without([_IMAGE]).pairs
    return dict(in_columns) | dict(settings)


def compare_rerun(records: Records, rerun: Path, *, margin: float | None = None) -> Comparison:
    """Compare the records of ``rerun``, a run or a sweep, with all others, as far as both have the same jobs.

    Raises RequestError if they share no job, and as ``compare_by`` does.
    """
    rerun_directories = set(map(str, runs_below(rerun)))
    directories = records.trials["path"].map(run_of)
    in_rerun = directories.isin(rerun_directories)
    sources = in_rerun.map({True: RERUN, False: EARLIER})
    trials = records.trials.assign(**{SOURCE: sources})
    shared = _on_both_sides(trials)
    if not shared.any():
        raise RequestError(
            "the rerun and the earlier records have no job in common",
            remedy="compare runs of one plan, profile and size",
        )
    in_common = trials[shared]
    columns = _over_base(in_common)
    with_ratios = replace(
        records,
        trials=in_common.assign(**columns),
        metrics=(*records.metrics, *OVER_BASE),
    )
    return compare_by(
        with_ratios,
        (SOURCE,),
        (EARLIER,),
        margin=margin,
    )


def _on_both_sides(trials: pd.DataFrame) -> "pd.Series[bool]":
    """Return which trials are of a job that was measured on both sides."""
    columns = trials[[*IN_COLUMNS]].astype(str).itertuples(index=False, name=None)
    jobs_of_trials = []
    for texts, key in zip(columns, trials["settings"], strict=True):
        facts = _facts(texts, key)
        jobs_of_trials.append(tuple(facts.items()))
    jobs = pd.Series(jobs_of_trials, index=trials.index, dtype=object)
    by_source = jobs.groupby(trials[SOURCE]).agg(set)
    on_both = set()
    if len(by_source) > 1:
        on_both = set.intersection(*by_source)
    return jobs.map(on_both.__contains__).astype(bool)


def _over_base(trials: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    """Return the numbers of each trial over those of bare metal in its block, if they may be compared."""
    finished = with_variants(trials[trials["ok"]])
    pairs, _ = usable(to_baseline(finished, _COLUMNS))
    pairs = pairs[~pairs["target"].isin(BASES)]
    keys = [*BLOCK, "target"]
    keys_as_text = pairs[keys].astype(str)
    ratios = pairs.assign(**keys_as_text).drop_duplicates(keys).set_index(keys)
    of_trials = pd.MultiIndex.from_frame(trials[keys].astype(str))
    is_plain = trials.index.isin(plain(trials).index)
    columns = {}
    for metric, over_base in zip(METRICS, OVER_BASE, strict=False):
        logs = ratios[metric.column].reindex(of_trials).to_numpy()
        of_plain = pd.Series(logs, trials.index).where(is_plain)
        columns[over_base.column] = of_plain.map(exp, na_action="ignore")
    return columns
