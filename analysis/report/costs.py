"""The costs of a job as elements of a document: the decision between places, or between targets of one, and the values.

The decision is by the time and the money of a job.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pandas as pd

from analysis.compare.by import settings_of
from analysis.compare.contrast_kinds import BY, TARGET
from analysis.compare.results import Arm, Comparison, Contrast, JudgedClaim, Measured
from analysis.compare.validity import shortened
from analysis.costs.job import (
    CARBON,
    ENERGY,
    LOST,
    MAKESPAN,
    NET,
    ON_SPOT,
    PER_UNITS,
    SPACING,
    TIME,
    Amount,
    job_metrics,
)
from analysis.costs.prices import MONEY, RATES, Owned, PricedPlace, Prices
from analysis.report.answers.answer import answer
from analysis.report.document import published_elements
from analysis.report.elements import CommandLine, Element, Head, Line, Notes, Table, warnings
from analysis.report.formatting import percent, sensible
from analysis.report.sweeps.by import by_answer
from analysis.statistics.ratios import Verdict
from analysis.warnings.types import notices
from suite.job.preemption import Preemption
from suite.request.next_step import LABEL, NextStep
from suite.targets import base_of
from suite.units import count, number

Places = Mapping[tuple[tuple[str, ...], str], PricedPlace]
"""The place of each cell and target whose trials have the same one."""
_WORDS = {TIME.name: ("takes", "longer", "less time", "time"), MONEY: ("costs", "more", "less", "money")}
_DIFFERENT = ("slower", "faster")
_OPEN = Verdict(None, None)
_MEASURE = "add --checkpoint on --checkpoint-every 10 to bench run or, with a data set, --checkpoint on --epochs 2"


def costs_document(
    comparison: Comparison, amount: Amount, prices: Prices | None, places: Places, preemption: Preemption | None
) -> Iterator[Element]:
    """Yield the decision, then every value with its interval, then prices and what is counted."""
    every = arms(comparison)
    for sentence in decisions(comparison, amount, places):
        yield Line(sentence, "strong")
    step = step_after(comparison)
    if step:
        yield CommandLine(str(step), LABEL)
    measured = set(chain.from_iterable(every.values()))
    metrics = [metric for metric in job_metrics(prices.currency if prices else "") if metric.name in measured]
    rows = []
    for arm, of_arm in every.items():
        head = Head(name_of(arm, every), of_arm[TIME.name].notes)
        rows.append((head, tuple(value(of_arm.get(metric.name)) for metric in metrics)))
    columns = tuple(Head(metric.name) for metric in metrics)
    yield Table(str(amount), "", columns, tuple(rows), "values with 95 % intervals")
    places_of_prices = prices.places if prices else ()
    yield Notes((_time_note(measured), *_notes(measured, places_of_prices), *_preemption_notes(measured, preemption)))
    yield from published_elements(_about_jobs(comparison))
    yield from warnings(notices(comparison.warnings, comparison.jobs))


def _about_jobs(comparison: Comparison) -> list[JudgedClaim]:
    """Return the claims about whole jobs, of cells those about places."""
    return [judged for judged in comparison.claims if judged.claim.metric == MAKESPAN.name or comparison.cells]


def step_after(comparison: Comparison) -> NextStep | None:
    """Return the command that settles what is open in the comparison that costs are made of."""
    if comparison.of_kind(BY.name):
        return by_answer(comparison).next
    return answer(comparison).next


def value(row: Contrast | None) -> str | None:
    """Return ``1.25 h (1.21 to 1.29)``, ``12.3 EUR``; None without a value."""
    if row is None or row.value is None:
        return None
    scale, unit = (3600, "h") if row.metric.unit == "s" and row.value >= 5400 else (1, row.metric.unit)
    text = ""
    if row.value_interval is None and row.trials:
        text = f" ({count(row.trials, 'block')})"
    elif row.value_interval and sensible(row.value_interval):
        text = f" ({' to '.join(number(end / scale) for end in row.value_interval)})"
    return f"{number(row.value / scale)} {unit}".rstrip() + text


def _time_note(measured: set[str]) -> str:
    checkpoints = "where a trial wrote them"
    if SPACING.name in measured:
        checkpoints = f"after every {SPACING.name} of work, as in {MAKESPAN.name}"
    elif MAKESPAN.name in measured:
        checkpoints = f"at a notice alone, as in {MAKESPAN.name}"
    return f"{TIME.name}: opening + start + units / steady rate, and checkpoints {checkpoints}"


def _notes(measured: set[str], places: Sequence[PricedPlace]) -> Iterator[str]:
    for site in places:
        yield f"{site.name}: {_price(site)} ({site.source}, {site.date})"
    if PER_UNITS.name in measured:
        yield f"{PER_UNITS.name} is of 1,000 units, {ENERGY.name} of the job: both by the mean power of the whole host"
        net = ""
        if NET.name in measured:
            net = f"{NET.name} is without the idle power before the first block"
        yield net or f"{NET.name}: no trial recorded an idle power"
    else:
        yield "energy: no trial has a counter of it"
    if places and not {*RATES} & measured:
        yield "money: no trial of a place with a price gives the time of the job"


def _preemption_notes(measured: set[str], preemption: Preemption | None) -> Iterator[str]:
    if preemption is None:
        if ON_SPOT.name in measured:
            yield f"{ON_SPOT.name}: as if it were never preempted; --preempt mean=1h counts what that costs"
    elif MAKESPAN.name not in measured:
        yield f"{MAKESPAN.name}: no trial wrote a checkpoint; to measure one, {_MEASURE}"
    else:
        how = f"preempted every {number(preemption.mean_s)} s on average, with {preemption.notice_s:g} s of notice"
        yield f"{MAKESPAN.name}: the job of {TIME.name}, {how}; {LOST.name} is work done again"
        if SPACING.name in measured:
            yield f"{SPACING.name}: the work between checkpoints that makes it shortest (Young 1974, Daly 2006)"
        if {ENERGY.name, CARBON.name} & measured:
            yield f"{ENERGY.name}, {CARBON.name}: of the job that is never preempted"


def _price(site: PricedPlace) -> str:
    if site.owned:
        return f"owned, {number(site.owned.per_hour)} {site.currency} per used hour at {percent(site.owned.use)} use"
    offers = []
    for key in RATES.values():
        rate = getattr(site, key)
        if rate is not None:
            offers.append(f"{number(rate)} {site.currency} {key.replace('_', ' ')}")
    return f"{', '.join(offers)}, at least {site.minimum_s:g} s in steps of {site.step_s:g} s"


def places_by_arm(trials: pd.DataFrame, keys: Sequence[str], prices: Prices | None) -> Places:
    """Return the places of cells, by the values of ``keys``, and targets."""
    if prices is None:
        return {}
    settings = settings_of(trials)
    by_arm: dict[tuple[tuple[str, ...], str], list[PricedPlace | None]] = {}
    for job, target, site in zip(settings, trials["target"].astype(str), prices.places_of(settings), strict=True):
        cell = tuple(f"{key}={shortened(job.get(key, 'none'))}" for key in keys)
        by_arm.setdefault((cell, target), []).append(site)
    places = {}
    for key, (first, *others) in by_arm.items():
        if first and all(site is first for site in others):
            places[key] = first
    return places


def arms(comparison: Comparison) -> dict[Arm, Measured]:
    """Return what was measured of each arm that has the time of a job: values of keys or, without keys, targets."""
    of_kind = comparison.of_kind(BY.name) or comparison.of_kind(TARGET.name)
    return {arm: measured for arm, measured in of_kind.items() if TIME.name in measured}


def decisions(comparison: Comparison, amount: Amount, places: Places) -> Iterator[str]:
    """Yield how each arm compares with its base: by time and money, by that of spot and of reserved; then why not."""
    every = arms(comparison)
    withheld: dict[str, None] = {}
    for arm, base, measured in _over_bases(every):
        time = measured[TIME.name]
        name = name_of(arm, every)
        over = f"per {amount} {{}} {name_of(base, every)}"
        money = {}
        for kind in RATES:
            row = measured.get(kind)
            if row and row.ratio is not None:
                money[kind] = row
        for row in (time, *money.values()):
            withheld |= dict.fromkeys((row.verdict or _OPEN).withheld)
        usual = money.pop(MONEY, None)
        place_of_base = places.get((base.cell, base.target))
        use = _break_even(places.get((arm.cell, arm.target)), place_of_base, usual)
        yield f"{name} {_claims([*filter(None, (time, usual))], over)}{use}."
        for kind, row in money.items():
            yield f"At the price of {kind.partition('-')[2]}, {name} {_claims([row], over)}."
    if withheld:
        yield f"No verdict: {'; '.join(withheld)}."


def _over_bases(every: Mapping[Arm, Measured]) -> Iterator[tuple[Arm, Arm, Measured]]:
    """Yield each arm whose time is compared with that of another, the other one, and what was measured of the arm."""
    for arm, measured in every.items():
        time = measured[TIME.name]
        if arm.cell:
            base = arm._replace(cell=time.base)
        else:
            base = arm._replace(target=base_of(arm.target))
        if base != arm and base in every and time.ratio is not None:
            yield arm, base, measured


def name_of(arm: Arm, every: Mapping[Arm, Measured]) -> str:
    """Return ``cloud``, or ``gan on vm in cloud`` as far as the arms differ in it."""
    models = {each_arm.model for each_arm in every}
    targets = {each_arm.target for each_arm in every}
    jobs = {each_arm.job for each_arm in every}
    cell = ", ".join(value.partition("=")[2] for value in arm.cell)
    target = "" if cell and len(targets) == 1 else arm.target
    name = " in ".join(filter(None, (target, cell)))
    if len(models) > 1:
        name = f"{arm.model} on {name}"
    return f"{name} ({arm.job.variant})" if len(jobs) > 1 and arm.job.variant else name


def _claims(rows: Sequence[Contrast], over: str) -> str:
    """Return ``takes 12 % (9 % to 15 %) longer and costs 31 % (29 % to 33 %) less per 50 epochs than cellar``."""
    claimed = all(row.verdict and row.verdict.name in _DIFFERENT for row in rows)
    texts = " and ".join(map(_claim, rows))
    return f"{texts} {over.format('than' if claimed else 'in comparison with')}"


def _claim(row: Contrast) -> str:
    verb, more, less, subject = _WORDS.get(row.metric.name, _WORDS[MONEY])
    verdict = row.verdict or _OPEN
    ratio = row.ratio or 1.0
    if verdict.name == "equivalent":
        return f"{verb} as much {subject} (within {percent(verdict.margin or 0.0)})"
    shares = [end - 1 for end in row.interval or ()]
    if verdict.name in _DIFFERENT:
        ends = " to ".join(map(percent, sorted(map(abs, shares))))
        share = percent(abs(ratio - 1))
        difference = f"{share} ({ends})" if ends else share
        return f"{verb} {difference} {less if ratio < 1 else more}"
    open_text = f"has no verdict on {subject}"
    return f"{open_text} ({' to '.join(map(percent, shares))})" if shares else open_text


def _break_even(own: PricedPlace | None, base: PricedPlace | None, money: Contrast | None) -> str:
    """Return from which use the owned one of two machines is cheaper.

    Empty unless the other one is rented, and the money has a verdict.
    """
    ratios = _judged_ratios(money)
    if own is None or base is None:
        return ""
    if own.owned and not base.owned:
        return _cheaper_above(own.owned, [1 / ratio for ratio in ratios], "and it")
    if base.owned and not own.owned:
        return _cheaper_above(base.owned, ratios, "which")
    return ""


def _cheaper_above(machine: Owned, ratios: Sequence[float], who: str) -> str:
    if not ratios:
        return ""
    use, *ends = machine.uses(ratios)
    if use > 1:
        return f", {who} is dearer at any use"
    span = " to ".join(map(percent, np.minimum(sorted(ends), 1.0)))
    if span:
        above = f"{percent(use)} ({span})"
    else:
        above = percent(use)
    return f", {who} is cheaper above {above} use"


def _judged_ratios(row: Contrast | None) -> tuple[float, ...]:
    """Return the ratio and the ends of its interval; none without a verdict on it."""
    if row is None or row.ratio is None or row.verdict is None:
        return ()
    if row.verdict.name not in (*_DIFFERENT, "equivalent"):
        return ()
    return (row.ratio, *(row.interval or ()))
