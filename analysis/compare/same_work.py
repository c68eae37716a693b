"""The same work: how each arm agrees with bare metal of its blocks in what it computed, and the images it generated."""

import io
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.pairing import BLOCK, ROW, SWITCHES, baseline, job_of, plain
from analysis.compare.results import ComparedJob, GroupKey, SameImage, SameWork
from analysis.compare.validity import agreements
from analysis.load.computed import AGREEMENTS, Agreement
from analysis.load.metrics import with_trait
from analysis.load.records import read_record
from suite.trial_names import arm_name

_SIDES = ["computed", "facts", "generated_weights", "generated_pixels", "path"]
Pair = Mapping[Any, Any]
"""A trial beside bare metal's, whose columns end in ``_base``."""


def same_work(ok: pd.DataFrame) -> dict[GroupKey, tuple[SameWork, ...]]:
    """Return how each arm agrees with the first bare-metal trial of its blocks in what it computed, by job and model.

    Jobs that share the machine may have fewer threads than on bare metal: a victim is held against its target alone.
    Validity refuses or names the pairs that do not agree; this covers every arm: ablations, second trials, victims.
    ``ok`` are the trials that are ok, with ``variant``. Probes compute nothing that could be the same.
    """
    once = ok[(ok["replica"] == 0) & ~with_trait(ok, "probes")]
    first = baseline(once).drop_duplicates(BLOCK)
    columns = dict.fromkeys((*ROW, "replica", *SWITCHES, *BLOCK, *_SIDES, "rounds_freely"))
    trials = ok.loc[~ok.index.isin(first.index), list(columns)]
    victims = trials[trials["aggressor"].notna()]
    on = [*BLOCK, "target"]
    alone = plain(once).drop_duplicates(on)
    equal = trials.drop(victims.index).loc[lambda left: with_trait(left, "normalised")]
    of_equal = equal.merge(first[[*BLOCK, *_SIDES]], on=BLOCK, suffixes=("", "_base"))
    pairs = pd.concat([of_equal, victims.merge(alone[[*on, *_SIDES]], on=on, suffixes=("", "_base"))])
    arms: dict[tuple[ComparedJob, str, str], list[tuple[Agreement, str, Pair]]] = defaultdict(list)
    for row, (agreed, why) in zip(pairs.to_dict("records"), agreements(pairs), strict=True):
        if agreed:
            ablation, aggressor = (row[name] if isinstance(row[name], str) else None for name in SWITCHES)
            arm = arm_name(row["target"], row["replica"], ablation, aggressor)
            arms[job_of(row), row["model"], arm].append((agreed, why, row))
    by_group: dict[GroupKey, tuple[SameWork, ...]] = defaultdict(tuple)
    for (job, model, arm), agreed_trials in arms.items():
        least, why, _ = max(agreed_trials, key=lambda trial: (AGREEMENTS.index(trial[0].kind), trial[0].apart or 0.0))
        different = sum(agreement.kind == "other" for agreement, *_ in agreed_trials)
        image = same_image(row for *_, row in agreed_trials)
        kind, text, apart, seeds_apart, drawn, _ = least
        work = SameWork(arm, kind, len(agreed_trials), different, text, apart, seeds_apart, drawn, why, image)
        by_group[job, model] += (work,)
    return by_group


def same_image(pairs: Iterable[Pair]) -> SameImage | None:
    """Return how the images of trials agree with bare metal's, None without any; grids are read where pixels differ."""
    known = [pair for pair in pairs if all(isinstance(text, str) for text in _both(pair, "pixels"))]
    if not known:
        return None
    weights, pixels = (
        [pair for pair in known if len({*map(str, _both(pair, name))}) > 1] for name in ("weights", "pixels")
    )
    apart = [(*difference, place) for place, pair in enumerate(pixels) if (difference := _apart(pair))]
    most, mean, worst = max(apart, default=(None, None, 0))
    return SameImage(len(known), len(weights), len(pixels), most, mean, _paths((pixels or known)[worst]))


def grid_of(path: str) -> str | None:
    """Return the grid of a record's images as PNG in base64; None without one."""
    generated = getattr(read_record(path), "generated", None)
    return generated.png.root if generated and generated.png else None


def _both(pair: Pair, name: str) -> tuple[Any, Any]:
    return pair[f"generated_{name}_base"], pair[f"generated_{name}"]


def _paths(pair: Pair) -> tuple[str, str]:
    return pair["path_base"], pair["path"]


def _apart(pair: Pair) -> tuple[int, float] | None:
    """Return the greatest and the mean difference in what two grids have in common; None where one is missing."""
    from PIL import Image  # not at the top: few images differ, and the answer waits for every import

    base, own = (np.asarray(grid and Image.open(io.BytesIO(b64decode(grid)))) for grid in map(grid_of, _paths(pair)))
    if not base.ndim == own.ndim > 1:
        return None
    height, width = np.minimum(base.shape, own.shape)[:2]
    apart = np.abs(base[:height, :width].astype(int) - own[:height, :width])
    return int(apart.max()), float(apart.mean())
