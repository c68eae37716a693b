"""Contrasts between cells: each value of a key over the first one, on every target. They are never overheads.

A key is a setting of the job, where it ran, or the rate of requests inside a trial. Both sides agree in all settings
but the keys and whatever follows from these, which is named at the ratio. Cells of one sweep are paired by (sweep,
block); all others are independent samples: see ``statistics.two_samples``. Machines are also compared with the median
of the others.
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

from analysis.compare.combined import by_run, over, unknown_spread
from analysis.compare.contrast_kinds import BY, MACHINE
from analysis.compare.pairing import (
    decided_by,
    have_failed,
    may_decide,
    order,
    plain,
    substitutes_of,
)
from analysis.compare.rates import RATE, at_each_rate
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
from analysis.compare.validity import changes, shortened
from analysis.compare.verdicts import Unjudged, judged, judged_counts, valued, with_standing
from analysis.load.metrics import Metric, by_ratio, in_units, metrics_of
from analysis.load.plans import Terms, plan_of, terms_of
from analysis.load.records import Records, machine_labels
from analysis.statistics.counts import between_runs, inside_blocks
from analysis.statistics.power import TRIM
from analysis.statistics.ratios import Location, exp
from analysis.statistics.two_samples import Runs, difference, levels
from analysis.warnings.conditions import disturbed
from analysis.warnings.findings import failed_trials
from analysis.warnings.types import AnalysisWarning
from suite.errors import RequestError, nearest
from suite.job.job import IN_COLUMNS, PLACES, ComparisonKey
from suite.job.profiles import PROFILES
from suite.registries import WORKLOADS
from suite.results.runs import accepted_sweep

SOURCE = "source"
"""The column, in some tables, that tells a rerun from the records that it is held against."""
_NONE = "none"
_POOL = "pool"
_COLUMNS = ("model", *(name for name in IN_COLUMNS if name != "model"))
"""The settings in columns of the table, the model first: most others follow from it."""
_OTHERS = "the median of the others"
_LEAST_MACHINES = 3
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The standard error of the median of many normal values over that of their mean."""

Values = tuple[str, ...]
"""One value for each key."""


def compare_by(records: Records, keys: Values, base: Values = (), *, margin: float | None = None) -> Comparison:
    """Compare the values of ``keys``, each with ``base`` or the first, on every target and for every metric.

    Raises RequestError for an unknown key, for one with a single value, for a base that no record has, and where the
    plans state different margins and none is given.
    """
    if RATE in keys:
        records = at_each_rate(records)
    placed = _placed(plain(records.trials))
    trials = placed.sort_values("started_at", kind="stable")
    stated = terms_of(records.directories, margin)
    terms = Terms(stated.margin)
    jobs = settings_of(trials)
    ranks = _ranks(jobs, keys, base)
    formed: list[Unjudged] = []
    failed: list[AnalysisWarning] = []
    compared: dict[Arm, list[CellTrials]] = {}
    for arm, tried in _alike(trials, records.metrics, jobs, keys):
        failed += _failures(arm, tried)
        cells = _ranked(tried, ranks)
        if len(cells) > 1 and cells[0].values[: len(base)] == base:
            compared[arm] = cells
            formed += _over_base(arm, cells)
            if keys == ("machine",):
                formed += _over_others(arm, cells)
    if not formed:
        reasons = [f"no two records agree in all but {' and '.join(keys)}"]
        reasons += [warning.finding for warning in failed]
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


def _ranked(cells: Sequence[CellTrials], ranks: Sequence[list[str]]) -> list[CellTrials]:
    """Return the cells with a finished trial, in the order of the values of each key."""

    def rank(cell: CellTrials) -> list[int]:
        return list(map(list.index, ranks, cell.values))

    finished = [cell for cell in cells if len(cell.trials)]
    return sorted(finished, key=rank)


def stand_between(
    formed: Sequence[Unjudged],
    compared: Mapping[Arm, Sequence[CellTrials]],
    terms: Terms,
) -> tuple[Contrast, ...]:
    """Return contrasts between cells with their verdicts, as far as the trials of the cells carry them."""
    disturbed_sides: dict[GroupKey, dict[str, tuple[Disturbed, ...]]] = defaultdict(dict)
    for arm, cells in compared.items():
        for cell in cells:
            of_cell = disturbed(cell.trials, ["target", "model"])
            side = ", ".join((arm.target, *cell.name))
            group = arm[:2]
            disturbed_sides[group][side] = tuple(chain(*of_cell.values()))
    circumstances = {group: Circumstances(disturbed=of_cells) for group, of_cells in disturbed_sides.items()}
    with_verdicts = judged(formed, terms)
    rows = judged_counts(with_verdicts, lambda row: row.metric.name)
    return with_standing(rows, circumstances)


def _placed(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials; those that failed have the place of others of their run, if these have one."""
    places = trials[["hostname", "facts"]].astype(object)
    runs = trials["run_id"].astype(str)
    targets = trials["target"].astype(str)
    of_run = places.where(trials["ok"]).groupby([runs, targets])
    failed = ~trials["ok"].astype(bool)
    hosts = of_run["hostname"].transform("nunique")
    placeless = failed & (hosts == 1)
    place_of_run = of_run.transform("first")
    completed = places.where(~placeless, place_of_run)
    return trials.assign(**completed)


def _failures(arm: Arm, cells: Sequence[CellTrials]) -> Iterator[AnalysisWarning]:
    """Yield the failed trials of each cell: what did not finish is in no ratio."""
    for cell in cells:
        if len(cell.failed):
            where = ", ".join((arm.target, *cell.name))
            yield failed_trials(
                cell.settings["model"],
                where,
                cell.failed,
                cell.of_trials,
            )


def settings_of(trials: pd.DataFrame) -> list[Settings]:
    """Return the settings of each trial and its ``PLACES``, by name: one object for all trials that agree in them."""
    host = trials["hostname"].astype(object).fillna(_NONE)
    facts = trials["facts"].astype(object)
    runs = trials["path"].map(lambda path: Path(path).parents[1])
    # The node of the cluster, or the machine of the inventory, that the target was opened on.
    names = facts.map(lambda of_trial: of_trial.by_path.get("machine") or of_trial.by_path.get("pod.node"))
    ids = facts.map(lambda of_trial: of_trial.by_path.get("machine_key"))
    labels = machine_labels(trials["started_at"], ids, names)
    machines = pd.Series(labels, trials.index, dtype=object)
    sites = {run: _site(run) for run in runs.unique()}
    context = runs.map(lambda run: sites[run].get("context"))
    inventory = runs.map(lambda run: sites[run].get("inventory"))
    further = [name for name in (RATE, SOURCE) if name in trials]
    columns = [*_COLUMNS, _POOL, *further]
    places = trials[columns].assign(
        host=host,
        machine=machines.fillna(host),
        context=context.fillna(_NONE),
        inventory=inventory.fillna(_NONE),
        place=context.fillna(inventory).fillna(host),
    )
    texts_of_trials = places.astype(str).itertuples(index=False, name=None)
    rows = list(zip(trials["settings"], texts_of_trials, strict=True))
    jobs: dict[tuple[ComparisonKey, Values], Settings] = {}
    for key, texts in dict.fromkeys(rows):
        # An image is built again at will; its userland is one of the facts.
        job = dict(key.without(["image"]).pairs)
        of_place = dict(zip(places.columns, texts, strict=True))
        jobs[key, texts] = of_place | job
    return [jobs[row] for row in rows]


def _site(run: Path) -> dict[str, str]:
    """Return the context and the inventory of a run, by its plan or that of its sweep."""
    plan = plan_of(run)
    options = dict[str, object]()
    with suppress(RequestError):  # a damaged plan is a warning elsewhere
        accepted = accepted_sweep(run.parent)
        if accepted:
            options |= accepted.sweep.engine.table
    if plan and plan.request:
        options |= plan.request.given()
    named = [key for key in ("context", "inventory") if options.get(key)]
    return {key: str(options[key]) for key in named}


def _values(key: str, jobs: Sequence[Settings]) -> list[str]:
    values = (job.get(key, _NONE) for job in jobs)
    return list(dict.fromkeys(values))


def _names(jobs: Sequence[Settings]) -> list[str]:
    names = chain.from_iterable(jobs)
    return list(dict.fromkeys(names))


def _offer(jobs: Sequence[Settings]) -> str:
    """Return ``keys with several values: data (mnist, cifar10), host (a, b)``."""
    keys = []
    for name in _names(jobs):
        values = _values(name, jobs)
        if name != _POOL and len(values) > 1:
            listed = ", ".join(map(shortened, values))
            keys.append(f"{name} ({listed})")
    offered = ", ".join(keys)
    return f"keys with several values: {offered or _NONE}"


def _ranks(jobs: Sequence[Settings], keys: Values, base: Values) -> list[list[str]]:
    """Return the values of each key: the base, then models as in the suite, numbers by size, others as measured."""
    if len(base) not in (0, len(keys)):
        raise RequestError(
            f"{len(base)} values of --base for {len(keys)} of --by",
            remedy="give one for each, or none",
        )
    names = sorted({*_names(jobs)} - {_POOL})
    bases = base or ("",) * len(keys)
    ranks = []
    for key, first in zip(keys, bases, strict=True):
        values = _values(key, jobs)
        if key not in names:
            raise RequestError(f"--by {key!r} is unknown", remedy=nearest(key, names))
        if len(values) < 2:
            raise RequestError(
                f"--by {key}: all records have {', '.join(values)}",
                remedy=_offer(jobs),
            )
        if first and first not in values:
            raise RequestError(
                f"--base {first!r}: no record has this {key}",
                remedy=nearest(first, values),
            )
        with suppress(ValueError):
            values.sort(key=float)
        in_order = WORKLOADS.names() if key == "model" else values
        rank = partial(known_first, (first, *in_order))
        ranks.append(sorted(values, key=rank))
    return ranks


def _alike(
    trials: pd.DataFrame,
    metrics: Sequence[Metric],
    jobs: Sequence[Settings],
    keys: Values,
) -> Iterator[tuple[Arm, list[CellTrials]]]:
    """Yield, for each target, the cells that agree in all that does not follow from the keys."""
    free = _free_settings(jobs, keys)
    targets = trials["target"].astype(str)
    groups: dict[Values, dict[Values, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, (target, job) in enumerate(zip(targets, jobs, strict=True)):
        group = (target, *_values_of(job, free))
        values = _values_of(job, keys)
        groups[group][values].append(number)
    for (target, *alike), by_values in groups.items():
        numbers_of_all = list(chain(*by_values.values()))
        everything = trials.iloc[numbers_of_all]
        cells = []
        for values, numbers in by_values.items():
            job = jobs[numbers[0]]
            of_model = metrics_of(metrics, job["scenario"], job["model"])
            compared = [metric.compared_in(everything) for metric in of_model]
            of_cell = trials.iloc[numbers]
            cells.append(_cell(keys, values, job, of_cell, compared))
        settings = dict(zip(free, alike, strict=True))
        settings_of_cells = [cell.settings for cell in cells]
        arm = _arm(target, settings, settings_of_cells)
        yield arm, cells


def _free_settings(jobs: Sequence[Settings], keys: Values) -> list[str]:
    """Return the settings that follow neither from the keys nor from those before them."""
    by_identity = {id(job): job for job in jobs}
    different = list(by_identity.values())
    free: list[str] = []
    for name in _names(different):
        if name in keys or name in PLACES:
            continue
        if not decided_by([*keys, *free], name, different):
            free.append(name)
    return free


def _values_of(job: Settings, names: Sequence[str]) -> Values:
    return tuple(job.get(name, _NONE) for name in names)


def _cell(keys: Values, values: Values, job: Settings, trials: pd.DataFrame, compared: Sequence[Metric]) -> CellTrials:
    """Return the trials of one cell, with its metrics in their units."""
    finished = trials[trials["ok"]]
    failed = trials[have_failed(trials)]
    unit = next(iter(finished["unit"]), None)
    metrics = {metric.name: metric for metric in in_units(compared, unit)}
    return CellTrials(
        keys,
        values,
        job,
        finished,
        metrics,
        failed,
    )


def _arm(target: str, free: Settings, cells: Sequence[Settings]) -> Arm:
    """Return what all cells have in common. Of several profiles one that decides nothing stands for all."""
    shared: dict[str, str] = {}
    for name in _COLUMNS:
        first, *others = _values(name, cells)
        shared[name] = first if not others or name == "scenario" else ""
    model = shared.pop("model")
    profiles = _values("profile", cells)
    known = [name for name in profiles if name in PROFILES]
    undecided = [name for name in known if not PROFILES[name].decides]
    shared["profile"] = (undecided or profiles)[0]
    differing = []
    for name, value in free.items():
        if name not in _COLUMNS:
            label = "host" if name == _POOL else name
            differing.append(f"{label}={value}")
    variant = shortened(", ".join(differing))
    job = ComparedJob(**shared, variant=variant)
    return Arm(job, model, target)


def _over_base(arm: Arm, cells: Sequence[CellTrials]) -> Iterator[Unjudged]:
    """Yield every metric of every cell over that of the first, which itself has neither interval nor verdict."""
    base = cells[0]
    names = chain.from_iterable(cell.metrics for cell in cells)
    levels_of = {name: _levels(cells, name) for name in dict.fromkeys(names)}
    for cell in cells:
        notes = substitutes_of(cell.trials) + _differences(base, cell)
        for name, metric in cell.metrics.items():
            level = levels_of[name].get(cell.name)
            if level:
                row = between_cells(arm, base, cell, name)
                value = valued(level, by_difference=metric.by_difference)
                contrast = replace(row.contrast, **value, notes=notes)
                yield row._replace(contrast=contrast)


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
        if not metric.by_difference:
            contrast = replace(contrast, ratio=1.0, blocks=len(logs))
        return Unjudged(contrast, None, family)
    if name not in base.metrics or metric.unit != base.metrics[name].unit:
        return Unjudged(contrast, None, family)
    base_logs = base.logs(name)
    if metric.by_difference:
        contrast = _less_base(contrast, logs, base_logs)
        return Unjudged(contrast, None, family)
    pairs, ratio = over(logs, base_logs, least=2)
    if len(pairs):
        contrast = replace(contrast, by_block=tuple(map(exp, pairs)))
    else:
        contrast = _of_runs(contrast, ratio, by_run(base_logs), by_run(logs))
    return Unjudged(contrast, ratio, family)


def _less_base(contrast: Contrast, numbers: "pd.Series[float]", base: "pd.Series[float]") -> Contrast:
    """Return a contrast of a metric that can be zero."""
    shared = list((numbers - base).dropna())
    if len(shared) > 1:
        return replace(contrast, difference=inside_blocks(shared))
    base_runs = by_run(base)
    runs = by_run(numbers)
    difference = between_runs(base_runs, runs)
    return replace(
        contrast,
        difference=difference,
        runs=(len(base_runs), len(runs)),
        spread=difference.spread if difference else None,
    )


def _of_runs(contrast: Contrast, ratio: Location | None, base: Runs, runs: Runs) -> Contrast:
    """Return a contrast between runs with their numbers, and the spread between them if it is known."""
    spread = ratio.spread_share if ratio else None
    return replace(contrast, runs=(len(base), len(runs)), spread=spread)


def _levels(cells: Sequence[CellTrials], name: str) -> dict[Values, Location]:
    """Return the level of a metric in each cell that has it, by the cell's name."""
    measured = [cell for cell in cells if name in cell.metrics]
    counted = any(cell.metrics[name].by_difference for cell in measured)
    trim = 0 if counted else TRIM
    runs = [by_run(cell.logs(name)) for cell in measured]
    levels_of_cells = levels(runs, trim=trim)
    by_cell = zip(measured, levels_of_cells, strict=True)
    return {cell.name: level for cell, level in by_cell if level}


def _over_others(arm: Arm, cells: Sequence[CellTrials]) -> Iterator[Unjudged]:
    """Yield how each machine differs from the median of the others, by what decides and by every probe."""
    deciding = arm.job.traits.deciding[0]
    for metric in by_ratio(cells[0].metrics.values()):
        if metric.name != deciding and (metric.supporting or not metric.of_probe):
            continue
        by_machine = _levels(cells, metric.name)
        if len(by_machine) < _LEAST_MACHINES:
            continue
        runs = {}
        for cell in cells:
            if cell.name in by_machine:
                logs = cell.logs(metric.name)
                runs[cell.name] = by_run(logs)
        yield from _over_median(arm, metric, by_machine, runs)


def _over_median(
    arm: Arm,
    metric: Metric,
    by_machine: Mapping[Values, Location],
    runs: Mapping[Values, Runs],
) -> Iterator[Unjudged]:
    """Yield each machine over the median of the others; all probes are one family."""
    family = (MACHINE.name, "" if metric.of_probe else metric.name)
    for machine, level in by_machine.items():
        others = [name for name in by_machine if name != machine]
        levels_of_others = [by_machine[name] for name in others]
        ratio = difference(_median(levels_of_others), level)
        contrast = Contrast(
            kind=MACHINE.name,
            arm=arm._replace(cell=machine),
            metric=metric,
            value=level.ratio,
            base=(_OTHERS,),
        )
        runs_of_others = list(chain.from_iterable(runs[name] for name in others))
        contrast = _of_runs(contrast, ratio, runs_of_others, runs[machine])
        yield Unjudged(contrast, ratio, family)


def _median(by_machine: Sequence[Location]) -> Location:
    """Return the median of levels, with the error that it has of normal values."""
    centre = median(level.centre for level in by_machine)
    n = sum(level.n for level in by_machine)
    machines = len(by_machine)
    errors = [level.standard_error for level in by_machine if level.standard_error is not None]
    error = None
    if len(errors) == machines:
        error = _MEDIAN_ERROR * math.hypot(*errors) / machines
    spread = by_machine[0].spread
    if spread is None:
        freedom: float = n - machines
    else:
        freedom = max(level.degrees_of_freedom for level in by_machine)
    return Location(centre, error, freedom, n, spread)


def _differences(base: CellTrials, cell: CellTrials) -> tuple[str, ...]:
    """Return what else differs between two cells: settings that follow from no key alone, and facts of both sides."""
    sides = (base.settings, cell.settings)
    settings = []
    for name in _names(sides):
        if name in (*base.keys, *PLACES, _POOL):
            continue
        values = _values(name, sides)
        follows = {*base.keys} & {*may_decide(name)}
        if len(values) > 1 and not follows:
            change = " -> ".join(values)
            settings.append(f"{name} {shortened(change)}")
    pairs = zip(base.values, cell.values, strict=True)
    chosen = tuple(f" {first} -> {second}" for first, second in pairs)
    base_facts = base.trials["facts"].unique()
    cell_facts = cell.trials["facts"].unique()
    facts = changes(base_facts, cell_facts)
    further = [text for text in facts if not text.endswith(chosen)]
    return (*settings, *further)
