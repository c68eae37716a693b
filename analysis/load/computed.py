"""The work of a trial by its record: what it has drawn, the losses of its steps, its final weights, its last step.

Trials of one block have one seed. On every machine the same program then draws the same data, order and noise, and on
equal machines it computes the same bits. Where rounding may differ, the early losses must be near each other; alone
they prove the same work only if other seeds differ by far more.
"""

import hashlib
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple, get_args

EARLY = 10
"""The measured steps whose losses are held against each other where rounding may differ. What is rounded in another way
grows from step to step: later losses of adversarial networks have nothing in common, and nothing is wrong."""
TOLERANCE = 0.1
"""The share by which losses may differ; ``docs/evidence/README.md`` has the effect of other instructions."""
FAR_BELOW = 0.1
"""The share of the distance between seeds that the losses of one seed may be apart and prove the same work."""


class Computed(NamedTuple):
    """The work of one trial. Trials that did the same share one object."""

    seed: int
    losses: str
    """The digest of all losses of all steps, bit for bit; empty where the record has none."""
    early: tuple[tuple[str, tuple[float, ...]], ...]
    weights: str
    """The digest of the final weights; empty where the record has none."""
    drawn: str = ""
    """The digest of the data, order and seed; empty where the record has none."""
    last_step: int | None = None
    """The last step that a command has printed."""
    answers: str = ""
    """The digest of a server's answers; empty where the record has none."""

    @property
    def recorded(self) -> bool:
        return bool(self.losses or self.weights or self.drawn or self.answers or self.last_step is not None)

    def apart(self, other: "Computed") -> float | None:
        """Return how far the early losses are apart: for each name the mean difference as a share, and the most of it.

        None where the two do not have the same losses to compare.
        """
        if self._columns != other._columns:
            return None
        shares = []
        for (_, mine), (_, its) in zip(self.early, other.early, strict=True):
            pairs = list(zip(mine, its, strict=True))
            larger = math.fsum(max(abs(a), abs(b)) for a, b in pairs)
            apart = math.fsum(abs(a - b) for a, b in pairs)
            shares.append(apart / larger if larger else 0.0)
        return max(shares, default=None)

    @property
    def _columns(self) -> list[tuple[str, int]]:
        return [(name, len(losses)) for name, losses in self.early]


def computed(
    seed: int,
    losses: Mapping[str, Sequence[float]],
    weights_sha256: str | None,
    drawn_sha256: str | None = None,
    last_step: int | None = None,
    answers_sha256: str | None = None,
) -> Computed:
    nonempty = sorted((name, column) for name, column in losses.items() if column)
    digest = hashlib.sha256()
    for name, column in nonempty:
        digest.update(f"{name} {len(column)}\n".encode() + array("d", column).tobytes())
    early = tuple((name, tuple(column[:EARLY])) for name, column in nonempty)
    all_losses = digest.hexdigest() if nonempty else ""
    return _shared(seed, all_losses, early, weights_sha256 or "", drawn_sha256 or "", last_step, answers_sha256 or "")


_shared = lru_cache(maxsize=10_000)(Computed)


def together(trials: Sequence[Computed]) -> Computed:
    """Return what the trials of one target in a block computed; if they did other work, what agrees with nothing."""
    first, *later = trials
    agreements = (agreement(work, first, may_round=True) for work in later)
    if all(agreed is None or agreed.kind != "other" for agreed in agreements):
        return first
    return first._replace(losses=_CLASH, early=(), weights=_CLASH, drawn=_CLASH)


def seed_distance(trials: Iterable[Computed]) -> float | None:
    """Return how far the early losses of trials with neighbouring seeds are apart, as the median; None of one seed."""
    by_seed = {work.seed: work for work in trials if work.early}
    in_order = [by_seed[seed] for seed in sorted(by_seed)]
    distances = [work.apart(following) for work, following in pairwise(in_order)]
    shares = [share for share in distances if share is not None]
    return median(shares) if shares else None


_CLASH = "two trials that differ"
Kind = Literal["weights", "losses", "near", "drawn", "steps", "answers", "unproven", "other-answers", "other"]
AGREEMENTS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of agreement, the strongest first."""


@dataclass(frozen=True)
class Agreement:
    """How two trials of one seed agree in what they computed."""

    kind: Kind
    """The same weights and losses, bit for bit; the same losses where no weights are known; losses far nearer to each
    other than those of other seeds; the same draws, and losses that prove no more; the same last step of a command;
    the same answers of a server; losses that prove nothing; other answers of a server; or other work."""
    text: str = ""
    """What is other: ``computed other losses``."""
    apart: float | None = None
    """How far the early losses are apart, where that is known and not zero by definition."""
    seeds_apart: float | None = None
    """How far the losses of other seeds are apart, where these are near."""
    drawn: bool = False
    """Whether both have drawn the same data, order and seed."""
    rounded: bool = True
    """Whether rounding can be the reason of other work."""


def agreement(work: Computed, base: Computed, *, may_round: bool, seeds_apart: float | None = None) -> Agreement | None:
    """Return how two trials agree; None where neither says what it computed, or their seeds differ.

    ``may_round``: whether the machines, or the job, let equal work end in other bits. ``seeds_apart`` is how far apart
    the losses of other seeds are; None without any.
    """
    if work.seed != base.seed or not (work.recorded or base.recorded):
        return None
    if answered := _agreement_of_answers(work, base):
        return answered
    if work == base:
        return Agreement(_kind_of_equals(work), drawn=bool(work.drawn))
    other = _other_beyond_rounding(work, base)
    if other:
        return other
    apart = work.apart(base)
    if may_round and apart is not None and apart <= TOLERANCE:
        return Agreement(
            _kind_of_near(work, apart, seeds_apart or 0.0),
            "",
            apart,
            seeds_apart,
            bool(work.drawn),
        )
    return Agreement(
        "other",
        f"computed other {'weights' if work.losses == base.losses else 'losses'}",
        apart,
    )


def _agreement_of_answers(work: Computed, base: Computed) -> Agreement | None:
    """Return whether two servers gave the same answers; None for work of anything else.

    A server that answers one request in several ways has no digest, and nothing that could be the same.
    """
    if not (work.answers or base.answers):
        return None
    same = work.answers == base.answers
    return Agreement("answers" if same else "other-answers")


def _other_beyond_rounding(work: Computed, base: Computed) -> Agreement | None:
    """Return how work differs apart from the bits of losses and weights; None if it does not."""
    if work.last_step != base.last_step:
        if None in (work.last_step, base.last_step):
            return Agreement("other", "printed a step on one side alone", rounded=False)
        return Agreement(
            "other",
            f"ended at step {work.last_step} and not {base.last_step}",
            rounded=False,
        )
    if _CLASH in (work.drawn, base.drawn):
        return Agreement("other", "did other work in one of two trials")
    for name in ("losses", "weights", "drawn"):
        if bool(getattr(work, name)) != bool(getattr(base, name)):
            named = "a digest of its draws" if name == "drawn" else name
            return Agreement(
                "other",
                f"recorded {named} on one side alone",
                rounded=name != "drawn",
            )
    same = work.drawn == base.drawn
    if same:
        return None
    return Agreement("other", "drew other data, another order or another seed", rounded=False)


def _kind_of_equals(work: Computed) -> Kind:
    if work.weights:
        return "weights"
    if work.losses:
        return "losses"
    return "drawn" if work.drawn else "steps"


def _kind_of_near(work: Computed, apart: float, seeds_apart: float) -> Kind:
    if apart <= FAR_BELOW * seeds_apart:
        return "near"
    return "drawn" if work.drawn else "unproven"
