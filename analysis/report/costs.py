"""The costs of a job as elements of a document: the decision, a table of values, and how they were made."""

from collections.abc import Iterator, Sequence

from analysis.compare.results import Comparison, Contrast
from analysis.costs.decision import Places, arms, decisions, name_of
from analysis.costs.job import ENERGY, LOST, MAKESPAN, NET, ON_SPOT, PER_UNITS, SPACING, TIME, Amount, job_metrics
from analysis.costs.prices import RATES, PricedPlace, Prices
from analysis.report.document import published_elements
from analysis.report.elements import Element, Head, Line, Notes, Table, warnings
from analysis.report.formatting import percent, sensible
from analysis.warnings.types import notices
from suite.job.preemption import Preemption
from suite.units import number

_MEASURE = "add --checkpoint on --checkpoint-every 10 to bench run or, with a data set, --checkpoint on --epochs 2"


def costs_document(
    comparison: Comparison, amount: Amount, prices: Prices | None, places: Places, preemption: Preemption | None
) -> Iterator[Element]:
    """Yield the decision, then every value with its interval, then prices and what is counted."""
    every = arms(comparison)
    yield from (Line(sentence, "strong") for sentence in decisions(comparison, amount, places))
    measured = {name for of_arm in every.values() for name in of_arm}
    metrics = [one for one in job_metrics(prices.currency if prices else "") if one.name in measured]
    rows = tuple(
        (Head(name_of(arm, every), of_arm[TIME.name].notes), tuple(value(of_arm.get(one.name)) for one in metrics))
        for arm, of_arm in every.items()
    )
    yield Table(str(amount), "", tuple(Head(one.name) for one in metrics), rows, "values with 95 % intervals")
    yield Notes((*_notes(measured, prices.places if prices else ()), *_preemption_notes(measured, preemption)))
    yield from published_elements([*filter(lambda one: one.claim.metric == MAKESPAN.name, comparison.claims)])
    yield from warnings(notices(comparison.warnings, comparison.jobs))


def value(row: Contrast | None) -> str | None:
    """Return ``1.25 h (1.21 to 1.29)``, ``12.3 EUR``; None without a value."""
    if row is None or row.value is None:
        return None
    scale, unit = (3600, "h") if row.metric.unit == "s" and row.value >= 5400 else (1, row.metric.unit)
    span = row.value_interval if row.value_interval and sensible(row.value_interval) else ()
    text = f" ({' to '.join(number(end / scale) for end in span)})" if span else ""
    return f"{number(row.value / scale)} {unit}".rstrip() + text


def _notes(measured: set[str], places: Sequence[PricedPlace]) -> Iterator[str]:
    yield f"{TIME.name}: opening + start + units / steady rate, and checkpoints where a trial wrote them"
    for site in places:
        yield f"{site.name}: {_price(site)} ({site.source}, {site.date})"
    if PER_UNITS.name in measured:
        yield f"{PER_UNITS.name} is of 1,000 units, {ENERGY.name} of the job: both by the mean power of the whole host"
        net = f"{NET.name} is without the idle power before the first block" if NET.name in measured else ""
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
        yield f"{MAKESPAN.name}: {how}; {LOST.name} is work done again, by Daly (2006)"
        if SPACING.name in measured:
            yield f"{SPACING.name}: the work between checkpoints that makes it shortest, by Young (1974) and Daly"


def _price(site: PricedPlace) -> str:
    if site.owned:
        return f"owned, {number(site.owned.per_hour)} {site.currency} per used hour at {percent(site.owned.use)} use"
    rates = {key.replace("_", " "): getattr(site, key) for key in RATES.values()}
    offers = (f"{number(rate)} {site.currency} {name}" for name, rate in rates.items() if rate is not None)
    return f"{', '.join(offers)}, at least {site.minimum_s:g} s in steps of {site.step_s:g} s"
