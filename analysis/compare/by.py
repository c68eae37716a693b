"""Contrasts between cells: each value of a key over the first one, on every target. They are never overheads.

A key is a setting of the job, or where it ran. Both sides agree in all settings but the keys and whatever follows from
these, which is named at the ratio. Cells of one sweep are paired by (sweep, block); all others are independent samples:
see ``statistics.two_samples``. Machines are also compared with the median of the others.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

import pandas as pd

from analysis.compare.contrasts import (
    BY,
    MACHINE,
    Unjudged,
    by_run,
    judged,
    judged_counts,
    order,
    over,
    unknown_spread,
    valued,
)
from analysis.compare.pairing import decided_by, have_failed, may_decide, plain, substitutes_of
from analysis.compare.results import (
    Arm,
    CellTrials,
    Circumstances,
    ComparedJob,
    Comparison,
    Contrast,
    Disturbed,
    GroupKey,
    Settings,
    known_first,
)
from analysis.compare.standing import with_standing
from analysis.compare.validity import changes, shortened
from analysis.load.metrics import Metric, by_ratio, in_units, metrics_of
from analysis.load.plans import Terms, plan_of, terms_of
from analysis.load.records import Records, machine_labels
from analysis.statistics.counts import between_runs, inside_blocks
from analysis.statistics.margins import share_of
from analysis.statistics.power import TRIM
from analysis.statistics.ratios import Location, exp
from analysis.statistics.two_samples import Runs, difference, levels
from analysis.warnings.conditions import disturbed
from analysis.warnings.findings import failed_trials
from analysis.warnings.types import AnalysisWarning
from suite.errors import RequestError, nearest
from suite.job.job import IN_COLUMNS, PLACES
from suite.job.profiles import PROFILES
from suite.registries import WORKLOADS
from suite.results.runs import accepted_sweep

_NONE, _POOL = "none", "pool"
_COLUMNS = ("model", *(name for name in IN_COLUMNS if name != "model"))
"""The settings in columns of the table, the model first: most others follow from it."""
_OTHERS, _LEAST_MACHINES = "the median of the others", 3
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The standard error of the median of many normal values over that of their mean."""

Values = tuple[str, ...]
"""One value for each key."""


def compare_by(records: Records, keys: Values, base: Values = (), *, margin: float | None = None) -> Comparison:
    """Compare the values of ``keys``, each with ``base`` or the first, on every target and for every metric.

    Raises RequestError for an unknown key, for one with a single value, for a base that no record has, and where the
    plans state different margins and none is given.
    """
    trials = _placed(plain(records.trials)).sort_values("started_at", kind="stable")
    terms = Terms(terms_of(records.directories, margin).margin)
    jobs = settings_of(trials)
    ranks = _ranks(jobs, keys, base)
    formed: list[Unjudged] = []
    failed: list[AnalysisWarning] = []
    compared: dict[Arm, list[CellTrials]] = {}
    for arm, tried in _alike(trials, records.metrics, jobs, keys):
        failed += _failures(arm, tried)
        cells = [cell for cell in tried if len(cell.trials)]
        cells.sort(key=lambda cell: [rank.index(value) for rank, value in zip(ranks, cell.values, strict=True)])
        if len(cells) > 1 and cells[0].values[: len(base)] == base:
            compared[arm] = cells
            formed += _over_base(arm, cells)
            formed += _over_others(arm, cells) if keys == ("machine",) else ()
    if not formed:
        reasons = [f"no two records agree in all but {' and '.join(keys)}", *(warning.finding for warning in failed)]
        raise RequestError("; ".join(reasons), remedy=_offer(jobs))
    # Trainings are the question; the probes after them explain.
    judged_rows = stand_between(formed, compared, terms)
    rows = sorted(judged_rows, key=lambda row: (row.job.traits.probes, order(row.arm)))
    return Comparison(
        runs=tuple(records.trials["run_id"].unique()),
        groups=(),
        contrasts=tuple(rows),
        warnings=(*records.warnings, *failed, *unknown_spread(rows)),
        terms={arm.job: terms for arm in compared},
        cells=compared,
        warmup_trials=records.warmup_trials,
        places=records.places,
    )


def stand_between(
    formed: Sequence[Unjudged], compared: Mapping[Arm, Sequence[CellTrials]], terms: Terms
) -> tuple[Contrast, ...]:
    """Return contrasts between cells with their verdicts, as far as the trials of the cells carry them."""
    around: dict[GroupKey, dict[str, tuple[Disturbed, ...]]] = defaultdict(dict)
    for arm, cells in compared.items():
        for cell in cells:
            of_cell = disturbed(cell.trials, ["target", "model"])
            around[arm[:2]][", ".join((arm.target, *cell.name))] = tuple(chain(*of_cell.values()))
    circumstances = {key: Circumstances(disturbed=of_cells) for key, of_cells in around.items()}
    rows = judged_counts(judged(formed, terms), lambda row: row.metric.name)
    return with_standing(rows, circumstances)


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


def settings_of(trials: pd.DataFrame) -> list[Settings]:
    """Return the settings of each trial and its ``PLACES``, by name: one object for all trials that agree in them."""
    host = trials["hostname"].astype(object).fillna(_NONE)
    facts, runs = trials["facts"].astype(object), trials["path"].map(lambda path: Path(path).parents[1])
    # The node of the cluster, or the machine of the inventory, that the target was opened on.
    names = facts.map(lambda own: own.by_path.get("machine") or own.by_path.get("pod.node"))
    ids = facts.map(lambda own: own.by_path.get("machine_key"))
    labels = machine_labels(trials["started_at"], ids, names)
    machine = pd.Series(labels, trials.index, dtype=object).fillna(host)
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
        everything = trials.iloc[[number for numbers in of_values.values() for number in numbers]]
        for values, numbers in of_values.items():
            rows, job = trials.iloc[numbers], jobs[numbers[0]]
            finished, failed = rows[rows["ok"]], rows[have_failed(rows)]
            unit = next(iter(finished["unit"]), None)
            of_model = metrics_of(metrics, job["scenario"], job["model"])
            measured = in_units([metric.compared_in(everything) for metric in of_model], unit)
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
    places = {name: _levels(cells, name) for name in dict.fromkeys(chain(*(cell.metrics for cell in cells)))}
    for cell in cells:
        notes = substitutes_of(cell.trials) + _differences(base, cell)
        for name, metric in cell.metrics.items():
            if place := places[name].get(cell.name):
                row = between_cells(arm, base, cell, name)
                value = valued(place, by_difference=metric.by_difference)
                yield row._replace(contrast=replace(row.contrast, **value, notes=notes))


def between_cells(arm: Arm, base: CellTrials, cell: CellTrials, name: str) -> Unjudged:
    """Return a metric of a cell over that of another; without a ratio where it has none in the same unit."""
    metric = cell.metrics[name]
    contrast = Contrast(
        kind=BY.name,
        arm=arm._replace(cell=cell.name),
        metric=metric,
        base=base.name,
        trials=len(cell.trials),
        failed=len(cell.failed),
    )
    family = BY.name, name
    logs = cell.logs(name)
    if cell is base:
        own = contrast if metric.by_difference else replace(contrast, ratio=1.0, blocks=len(logs))
        return Unjudged(own, None, family)
    if name not in base.metrics or metric.unit != base.metrics[name].unit:
        return Unjudged(contrast, None, family)
    base_logs = base.logs(name)
    if metric.by_difference:
        return Unjudged(_less_base(contrast, logs, base_logs), None, family)
    pairs, ratio = over(logs, base_logs, least=2)
    if len(pairs):
        return Unjudged(replace(contrast, by_block=tuple(map(exp, pairs))), ratio, family)
    return Unjudged(_of_runs(contrast, ratio, by_run(base_logs), by_run(logs)), ratio, family)


def _less_base(contrast: Contrast, numbers: "pd.Series[float]", base: "pd.Series[float]") -> Contrast:
    """Return a contrast of a metric that can be zero."""
    shared = list((numbers - base).dropna())
    if len(shared) > 1:
        return replace(contrast, difference=inside_blocks(shared))
    runs = by_run(base), by_run(numbers)
    difference = between_runs(*runs)
    spread = difference.spread if difference else None
    return replace(contrast, difference=difference, runs=(len(runs[0]), len(runs[1])), spread=spread)


def _of_runs(contrast: Contrast, ratio: Location | None, base: Runs, own: Runs) -> Contrast:
    """Return a contrast between runs with their numbers, and the spread between them if it is known."""
    known = None if ratio is None or ratio.spread is None else share_of(ratio.spread)
    return replace(contrast, runs=(len(base), len(own)), spread=known)


def _levels(cells: Sequence[CellTrials], name: str) -> dict[Values, Location]:
    """Return the level of a metric in each cell that has it, by the cell's name."""
    measured = [cell for cell in cells if name in cell.metrics]
    counted = any(cell.metrics[name].by_difference for cell in measured)
    places = levels([by_run(cell.logs(name)) for cell in measured], trim=0 if counted else TRIM)
    return {cell.name: place for cell, place in zip(measured, places, strict=True) if place}


def _over_others(arm: Arm, cells: Sequence[CellTrials]) -> Iterator[Unjudged]:
    """Yield how each machine differs from the median of the others, by what decides and by every probe."""
    deciding = arm.job.traits.deciding[0]
    for metric in by_ratio(cells[0].metrics.values()):
        counts = metric.name == deciding or (metric.of_probe and not metric.supporting)
        places = _levels(cells, metric.name) if counts else {}
        if len(places) >= _LEAST_MACHINES:
            runs = {cell.name: by_run(cell.logs(metric.name)) for cell in cells if cell.name in places}
            yield from _over_median(arm, metric, places, runs)


def _over_median(
    arm: Arm, metric: Metric, places: Mapping[Values, Location], runs: Mapping[Values, Runs]
) -> Iterator[Unjudged]:
    """Yield each machine over the median of the others; all probes are one family."""
    family = MACHINE.name, "" if metric.of_probe else metric.name
    for own, place in places.items():
        others = [other for other in places if other != own]
        ratio = difference(_median([places[other] for other in others]), place)
        machine = arm._replace(cell=own)
        contrast = Contrast(kind=MACHINE.name, arm=machine, metric=metric, value=place.ratio, base=(_OTHERS,))
        of_others = [*chain.from_iterable(runs[other] for other in others)]
        yield Unjudged(_of_runs(contrast, ratio, of_others, runs[own]), ratio, family)


def _median(places: Sequence[Location]) -> Location:
    """Return the median of levels, with the error that it has of normal values."""
    centre = median(place.centre for place in places)
    n = sum(place.n for place in places)
    errors = [place.standard_error for place in places if place.standard_error is not None]
    error = _MEDIAN_ERROR * math.hypot(*errors) / len(places) if len(errors) == len(places) else None
    spread = places[0].spread
    freedom = n - len(places) if spread is None else max(place.degrees_of_freedom for place in places)
    return Location(centre, error, freedom, n, spread)


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
