"""The work of a trial, as far as its record says: the losses of its steps, and the digest of its final weights.

Trials of one block have one seed. On equal machines the same program then computes the same bits, so another loss or
weight is other work. Where rounding may differ, the early losses must be near each other.
"""

import hashlib
import math
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

EARLY = 10
"""The measured steps whose losses are held against each other where rounding may differ. What is rounded in another way
grows from step to step: later losses of adversarial networks have nothing in common, and nothing is wrong."""
TOLERANCE = 0.1
"""The share by which losses may differ; ``docs/evidence/measured.md`` has the effect of other instructions."""


class Computed(NamedTuple):
    """The losses and weights of one trial. Trials that computed the same share one object."""

    seed: int
    losses: str
    """The digest of all losses of all steps, bit for bit; empty where the record has none."""
    early: tuple[tuple[str, tuple[float, ...]], ...]
    weights: str
    """The digest of the final weights; empty where the record has none."""

    @property
    def recorded(self) -> bool:
        """Return whether the record says anything of what was computed."""
        return bool(self.losses or self.weights)

    def apart(self, other: "Computed") -> float | None:
        """Return how far the early losses are apart: for each name the mean difference as a share, and the most of it.

        None where the two do not have the same losses to compare.
        """
        if [(name, len(column)) for name, column in self.early] != [
            (name, len(column)) for name, column in other.early
        ]:
            return None
        return max(
            (_apart(losses, others) for (_, losses), (_, others) in zip(self.early, other.early, strict=True)),
            default=None,
        )


def _apart(mine: Sequence[float], its: Sequence[float]) -> float:
    larger = math.fsum(max(abs(a), abs(b)) for a, b in zip(mine, its, strict=True))
    return math.fsum(abs(a - b) for a, b in zip(mine, its, strict=True)) / larger if larger else 0.0


def computed(seed: int, losses: Mapping[str, Sequence[float]], weights_sha256: str | None) -> Computed:
    """Return what a trial computed."""
    nonempty = sorted((name, column) for name, column in losses.items() if column)
    digest = hashlib.sha256()
    for name, column in nonempty:
        digest.update(f"{name} {len(column)}\n".encode() + array("d", column).tobytes())
    early = tuple((name, tuple(column[:EARLY])) for name, column in nonempty)
    return _one_object(Computed(seed, digest.hexdigest() if nonempty else "", early, weights_sha256 or ""))


@lru_cache(maxsize=10_000)
def _one_object(work: Computed) -> Computed:
    return work


def together(trials: Sequence[Computed]) -> Computed:
    """Return what the trials of one target in a block computed; if they did other work, what agrees with nothing."""
    first, *later = trials
    agreements = (agreement(work, first, may_round=True) for work in later)
    if all(agreed is None or agreed.kind != "other" for agreed in agreements):
        return first
    return first._replace(losses=_CLASH, early=(), weights=_CLASH)


_CLASH = "two trials that differ"
Kind = Literal["weights", "losses", "near", "other"]
AGREEMENTS: tuple[Kind, ...] = ("weights", "losses", "near", "other")
"""The kinds of agreement, the strongest first."""


class Agreement(NamedTuple):
    """How two trials of one seed agree in what they computed."""

    kind: Kind
    """The same weights and losses, bit for bit; the same losses where no weights are known; losses that are near each
    other; or other work."""
    text: str = ""
    """What is other: ``computed other losses``."""
    apart: float | None = None
    """How far the early losses are apart, where that is known and not zero by definition."""


_WEIGHTS, _LOSSES = Agreement("weights"), Agreement("losses")


def agreement(work: Computed, base: Computed, *, may_round: bool) -> Agreement | None:
    """Return how two trials agree; None where neither says what it computed, or their seeds differ.

    ``may_round``: whether the machines, or the job, let equal work end in other bits.
    """
    if work.seed != base.seed or not (work.recorded or base.recorded):
        return None
    if work == base:
        return _WEIGHTS if work.weights else _LOSSES
    for name, mine, its in (("losses", work.losses, base.losses), ("weights", work.weights, base.weights)):
        if bool(mine) != bool(its):
            return Agreement("other", f"recorded {name} on one side alone")
    apart = work.apart(base)
    if may_round and apart is not None and apart <= TOLERANCE:
        return Agreement("near", apart=apart)
    return Agreement("other", f"computed other {'weights' if work.losses == base.losses else 'losses'}", apart)
