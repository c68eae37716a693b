"""The decision between places, or between targets of one place, by the time and the money of a job."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np
import pandas as pd

from analysis.compare.by import settings_of
from analysis.compare.contrasts import BY, TARGET
from analysis.compare.results import Arm, Comparison, Contrast, Measured
from analysis.compare.validity import shortened
from analysis.costs.job import TIME, Amount
from analysis.costs.prices import MONEY, RATES, PricedPlace, Prices
from analysis.report.formatting import percent
from analysis.statistics.ratios import Verdict
from suite.targets import BASELINE

Places = Mapping[tuple[tuple[str, ...], str], PricedPlace]
"""The place of each cell and target whose trials have the same one."""
_WORDS = {TIME.name: ("takes", "longer", "less time", "time"), MONEY: ("costs", "more", "less", "money")}
_DIFFERENT = ("slower", "faster")
_OPEN = Verdict(None, None)


def places_by_arm(trials: pd.DataFrame, keys: Sequence[str], prices: Prices | None) -> Places:
    """Return the places of cells, by the values of ``keys``, and targets."""
    if prices is None:
        return {}
    settings = settings_of(trials)
    by_arm: dict[tuple[tuple[str, ...], str], list[PricedPlace | None]] = {}
    for job, target, site in zip(settings, trials["target"].astype(str), prices.places_of(settings), strict=True):
        cell = tuple(f"{key}={shortened(job.get(key, 'none'))}" for key in keys)
        by_arm.setdefault((cell, target), []).append(site)
    return {key: first for key, (first, *more) in by_arm.items() if first and all(site is first for site in more)}


def arms(comparison: Comparison) -> dict[Arm, Measured]:
    """Return what was measured of each arm that has the time of a job: values of keys or, without keys, targets."""
    of_kind = comparison.of_kind(BY.name) or comparison.of_kind(TARGET.name)
    return {arm: measured for arm, measured in of_kind.items() if TIME.name in measured}


def decisions(comparison: Comparison, amount: Amount, places: Places) -> Iterator[str]:
    """Yield how each arm compares with its base: by time and money, by that of spot and of reserved; then why not."""
    every = arms(comparison)
    withheld: dict[str, None] = {}
    for arm, base, measured in _over_bases(every):
        time, name, over = measured[TIME.name], name_of(arm, every), f"per {amount} {{}} {name_of(base, every)}"
        money = {kind: row for kind in RATES if (row := measured.get(kind)) and row.ratio is not None}
        withheld |= dict.fromkeys(why for row in (time, *money.values()) for why in (row.verdict or _OPEN).withheld)
        usual = money.pop(MONEY, None)
        own, other = (places.get((one.cell, one.target)) for one in (arm, base))
        use = _break_even(own, other, usual)
        yield f"{name} {_claims([*filter(None, (time, usual))], over, comparison.margin)}{use}."
        for kind, row in money.items():
            yield f"At the price of {kind.partition('-')[2]}, {name} {_claims([row], over, comparison.margin)}."
    if withheld:
        yield f"No verdict: {'; '.join(withheld)}."


def _over_bases(every: Mapping[Arm, Measured]) -> Iterator[tuple[Arm, Arm, Measured]]:
    """Yield each arm whose time is compared with that of another, the other one, and what was measured of the arm."""
    for arm, measured in every.items():
        time = measured[TIME.name]
        base = arm._replace(cell=time.base) if arm.cell else arm._replace(target=BASELINE)
        if base != arm and base in every and time.ratio is not None:
            yield arm, base, measured


def name_of(arm: Arm, every: Mapping[Arm, Measured]) -> str:
    """Return ``cloud``, or ``gan on vm in cloud`` as far as the arms differ in it."""
    models, targets, jobs = ({part(one) for one in every} for part in map(attrgetter, ("model", "target", "job")))
    cell = ", ".join(value.partition("=")[2] for value in arm.cell)
    target = "" if cell and len(targets) == 1 else arm.target
    variant = f" ({arm.job.variant})" if len(jobs) > 1 and arm.job.variant else ""
    return f"{arm.model} on " * (len(models) > 1) + " in ".join(filter(None, (target, cell))) + variant


def _claims(rows: Sequence[Contrast], over: str, margin: float) -> str:
    """Return ``takes 12 % (9 % to 15 %) longer and costs 31 % (29 % to 33 %) less per 50 epochs than cellar``."""
    claimed = all(row.verdict and row.verdict.name in _DIFFERENT for row in rows)
    texts = " and ".join(_claim(row, margin) for row in rows)
    return f"{texts} {over.format('than' if claimed else 'in comparison with')}"


def _claim(row: Contrast, margin: float) -> str:
    verb, more, less, what = _WORDS.get(row.metric.name, _WORDS[MONEY])
    verdict, ratio = row.verdict or _OPEN, row.ratio or 1.0
    if verdict.name == "equivalent":
        return f"{verb} as much {what} (within {percent(margin)})"
    if verdict.name in _DIFFERENT:
        ends = [abs(end - 1) for end in row.interval or ()]
        span = f" ({' to '.join(map(percent, sorted(ends)))})" * bool(ends)
        return f"{verb} {percent(abs(ratio - 1))}{span} {less if ratio < 1 else more}"
    interval = " to ".join(percent(end - 1) for end in row.interval or ())
    return f"has no verdict on {what}{f' ({interval})' * bool(interval)}"


def _break_even(own: PricedPlace | None, base: PricedPlace | None, money: Contrast | None) -> str:
    """Return from which use the owned one of two machines is cheaper; empty unless the other one is rented."""
    if not (own and base and money and money.ratio):
        return ""
    machine, power, who = (own.owned, -1, "and it") if own.owned else (base.owned, 1, "which")
    if machine is None or (own.owned and base.owned):
        return ""
    use, *ends = machine.uses([ratio**power for ratio in (money.ratio, *(money.interval or ()))])
    if use > 1:
        return f", {who} is dearer at any use"
    texts = " to ".join(map(percent, np.minimum(sorted(ends), 1.0)))
    return f", {who} is cheaper above {percent(use)}{f' ({texts})' * bool(texts)} use"
