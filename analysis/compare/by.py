"""Contrasts between cells: each value of a key over the first one, on every target. They are never overheads.

A key is a setting of the job, or where it ran. Both sides agree in all settings but the keys and whatever follows from
these, which is named at the ratio. Cells of one sweep are paired by (sweep, block); all others are independent samples:
see ``statistics.two_samples``. Machines are also compared with the median of the others.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from analysis.compare.contrasts import BY, MACHINE, Unjudged, by_run, judged, order, over, valued
from analysis.compare.pairing import decided_by, have_failed, may_decide, plain, substitutes_of
from analysis.compare.results import (
    Arm,
    Circumstances,
    ComparedJob,
    Comparison,
    Contrast,
    Disturbed,
    GroupKey,
    known_first,
)
from analysis.compare.standing import with_standing
from analysis.compare.validity import changes, shortened
from analysis.load.metrics import Metric, by_ratio, in_units, metrics_of
from analysis.load.plans import Terms, plan_of, terms_of
from analysis.load.records import Records
from analysis.statistics.counts import between_runs, inside_blocks, judge_differences
from analysis.statistics.margins import share_of
from analysis.statistics.ratios import Location, exp, locate
from analysis.statistics.two_samples import LEAST_RUNS, difference
from analysis.warnings.conditions import disturbed
from analysis.warnings.findings import failed_trials
from analysis.warnings.types import AnalysisWarning
from suite.errors import RequestError, nearest
from suite.job.job import IN_COLUMNS
from suite.job.profiles import PROFILES
from suite.registries import WORKLOADS
from suite.results.runs import accepted_sweep

PLACES = ("host", "machine", "context", "inventory", "place")
"""The keys of where a trial ran. A place is the context, else the inventory, else the host."""
_NONE, _POOL = "none", "pool"
_COLUMNS = ("model", *(name for name in IN_COLUMNS if name != "model"))
"""The settings in columns of the table, the model first: most others follow from it."""
_OTHERS, _LEAST_MACHINES = "the median of the others", 3
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The standard error of the median of many normal values over that of their mean."""

Settings = Mapping[str, str]
Values = tuple[str, ...]
"""One value for each key."""


@dataclass(frozen=True)
class CellTrials:
    """The trials of one target that agree in all settings."""

    keys: Values
    values: Values
    settings: Settings
    trials: pd.DataFrame
    metrics: Mapping[str, Metric]
    failed: pd.DataFrame
    """The trials of the target at these values that failed."""

    @property
    def name(self) -> Values:
        """The values with their keys: ``("data=mnist",)``."""
        return tuple(f"{key}={shortened(value)}" for key, value in zip(self.keys, self.values, strict=True))

    @property
    def of_trials(self) -> int:
        """The number of trials; one that failed and was repeated has finished, too."""
        return len(self.trials) + int((~self.failed["ok"].astype(bool)).sum())

    def logs(self, name: str) -> "pd.Series[float]":
        """Return the logarithms of a metric by sweep and block; of one that can be zero the numbers."""
        metric = self.metrics[name]
        numbers = self.trials[metric.column] if metric.by_difference else metric.logs(self.trials)
        frame = [self.trials["sweep"].astype(str), self.trials["block"]]
        blocks: pd.Series[float] = numbers.groupby(frame).mean()
        return blocks.dropna()


def compare_by(records: Records, keys: Values, base: Values = (), *, margin: float | None = None) -> Comparison:
    """Compare the values of ``keys``, each with ``base`` or the first, on every target and for every metric.

    Raises RequestError for an unknown key, for one with a single value, for a base that no record has, and where the
    plans state different margins and none is given.
    """
    trials = _placed(plain(records.trials)).sort_values("started_at", kind="stable")
    common_margin = terms_of(records.directories, margin).margin
    jobs = settings_of(trials)
    ranks = _ranks(jobs, keys, base)
    formed: list[Unjudged] = []
    failed: list[AnalysisWarning] = []
    around: dict[GroupKey, Circumstances] = defaultdict(Circumstances)
    for arm, tried in _alike(trials, records.metrics, jobs, keys):
        failed += _failures(arm, tried)
        cells = [cell for cell in tried if len(cell.trials)]
        cells.sort(key=lambda cell: [rank.index(value) for rank, value in zip(ranks, cell.values, strict=True)])
        if len(cells) > 1 and cells[0].values[: len(base)] == base:
            before = around[arm.job, arm.model].disturbed
            around[arm.job, arm.model] = Circumstances(disturbed={**before, **_disturbed(arm, cells)})
            formed += _over_base(arm, cells)
            formed += _over_others(arm, cells) if keys == ("machine",) else ()
    if not formed:
        reasons = [f"no two records agree in all but {' and '.join(keys)}", *(warning.finding for warning in failed)]
        raise RequestError("; ".join(reasons), remedy=_offer(jobs))
    # Trainings are the question; the probes after them explain.
    rows = sorted(judged(formed, Terms(common_margin)), key=lambda row: (row.job.traits.probes, order(row.arm)))
    return Comparison(
        runs=tuple(records.trials["run_id"].unique()),
        groups=(),
        contrasts=with_standing(rows, around),
        warnings=(*records.warnings, *failed, *_unknown_spread(rows)),
        warmup_trials=records.warmup_trials,
        places=records.places,
    )


def _disturbed(arm: Arm, cells: Sequence[CellTrials]) -> dict[str, tuple[Disturbed, ...]]:
    """Return what disturbed the trials of each cell, by its name."""
    by_cell = {", ".join((arm.target, *cell.name)): disturbed(cell.trials, ["target", "model"]) for cell in cells}
    return {name: tuple(chain(*of_cell.values())) for name, of_cell in by_cell.items()}


def _placed(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials; those that failed have the place of others of their run, if these have one."""
    places = trials[["hostname", "facts"]].astype(object)
    of_run = places.where(trials["ok"]).groupby([trials["run_id"].astype(str), trials["target"].astype(str)])
    placeless = ~trials["ok"].astype(bool) & (of_run["hostname"].transform("nunique") == 1)
    return trials.assign(**places.where(~placeless, of_run.transform("first")))


def _failures(arm: Arm, cells: Sequence[CellTrials]) -> Iterator[AnalysisWarning]:
    """Yield the failed trials of each cell: what did not finish is in no ratio."""
    for cell in cells:
        if len(cell.failed):
            where = ", ".join((arm.target, *cell.name))
            yield failed_trials(cell.settings["model"], where, cell.failed, cell.of_trials)


def _unknown_spread(rows: Sequence[Contrast]) -> Iterator[AnalysisWarning]:
    """Yield one warning where runs are compared and too few show how runs of the same differ."""
    if any(row.runs and row.spread is None for row in rows):
        yield AnalysisWarning(
            "spread-unknown",
            "the spread between runs is unknown: the intervals hold for these runs alone",
            f"measure {LEAST_RUNS} runs or more at each value, on other days",
        )


def settings_of(trials: pd.DataFrame) -> list[Settings]:
    """Return the settings of each trial and its ``PLACES``, by name: one object for all trials that agree in them."""
    host = trials["hostname"].astype(object).fillna(_NONE)
    facts, runs = trials["facts"].astype(object), trials["path"].map(lambda path: Path(path).parents[1])
    # The node of the cluster, or the machine of the inventory, that the target was opened on.
    machine = facts.map(lambda own: own.by_path.get("machine") or own.by_path.get("pod.node")).fillna(host)
    sites = {run: _site(run) for run in runs.unique()}
    context, inventory = (runs.map({run: site.get(key) for run, site in sites.items()}) for key in PLACES[2:4])
    places = (host, machine, context.fillna(_NONE), inventory.fillna(_NONE), context.fillna(inventory).fillna(host))
    table = trials[[*_COLUMNS, _POOL]].assign(**dict(zip(PLACES, places, strict=True))).astype(str)
    rows = [*zip(trials["settings"], table.itertuples(index=False, name=None), strict=True)]
    # An image is built again at will; its userland is one of the facts.
    jobs = {
        (key, texts): {**dict(zip(table.columns, texts, strict=True)), **dict(key.without(["image"]).pairs)}
        for key, texts in dict.fromkeys(rows)
    }
    return [jobs[row] for row in rows]


def _site(run: Path) -> dict[str, str]:
    """Return the context and the inventory of a run, by its plan or that of its sweep."""
    plan, options = plan_of(run), dict[str, object]()
    with suppress(RequestError):  # a damaged plan is a warning elsewhere
        options |= accepted.sweep.engine.table if (accepted := accepted_sweep(run.parent)) else {}
    options |= plan.request.given() if plan and plan.request else {}
    return {key: str(options[key]) for key in PLACES[2:4] if options.get(key)}


def _values(key: str, jobs: Sequence[Settings]) -> list[str]:
    return list(dict.fromkeys(job.get(key, _NONE) for job in jobs))


def _names(jobs: Sequence[Settings]) -> list[str]:
    return list(dict.fromkeys(name for job in jobs for name in job))


def _offer(jobs: Sequence[Settings]) -> str:
    """Return ``keys with several values: data (mnist, cifar10), host (a, b)``."""
    values = {name: _values(name, jobs) for name in _names(jobs) if name != _POOL}
    texts = (f"{name} ({', '.join(map(shortened, of_name))})" for name, of_name in values.items() if len(of_name) > 1)
    return f"keys with several values: {', '.join(texts) or _NONE}"


def _ranks(jobs: Sequence[Settings], keys: Values, base: Values) -> list[list[str]]:
    """Return the values of each key: the base, then models as in the suite, numbers by size, others as measured."""
    if len(base) not in (0, len(keys)):
        raise RequestError(f"{len(base)} values of --base for {len(keys)} of --by", remedy="give one for each, or none")
    names, ranks = sorted({*_names(jobs)} - {_POOL}), []
    for key, first in zip(keys, base or ("",) * len(keys), strict=True):
        values = _values(key, jobs)
        if key not in names:
            raise RequestError(f"--by {key!r} is unknown", remedy=nearest(key, names))
        if len(values) < 2:
            raise RequestError(f"--by {key}: all records have {', '.join(values)}", remedy=_offer(jobs))
        if first and first not in values:
            raise RequestError(f"--base {first!r}: no record has this {key}", remedy=nearest(first, values))
        with suppress(ValueError):
            values.sort(key=float)
        known = (first, *(WORKLOADS.names() if key == "model" else values))
        ranks.append(sorted(values, key=partial(known_first, known)))
    return ranks


def _alike(
    trials: pd.DataFrame, metrics: Sequence[Metric], jobs: Sequence[Settings], keys: Values
) -> Iterator[tuple[Arm, list[CellTrials]]]:
    """Yield, for each target, the cells that agree in all that does not follow from the keys."""
    free: list[str] = []
    different = [*{id(job): job for job in jobs}.values()]
    for name in _names(different):
        # A setting that follows from the keys, or from those before it, parts nothing.
        if name not in (*keys, *PLACES) and not decided_by([*keys, *free], name, different):
            free.append(name)
    groups: dict[Values, dict[Values, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, (target, job) in enumerate(zip(trials["target"].astype(str), jobs, strict=True)):
        values, alike = (tuple(job.get(name, _NONE) for name in names) for names in (keys, free))
        groups[target, *alike][values].append(number)
    for group, of_values in groups.items():
        cells = []
        for values, numbers in of_values.items():
            rows, job = trials.iloc[numbers], jobs[numbers[0]]
            finished, failed = rows[rows["ok"]], rows[have_failed(rows)]
            unit = next(iter(finished["unit"]), None)
            measured = in_units(metrics_of(metrics, job["scenario"], job["model"]), unit)
            cells.append(CellTrials(keys, values, job, finished, {metric.name: metric for metric in measured}, failed))
        yield _arm(group[0], dict(zip(free, group[1:], strict=True)), [cell.settings for cell in cells]), cells


def _arm(target: str, free: Settings, cells: Sequence[Settings]) -> Arm:
    """Return what all cells have in common. Of several profiles one that decides nothing stands for all."""
    columns = {name: _values(name, cells) for name in _COLUMNS}
    model, *job = (values[0] if len(values) == 1 or name == "scenario" else "" for name, values in columns.items())
    undecided = [name for name in columns["profile"] if name in PROFILES and not PROFILES[name].decides]
    named = {**dict(zip(_COLUMNS[1:], job, strict=True)), "profile": (undecided or columns["profile"])[0]}
    differing = [f"{'host' if name == _POOL else name}={free[name]}" for name in free if name not in _COLUMNS]
    return Arm(ComparedJob(**named, variant=shortened(", ".join(differing))), model, target)


def _over_base(arm: Arm, cells: Sequence[CellTrials]) -> Iterator[Unjudged]:
    """Yield every metric of every cell over that of the first, which itself has neither interval nor verdict."""
    base = cells[0]
    for cell in cells:
        notes = substitutes_of(cell.trials) + _differences(base, cell)
        own = arm._replace(cell=cell.name)
        for name, metric in cell.metrics.items():
            logs = cell.logs(name)
            if metric.by_difference:
                yield from _count_over_base(own, name, base, cell, notes)
            elif place := locate(list(logs)):
                counts = {"trials": len(cell.trials), "failed": len(cell.failed)}
                known: dict[str, Any] = {"base": base.name, **counts, "notes": notes}
                contrast = Contrast(kind=BY.name, arm=own, metric=metric, **valued(place), **known)
                ratio = None
                if cell is base:
                    contrast = replace(contrast, ratio=1.0, blocks=place.n)
                elif name in base.metrics and metric.unit == base.metrics[name].unit:
                    contrast, ratio = _over_first(contrast, logs, base.logs(name))
                yield Unjudged(contrast, ratio, (BY.name, name))


def _over_first(
    contrast: Contrast, logs: "pd.Series[float]", base_logs: "pd.Series[float]"
) -> tuple[Contrast, Location | None]:
    """Return a contrast with its blocks, or the runs that it is between, and its log ratio."""
    pairs, ratio = over(logs, base_logs, least=2)
    if len(pairs):
        return replace(contrast, by_block=tuple(map(exp, pairs))), ratio
    runs = len(by_run(base_logs)), len(by_run(logs))
    if ratio is None or ratio.spread is None:
        return replace(contrast, runs=runs), ratio
    return replace(contrast, runs=runs, spread=share_of(ratio.spread)), ratio


def _count_over_base(
    own: Arm, name: str, base: CellTrials, cell: CellTrials, notes: tuple[str, ...]
) -> Iterator[Unjudged]:
    """Yield a metric that can be zero, of a cell less that of the first; judged by itself."""
    metric, numbers = cell.metrics[name], cell.logs(name)
    place = locate(list(numbers), trim=0)
    if place is None:
        return
    counts = {"trials": len(cell.trials), "failed": len(cell.failed)}
    known: dict[str, Any] = {"base": base.name, **counts, "notes": notes}
    contrast = Contrast(kind=BY.name, arm=own, metric=metric, **valued(place, by_difference=True), **known)
    if cell is not base and name in base.metrics and metric == base.metrics[name]:
        first = base.logs(name)
        shared = (numbers - first).dropna()
        difference_to_first = (
            inside_blocks(list(shared)) if len(shared) > 1 else between_runs(list(first), list(numbers))
        )
        if difference_to_first:
            (verdict,) = judge_differences([difference_to_first], more_is_better=metric.more_is_faster)
            contrast = replace(contrast, difference=difference_to_first, blocks=difference_to_first.n, verdict=verdict)
    yield Unjudged(contrast, None, (BY.name, name))


def _over_others(arm: Arm, cells: Sequence[CellTrials]) -> Iterator[Unjudged]:
    """Yield how each machine differs from the median of the others, by what decides and by every probe."""
    for metric in by_ratio(cells[0].metrics.values()):
        name = metric.name
        if (metric.of_probe and not metric.supporting) or name == arm.job.traits.deciding[0]:
            places = {cell.name: place for cell in cells if (place := locate(list(cell.logs(name))))}
            for values, place in places.items() if len(places) >= _LEAST_MACHINES else ():
                others = _median([other for of, other in places.items() if of != values])
                own = arm._replace(cell=values)
                contrast = Contrast(kind=MACHINE.name, arm=own, metric=metric, value=place.ratio, base=(_OTHERS,))
                # All probes are one family.
                yield Unjudged(contrast, difference(others, place), (MACHINE.name, "" if metric.of_probe else name))


def _median(places: Sequence[Location]) -> Location:
    centre, n = median(place.centre for place in places), sum(place.n for place in places)
    errors = [place.standard_error for place in places if place.standard_error is not None]
    error = _MEDIAN_ERROR * math.hypot(*errors) / len(places) if len(errors) == len(places) else None
    return Location(centre, error, n - len(places), n)


def _differences(base: CellTrials, cell: CellTrials) -> tuple[str, ...]:
    """Return what else differs between two cells: settings that follow from no key alone, and facts of both sides."""
    sides = base.settings, cell.settings
    names = [name for name in _names(sides) if name not in (*base.keys, *PLACES, _POOL)]
    settings = [
        f"{name} {shortened(' -> '.join(side.get(name, _NONE) for side in sides))}"
        for name in names
        if len(_values(name, sides)) > 1 and not {*base.keys} & {*may_decide(name)}
    ]
    facts = (side.trials["facts"].unique() for side in (base, cell))
    chosen = tuple(f" {' -> '.join(pair)}" for pair in zip(base.values, cell.values, strict=True))
    return (*settings, *(text for text in changes(*facts) if not text.endswith(chosen)))
