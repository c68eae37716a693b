"""Records to one table: a row per trial, failed ones too.

Made for 100,000 records: of each file only the fields that the tables need are checked and kept. What else a record
holds, above all the steps, is read again from ``path`` by those who need it.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from analysis.load.bursts import check_bursts, settled
from analysis.load.computed import computed
from analysis.load.metrics import METRICS, Metric, spread
from analysis.load.plans import extendable
from analysis.warnings.types import AnalysisWarning, skipped_record
from suite.differ import UNKNOWN, machine_of
from suite.errors import RequestError
from suite.job.command import UNITS
from suite.job.job import Job
from suite.records.columns import AUDIT, FURTHER, TABLE, Field
from suite.records.differences import GPU_SETTINGS, HOST, INSIDE, facts
from suite.records.environment import Environment
from suite.records.reader import NewerRecordError, Projection, UnusableRecordError, environments_of, job_of, remembered
from suite.results.files import is_shortage, open_small
from suite.results.quality import FILE as QUALITY
from suite.results.quality import RunQuality, read_quality
from suite.results.runs import runs_below, sweep_around
from suite.results.store import MANIFEST

RECORD = Projection((*TABLE, *AUDIT), FURTHER)
COLUMNS = (*(column.name for column in TABLE), "computed", "facts")
"""The columns of a table of trials: those of ``suite.records.columns``, the losses and weights that a trial
``computed``, and the ``facts`` of its environments that ``suite.records.differences`` treats."""
EVIDENCE = (*(column.name for column in AUDIT), "job", "turn_steps")
"""The columns that the audit needs besides; ``job`` is a ``SharedJob``, ``turn_steps`` are the seconds of each step of
a trial that takes turns."""
_DERIVED = ("computed", "facts", "job", "turn_steps", "path")
_DATA_FACTS = ("sha256", "decoder", "loader_workers", "filesystem", "device")
_CHUNK = 1 << 16
_SHOWN_OF_ID = 6
"""The digits of a machine's ID that distinguish machines of one name."""


@dataclass(frozen=True, eq=False)
class SharedJob:
    """The job of many records: one object for all that have the same text of it."""

    job: Job


def of_jobs(trials: pd.DataFrame, fact: Callable[[Job], Any]) -> "pd.Series[Any]":
    """Return a fact of the job of each trial, which is formed once for each job."""
    return trials["job"].map({shared: fact(shared.job) for shared in trials["job"].unique()})


@dataclass(frozen=True, eq=False)
class Facts:
    """The facts of a trial's environments by their paths: one object for all trials that have the same."""

    by_path: Mapping[str, Any]


@lru_cache(maxsize=10_000)
def _shared(*texts: str) -> Facts:
    return Facts({path: value for text in texts for path, value in json.loads(text).items()})


@dataclass(frozen=True)
class Records:
    """The trials of one or more runs that count: those of warm-up blocks are left out by that rule.

    ``trials`` has one row per trial; its columns are ``COLUMNS``, ``path``, the record's file, and in place of
    ``metrics`` a column of each of the ``metrics``, ``sweep``, the directory of the sweep whose cells share their
    blocks, or the identity of a run alone, ``pool``, the hosts whose trials are samples of one thing (they share a run
    or a sweep), and ``forced``, which the audit fills. Absent values are missing, never zero. ``settings`` is the
    comparison key, ``substitutes`` holds one per line.
    """

    trials: pd.DataFrame
    directories: tuple[Path, ...]
    warnings: tuple[AnalysisWarning, ...]
    metrics: tuple[Metric, ...] = METRICS
    warmup_trials: int = 0
    """The number of trials of warm-up blocks that were left out."""
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False, repr=False)
    """Every record that was read, those of warm-up blocks and copies too, with the columns that the audit needs."""
    places: tuple[Path, ...] = ()
    """The directories of runs and sweeps as they were named."""


def load(directories: Sequence[Path], *, warm_ups: bool = False) -> Records:
    """Read DIR/trials/*.json of every directory; of a sweep's directory, of each of its cells.

    ``warm_ups`` leaves the trials of warm-up blocks in. A file that is no usable record is left out with a
    warning. Raises RequestError if a directory does not exist or if there is no usable record at all.
    """
    rows: list[tuple[Any, ...]] = []
    warnings: list[AnalysisWarning] = []
    normal = (Path(os.path.normpath(directory)) for directory in directories)
    unique = list(dict.fromkeys(chain.from_iterable(map(runs_below, normal))))
    measured: dict[tuple[object, ...], tuple[object, ...]] = {}
    for directory in unique:
        before = len(rows)
        quality, unusable = _quality(directory)
        warnings += unusable or _without_others(quality, measured, directory)
        for path in _files(directory):
            row = _row(path, quality)
            if isinstance(row, AnalysisWarning):
                warnings.append(row)
            else:
                rows.append(row)
        if len(rows) == before:
            advice = f"go on with its run (bench run … --out {directory}), or leave it out"
            warning = AnalysisWarning(
                "empty-run",
                f"{directory} holds no usable record",
                advice,
            )
            warnings.append(warning)
    if not rows:
        raise _nothing_usable(unique, warnings)
    records = _table(rows, tuple(unique), warnings, warm_ups)
    return replace(records, places=tuple(dict.fromkeys(directories)))


def _nothing_usable(directories: Sequence[Path], warnings: Sequence[AnalysisWarning]) -> RequestError:
    where = ", ".join(map(str, directories))
    skipped = [warning.message for warning in warnings if warning.kind == "skipped-record"]
    why = ""
    if skipped:
        why = f" ({len(skipped)} files are left out; {skipped[0]})"
    alone = extendable(directories)
    remedy = "make some with: bench run"
    if alone and not skipped:
        remedy = f"go on with: bench run --continue {alone}"
    return RequestError(f"no usable record in {where}{why}", remedy=remedy)


def _quality(directory: Path) -> tuple[RunQuality, list[AnalysisWarning]]:
    """Return the quality of a run's models; of a foreign or newer file none, and a warning."""
    try:
        return read_quality(directory), []
    except RequestError as error:
        why = "it is not of this suite, or of a newer one"
        return RunQuality(features={}), [skipped_record(directory / QUALITY, why, str(error.remedy))]


def _without_others(
    quality: RunQuality, measured: dict[tuple[object, ...], tuple[object, ...]], directory: Path
) -> Iterator[AnalysisWarning]:
    """Leave out what was measured otherwise than in the runs before, which ``measured`` has, and warn of it."""
    if not quality.features and (directory / QUALITY).exists():
        text = f"{directory / QUALITY} is not listed in {MANIFEST} as bench quality wrote it: left out"
        yield AnalysisWarning(
            "quality-unlisted",
            text,
            f"measure again: bench quality {directory}",
        )
    for features, models in quality.features.items():
        for workload, judge in [*models.judges.items()]:
            alike = (features, workload, judge.data_sha256, judge.image_px, judge.channels)
            way = (models.samples, judge.network_sha256)
            first = measured.setdefault(alike, way)
            if first != way:
                del models.judges[workload]
                text = f"the quality of {workload} in {directory} is of {way[0]} images, not as before of {first[0]}"
                advice = "measure both by bench quality with the same --samples and --features, threads and torch"
                yield AnalysisWarning(
                    "quality-differs",
                    f"{text}, or by another network: left out",
                    advice,
                )


def read_record(path: str) -> Any:  # noqa: ANN401 (its type is made of the table)
    """Return a record as ``suite.records.columns`` has it, or the warning that it is left out.

    Raises OSError for want of descriptors or memory: an answer without some records would be kept.
    """
    try:
        return RECORD.decode(_content(path))
    except OSError as error:
        if is_shortage(error):
            raise
        return skipped_record(
            path,
            f"it cannot be read ({error.strerror})",
            "check the file and its permissions",
        )
    except NewerRecordError as error:
        return skipped_record(path, error.message, str(error.remedy))
    except UnusableRecordError as error:
        return skipped_record(path, str(error))


def _row(path: str, quality: RunQuality) -> tuple[Any, ...] | AnalysisWarning:
    try:
        record = read_record(path)
        if isinstance(record, AnalysisWarning):
            return record
        _check(record)
        if record.kept:
            record.metrics = {**record.metrics, **quality.metrics_of(record.kept, job_of(record.job))}
        steps = record.steps
        return (
            *RECORD.row(record),
            computed(
                record.seed,
                steps.losses if steps else {},
                record.weights_sha256,
                record.drawn_sha256,
                record.last_step,
                record.answers_sha256,
            ),
            _shared(_environment_facts(record.environment), json.dumps(_further_facts(record))),
            _shared_job(record.job),
            steps.elapsed_s if steps and record.alternation else None,
            path,
        )
    except UnusableRecordError as error:
        return skipped_record(path, str(error))
    except Exception as error:
        if is_shortage(error):
            raise
        # One file of a stranger must not end what reads thousands.
        return skipped_record(path, f"it cannot be used ({error or type(error).__name__})")


def _content(path: str) -> bytes:
    """Read a file. With 100,000 of them, the objects and buffers of the easier ways are a third of the time."""
    descriptor = open_small(path)
    try:
        parts = [os.read(descriptor, _CHUNK)]
        while parts[-1]:
            parts.append(os.read(descriptor, _CHUNK))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _check(record: Any) -> None:  # noqa: ANN401
    """Raise UnusableRecordError if parts of a record that other code relies on do not fit each other."""
    measured = record.throughput_per_s is not None or record.metrics
    timed = record.elapsed_s is not None or record.alternation is not None
    if record.outcome.status == "ok" and not (measured and timed):
        raise UnusableRecordError("a trial that is ok has elapsed_s, and throughput_per_s or metrics")
    if record.alternation and record.steps:
        check_bursts(record.alternation, record.steps.elapsed_s)
    if record.epochs and record.steps:
        record.epochs.check_steps(record.steps.elapsed_s)


@remembered
def _shared_job(text: bytes) -> SharedJob:
    return SharedJob(job_of(text))


@remembered
def _environment_facts(text: bytes) -> str:
    environments = environments_of(text)
    inside = _facts_at("", environments.target or Environment(), INSIDE)
    host = environments.host
    identified = replace(host, machine_id=machine_of(host.machine_id, host.hostname))
    return json.dumps(_facts_at("host/", identified, HOST) | inside)


def _facts_at(owner: str, environment: Environment, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the facts of one environment; ``owner`` stands before each path."""
    return {owner + path: value for path, value in facts(msgspec.to_builtins(environment), fields).items()}


def _further_facts(record: Any) -> dict[str, Any]:  # noqa: ANN401
    further = {"suite_version": record.suite_version}
    if record.counted:
        further["counted"] = record.counted
    for rank in record.ranks:
        further |= _facts_at(f"rank {rank.rank}/", rank.environment, INSIDE)
    for number, aggressor in enumerate(record.aggressors, start=1):
        further |= _facts_at(f"aggressor {number}/", aggressor.environment, INSIDE)
        if aggressor.aggression:
            further["aggressors.aggression.unit"] = aggressor.aggression.unit
    further |= _gpu_settings(record.resources)
    if record.data_use:
        for name in _DATA_FACTS:
            value = getattr(record.data_use, name)
            if value is not None:
                further[f"data_use.{name}"] = value
    if record.epochs and record.epochs.checkpoints:
        further["epochs.checkpoints.filesystem"] = record.epochs.checkpoints.filesystem
    return further


def _gpu_settings(resources: Any) -> dict[str, list[Any]]:  # noqa: ANN401
    """Return each setting of the job's GPUs that some of them report, as a list with a value for each."""
    settings = {}
    if resources and resources.gpus:
        for name in GPU_SETTINGS:
            values = [_in_part(gpu, name.split(".")) for gpu in resources.gpus]
            if any(value is not None for value in values):
                settings[f"resources.gpus.{name}"] = values
    return settings


def _in_part(part: Any, names: Sequence[str]) -> Any:  # noqa: ANN401
    """Return what is below a part of a record by the names of the fields that lead to it; None if one of them is."""
    for name in names:
        part = getattr(part, name, None)
    return part


def _units(trials: pd.DataFrame) -> "pd.Series[Any]":
    """Return the units of throughputs: those of the jobs, or of the outputs if jobs leave them open."""
    is_open = trials["unit"] == UNITS
    if not is_open.any():
        return trials["unit"]
    counted = trials.groupby(["run_id", "model"], observed=True)["counted"].transform("first").astype(object)
    return trials["unit"].astype(object).mask(is_open & counted.notna(), counted).astype("category")


def _table(
    rows: list[tuple[Any, ...]], directories: tuple[Path, ...], warnings: list[AnalysisWarning], warm_ups: bool
) -> Records:
    # The columns of texts are short: Arrow's cost more to cut than they save, a tenth of the time of an answer.
    pd.set_option("mode.string_storage", "python")
    evidence = pd.DataFrame.from_records(rows, columns=[*(column.name for column in RECORD.columns), *_DERIVED])
    # Without this a column that no trial has a value in would not be numeric. Categories make grouping fast.
    floats = {column.name: "float64" for column in RECORD.columns if column.is_float}
    categories = {column.name: "category" for column in RECORD.columns if column.kind.values == "category"}
    evidence = evidence.astype({**floats, **categories, "facts": "category"})[[*COLUMNS, *EVIDENCE, "path"]]
    evidence["hostname"] = machine_labels(
        evidence["started_at"],
        evidence["host_machine_id"],
        evidence["hostname"],
    )
    evidence["unit"] = _units(evidence)
    if evidence["alternation"].notna().any():
        evidence["burst_s"] = settled(evidence)
    trials = evidence.drop(columns=list(EVIDENCE)).assign(forced="")
    copies = trials.duplicated(["run_id", "trial_id", "started_at"])
    if copies.any():
        warnings.append(_copied(trials, copies))
        trials = trials[~copies].reset_index(drop=True)
    _refuse_forks(trials)
    trials = trials.assign(run_id=_by_start(trials))
    # The directory of the sweep around each trial's run; of a run alone, its id.
    paths = trials.drop_duplicates("run_id").set_index("run_id")["path"].to_dict()
    sweeps = {run: str(sweep_around(Path(run_of(path))) or run) for run, path in paths.items()}
    trials = trials.assign(sweep=trials["run_id"].map(sweeps).astype("category"))
    trials = trials.assign(pool=_pools(trials))
    warm_up = trials["warm_up"].astype(bool) & (not warm_ups)
    if warm_up.all():
        raise RequestError(
            f"there are {len(trials)} warm-up trials and no other in {', '.join(map(str, directories))}",
            remedy=f"let it go on: bench run --continue {directories[0]}; of a cell: bench sweep run FILE",
        )
    if warm_up.any():
        trials = trials[~warm_up].reset_index(drop=True)
    counted, metrics, redefined = spread(trials)
    return Records(
        counted,
        directories,
        (*warnings, *redefined),
        metrics,
        int(warm_up.sum()),
        evidence,
    )


def _copied(trials: pd.DataFrame, copies: "pd.Series[bool]") -> AnalysisWarning:
    """Return the warning of records that are copies; ``copies`` marks all but the first of each."""
    first = trials.loc[copies].iloc[0]
    same_run = trials["run_id"] == first["run_id"]
    original = trials.loc[same_run & ~copies, "path"].iloc[0]
    text = f"{copies.sum()} records are copies of others and count once (the first: {first['path']})"
    if run_of(original) != run_of(first["path"]):
        text += f": {run_of(first['path'])} is a copy of the run in {run_of(original)}"
    return AnalysisWarning("copied-records", text, "name each run once")


def _refuse_forks(trials: pd.DataFrame) -> None:
    """Raise RequestError for copies of one run that went on apart: a trial of one name is another in each."""
    twice = trials.duplicated(["run_id", "trial_id"], keep=False)
    for (_, trial), paths in trials[twice].groupby(["run_id", "trial_id"], observed=True)["path"]:
        directories = list(dict.fromkeys(paths.map(run_of)))
        if len(directories) > 1:
            raise RequestError(
                f"{' and '.join(directories)} are copies of one run that went on apart: each has its own {trial}",
                remedy="name one of them",
            )


def machine_labels(started_at: "pd.Series[str]", ids: "pd.Series[Any]", names: "pd.Series[Any]") -> "list[str | None]":
    """Return the machine of each trial by a label that one machine alone has: its latest name, with its ID if shared.

    ``ids`` and ``names`` are those of the machine of each trial.
    """
    table = pd.DataFrame({"started_at": started_at, "machine": ids, "name": names}).astype(object)
    machines = table.where(table.notna(), None)
    newest_last = machines.sort_values("started_at", kind="stable")[["machine", "name"]].drop_duplicates(keep="last")
    latest = {machine_of(machine, name): name for machine, name in newest_last.itertuples(index=False)}
    shared = Counter(latest.values())
    labels: dict[str, str | None] = {}
    for machine, name in latest.items():
        digits = UNKNOWN if machine == machine_of(None, name) else machine[:_SHOWN_OF_ID]
        labels[machine] = f"{name} ({digits})" if name and shared[name] > 1 else name
    return [
        labels[machine_of(machine, name)] for machine, name in zip(machines["machine"], machines["name"], strict=True)
    ]


def _by_start(trials: pd.DataFrame) -> "pd.Series[Any]":
    """Return the identities of the runs as categories in the order of time, in which tests for dependence take them."""
    begun = trials.groupby("run_id", observed=True)["started_at"].min()
    return trials["run_id"].cat.set_categories(list(begun.sort_values(kind="stable").index))


def part_of(records: Records, directory: Path) -> Records:
    """Return the records of one of the directories that were read together."""
    runs = {str(run) for run in runs_below(Path(os.path.normpath(directory)))}
    in_place = records.trials["path"].map(run_of).isin(runs)
    return replace(records, trials=records.trials[in_place].reset_index(drop=True), places=(directory,))


def run_of(path: str) -> str:
    return str(Path(path).parents[1])


def _pools(trials: pd.DataFrame) -> "pd.Series[str]":
    """Return the names of the hosts that each trial's host shares a run or a sweep with, its own among them."""
    hosts = trials["hostname"].astype(object).fillna("")
    pools = {str(name): {str(name)} for name in hosts.unique()}
    for _, names in hosts.groupby(trials["sweep"].astype(object)):
        together = set[str]().union(*(pools[name] for name in names.unique()))
        pools |= dict.fromkeys(together, together)
    return hosts.map({name: ", ".join(sorted(filter(None, pool))) for name, pool in pools.items()})


def _files(directory: Path) -> Iterator[str]:
    if not directory.is_dir():
        raise RequestError(f"no directory {directory}", remedy="name the directory of a run: the one given to --out")
    try:
        with os.scandir(directory / "trials") as entries:
            yield from sorted(entry.path for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestError(f"cannot read {directory / 'trials'}: {error.strerror}") from error
