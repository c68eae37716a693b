"""Whether all arms of a block did the same work: what each computed, held against bare metal of its block.

Validity refuses or names the pairs that did not. This is the summary, of every arm: ablations, second trials, victims.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.compare.pairing import BLOCK, ROW, baseline, job_of
from analysis.compare.results import ComparedJob, SameWork
from analysis.compare.validity import agreements, rounding
from analysis.load.computed import AGREEMENTS, Agreement
from suite.trial_names import arm_name

_SIDES = ["computed", "facts"]
_SWITCHED = ["ablation", "aggressor"]


def same_work(ok: pd.DataFrame) -> Mapping[tuple[ComparedJob, str], tuple[SameWork, ...]]:
    """Return the agreement of each arm with the first bare-metal trial of its blocks, by job and model.

    ``ok`` are the trials that are ok, with ``variant``.
    """
    first = baseline(ok)
    first = first[first["replica"] == 0].drop_duplicates(BLOCK)
    columns = dict.fromkeys((*ROW, "replica", *_SWITCHED, *BLOCK, *_SIDES, "rounds_freely"))
    others = ok.loc[~ok.index.isin(first.index), list(columns)]
    pairs = others.merge(first[[*BLOCK, *_SIDES]], on=BLOCK, suffixes=("", "_base"))
    arms: dict[tuple[ComparedJob, str, str], list[tuple[Agreement, str]]] = defaultdict(list)
    for row, agreed in zip(pairs.to_dict("records"), agreements(pairs), strict=True):
        if agreed:
            ablation, aggressor = (row[name] if isinstance(row[name], str) else None for name in _SWITCHED)
            arm = arm_name(row["target"], row["replica"], ablation, aggressor)
            why = rounding(row["rounds_freely"], row["facts"].text, row["facts_base"].text)
            arms[job_of(row), row["model"], arm].append((agreed, why))
    found: dict[tuple[ComparedJob, str], tuple[SameWork, ...]] = {}
    for (job, model, arm), each in arms.items():
        found[job, model] = (*found.get((job, model), ()), _of_arm(arm, each))
    return found


def _of_arm(arm: str, each: Sequence[tuple[Agreement, str]]) -> SameWork:
    least, why = max(each, key=lambda one: (AGREEMENTS.index(one[0].kind), one[0].apart or 0.0))
    other = sum(one.kind == "other" for one, _ in each)
    return SameWork(arm, least.kind, len(each), other, least.text, least.apart, why)
