"""Equal work: what the targets computed and which images they generated, beside bare metal, as sentences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from analysis.compare.results import Comparison, SameImage, SameWork
from analysis.load.computed import AGREEMENTS, Kind
from suite.targets import BASELINE
from suite.units import number

_OTHER = "generated other images"
_Arm: TypeAlias = tuple[str, str, SameWork]
"""The name of an arm, its model, and what it computed."""


def same_work(comparison: Comparison) -> Iterator[str]:
    """Yield what the targets computed, and which images they generated, beside bare metal of their blocks, if known."""
    arms = [(one.arm, group.model, one) for group in comparison.groups for one in group.same_work]
    by_kind: dict[str, list[_Arm]] = {}
    for each in sorted(arms, key=lambda each: AGREEMENTS.index(each[2].kind)):
        by_kind.setdefault(each[2].kind, []).append(each)
    told = {_computed([one for *_, one in own]): own for own in by_kind.values()}
    yield from _beside_baseline(told, arms, same="other" not in by_kind)
    by_images: dict[str, list[_Arm]] = {}
    for each in arms:
        if image := each[2].image:
            by_images.setdefault(_generated(image), []).append(each)
    yield from _beside_baseline(by_images, arms, same=not any(text.startswith(_OTHER) for text in by_images))


def _beside_baseline(told: dict[str, list[_Arm]], arms: Sequence[_Arm], *, same: bool) -> Iterator[str]:
    """Yield the sentence on what arms did, by its words; ``same``: those of all may be true of bare metal, too."""
    if len(told) == 1 and same:
        yield f"All targets {next(iter(told))}."
    elif told:
        clauses = (f"{_arms(own, arms)} {text}" for text, own in reversed(told.items()))
        alone = ", or for victims the target alone" if any("-beside-" in work.arm for *_, work in arms) else ""
        yield f"Beside {BASELINE}{alone}, {'; '.join(clauses)}."


def _generated(image: SameImage) -> str:
    images = _OTHER if image.other_pixels else "generated the same images"
    weights = "other" if image.other_weights else "the same"
    apart = "" if image.mean is None else f": pixels at most {image.most} of 255 apart, {number(image.mean)} on average"
    return f"{images} from {weights} weights{apart}"


_PROVEN: Mapping[Kind, str] = {
    "weights": "computed the same weights, bit for bit",
    "losses": "computed the same losses, bit for bit",
    "drawn": "drew the same data, order and seed",
    "steps": "ended at the same step",
}
_UNPROVEN = ", which does not prove the same data, order or seed"


def _computed(alike: Sequence[SameWork]) -> str:
    kind, apart = alike[0].kind, max((one.apart for one in alike if one.apart is not None), default=None)
    share = f"{number(apart * 100)} %" if apart else ""
    if kind == "other":
        return ", ".join(dict.fromkeys(one.text for one in alike)) + (f" ({share} apart)" if share else "")
    return _PROVEN[kind] if kind in _PROVEN and apart is None else _near(alike, kind, share)


def _near(alike: Sequence[SameWork], kind: Kind, share: str) -> str:
    """Return what arms computed whose early losses are this share apart."""
    drew = f"{_PROVEN['drawn']} and " if all(one.drawn for one in alike) else ""
    why = ", ".join(dict.fromkeys(one.rounding for one in alike))
    seeds = min((one.seeds_apart for one in alike if one.seeds_apart is not None), default=None)
    spread = f"other seeds: {number(seeds * 100)} %" if seeds else "no other seed was measured"
    within = f" within {share} ({why}; {spread})" if share else f" ({why})"
    losses = "the same losses" if kind == "near" else "losses"
    return f"{drew}computed {losses}{within}{_UNPROVEN if kind == 'unproven' else ''}"


def _arms(alike: Sequence[_Arm], arms: Sequence[_Arm]) -> str:
    """Return the names of arms; with the models where not all of an arm's are meant."""
    names = {arm: [model for other, model, _ in alike if other == arm] for arm, *_ in alike}
    of = {arm: sum(other == arm for other, *_ in arms) for arm in names}
    return ", ".join(arm if len(own) == of[arm] else f"{arm} ({', '.join(own)})" for arm, own in names.items())
