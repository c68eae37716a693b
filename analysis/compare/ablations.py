"""Ablations: what one property of a target costs, from the trials in which it was switched.

The switched trial is compared with the same target of the same block as it is, by the rules that compare a target with
bare metal; only what was switched may differ. Its verdicts are a family of their own per job and metric: the question
is not what the targets cost, and asking it must not change the answer to that.
"""

from collections.abc import Sequence

import pandas as pd

from analysis.compare.effects import effects_of, notes_of, ratios_of
from analysis.compare.pairing import pair, papers_order, plain
from analysis.compare.results import AblationEffect, ComparedJob
from analysis.compare.validity import usable
from analysis.load.metrics import Metric
from analysis.warnings.findings import refusals
from analysis.warnings.types import AnalysisWarning
from suite.job.ablations import facts_that_may_differ

_Key = tuple[ComparedJob, str, str, str]


def ablation_effects(
    ok: pd.DataFrame, metrics: Sequence[Metric], margin: float, *, force: bool = False
) -> tuple[list[AblationEffect], list[AnalysisWarning]]:
    """Return the effects, in the order of the paper, and what is refused.

    ``ok`` are the trials that are ok; they have ``variant``.
    """
    ratios: dict[str, dict[_Key, pd.DataFrame]] = {metric.column: {} for metric in metrics}
    notes: dict[_Key, tuple[str, ...]] = {}
    warnings: list[AnalysisWarning] = []
    undisturbed = ok[ok["aggressor"].isna()]
    for name in undisturbed["ablation"].dropna().unique():
        own = undisturbed[undisturbed["ablation"] == name]
        pairs = pair(own, plain(ok), list(ratios), same=["target"])
        found = usable(pairs, force=force, switched=facts_that_may_differ(str(name)))
        warnings += refusals(found.refused, "the same target as it is", str(name))
        for metric in metrics:
            for (job, model, target), values in ratios_of(found.pairs, metric).items():
                ratios[metric.column][job, model, target, str(name)] = values
        notes |= {(*key, str(name)): noted for key, noted in notes_of(own, found.pairs).items()}
    effects = effects_of(ratios, metrics, margin)
    order = sorted(effects, key=lambda key: (*papers_order(*key[:3]), key[3]))
    return [AblationEffect(*key, effects=effects[key], notes=notes.get(key, ())) for key in order], warnings
