"""Checks whether a ratio may be formed: two trials of a block must agree in everything but the target.

What a difference means stands in one table, ``suite.records.differences``: some forbid the ratio, others are named
beside it. Two things let a pair pass in spite of the first kind, and the mark stays on the number: the run declared it
(``isa=native`` leaves each target the CPU capability that it has), or the user forces it.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd

from analysis.load.computed import Agreement, agreement, seed_distance
from analysis.load.records import Facts
from suite.differ import MEMORY_TOLERANCE, FactRule, differ, gib
from suite.job.job import SEED_IS_NOT_ALL
from suite.records.columns import Field
from suite.records.differences import FIELDS, HOST, INSIDE

COLUMNS = ("facts", "settings", "data", "profile", "recipe", "isa", "forced", "computed", "rounds_freely")
"""The columns of both trials that ``usable`` needs."""
_BY_PLACE: dict[str, dict[str, Field]] = {
    "": {one.path: one for one in (*INSIDE, *FIELDS)},
    "host": {one.path: one for one in HOST},
}
_ROUNDING = (
    *("torch", "torch_cpu_capability", "threads", "cpu_model", "cpu_flags", "accelerator", "gpus.name"),
    *("torchvision", "libc", "memory_format", "data_use.decoder"),
)
"""The facts that decide in which order, and with which instructions, numbers are summed. A virtual machine is among
them: its caches are its own, and libraries choose the blocks of their sums by these."""
CLOCK_TOLERANCE = 0.05
"""Means of a GPU's clock differ a little from trial to trial."""
_BESIDE = ("host/", "aggressor ")
"""The beginnings of facts that are of no process that trains."""
_MEMORY, _EXACT = FactRule(tolerance=MEMORY_TOLERANCE), FactRule()
_FACTS = {
    **{f"{place}{name}": _MEMORY for name in ("memory_bytes", "gpus.memory_bytes") for place in ("", "*/")},
    **{f"resources.gpus.{span}.sm_mhz": FactRule(tolerance=CLOCK_TOLERANCE) for span in ("job", "measured")},
}
_CAPABILITY = "torch_cpu_capability"
_MOST_VALUES = 3
"""Values of a fact that are all named where it changed; of more the first and the last."""


@dataclass(frozen=True)
class Difference:
    """One property in which the two trials of a pair differ."""

    name: str
    """The field of the environment, or the setting of the job."""
    text: str
    """``kernel 6.1 against 6.18``."""
    group: str
    """The name that a mark gives to its kind; empty for one that forbids the ratio."""


def _assess(pair: dict[Any, Any], switched: frozenset[str]) -> tuple[str, str, tuple[Difference, ...]]:
    """Return what forbids the ratio of a pair, its marks, and the differences that are part of the ratio."""
    differences = [one for one in _differences(pair) if one.name not in switched]
    native = pair["isa"] == pair["isa_base"] == "native"
    declared = [one.text.removeprefix("CPU capability ") for one in differences if native and one.name == _CAPABILITY]
    refused = [one.text for one in differences if not one.group and not (native and one.name == _CAPABILITY)]
    named = [one for one in differences if one.group]
    # What differs in settings or facts computes something else: one reason is enough.
    text, may_round = pair["other_work"]
    if text and not refused:
        if may_round:
            named.append(Difference("computed", text, "losses or weights"))
        else:
            refused.append(text)
    difference = "; ".join(dict.fromkeys(refused))
    return difference, _mark(pair, difference, "; ".join(declared)), tuple(named)


def _mark(pair: Mapping[Any, Any], difference: str, declared: str) -> str:
    # A record that the audit refuses is here only because it was forced.
    forced = dict.fromkeys(filter(None, (difference, pair["forced"], pair["forced_base"])))
    return f"forced: {'; '.join(forced)}" if forced else declared


def _differences(pair: dict[Any, Any]) -> Iterator[Difference]:
    for name in ("data", "profile", "recipe"):
        if pair[name] != pair[f"{name}_base"]:
            yield Difference(name, f"{name} {pair[name]} against {pair[f'{name}_base']}", "")
    for fact in differ(dict(pair["settings"].pairs), dict(pair["settings_base"].pairs), _SETTINGS):
        yield Difference(fact.path, fact.against, "")
    yield from fact_differences(pair["facts"], pair["facts_base"])


@lru_cache(maxsize=10_000)
def fact_differences(own: Facts, base: Facts) -> tuple[Difference, ...]:
    """Return the facts of two trials that differ and are not ignored."""
    mine, its = own.by_path, base.by_path
    if bool(mine.get("pod.virtual")) != bool(its.get("pod.virtual")):
        # The virtual machine numbers its own CPUs. That it is another one is named beside bare metal, too.
        mine, its = ({"pod.node": "none", **side, "host_cpus": None} for side in (mine, its))
    elif _listed_machine(mine) and _listed_machine(its) and _listed_machine(mine) != _listed_machine(its):
        mine, its = ({**side, "host_cpus": None} for side in (mine, its))  # each machine numbers its own CPUs
    return tuple(one for fact in differ(its, mine, _FACTS) for one in _difference(fact.path, fact.second, fact.first))


def _listed_machine(facts: Mapping[str, Any]) -> str | None:
    """Return what tells a machine of an inventory from others: its ID, or else its name."""
    return facts.get("machine_key") or facts.get("machine")


def changes(*sides: Iterable[Facts]) -> tuple[str, ...]:
    """Return the facts that changed from side to side: ``kernel 6.1 -> 6.18``, ``runc 1.1.5 -> 9.9``.

    A side holds the facts of trials of one target. A change that the target shares with its host or its ranks is named
    once.
    """
    tables = [[facts.by_path for facts in dict.fromkeys(side)] for side in sides]
    every = [facts for side in tables for facts in side]
    texts: dict[str, str] = {}
    for key in sorted(dict.fromkeys(key for facts in every for key in facts), key=lambda key: "/" in key):
        course = _course(key, tables) if any(facts.get(key) != every[0].get(key) for facts in every) else []
        if len(course) > 1:
            place, _, path = key.rpartition("/")
            name, text = _name(key, every), _arrows(path, course)
            full = name if place in ("", "host") else f"{place} {name}"
            texts.setdefault(f"{name.removeprefix('host ') if place == 'host' else name} {text}", f"{full} {text}")
    return tuple(texts.values())


def agreements(pairs: pd.DataFrame) -> Iterator[tuple[Agreement | None, str]]:
    """Yield how the two sides of each pair agree in what they computed, and why equal work may end in other bits.

    The agreement is None where nothing is known of it; the reason is that of ``_rounding``.
    """
    names = ("computed", "computed_base", "rounds_freely", "facts", "facts_base")
    runs = pairs.groupby(["run_id", "scenario", "model", "design"], observed=True, sort=False)
    seeds_apart = runs["computed_base"].transform(lambda trials: seed_distance(trials) or math.nan)
    for own, base, freely, facts, its, seeds in zip(*(pairs[name] for name in names), seeds_apart, strict=True):
        why = _rounding(freely, facts, its)
        yield agreement(own, base, may_round=bool(why), seeds_apart=None if math.isnan(seeds) else seeds), why


def _other_work(pairs: pd.DataFrame) -> Iterator[tuple[str, bool]]:
    """Yield what other work the two sides of each pair did, empty for the same, and whether rounding may explain it."""
    for (agreed, why), freely in zip(agreements(pairs), pairs["rounds_freely"], strict=True):
        if agreed and agreed.kind == "other":
            yield agreed.text, bool(why) and (agreed.rounded or SEED_IS_NOT_ALL in freely)
        else:
            yield "", False


@lru_cache(maxsize=10_000)
def _rounding(freely: str, own: Facts, base: Facts) -> str:
    """Return why equal work may end in other bits, by ``Job.rounds_freely`` or facts; empty where it may not."""
    mine, its = own.by_path, base.by_path
    differing = [
        _rule(key).label
        for key in dict.fromkeys((*its, *mine))
        if key.rpartition("/")[2] in _ROUNDING and not key.startswith(_BESIDE) and mine.get(key) != its.get(key)
    ]
    return ", ".join(dict.fromkeys((*filter(None, [freely]), *(f"other {label}" for label in differing))))


def _course(key: str, sides: Iterable[Sequence[Mapping[str, Any]]]) -> list[list[Any]]:
    """Return the values of a fact on each side that knows it, of sides with the same values the first."""
    place, _, path = key.rpartition("/")
    # As beside bare metal: what is only named, or belongs to a target, is nothing new where it was unknown.
    strict = path == "seccomp" or (_rule(key).treatment == "refused" and not place.startswith("aggressor"))
    rule = _FACTS.get(path, _EXACT)
    seen: list[Any] = []
    course: list[list[int]] = []
    for side in sides:
        numbers: set[int] = set()
        for value in (facts.get(key) for facts in side):
            if value is not None or strict:
                number = next((n for n, one in enumerate(seen) if rule.agree(value, one)), len(seen))
                if number == len(seen):
                    seen.append(value)
                numbers.add(number)
        if numbers and sorted(numbers) not in course:
            course.append(sorted(numbers))
    return [[seen[number] for number in numbers] for numbers in course]


def _name(key: str, every: Iterable[Mapping[str, Any]]) -> str:
    """Return the label of a fact; of the version of a container engine the engine's name."""
    owner = key.removesuffix("version") + "name"
    names = {facts.get(owner) for facts in every} if key.endswith("container_engine.version") else set()
    return str(name) if len(names) == 1 and (name := names.pop()) else _rule(key).label


def _arrows(path: str, course: Sequence[list[Any]]) -> str:
    if path in ("cpu_flags", "mitigations.*"):
        return _between(path, course[-1][-1], course[0][0])
    texts = [", ".join(_text(path, value) for value in values) for values in course]
    return " -> ".join(texts if len(texts) <= _MOST_VALUES else (texts[0], "…", f"{texts[-1]} ({len(texts)} values)"))


def _rule(key: str) -> Field:
    place, _, path = key.rpartition("/")
    return _BY_PLACE["host" if place == "host" else ""][path]


def _difference(key: str, own: Any, base: Any) -> Iterator[Difference]:  # noqa: ANN401 (any value of JSON)
    place, _, path = key.rpartition("/")
    rule = _rule(key)
    unknown = own is None or base is None
    # An idle aggressor has not said everything, and what is not known of a property that is only named is not named.
    # A trial whose output names no unit may lack a rate: its elapsed time can still be compared.
    lenient = place.startswith("aggressor") or (rule.treatment == "named" and path != "seccomp") or path == "counted"
    if rule.treatment not in ("refused", "named") or (unknown and lenient):
        return
    label = rule.label if place in ("", "host") else f"{place} {rule.label}"
    yield Difference(path if place != "host" else key, f"{label} {_between(path, own, base)}", rule.group)


def _between(path: str, own: Any, base: Any) -> str:  # noqa: ANN401
    if path == "cpu_flags":
        missing, more = sorted({*base} - {*own}), len({*own} - {*base})
        return f"without {_some(missing)}; {more} more" if missing else f"with {_some(sorted({*own} - {*base}))}"
    if path == "mitigations.*":
        return "of " + ", ".join(sorted(name for name in {*own, *base} if own.get(name) != base.get(name)))
    return f"{_text(path, own)} against {_text(path, base)}"


def _some(flags: list[str]) -> str:
    """Return the first of the flags, those of vector instructions before others: they are what libraries miss."""
    first = sorted(flags, key=lambda flag: (not re.match(r"avx|amx|fma|f16c|sse", flag), flag))
    return " ".join(first[:6]) + (f" and {len(flags) - 6} others" if len(flags) > 6 else "")


def _text(path: str, value: Any) -> str:  # noqa: ANN401
    if value is None:
        return "as expected" if path == "seccomp" else "unknown"
    if path == "memory_bytes":
        return gib(value)
    return shortened(",".join(map(str, value)) if isinstance(value, list) else str(value))


def shortened(text: str) -> str:
    """Return the text with digests cut: their beginning tells as much as a reader can use."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


_SETTINGS = {
    "memory": FactRule(counts=lambda text: float(text.removesuffix(" GiB")), tolerance=MEMORY_TOLERANCE),
    "cpus": FactRule("CPUs"),
    "data_sha256": FactRule("data set", text=shortened),
    "*": FactRule(text=shortened),
}
"""The comparison of the settings of a job, which are texts."""


def compact(named: Iterable[Difference]) -> tuple[str, ...]:
    """Return the one mark for named differences, ``other kernel (4), CPU (2)``; none where there are none."""
    groups: dict[str, set[str]] = defaultdict(set)
    for one in named:
        groups[one.group].add(one.name)
    parts = [f"{group} ({len(names)})" if len(names) > 1 else group for group, names in groups.items()]
    return (f"other {', '.join(parts)}",) if parts else ()


def marks_of(pairs: pd.DataFrame) -> tuple[str, ...]:
    """Return the marks of pairs, each once, and one mark for everything that is only named."""
    return (*(str(text) for text in pairs["marks"].unique() if text), *compact(all_named(pairs["named"])))


def all_named(named: Iterable[tuple[Difference, ...]]) -> tuple[Difference, ...]:
    """Return the named differences of pairs, each once. Pairs of one kind hold the same tuple."""
    kinds = {id(differences): differences for differences in named}
    return tuple(dict.fromkeys(one for differences in kinds.values() for one in differences))


def usable(
    pairs: pd.DataFrame, *, force: bool = False, switched: Collection[str] = ()
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Part pairs into usable ones, with ``marks`` and ``named``, and refused ones, with ``difference``.

    ``force`` marks these instead. ``switched`` fields may differ.
    """
    # Pairs are many, and the ways in which they differ few.
    both = [*(side for name in COLUMNS if name != "computed" for side in (name, f"{name}_base")), "other_work"]
    pairs = pairs.copy()  # joins its columns in memory: pandas warns of more than 100 that are apart
    pairs = pairs.assign(other_work=pd.Series([*_other_work(pairs)], index=pairs.index, dtype=object))
    kinds = pairs.groupby(both, dropna=False, observed=True, sort=False).ngroup().to_numpy()
    first_of_kind = pairs.loc[~pd.Series(kinds).duplicated().to_numpy(), both].to_dict("records")
    assessed = [_assess(row, frozenset(switched)) for row in first_of_kind]
    columns = zip(*(assessed[kind] for kind in kinds), strict=True) if len(pairs) else ((), (), ())
    for name, values in zip(("difference", "marks", "named"), columns, strict=True):
        pairs[name] = pd.Series(list(values), index=pairs.index, dtype=object)
    bad = pairs["difference"] != ""
    return (pairs, pairs.iloc[:0]) if force else (pairs[~bad], pairs[bad])
