"""Whether two runs of one job agree, so that their blocks are samples of one thing.

Blocks are pooled over runs. Where the second of two runs differs from the first by more than the margin, with its whole
interval, a mean over both is a number of neither: the answer is then the ratio between them, and what is pooled has no
verdict. Both must be of one machine and have ``LEAST_BLOCKS`` blocks.
"""

from collections.abc import Mapping
from dataclasses import replace

from analysis.compare.contrast_kinds import RUN
from analysis.compare.matching import other_hosts
from analysis.compare.regression import Change, regress
from analysis.compare.results import ComparedJob, Comparison, Contrast
from analysis.load.plans import Terms
from analysis.load.records import Records, part_of
from analysis.statistics.margins import bounds_of
from analysis.statistics.sequential import LEAST_BLOCKS

CONTRADICTION = "the two runs contradict each other"


def contradictions(records: Records, terms: Mapping[ComparedJob, Terms]) -> tuple[Change, ...]:
    """Return what the second of two runs measures otherwise than the first; none for any other number of them."""
    if len(records.places) != 2:
        return ()
    old, new = (part_of(records, directory) for directory in records.places)
    if not (len(old.trials) and len(new.trials)) or other_hosts(old.trials, new.trials):
        return ()
    deciding = filter(_decides, regress(old, new).changes)
    return tuple(change for change in deciding if _apart(change, terms[change.job].margin))


def _decides(change: Change) -> bool:
    """Return whether a change is of a metric that decides, in blocks enough."""
    if change.kind != RUN.name or min(change.samples) < LEAST_BLOCKS:
        return False
    return change.metric.of_probe or change.metric.name == change.job.traits.deciding[0]


def _apart(change: Change, margin: float) -> bool:
    if change.interval is None:
        return False
    least, most = bounds_of(margin).ratios
    low, high = change.interval
    return high < least or low > most


def with_agreement(comparison: Comparison, records: Records) -> Comparison:
    """Return a comparison without verdicts on models of which two runs contradict each other, and the changes."""
    between = contradictions(records, comparison.terms)
    if not between:
        return comparison
    models = {"", *(change.model for change in between)}

    def standing(contrast: Contrast) -> Contrast:
        if not contrast.verdict or contrast.model not in models:
            return contrast
        reasons = (CONTRADICTION, *contrast.verdict.withheld)
        verdict = replace(contrast.verdict, name=None, more_blocks=None, withheld=reasons)
        return replace(contrast, verdict=verdict)

    groups = (replace(group, contrasts=tuple(map(standing, group.contrasts))) for group in comparison.groups)
    contrasts = tuple(map(standing, comparison.contrasts))
    return replace(comparison, groups=tuple(groups), contrasts=contrasts, between=between)
