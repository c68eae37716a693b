"""Evidence that every finished job of a kind leaves: a record without it proves nothing, whatever its throughput."""

from collections.abc import Iterator, Mapping

import pandas as pd

from analysis.audit.findings import Finding, Kind
from analysis.load.records import Text
from suite.job.job import Job
from suite.records.columns import TABLE

MISSING = Kind(
    "evidence", "refused", "the record was changed, or is of the first suite, which did not count this: run it again"
)
_CONTRADICTS = Kind("outcome", "refused", "the record was changed: run the trial again")
GAP = Kind("gap", "named", "see whether the host could not tell it then, or the record was changed")
_COUNTED = tuple(one.name for one in TABLE if one.path.startswith(("conditions.", "resources.")))
"""The columns that the host and the worker count of every trial alike."""
_ARM = ("hostname", "scenario", "model", "design", "target", "ablation", "aggressor")
_WORDS = {
    "throughput_per_s": "throughput",
    "steps_s": "steps",
    "whole_timeline": "whole timeline",
    "interval_s": "conditions of the host",
    "worker_cpu_s": "CPU time of its worker",
    "alternation": "turns",
    "ranks": "ranks",
    "aggressors": "instances beside the victim",
    "data_use": "account of its data set",
}
"""The column that is empty without it, and its name."""


def missing(trials: pd.DataFrame, jobs: Mapping[Text, Job]) -> Iterator[Finding]:
    """Yield the records that are ok and lack what their jobs leave, or that tell of a failure."""
    needed = {text: frozenset(_needed(job)) for text, job in jobs.items()}
    for column, words in _WORDS.items():
        due = trials["job"].map({text: column in columns for text, columns in needed.items()}).astype(bool)
        for path in trials.loc[due & trials[column].isna(), "path"]:
            yield MISSING.at(path, f"it is ok and has no {words}")
    for path, kind in trials.loc[trials["failure"].notna(), ["path", "failure"]].itertuples(index=False):
        yield _CONTRADICTS.at(path, f"it is ok and tells of a failure: {kind}")


def gaps(trials: pd.DataFrame, runs: "pd.Series[str]") -> Iterator[Finding]:
    """Yield the finished trials that lack a count, or a fact, which others of the same target in their run have."""
    ok = trials[trials["ok"].astype(bool)]
    arms = ok.groupby([runs[ok.index], *(ok[name] for name in _ARM)], dropna=False, observed=True).ngroup()
    known = ok[list(_COUNTED)].notna()
    lost = known.groupby(arms).transform("any") & ~known
    for column in lost.columns[lost.any()]:
        for path in ok.loc[lost[column], "path"]:
            yield GAP.at(path, f"its {column} is missing, which other trials of its target have")
    several = ok["facts"].cat.codes.groupby(arms).transform("nunique") > 1
    for _, rows in ok.loc[several, ["path", "facts"]].groupby(arms[several]):
        facts_of = {facts: _known(facts.text) for facts in rows["facts"].unique()}
        every = frozenset[str]().union(*facts_of.values())
        for path, facts in rows.itertuples(index=False):
            if missing_facts := sorted(every - facts_of[facts]):
                yield GAP.at(path, f"it does not know {', '.join(missing_facts)}, which other trials of its target do")


def _known(facts: str) -> frozenset[str]:
    """Return the names of known facts. A filter of system calls is one only where none was expected."""
    pairs = (line.partition("=") for line in facts.splitlines())
    return frozenset(name for name, _, value in pairs if value != "null" and not name.endswith("seccomp"))


def _needed(job: Job) -> Iterator[str]:
    """Yield the columns that a finished job fills. What other machines and clusters count, this host cannot."""
    parts = {
        "alternation": job.turns,
        "ranks": job.distributed and job.distributed.strategy,
        "aggressors": job.sharing,
    }
    yield from (column for column, part in parts.items() if part)
    if job.sizes and not job.serving:
        yield from ("throughput_per_s", "steps_s", "whole_timeline", *(("data_use",) if job.dataset else ()))
        if job.layers.engine != "kubernetes" and not (job.distributed and job.distributed.machines):
            yield from ("interval_s", "worker_cpu_s")
