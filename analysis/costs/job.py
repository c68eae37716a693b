"""The time, money and energy of a whole job, as metrics of every trial: contrasts then judge them like any other.

A trial is mostly imports; a job is opened and started once, and then runs at the steady rate of the trial. Its time is
opening + start + units / rate + checkpoints. Energy is the mean power of the trial over that time; of a server, which
is not always at its highest rate, it is the energy of the trial by all that was answered in it.

Checkpoints are those that the trial wrote. A job that may be preempted has those of its expected course instead, also
in its undisturbed time: what preemption costs is a ratio of two times of one job. The machine is taken away at random
moments (a Poisson process), and opened again; a start, the first one too, can be cut short like the work.

- Without notice, the work since the last checkpoint is lost. The interval of checkpoints: Young, Comm. ACM 17 (1974)
  530; of higher order: Daly, Future Gener. Comput. Syst. 22 (2006) 303, which also has the makespan.
- With a notice that is long enough for a checkpoint, the job writes one when it is noticed, and no other; it waits
  until its machine is gone. So a life of the machine gives work only after the start and before the notice.

``benchmarks/preemption.py`` holds both against simulated jobs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import pandas as pd

from analysis.compare.by import settings_of
from analysis.costs.prices import MONEY, RATES, SPOT, Numbers, Prices
from analysis.load.metrics import Metric
from analysis.load.records import Records, of_jobs
from suite.errors import RequestError
from suite.job.job import Job
from suite.job.preemption import Preemption
from suite.records.record import Epochs
from suite.units import number

TIME = Metric("job-time", "job_time", "s")
PER_UNITS = Metric("energy", "job_energy_units", "J")
NET = Metric("energy-net", "job_energy_net", "J")
MAKESPAN = Metric("job-makespan", "job_makespan", "s")
SPACING = Metric("checkpoint-spacing", "job_checkpoint_spacing", "s")
OPENINGS = Metric("job-openings", "job_openings", "")
LOST = Metric("job-lost", "job_lost", "s")
ON_SPOT = Metric("spot-to-on-demand", "job_spot_share", "x")
ENERGY = Metric("job-energy", "job_energy", "J")
CARBON = Metric("job-carbon", "job_carbon", "g")
_PHYSICAL = (TIME, ON_SPOT, MAKESPAN, OPENINGS, LOST, SPACING, PER_UNITS, NET, ENERGY, CARBON)
_EPOCHS = "epochs"
_J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Amount:
    number: float
    unit: str

    def __str__(self) -> str:
        text = f"{self.number:,.0f}"
        if self.number % 1:
            text = number(self.number)
        return f"{text} {self.unit}"


def parse_amount(text: str) -> Amount:
    """Return the work that ``"50 epochs"`` or ``"1e6 images"`` means. Raises RequestError for other text."""
    match = re.fullmatch(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e\+?\d+)?)\s*(M)?\s+([a-z-]+)\s*", text)
    amount = 0.0
    if match:
        factor = 1e6 if match[2] else 1
        amount = float(match[1]) * factor
    if not match or not 0 < amount < 1e18:
        raise RequestError(f"--job {text!r} is not an amount of work", remedy='write it as "50 epochs" or "1e6 images"')
    unit = match[3].removesuffix("s")
    return Amount(amount, f"{unit}s")


def job_metrics(currency: str) -> list[Metric]:
    """Return all metrics of a job; money is in the currency."""
    money = [_money(name, currency) for name in RATES]
    return [TIME, *money, *_PHYSICAL[1:]]


def _money(name: str, currency: str) -> Metric:
    return Metric(name, f"job_{name.replace('-', '_')}", currency)


def with_job(
    records: Records,
    amount: Amount,
    prices: Prices | None = None,
    preemption: Preemption | None = None,
) -> Records:
    """Return the records with the metrics of a job of this amount. Those that a trial does not give are absent.

    Raises RequestError if no trial gives the time of the job, and for prices that do not fit the records.
    """
    trials = records.trials
    work = _work_of(records, amount)
    course = _course_of(work, preemption) if preemption else {}
    working_s = work["units"] / work["per_s"]
    writing_s = work["checkpoints"] * work["written_s"].fillna(0.0)
    time_s = work["start_s"] + working_s + writing_s
    time_s = course.pop(TIME, time_s).fillna(time_s)
    if time_s[trials["ok"]].isna().all():
        raise _unusable(trials, amount)
    mean_watts = trials["energy_j"] / trials["interval_s"]
    watts = mean_watts.where(trials["block_s"].isna())
    net_watts = watts - work["idle_w"]
    answered = work["answered"]
    serves = answered.notna()
    unit_s = (1 / work["per_s"]).mask(serves, trials["interval_s"] / answered)
    powered_s = time_s.mask(serves, work["units"] * unit_s)
    columns = {
        TIME: time_s,
        PER_UNITS: watts * 1000 * unit_s,
        NET: net_watts * 1000 * unit_s,
        ENERGY: watts * powered_s,
        **course,
    }
    if prices:
        columns |= dict(_priced(trials, prices, columns))
    measured = {}
    for metric, values in columns.items():
        if values.notna().any():
            measured[metric] = values
    by_column = {metric.column: values for metric, values in measured.items()}
    priced = pd.DataFrame(by_column, index=trials.index)
    # At once: columns that are inserted one by one each stay apart in memory, and pandas warns of many.
    table = pd.concat([trials, priced], axis="columns")
    currency = prices.currency if prices else ""
    ordered = [metric for metric in job_metrics(currency) if metric in measured]
    return replace(records, trials=table, metrics=(*records.metrics, *ordered))


def _work_of(records: Records, amount: Amount) -> pd.DataFrame:
    """Return the parts of the job by trial: its start, units, rate, and checkpoints with the time of each."""
    trials = records.trials
    evidence = records.evidence.drop_duplicates("path").set_index("path")
    names = ["job", "ready_s", "epochs", "idle_w", "units_answered"]
    parts = evidence.loc[trials["path"], names].set_axis(trials.index)
    units = of_jobs(parts, lambda job: _units(job, amount)).astype(float)
    saved = of_jobs(parts, _units_of_checkpoint).astype(float)
    of_bursts = trials["global_batch"] / trials["burst_s"]
    per_s = trials["throughput_per_s"].mask(trials["burst_s"].notna(), of_bursts)
    checkpoints = units // saved
    written_s = parts["epochs"].map(_checkpoint_s)
    columns = {
        "start_s": trials["open_s"] + parts["ready_s"],
        "units": units,
        "per_s": per_s.where(per_s > 0),
        "checkpoints": checkpoints.fillna(0.0),
        "idle_w": parts["idle_w"].astype(float),
        "answered": parts["units_answered"].astype(float),
        "written_s": written_s.astype(float),
    }
    return pd.DataFrame(columns)


def _units(job: Job, amount: Amount) -> float | None:
    """Return the units of the work, of epochs those in whole batches; None for a job that has no such unit."""
    if amount.unit == _EPOCHS:
        units = amount.number * _units_of_epoch(job) if job.dataset else 0.0
        return units or None
    if amount.unit == job.unit:
        return amount.number
    return None


def _units_of_checkpoint(job: Job) -> float | None:
    """Return the units between two checkpoints; None for a job without checkpoints."""
    if not job.checkpoint:
        return None
    return _units_of_epoch(job) or None


def _units_of_epoch(job: Job) -> float:
    return float(job.epoch_steps * (job.global_batch or 0))


def _checkpoint_s(epochs: Epochs | None) -> float | None:
    if isinstance(epochs, Epochs) and epochs.checkpoints:
        return median(epochs.checkpoints.seconds)
    return None


def _unusable(trials: pd.DataFrame, amount: Amount) -> RequestError:
    units = sorted(map(str, trials["unit"].dropna().unique()))
    if trials["data_sha256"].notna().any():
        units.append(_EPOCHS)
    message = f"no record gives the time of {amount}: that takes an opening, a start, a rate and this unit"
    choices = " or ".join(units) or "units of a training"
    return RequestError(message, remedy=f"give --job in {choices}")


def _course_of(work: pd.DataFrame, preemption: Preemption) -> dict[Metric, "pd.Series[float]"]:
    """Return the course of the jobs, with their undisturbed time. It takes the time of a checkpoint."""
    work_s = np.asarray(work["units"] / work["per_s"], np.float64)
    start_s = np.asarray(work["start_s"], np.float64)
    written_s = np.asarray(work["written_s"], np.float64)
    course = course_of(work_s, start_s, written_s, preemption)
    numbers = {
        TIME: course.undisturbed_s,
        MAKESPAN: course.makespan_s,
        SPACING: course.interval_s,
        OPENINGS: course.openings,
        LOST: course.lost_s,
    }
    return {metric: pd.Series(values, work.index) for metric, values in numbers.items()}


def _priced(
    trials: pd.DataFrame,
    prices: Prices,
    columns: Mapping[Metric, "pd.Series[float]"],
) -> Iterator[tuple[Metric, "pd.Series[float]"]]:
    """Yield the money and the carbon of the jobs. A job on spot lasts as long as its preemption makes it."""
    places = prices.places_of(settings_of(trials))
    money = {name: pd.Series(np.nan, trials.index) for name in prices.offered}
    carbon = pd.Series(np.nan, trials.index)
    on_spot = pd.Series(np.nan, trials.index)
    for site in prices.places:
        mine = np.array([other is site for other in places])
        for name, values in money.items():
            seconds = columns[TIME]
            if name == SPOT and not site.owned:
                seconds = columns.get(MAKESPAN, seconds)
            bill = site.bill(name, np.asarray(seconds[mine], np.float64))
            if bill is not None:
                values[mine] = bill
        if site.spot_per_hour is not None:
            on_demand = money[MONEY].where(money[MONEY] > 0)
            share = money[SPOT] / on_demand
            on_spot[mine] = share[mine]
        if site.g_per_kwh is not None:
            energy_kwh = columns[ENERGY][mine] / _J_PER_KWH
            carbon[mine] = energy_kwh * site.g_per_kwh
    for name, values in money.items():
        yield _money(name, prices.currency), values
    yield ON_SPOT, on_spot
    yield CARBON, carbon


_LEAST_INTERVAL_S = 1e-3
"""Checkpoints that take no time would follow each other without work between them."""


@dataclass(frozen=True)
class ExpectedCourse:
    """The expected course of jobs, an entry for each."""

    undisturbed_s: Numbers
    """The time of the same job, with the same checkpoints, on a machine that is never taken away."""
    makespan_s: Numbers
    interval_s: Numbers
    """The work between two checkpoints; NaN where a notice takes their place."""
    openings: Numbers
    lost_s: Numbers
    """The work, and the parts of checkpoints, that is done again."""


def best_interval(checkpoint_s: Numbers, mean_s: float) -> Numbers:
    """Return the work between two checkpoints that makes the makespan shortest: Young's term, and Daly's others."""
    half = checkpoint_s / (2 * mean_s)
    young_s = np.sqrt(2 * checkpoint_s * mean_s)
    higher_order = 1 + np.sqrt(half) / 3 + half / 9
    daly_s = young_s * higher_order - checkpoint_s
    return np.where(half < 1, daly_s, mean_s)


def course_of(
    work_s: Numbers,
    start_s: Numbers,
    checkpoint_s: Numbers,
    by: Preemption,
    interval_s: Numbers | None = None,
) -> ExpectedCourse:
    """Return the course of jobs of so much work, after a start, with a checkpoint after every ``interval_s`` of it.

    By default that is the best interval. The work is divided evenly into the nearest number of intervals; the last one
    ends with a checkpoint, too.
    """
    if interval_s is None:
        interval_s = np.maximum(best_interval(checkpoint_s, by.mean_s), _LEAST_INTERVAL_S)
    with np.errstate(over="ignore", invalid="ignore"):
        intervals = np.maximum(1.0, np.rint(work_s / interval_s))
        spaced = _spaced(work_s, start_s, checkpoint_s, by.mean_s, intervals)
        noticed = _noticed(work_s, start_s, by)
    warned = (by.notice_s > 0) & (checkpoint_s <= by.notice_s)
    with_notice = vars(noticed)
    fields = {}
    for name, values in vars(spaced).items():
        fields[name] = np.where(warned, with_notice[name], values)
    return ExpectedCourse(**fields)


def _spaced(
    work_s: Numbers,
    start_s: Numbers,
    checkpoint_s: Numbers,
    mean_s: float,
    intervals: Numbers,
) -> ExpectedCourse:
    interval_s = work_s / intervals
    busy_s = work_s + intervals * checkpoint_s
    starting_s = mean_s * np.expm1(start_s / mean_s)
    uncut = np.expm1((interval_s + checkpoint_s) / mean_s)
    segment_s = mean_s * np.exp(start_s / mean_s) * uncut
    makespan_s = starting_s + intervals * segment_s
    openings = 1 + makespan_s / mean_s
    # A start that is cut short lasts less than a whole one.
    in_starts_s = -openings * mean_s * np.expm1(-start_s / mean_s)
    lost_s = np.maximum(0.0, makespan_s - busy_s - in_starts_s)
    return ExpectedCourse(start_s + busy_s, makespan_s, interval_s, openings, lost_s)


def _noticed(work_s: Numbers, start_s: Numbers, by: Preemption) -> ExpectedCourse:
    """Return the course of jobs that work from the end of their start until the notice.

    A life outlasts start and notice with a probability of exp(-(start + notice) / mean), and what is left of it is
    exponential again: the work ends 1 + work / mean lives of this kind, each after those that were too short.
    """
    idle = (start_s + by.notice_s) / by.mean_s
    working_lives = 1 + work_s / by.mean_s
    makespan_s = working_lives * by.mean_s * np.expm1(idle) + work_s - by.notice_s
    openings = working_lives * np.exp(idle)
    no_interval_s = np.full_like(work_s, np.nan)
    nothing_lost_s = np.zeros_like(work_s)
    return ExpectedCourse(
        start_s + work_s,
        makespan_s,
        no_interval_s,
        openings,
        nothing_lost_s,
    )
