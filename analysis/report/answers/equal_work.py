"""Equal work: what the targets computed and which images they generated, beside bare metal, as sentences."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analysis.compare.results import Comparison, SameImage, SameWork
from analysis.load.computed import AGREEMENTS, Kind
from suite.targets import BASELINE
from suite.units import number

_OTHER = "generated other images"


class _Arm(NamedTuple):
    name: str
    model: str
    work: SameWork


def same_work(comparison: Comparison) -> Iterator[str]:
    """Yield what the targets computed, and which images they generated, beside bare metal of their blocks, if known."""
    arms = []
    for group in comparison.groups:
        arms += [_Arm(work.arm, group.model, work) for work in group.same_work]
    by_kind: dict[str, list[_Arm]] = {}
    by_images: dict[str, list[_Arm]] = {}
    for arm in sorted(arms, key=lambda arm: AGREEMENTS.index(arm.work.kind)):
        by_kind.setdefault(arm.work.kind, []).append(arm)
    for arm in arms:
        if arm.work.image:
            by_images.setdefault(_generated(arm.work.image), []).append(arm)
    by_work = {_computed([arm.work for arm in alike]): alike for alike in by_kind.values()}
    yield from _beside_baseline(by_work, arms, same=not {"other", "other-answers"} & by_kind.keys())
    others = any(text.startswith(_OTHER) for text in by_images)
    yield from _beside_baseline(by_images, arms, same=not others)


def _beside_baseline(by_text: dict[str, list[_Arm]], arms: Sequence[_Arm], *, same: bool) -> Iterator[str]:
    """Yield the sentence on what arms did, by its words; ``same``: those of all may be true of bare metal, too."""
    if len(by_text) == 1 and same:
        yield f"All targets {next(iter(by_text))}."
    elif by_text:
        clauses = [f"{_arms(alike, arms)} {text}" for text, alike in reversed(by_text.items())]
        alone = ""
        if any("-beside-" in arm.name for arm in arms):
            alone = ", or for victims the target alone"
        yield f"Beside {BASELINE}{alone}, {'; '.join(clauses)}."


def _generated(image: SameImage) -> str:
    images = _OTHER if image.other_pixels else "generated the same images"
    weights = "other" if image.other_weights else "the same"
    apart = ""
    if image.mean is not None:
        apart = f": pixels at most {image.most} of 255 apart, {number(image.mean)} on average"
    return f"{images} from {weights} weights{apart}"


_PROVEN: Mapping[Kind, str] = {
    "weights": "computed the same weights, bit for bit",
    "losses": "computed the same losses, bit for bit",
    "drawn": "drew the same data, order and seed",
    "steps": "ended at the same step",
    "answers": "gave the same answers",
    "other-answers": "did not give the same answers",
}
_UNPROVEN = ", which does not prove the same data, order or seed"


def _computed(alike: Sequence[SameWork]) -> str:
    kind = alike[0].kind
    apart = max((work.apart for work in alike if work.apart is not None), default=None)
    share = f"{number(apart * 100)} %" if apart else ""
    if kind == "other":
        texts = ", ".join(dict.fromkeys(work.text for work in alike))
        return f"{texts} ({share} apart)" if share else texts
    if kind in _PROVEN and apart is None:
        return _PROVEN[kind]
    return _near(alike, kind, share)


def _near(alike: Sequence[SameWork], kind: Kind, share: str) -> str:
    """Return what arms computed whose early losses are this share apart."""
    drew = f"{_PROVEN['drawn']} and " if all(work.drawn for work in alike) else ""
    why = ", ".join(dict.fromkeys(work.rounding for work in alike))
    seeds_apart = min((work.seeds_apart for work in alike if work.seeds_apart is not None), default=None)
    spread = "no other seed was measured"
    if seeds_apart:
        spread = f"other seeds: {number(seeds_apart * 100)} %"
    within = f" within {share} ({why}; {spread})" if share else f" ({why})"
    losses = "the same losses" if kind == "near" else "losses"
    return f"{drew}computed {losses}{within}{_UNPROVEN if kind == 'unproven' else ''}"


def _arms(alike: Sequence[_Arm], arms: Sequence[_Arm]) -> str:
    """Return the names of arms; with the models where not all of an arm's are meant."""
    models: dict[str, list[str]] = defaultdict(list)
    for arm in alike:
        models[arm.name].append(arm.model)
    of_all = Counter(arm.name for arm in arms)
    texts = []
    for name, of_arm in models.items():
        texts.append(name if len(of_arm) == of_all[name] else f"{name} ({', '.join(of_arm)})")
    return ", ".join(texts)
