"""May a ratio be formed? Two trials of a block must agree in everything but the target.

A difference is refused and named. Two things let a pair pass in spite of it, and the mark stays on the number: the run
declared it (``isa=native`` leaves each target the CPU capability that it has), or the user forces it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real

import pandas as pd

from suite.job.envelope import GIB


@dataclass(frozen=True)
class Check:
    """One property that must agree: a column of the trials, and the share by which numbers may differ."""

    name: str
    column: str
    tolerance: float = 0.0


_MEMORY_TOLERANCE = 0.02
"""As in ``suite.loop.envelope_differences``: control groups round, and a guest's firmware keeps a little."""
CAPABILITY = Check("CPU capability", "torch_cpu_capability")
CHECKS = (
    # Unequal or not, another machine is another time and place: a ratio of two measures both.
    Check("host", "hostname"),
    Check("userland", "userland_sha256"),
    Check("page cache", "page_cache"),
    Check("data set", "data_sha256"),
    *(Check(name, name) for name in ("data", "profile", "recipe", "batch", "image_px", "warmup_steps", "steps")),
    Check("CPUs", "cpus"),
    Check("memory", "memory_bytes", _MEMORY_TOLERANCE),
    Check("threads", "threads"),
    Check("CPUs seen inside", "seen_cpus"),
    Check("memory seen inside", "seen_memory_bytes", _MEMORY_TOLERANCE),
    Check("threads seen inside", "seen_threads"),
    Check("host CPUs pinned to", "affinity"),
    Check("torch", "torch"),
    CAPABILITY,
)
COLUMNS = tuple(check.column for check in CHECKS)


@dataclass(frozen=True)
class Assessment:
    """Per pair, in the pairs' index: ``refused`` names what forbids the ratio, ``declared`` what the run announced.

    Each is one text, differences separated by "; ", empty where there is none.
    """

    refused: "pd.Series[str]"
    declared: "pd.Series[str]"


def assess(pairs: pd.DataFrame, switched: Collection[str] = ()) -> Assessment:
    """Of pairs with ``COLUMNS`` and ``isa``, and those of the other side under these names with ``_base`` appended.

    What both do not know agrees; what one does not know differs. ``switched`` are columns that may differ because they
    are what the pair is to show.
    """
    refused = pd.Series("", index=pairs.index, dtype=object)
    declared = refused.copy()
    native = (pairs["isa"] == "native") & (pairs["isa_base"] == "native")
    for check in CHECKS:
        if check.column in switched:
            continue
        differing = _differ(pairs[check.column], pairs[f"{check.column}_base"], check.tolerance)
        for row in pairs.index[differing]:
            own, base = (_text(check, pairs.at[row, check.column + side]) for side in ("", "_base"))
            if check is CAPABILITY and native[row]:
                declared[row] = f"{own} against {base}"
            else:
                refused[row] += f"{'; ' if refused[row] else ''}{check.name} {own} against {base}"
    return Assessment(refused, declared)


@dataclass(frozen=True)
class Usable:
    """Pairs of which a ratio may be formed, with ``marks``, and those that are refused, with ``difference``."""

    pairs: pd.DataFrame
    refused: pd.DataFrame


def usable(pairs: pd.DataFrame, *, force: bool = False, switched: Collection[str] = ()) -> Usable:
    """``force`` refuses none and marks what would be."""
    found = assess(pairs, switched)
    bad = found.refused != ""
    marked = pairs.assign(marks=found.declared.where(~bad, "forced: " + found.refused), difference=found.refused)
    return Usable(marked if force else marked[~bad], marked.iloc[:0] if force else marked[bad])


def _differ(own: pd.Series, base: pd.Series, tolerance: float) -> "pd.Series[bool]":
    if tolerance:
        near = (own - base).abs() <= tolerance * base
        return ~(near | (own.isna() & base.isna()))
    own, base = own.astype(object), base.astype(object)
    return (own != base) & ~(own.isna() & base.isna())


def _text(check: Check, value: object) -> str:
    if value is None or value != value:  # NaN
        return "unknown"
    if isinstance(value, Real):
        return f"{float(value) / GIB:.4g} GiB" if check.tolerance else f"{float(value):g}"
    return str(value)[:12] if check.column.endswith("sha256") else str(value)
