"""The records of a run held against its plan: each is one of its trials, in its place, of its job."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

import pandas as pd

from analysis.audit.findings import Finding, Kind
from suite.differ import FactRule, differ, flattened
from suite.errors import RequestError
from suite.plan import Plan, TrialPlace
from suite.results.store import PLAN, stored_plan
from suite.trial_names import record_file

NO_PLAN = Kind("no-plan", "named", "without its plan nobody can say whether trials are missing, or in their order")
NAME = Kind("file-name", "refused", "give the file back its name: the trial's, and .json")
FOREIGN = Kind("not-of-the-plan", "refused", "move the record back to its own run; bench compare takes several runs")
PLACE = Kind("place", "refused", "the record, or the plan, was changed: run the trial again")
_BLOCK = ["warm_up", "block", "model", "design"]
JOB = Kind("job", "refused", "the record, or the plan, was changed: run the trial again")

CHOSEN = ("envelope.cpus", "envelope.node_cpus")


def plan_of(run: Path) -> Plan | None:
    """Return the plan of a run; None where it has none that can be read."""
    try:
        return stored_plan(run)
    except RequestError:
        return None


def planned(run: Path, trials: pd.DataFrame, plan: Plan | None) -> Iterator[Finding]:
    """Yield the records that are not what the plan says, or whose files are not called after them."""
    places = {place.trial_id: place for place in plan.places()} if plan else {}
    jobs = {(job.model, job.design): job.model_dump_json() for job in plan.jobs} if plan else {}
    if plan is None:
        yield NO_PLAN.at(run, f"{PLAN} is missing, or cannot be read")
    columns = ("path", "trial_id", "block", "position", "warm_up", "seed", "target", "replica", "ablation", "aggressor")
    yield from _instances(trials, places.values())
    # As objects: a missing name is then None, whatever the column holds else.
    rows = trials[[*columns, "job"]].astype(object).where(trials[[*columns, "job"]].notna(), None)
    for path, name, block, position, warm_up, seed, *arm, job in rows.itertuples(index=False, name=None):
        if Path(path).name != record_file(name):
            yield NAME.at(path, f"the record is of the trial {name}")
        if plan is None:
            continue
        if (place := places.get(name)) is None:
            yield FOREIGN.at(path, f"the plan has no trial {name}")
            continue
        own = TrialPlace(name, block, position, warm_up, seed, tuple(arm), place.job)
        if own != place:
            differing = [key for key in TrialPlace._fields if getattr(own, key) != getattr(place, key)]
            told = ", ".join(f"{key} {getattr(own, key)} instead of {getattr(place, key)}" for key in differing)
            yield PLACE.at(path, f"it is not where the plan has it: {told}")
        if differences := _job_differences(job.text, jobs[place.job.model, place.job.design]):
            yield JOB.at(path, f"its job is not that of the plan: {', '.join(differences)} differ")


def _instances(trials: pd.DataFrame, places: Collection[TrialPlace]) -> Iterator[Finding]:
    """Yield the records that took turns among more or fewer instances than the plan has in their block."""
    taking = trials[trials["alternation"].notna()]
    if not len(taking) or not places:
        return
    due = Counter((one.warm_up, one.block, one.job.model, one.job.design) for one in places)
    for path, taken, *block in taking[["path", "alternation", *_BLOCK]].itertuples(index=False, name=None):
        if taken.instances != due[tuple(block)]:
            yield PLACE.at(
                path, f"it took turns among {taken.instances} instances, and the plan has {due[tuple(block)]}"
            )


@lru_cache(maxsize=1000)
def _job_differences(own: str, planned: str) -> tuple[str, ...]:
    """Return the fields of a record's job that are not as planned. What an older suite did not record is none.

    Nor are the numbers of CPUs, if as many are planned, where the node of each block chooses them.
    """
    mine, its = (flattened(json.loads(text)) for text in (own, planned))
    rules = dict.fromkeys(CHOSEN, FactRule(counts=len)) if its.get("envelope.node_chosen") else {}
    return tuple(fact.path for fact in differ(mine, its, rules) if fact.one is not None)
