"""Warnings that read the losses of a training. They say nothing against the times."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.compare.pairing import ROW, job_of
from analysis.warnings.types import AnalysisWarning, Touched
from suite.records.columns import LATELY

REAL = "discriminator-real"
FAKE = "discriminator-fake"
GENERATOR = "generator"
DEVIATION = "generated-deviation"
"""The losses of binary cross entropy, and the deviation of a pixel among the images of a step."""
COLLAPSED = 1e-3
ALIKE = 1e-3
BELOW = 0.1
"""The share by which a loss may be below its bound: the discriminator is updated between the two."""
Losses = Mapping[str, float]


def least_discriminator_loss(generator_loss: float) -> float:
    """Return the least loss of a discriminator on images by which a generator has this non-saturating loss.

    With E[-log D] = L, Jensen's inequality gives E[-log(1 - D)] >= -log(1 - exp(-L)): 1.09 for 0.41, so that the mean
    over real and generated images is 0.54 or more.
    """
    if generator_loss <= 0:
        return math.inf
    return -math.log(-math.expm1(-generator_loss))


@dataclass(frozen=True)
class Learning:
    """A finding about the losses of a trial, which are means over its last steps."""

    kind: str
    needs: tuple[str, ...]
    holds: Callable[[Losses], bool]
    finding: str
    advice: str


LEARNINGS = (
    Learning(
        "discriminator-collapsed",
        (REAL, FAKE),
        lambda found: found[REAL] < COLLAPSED and found[FAKE] < COLLAPSED,
        "the discriminator tells all images apart: the generator learns nothing from it any more",
        "the times stand; to train, lower the discriminator's learning rate or take other data than drawn ones",
    ),
    Learning(
        "generated-alike",
        (DEVIATION,),
        lambda found: found[DEVIATION] < ALIKE,
        "all generated images are alike",
        "the times stand; to train, see the losses of the steps (bench results export --steps)",
    ),
    Learning(
        "losses-contradict",
        (FAKE, GENERATOR),
        lambda found: found[FAKE] < (1 - BELOW) * least_discriminator_loss(found[GENERATOR]),
        "the discriminator's loss is lower than the generator's allows",
        "they are not of the binary cross entropy that their names say, or not of the same images: check the workload",
    ),
)


def learning(ok: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per job, model, target and finding, from ok trials that have ``variant``."""
    with_losses = ok[ok["losses"].notna()]
    for kind in LEARNINGS:
        usable = with_losses["losses"].map(lambda found, kind=kind: set(kind.needs) <= set(found) and kind.holds(found))
        if usable.any():
            for _, rows in with_losses[usable.astype(bool)].groupby(ROW):
                first = rows.iloc[0]
                target = str(first["target"])
                model = str(first["model"])
                where = f"{model} on {target} in {len(rows)} trials, over the last {LATELY} steps or all"
                touches = (Touched(job_of(first), target, model),)
                yield AnalysisWarning(
                    kind.kind,
                    f"{job_of(first)}: {kind.finding}",
                    kind.advice,
                    where,
                    touches,
                )


def diverged(trials: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per job and model of which a trial's losses were not finite."""
    for _, rows in trials[trials["error_kind"].eq("diverged")].groupby(["scenario", "model"], observed=True):
        first = rows.iloc[0]
        yield AnalysisWarning(
            "diverged",
            f"{job_of(first)}: {first['model']}: {first['error_message']}",
            "lower the learning rate, or use --recipe reference; a workload of your own may divide by zero",
        )
