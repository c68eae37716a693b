"""Facts that changed between the trials of an arm, so that one number stands for several states of a target.

The look covers all trials that are compared, of however many runs: what is constant inside each run can still differ
from run to run, and no pair of a block shows it.
"""

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.compare.pairing import JOB, ROW, job_of
from analysis.compare.validity import changes
from analysis.warnings.types import AnalysisWarning, Touched
from suite.job.ablations import label_of

ARM = ("target", "ablation", "aggressor", "hostname")
"""What tells arms apart, each on its host."""


def changed_arms(trials: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the key of every arm that changed, and its changes in the order of time."""
    # Of 100,000 trials few have other facts.
    ordered = trials.sort_values("started_at", kind="stable").drop_duplicates([*keys, "facts"])
    arms = ordered[list(keys)].astype(object).fillna("")
    for key, facts in ordered["facts"].astype(object).groupby([arms[name] for name in keys], sort=False):
        if len(facts) > 1 and (found := changes(*([one.text] for one in facts))):
            yield tuple(map(str, key)), found


def with_changes(trials: pd.DataFrame) -> pd.DataFrame:
    """Add ``changed``: the mark at the numbers of a trial whose arm changed; empty elsewhere. They have ``variant``."""
    keys = [*ROW, *ARM[1:]]
    marks = {
        key: f"changed between trials: {'; '.join(found)}" for key, found in changed_arms(trials[trials["ok"]], keys)
    }
    if not marks:
        return trials.assign(changed="")
    arms = trials[keys].astype(object).fillna("")
    return trials.assign(changed=[marks.get(key, "") for key in arms.itertuples(index=False, name=None)])


def changed(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per job, arm, host and change, models together, from ok trials that have ``changed``."""
    keys = [*JOB, *ARM, "changed"]
    rows = ok[ok["changed"] != ""].drop_duplicates([*keys, "model"])
    several = ok["hostname"].nunique() > 1
    for _, own in rows.groupby([rows[name].astype(object).fillna("") for name in keys], sort=False):
        first = own.iloc[0]
        target = str(first["target"])
        switched = f", {label_of(first['ablation'])}" if isinstance(first["ablation"], str) else ""
        beside = f" beside {first['aggressor']}" if isinstance(first["aggressor"], str) else ""
        host = f" on {first['hostname']}" if several else ""
        plain = not (switched or beside)
        yield AnalysisWarning(
            "changed",
            f"{job_of(first)}: {first['changed']}",
            "the numbers mix the trials of each state: compare the runs, or the trials, of one state alone",
            f"{target}{switched}{beside}{host}",
            # The number of a target as it is holds no trial of its other arms.
            tuple(Touched(job_of(first), target, model) for model in own["model"].unique()) if plain else (),
        )
