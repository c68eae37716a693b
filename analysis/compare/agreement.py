"""Whether two runs of one job agree, so that their blocks are samples of one thing, and whether all did equal work.

Blocks are pooled over runs. Where the second of two runs differs from the first by more than the margin, with its whole
interval, a mean over both is a number of neither: the answer is then the ratio between them, and what is pooled has no
verdict. Both must be of one machine and have ``LEAST_BLOCKS`` blocks.

Each arm is also held against bare metal of its blocks: by what it computed, and by the images it generated.
"""

import io
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.compare.contrast_kinds import RUN
from analysis.compare.matching import other_hosts
from analysis.compare.pairing import (
    BLOCK,
    ROW,
    SWITCHES,
    baseline,
    job_of,
    plain,
)
from analysis.compare.regression import Change, regress
from analysis.compare.results import (
    ComparedJob,
    Comparison,
    Contrast,
    GroupKey,
    SameImage,
    SameWork,
)
from analysis.compare.validity import agreements
from analysis.load.computed import AGREEMENTS, Agreement
from analysis.load.metrics import with_trait
from analysis.load.plans import Terms
from analysis.load.records import Records, part_of, read_record
from analysis.statistics.margins import bounds_of
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.trial_names import arm_name

CONTRADICTION = "the two runs contradict each other"


def contradictions(records: Records, terms: Mapping[ComparedJob, Terms]) -> tuple[Change, ...]:
    """Return what the second of two runs measures otherwise than the first; none for any other number of them."""
    if len(records.places) != 2:
        return ()
    first, second = records.places
    old = part_of(records, first)
    new = part_of(records, second)
    if old.trials.empty or new.trials.empty or other_hosts(old.trials, new.trials):
        return ()
    regression = regress(old, new)
    deciding = filter(_decides, regression.changes)
    return tuple(change for change in deciding if _beyond(change, terms[change.job].margin))


def _decides(change: Change) -> bool:
    """Return whether a change is of a metric that decides, in blocks enough."""
    if change.kind != RUN.name or min(change.samples) < LEAST_BLOCKS:
        return False
    return change.metric.of_probe or change.metric.name == change.job.traits.deciding[0]


def _beyond(change: Change, margin: float) -> bool:
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

    groups = []
    for group in comparison.groups:
        of_group = tuple(map(standing, group.contrasts))
        groups.append(replace(group, contrasts=of_group))
    contrasts = tuple(map(standing, comparison.contrasts))
    return replace(comparison, groups=tuple(groups), contrasts=contrasts, between=between)


_SIDES = ["computed", "facts", "generated_weights", "generated_pixels", "path"]
Pair = Mapping[Any, Any]
"""A trial beside bare metal's, whose columns end in ``_base``."""


class _AgreedPair(NamedTuple):
    """How the two trials of a pair agree, and why equal work may end in other bits."""

    agreement: Agreement
    why: str
    row: Pair


def same_work(ok: pd.DataFrame) -> dict[GroupKey, tuple[SameWork, ...]]:
    """Return how each arm agrees with the first bare-metal trial of its blocks in what it computed, by job and model.

    Jobs that share the machine may have fewer threads than on bare metal: a victim is held against its target alone.
    Validity refuses or names the pairs that do not agree; this covers every arm: ablations, second trials, victims.
    ``ok`` are the trials that are ok, with ``variant``. Probes compute nothing that could be the same.
    """
    pairs = _pairs(ok)
    arms: dict[tuple[ComparedJob, str, str], list[_AgreedPair]] = defaultdict(list)
    rows = pairs.to_dict("records")
    for row, (agreed, why) in zip(rows, agreements(pairs), strict=True):
        if agreed:
            switches = (row[name] for name in SWITCHES)
            ablation, aggressor = (switch if isinstance(switch, str) else None for switch in switches)
            arm = arm_name(row["target"], row["replica"], ablation, aggressor)
            key = (job_of(row), row["model"], arm)
            arms[key].append(_AgreedPair(agreed, why, row))
    by_group: dict[GroupKey, tuple[SameWork, ...]] = defaultdict(tuple)
    for (job, model, arm), of_arm in arms.items():
        by_group[job, model] += (_work_of(arm, of_arm),)
    return by_group


def _pairs(ok: pd.DataFrame) -> pd.DataFrame:
    """Return each trial joined with that of its block that it is held against."""
    is_first = ok["replica"] == 0
    probes = with_trait(ok, "probes")
    once = ok[is_first & ~probes]
    first = baseline(once).drop_duplicates(BLOCK)
    columns = dict.fromkeys((*ROW, "replica", *SWITCHES, *BLOCK, *_SIDES, "rounds_freely"))
    others_of_block = ~ok.index.isin(first.index)
    trials = ok.loc[others_of_block, list(columns)]
    victims = trials[trials["aggressor"].notna()]
    others = trials.drop(victims.index)
    normalised = others[with_trait(others, "normalised")]
    on_target = [*BLOCK, "target"]
    alone = plain(once).drop_duplicates(on_target)
    over_base = normalised.merge(first[[*BLOCK, *_SIDES]], on=BLOCK, suffixes=("", "_base"))
    over_alone = victims.merge(
        alone[[*on_target, *_SIDES]],
        on=on_target,
        suffixes=("", "_base"),
    )
    return pd.concat([over_base, over_alone])


def _work_of(arm: str, pairs: Sequence[_AgreedPair]) -> SameWork:
    """Return the work of an arm, by the pair that agrees least."""

    def apart(pair: _AgreedPair) -> tuple[int, float]:
        agreement = pair.agreement
        return (AGREEMENTS.index(agreement.kind), agreement.apart or 0.0)

    least = max(pairs, key=apart)
    others = [pair for pair in pairs if pair.agreement.kind == "other"]
    return SameWork(
        **vars(least.agreement),
        arm=arm,
        trials=len(pairs),
        other=len(others),
        rounding=least.why,
        image=same_image(pair.row for pair in pairs),
    )


def same_image(pairs: Iterable[Pair]) -> SameImage | None:
    """Return how the images of trials agree with bare metal's, None without any; grids are read where pixels differ."""
    with_images = []
    for pair in pairs:
        base, own = _both(pair, "pixels")
        if isinstance(base, str) and isinstance(own, str):
            with_images.append(pair)
    if not with_images:
        return None
    other_weights = [pair for pair in with_images if _differ(pair, "weights")]
    other_pixels = [pair for pair in with_images if _differ(pair, "pixels")]
    differences = []
    for number, pair in enumerate(other_pixels):
        difference = _apart(pair)
        if difference:
            differences.append((*difference, number))
    most, mean, worst = max(differences, default=(None, None, 0))
    shown = other_pixels or with_images
    return SameImage(
        len(with_images),
        len(other_weights),
        len(other_pixels),
        most,
        mean,
        _paths(shown[worst]),
    )


def grid_of(path: str) -> str | None:
    """Return the grid of a record's images as PNG in base64; None without one."""
    generated = getattr(read_record(path), "generated", None)
    return generated.png.root if generated and generated.png else None


def _both(pair: Pair, name: str) -> tuple[Any, Any]:
    return pair[f"generated_{name}_base"], pair[f"generated_{name}"]


def _differ(pair: Pair, name: str) -> bool:
    base, own = _both(pair, name)
    return str(base) != str(own)


def _paths(pair: Pair) -> tuple[str, str]:
    return pair["path_base"], pair["path"]


def _apart(pair: Pair) -> tuple[int, float] | None:
    """Return the greatest and the mean difference in what two grids have in common; None where one is missing."""
    from PIL import Image  # not at the top: few images differ, and the answer waits for every import

    grids = []
    for path in _paths(pair):
        png = grid_of(path)
        if not png:
            return None
        content = io.BytesIO(b64decode(png))
        grids.append(np.asarray(Image.open(content)))
    base, compared = grids
    if base.ndim != compared.ndim:
        return None
    height, width = np.minimum(base.shape, compared.shape)[:2]
    apart = np.abs(base[:height, :width].astype(int) - compared[:height, :width])
    return int(apart.max()), float(apart.mean())
