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
from itertools import chain
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
_OF_TARGET: Mapping[str, Field] = {field.path: field for field in (*INSIDE, *FIELDS)}
_OF_HOST: Mapping[str, Field] = {field.path: field for field in HOST}
_ROUNDING = (
    "torch",
    "torch_cpu_capability",
    "threads",
    "cpu_model",
    "cpu_flags",
    "accelerator",
    "gpus.name",
    "torchvision",
    "libc",
    "memory_format",
    "data_use.decoder",
)
"""The facts that decide in which order, and with which instructions, numbers are summed. A virtual machine is among
them: its caches may be its own, and libraries choose the blocks of their sums by these."""
CLOCK_TOLERANCE = 0.01
"""Means of a GPU's clock differ a little from trial to trial."""
_OF_OTHERS = ("host/", "aggressor ")
"""The beginnings of facts that are of no process that trains."""
_MEMORY = FactRule(tolerance=MEMORY_TOLERANCE)
_EXACT = FactRule()
_CLOCK = FactRule(tolerance=CLOCK_TOLERANCE)
_FACTS = {
    "memory_bytes": _MEMORY,
    "*/memory_bytes": _MEMORY,
    "gpus.memory_bytes": _MEMORY,
    "*/gpus.memory_bytes": _MEMORY,
    "resources.gpus.job.sm_mhz": _CLOCK,
    "resources.gpus.measured.sm_mhz": _CLOCK,
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
    native = pair["isa"] == pair["isa_base"] == "native"
    declared = []
    refused = []
    named = []
    for difference in _differences(pair):
        if difference.name in switched:
            continue
        if difference.group:
            named.append(difference)
        if native and difference.name == _CAPABILITY:
            declared.append(difference.text.removeprefix("CPU capability "))
        elif not difference.group:
            refused.append(difference.text)
    # What differs in settings or facts computes something else: one reason is enough.
    text, may_round = pair["other_work"]
    if text and not refused:
        if may_round:
            named.append(Difference("computed", text, "losses or weights"))
        else:
            refused.append(text)
    forbidden = "; ".join(dict.fromkeys(refused))
    # A record that the audit refuses is here only because it was forced.
    reasons = (forbidden, pair["forced"], pair["forced_base"])
    forced = dict.fromkeys(filter(None, reasons))
    mark = "; ".join(declared)
    if forced:
        mark = f"forced: {'; '.join(forced)}"
    return forbidden, mark, tuple(named)


def _differences(pair: dict[Any, Any]) -> Iterator[Difference]:
    for name in ("data", "profile", "recipe"):
        value = pair[name]
        base_value = pair[f"{name}_base"]
        if value != base_value:
            yield Difference(name, f"{name} {value} against {base_value}", "")
    settings = dict(pair["settings"].pairs)
    base_settings = dict(pair["settings_base"].pairs)
    for fact in differ(settings, base_settings, _SETTINGS):
        yield Difference(fact.path, fact.against, "")
    yield from fact_differences(pair["facts"], pair["facts_base"])


@lru_cache(maxsize=10_000)
def fact_differences(own: Facts, base: Facts) -> tuple[Difference, ...]:
    """Return the facts of two trials that differ and are not ignored."""
    mine = own.by_path
    its = base.by_path
    machines = {_listed_machine(mine), _listed_machine(its)}
    if bool(mine.get("pod.virtual")) != bool(its.get("pod.virtual")):
        # The virtual machine numbers its own CPUs. That it is another one is named beside bare metal, too.
        mine = {"pod.node": "none", **mine, "host_cpus": None}
        its = {"pod.node": "none", **its, "host_cpus": None}
    elif len(machines) == 2 and None not in machines:
        # Each machine numbers its own CPUs.
        mine = {**mine, "host_cpus": None}
        its = {**its, "host_cpus": None}
    differences: list[Difference] = []
    for fact in differ(its, mine, _FACTS):
        differences += _difference(fact.path, fact.second, fact.first)
    return tuple(differences)


def _listed_machine(facts: Mapping[str, Any]) -> str | None:
    """Return what tells a machine of an inventory from others: its ID, or else its name."""
    return facts.get("machine_key") or facts.get("machine") or None


def changes(*sides: Iterable[Facts]) -> tuple[str, ...]:
    """Return the facts that changed from side to side: ``kernel 6.1 -> 6.18``, ``runc 1.1.5 -> 9.9``.

    A side holds the facts of trials of one target. A change that the target shares with its host or its ranks is named
    once.
    """
    tables = []
    for side in sides:
        kinds = dict.fromkeys(side)
        tables.append([facts.by_path for facts in kinds])
    every = list(chain.from_iterable(tables))
    keys = dict.fromkeys(chain.from_iterable(every))
    targets_first = sorted(keys, key=lambda key: "/" in key)
    texts: dict[str, str] = {}
    for key in targets_first:
        first = every[0].get(key)
        if all(facts.get(key) == first for facts in every):
            continue
        course = _course(key, tables)
        if len(course) > 1:
            owner, _, path = key.rpartition("/")
            name = _name(key, every)
            text = _arrows(path, course)
            shared = name.removeprefix("host ") if owner == "host" else name
            full = name if owner in ("", "host") else f"{owner} {name}"
            texts.setdefault(f"{shared} {text}", f"{full} {text}")
    return tuple(texts.values())


def agreements(pairs: pd.DataFrame) -> Iterator[tuple[Agreement | None, str]]:
    """Yield how the two sides of each pair agree in what they computed, and why equal work may end in other bits.

    The agreement is None where nothing is known of it; the reason is that of ``_rounding``.
    """
    runs = pairs.groupby(["run_id", "scenario", "model", "design"], observed=True, sort=False)
    of_seeds = runs["computed_base"].transform(lambda trials: seed_distance(trials) or math.nan)
    columns = ["computed", "computed_base", "rounds_freely", "facts", "facts_base"]
    rows = pairs[columns].itertuples(index=False, name=None)
    for (own, base, freely, facts, base_facts), distance in zip(rows, of_seeds, strict=True):
        why = _rounding(freely, facts, base_facts)
        seeds_apart = None if math.isnan(distance) else distance
        yield agreement(own, base, may_round=bool(why), seeds_apart=seeds_apart), why


def _other_work(pairs: pd.DataFrame) -> Iterator[tuple[str, bool]]:
    """Yield what other work the two sides of each pair did, empty for the same, and whether rounding may explain it."""
    for (agreed, why), freely in zip(agreements(pairs), pairs["rounds_freely"], strict=True):
        if agreed and agreed.kind == "other":
            rounded = agreed.rounded or SEED_IS_NOT_ALL in freely
            yield agreed.text, bool(why) and rounded
        else:
            yield "", False


@lru_cache(maxsize=10_000)
def _rounding(freely: str, own: Facts, base: Facts) -> str:
    """Return why equal work may end in other bits, by ``Job.rounds_freely`` or facts; empty where it may not."""
    mine = own.by_path
    its = base.by_path
    reasons = [freely] if freely else []
    for key in dict.fromkeys((*its, *mine)):
        _, _, path = key.rpartition("/")
        if path not in _ROUNDING or key.startswith(_OF_OTHERS):
            continue
        if mine.get(key) != its.get(key):
            reasons.append(f"other {_rule(key).label}")
    return ", ".join(dict.fromkeys(reasons))


def _course(key: str, sides: Iterable[Sequence[Mapping[str, Any]]]) -> list[list[Any]]:
    """Return the values of a fact on each side that knows it, of sides with the same values the first."""
    owner, _, path = key.rpartition("/")
    # As beside bare metal: what is only named, or belongs to a target, is nothing new where it was unknown.
    strict = path == "seccomp" or (_rule(key).treatment == "refused" and not owner.startswith("aggressor"))
    rule = _FACTS.get(path, _EXACT)
    values: list[Any] = []
    course: list[list[int]] = []
    for side in sides:
        numbers: set[int] = set()
        for facts in side:
            value = facts.get(key)
            if value is not None or strict:
                numbers.add(_numbered(value, values, rule))
        in_order = sorted(numbers)
        if in_order and in_order not in course:
            course.append(in_order)
    return [list(map(values.__getitem__, numbers)) for numbers in course]


def _numbered(value: Any, values: list[Any], rule: FactRule) -> int:  # noqa: ANN401 (any value of JSON)
    """Return the number of the first value that agrees with this one, which is added if none does."""
    for number, earlier in enumerate(values):
        if rule.agree(value, earlier):
            return number
    values.append(value)
    return len(values) - 1


def _name(key: str, every: Iterable[Mapping[str, Any]]) -> str:
    """Return the label of a fact; of the version of a container engine the engine's name."""
    if key.endswith("container_engine.version"):
        of_name = key.removesuffix("version") + "name"
        names = {facts.get(of_name) for facts in every}
        name = names.pop()
        if name and not names:
            return str(name)
    return _rule(key).label


def _arrows(path: str, course: Sequence[list[Any]]) -> str:
    if path in ("cpu_flags", "mitigations.*"):
        return _between(path, course[-1][-1], course[0][0])
    texts = []
    for values in course:
        texts.append(", ".join(_text(path, value) for value in values))
    if len(texts) > _MOST_VALUES:
        texts = [texts[0], "…", f"{texts[-1]} ({len(texts)} values)"]
    return " -> ".join(texts)


def _rule(key: str) -> Field:
    owner, _, path = key.rpartition("/")
    if owner == "host":
        return _OF_HOST[path]
    return _OF_TARGET[path]


def _difference(key: str, own: Any, base: Any) -> Iterator[Difference]:  # noqa: ANN401 (any value of JSON)
    owner, _, path = key.rpartition("/")
    rule = _rule(key)
    if rule.treatment not in ("refused", "named"):
        return
    if own is None or base is None:
        # An idle aggressor has not said everything, and what is not known of a property that is only named is not
        # named. A trial whose output names no unit may lack a rate: its elapsed time can still be compared.
        only_named = rule.treatment == "named" and path != "seccomp"
        if owner.startswith("aggressor") or only_named or path == "counted":
            return
    label = rule.label if owner in ("", "host") else f"{owner} {rule.label}"
    yield Difference(
        key if owner == "host" else path,
        f"{label} {_between(path, own, base)}",
        rule.group,
    )


def _between(path: str, own: Any, base: Any) -> str:  # noqa: ANN401
    if path == "cpu_flags":
        missing = sorted({*base} - {*own})
        more = sorted({*own} - {*base})
        if missing:
            return f"without {_some(missing)}; {len(more)} more"
        return f"with {_some(more)}"
    if path == "mitigations.*":
        changed = []
        for name in sorted({*own, *base}):
            if own.get(name) != base.get(name):
                changed.append(name)
        return f"of {', '.join(changed)}"
    return f"{_text(path, own)} against {_text(path, base)}"


def _some(flags: list[str]) -> str:
    """Return the first of the flags, those of vector instructions before others: they are what libraries miss."""
    first = sorted(flags, key=lambda flag: (not re.match(r"avx|amx|fma|f16c|sse", flag), flag))
    text = " ".join(first[:6])
    if len(flags) > 6:
        return f"{text} and {len(flags) - 6} others"
    return text


def _text(path: str, value: Any) -> str:  # noqa: ANN401
    if value is None:
        return "as expected" if path == "seccomp" else "unknown"
    if path == "memory_bytes":
        return gib(value)
    if isinstance(value, list):
        return shortened(",".join(map(str, value)))
    return shortened(str(value))


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
    for difference in named:
        groups[difference.group].add(difference.name)
    if not groups:
        return ()
    parts = []
    for group, names in groups.items():
        parts.append(f"{group} ({len(names)})" if len(names) > 1 else group)
    return (f"other {', '.join(parts)}",)


def marks_of(pairs: pd.DataFrame) -> tuple[str, ...]:
    """Return the marks of pairs, each once, and one mark for everything that is only named."""
    marks = filter(None, pairs["marks"].unique())
    named = all_named(pairs["named"])
    return (*map(str, marks), *compact(named))


def all_named(named: Iterable[tuple[Difference, ...]]) -> tuple[Difference, ...]:
    """Return the named differences of pairs, each once. Pairs of one kind hold the same tuple."""
    kinds = {id(differences): differences for differences in named}
    return tuple(dict.fromkeys(chain.from_iterable(kinds.values())))


def usable(
    pairs: pd.DataFrame,
    *,
    force: bool = False,
    switched: Collection[str] = (),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Part pairs into usable ones, with ``marks`` and ``named``, and refused ones, with ``difference``.

    ``force`` marks these instead. ``switched`` fields may differ.
    """
    # Pairs are many, and the ways in which they differ few.
    checked = [name for name in COLUMNS if name != "computed"]
    columns = [*checked, *(f"{name}_base" for name in checked), "other_work"]
    pairs = pairs.copy()  # joins its columns in memory: pandas warns of more than 100 that are apart
    other_work = list(_other_work(pairs))
    pairs = pairs.assign(other_work=pd.Series(other_work, index=pairs.index, dtype=object))
    kinds = pairs.groupby(columns, dropna=False, observed=True, sort=False).ngroup().to_numpy()
    repeated = pd.Series(kinds).duplicated().to_numpy()
    first_of_kind = pairs.loc[~repeated, columns].to_dict("records")
    may_differ = frozenset(switched)
    assessed = [_assess(row, may_differ) for row in first_of_kind]
    for number, name in enumerate(("difference", "marks", "named")):
        values = [assessed[kind][number] for kind in kinds]
        pairs[name] = pd.Series(values, index=pairs.index, dtype=object)
    if force:
        return pairs, pairs.iloc[:0]
    refused = pairs["difference"] != ""
    return pairs[~refused], pairs[refused]
