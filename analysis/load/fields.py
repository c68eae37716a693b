"""The fields of a record that the tables need, validated as they are read: a fast and small part of ``TrialRecord``."""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from analysis.load.evidence import STEPS, TIMELINE, Aggressor, DataUse, Rank, Steps, Timeline, shared
from suite.job.job import Job, Name, settings
from suite.records.differences import HOST, INSIDE, facts

_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Host(BaseModel):
    model_config = ConfigDict(extra="allow")
    hostname: str | None = None
    kernel: str | None = None
    cpu_model: str | None = None
    cpus: list[_Count] | None = None
    memory_bytes: _Count | None = None
    mitigations: dict[str, str] | None = None

    def row(self) -> tuple[str | int | None, ...]:
        cpus = None if self.cpus is None else len(self.cpus)
        return self.hostname, self.kernel, self.cpu_model, cpus, self.memory_bytes


class _Target(BaseModel):
    model_config = ConfigDict(extra="allow")
    cpus: list[_Count] | None = None
    host_cpus: list[_Count] | None = None
    memory_bytes: _Count | None = None
    threads: _Count | None = None
    mitigations: dict[str, str] | None = None
    userland_sha256: str | None = None
    accelerator: str | None = None
    torch: str | None = None
    torch_cpu_capability: str | None = None


class _Conditions(BaseModel):
    interval_s: _Positive | None = None
    steal_s: _Seconds | None = None
    other_cpu_s: _Seconds | None = None
    throttled_s: _Seconds | None = None
    thermal_throttles: _Count | None = None
    swapped_bytes: _Count | None = None
    governor: str | None = None
    siblings_shared: bool | None = None
    numa_nodes: list[_Count] | None = None


class Environments(BaseModel):
    """The host and the inside of the target; the same in most records of a run."""

    host: _Host
    target: _Target | None = None

    @cached_property
    def facts(self) -> str:
        """The facts of both that the comparison looks at: a line ``PATH=JSON`` each."""
        target = facts(dict(self.target), INSIDE) if self.target else {}
        return fact_lines("host/", facts(dict(self.host), HOST)) + fact_lines("", target)


def fact_lines(place: str, found: Mapping[str, Any]) -> str:
    """Return facts as lines; ``place`` stands before each path."""
    return "".join(f"{place}{name}={json.dumps(value)}\n" for name, value in found.items())


class _Usage(BaseModel):
    cpu_s: _Seconds | None = None
    peak_memory_bytes: _Count | None = None
    disk_read_bytes: _Count | None = None
    disk_written_bytes: _Count | None = None

    def row(self) -> tuple[float | None, ...]:
        return self.cpu_s, self.peak_memory_bytes, self.disk_read_bytes, self.disk_written_bytes


class _CacheUse(BaseModel):
    llc_load_misses: _Count | None = None


class _Resources(BaseModel):
    serving: _Usage | None = None
    worker: _Usage | None = None
    energy_j: dict[str, _Seconds] | None = None
    cache: _CacheUse | None = None


class _Details(BaseModel):
    devices: Any = None  # details promise nothing


class Probed(BaseModel):
    """One metric of a probe."""

    value: _Positive
    unit: str
    better: Literal["more", "less"]
    samples: list[float] | None = None


class _Outcome(BaseModel):
    status: Literal["ok", "failed"]
    kind: str | None = None
    message: str | None = None


BETWEEN = "; "
"""Stands between the settings of a comparison key."""
JobColumns = tuple[Any, ...]
"""The values of ``JOB_COLUMNS``, and the job's JSON."""
Row = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The values of ``COLUMNS``, and those of ``EVIDENCE``."""
_DATA_FACTS = ("sha256", "decoder", "loader_workers", "filesystem", "device")


class Apart(BaseModel):
    """``Fields`` without the job and the environment, for who has read these on their own."""

    schema_version: Literal[3]
    run_id: str
    trial_id: str
    suite_version: str = ""
    started_at: str
    target: Name
    replica: _Count = 0
    ablation: Name | None = None
    aggressor: Name | None = None
    warm_up: bool = False
    block: _Count
    position: _Count
    seed: int = 0
    outcome: _Outcome
    throughput_images_per_s: _Positive | None = None
    elapsed_s: _Seconds | None = None
    open_s: _Seconds | None = None
    close_s: _Seconds | None = None
    timeline: Timeline | None = None
    metrics: dict[str, Probed] = {}
    data_use: DataUse | None = None
    ranks: list[Rank] = []
    aggressors: list[Aggressor] = []
    clock_ratio: _Positive | None = None
    substitutes: list[str] = []
    conditions: _Conditions | None = None
    resources: _Resources | None = None
    details: _Details | None = None

    @model_validator(mode="after")
    def _ok_has_numbers(self) -> Self:
        measured = self.throughput_images_per_s is not None or self.metrics
        if self.outcome.status == "ok" and (not measured or self.elapsed_s is None):
            raise ValueError("a trial that is ok has elapsed_s, and throughput_images_per_s or metrics")
        return self

    def row_in(self, job: JobColumns, environment: Environments) -> tuple[Any, ...]:
        """Return the values of ``COLUMNS``."""
        outcome = self.outcome
        seen, conditions = environment.target or _NOTHING_SEEN, self.conditions or _NOTHING_KNOWN
        resources, devices = self.resources or _NOTHING_COUNTED, self.details and self.details.devices
        return (
            *(self.run_id, self.trial_id, self.started_at, *job[:_NAMES]),
            *(self.target, self.replica, self.block, self.position, self.ablation, self.warm_up),
            *job[_NAMES:-1],
            *environment.host.row(),
            *(outcome.status == "ok", outcome.kind, outcome.message),
            *(self.throughput_images_per_s, self.elapsed_s, self.open_s, self.clock_ratio),
            "\n".join(self.substitutes),
            *(seen.userland_sha256, seen.accelerator, seen.torch, seen.torch_cpu_capability),
            None if seen.cpus is None else len(seen.cpus),
            *(seen.memory_bytes, seen.threads),
            None if seen.host_cpus is None else ",".join(map(str, sorted(seen.host_cpus))),
            _lines(environment.host.mitigations),
            _lines(seen.mitigations),
            *(conditions.interval_s, conditions.steal_s, conditions.other_cpu_s, conditions.throttled_s),
            *(conditions.thermal_throttles, conditions.swapped_bytes, conditions.governor),
            conditions.siblings_shared,
            None if conditions.numa_nodes is None else len(conditions.numa_nodes),
            *(resources.serving or _NOTHING_USED).row(),
            *(resources.worker or _NOTHING_USED).row(),
            sum(resources.energy_j.values()) if resources.energy_j else None,
            resources.cache.llc_load_misses if resources.cache else None,
            devices if isinstance(devices, int) and devices > 0 else None,
            *(self._data() if self.data_use else _NO_DATA),
            *(self.aggressor, *self._aggressor_rates()),
            self.metrics or None,
            shared(environment.facts, "".join(self._more_facts())),
        )

    def evidence(self, job: JobColumns, steps: Steps | None) -> tuple[Any, ...]:
        """Return the values of ``evidence.EVIDENCE``."""
        samples = {name: (one.value, one.samples) for name, one in self.metrics.items() if one.samples}
        return (
            *(self.seed, job[-1], self.close_s),
            *(steps.row() if steps else (None,) * len(STEPS)),
            *(self.timeline.row() if self.timeline else (None,) * len(TIMELINE)),
            *(self.ranks or None, self.aggressors or None, self.data_use, samples or None),
        )

    def _more_facts(self) -> Iterable[str]:
        yield f"suite_version={json.dumps(self.suite_version)}\n"
        for rank in self.ranks:
            yield fact_lines(f"rank {rank.rank}/", facts(rank.environment, INSIDE))
        for number, aggressor in enumerate(self.aggressors, start=1):
            yield fact_lines(f"aggressor {number}/", facts(aggressor.environment, INSIDE))
            if aggressor.aggression:
                yield fact_lines("", {"aggressors.aggression.unit": aggressor.aggression.unit})
        if self.data_use:
            values = {f"data_use.{name}": getattr(self.data_use, name) for name in _DATA_FACTS}
            yield fact_lines("", {name: value for name, value in values.items() if value is not None})

    def _data(self) -> tuple[Any, ...]:
        used = self.data_use
        # More than one epoch reads files again, and the page cache has them then.
        return (
            (used.sha256, min(used.bytes_read, used.size_bytes), used.images_read, used.damaged) if used else _NO_DATA
        )

    def _aggressor_rates(self) -> tuple[float | None, float | None]:
        """Return the speed of all aggressors together, before and beside the victim; None where one is unknown."""
        at_work = [one.aggression for one in self.aggressors if one.aggression]
        before, beside = [one.before_per_s for one in at_work], [one.beside_per_s for one in at_work]
        return _sum(before), _sum(beside)


class Fields(Apart):
    """The part of ``suite.records.record.TrialRecord`` that is read here; a test holds the two together."""

    job: Job
    steps: Steps | None = None
    environment: Environments

    def row(self) -> "Row":
        job = job_columns(self.job)
        return self.row_in(job, self.environment), self.evidence(job, self.steps)


def job_columns(job: Job) -> JobColumns:
    """Return what tables say of a job; ``settings`` is its comparison key, ``name=value; ...``."""
    sizes, envelope = job.sizes, job.envelope
    return (
        *(job.scenario, job.data, job.profile, job.recipe, job.model, job.page_cache),
        *((sizes.batch, sizes.image_px, sizes.warmup_steps, sizes.steps) if sizes else _NO_WORK),
        *(len(envelope.cpus), envelope.memory_bytes, envelope.threads),
        *(job.layers.engine, job.isa),
        BETWEEN.join(f"{name}={value}" for name, value in settings(job).items()),
        shared(job.model_dump_json()),
    )


def settings_in(key: str) -> dict[str, str]:
    """Return the settings of a comparison key by their names."""
    pairs = (setting.partition("=") for setting in key.split(BETWEEN))
    return {name: value for name, _, value in pairs}


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _lines(mitigations: dict[str, str] | None) -> str | None:
    return None if mitigations is None else _joined(tuple(mitigations.items()))


@lru_cache
def _joined(items: tuple[tuple[str, str], ...]) -> str:
    """Join the items, a line each. Cached: a host has the same in all its records."""
    return "\n".join(f"{name}: {how}" for name, how in sorted(items))


_NOTHING_SEEN, _NOTHING_KNOWN, _NOTHING_COUNTED, _NOTHING_USED = _Target(), _Conditions(), _Resources(), _Usage()
_NO_WORK = _NO_DATA = (None,) * 4
_USAGE = ("cpu_s", "peak_memory_bytes", "disk_read_bytes", "disk_written_bytes")
USED = (
    *(f"serving_{name}" for name in _USAGE),
    *(f"worker_{name}" for name in _USAGE),
    *("energy_j", "llc_load_misses"),
)
"""What a trial cost on the host (``serving_…``) and by the job's own accounting (``worker_…``)."""
_NAMES = 5
JOB_COLUMNS = (
    *("scenario", "data", "profile", "recipe", "model"),
    "page_cache",
    *("batch", "image_px", "warmup_steps", "steps"),
    *("cpus", "memory_bytes", "threads"),
    *("engine", "isa", "settings"),
)
COLUMNS = (
    *("run_id", "trial_id", "started_at", *JOB_COLUMNS[:_NAMES]),
    *("target", "replica", "block", "position", "ablation", "warm_up"),
    *JOB_COLUMNS[_NAMES:],
    *("hostname", "host_kernel", "host_cpu_model", "host_cpus", "host_memory_bytes"),
    *("ok", "error_kind", "error_message"),
    *("throughput_images_per_s", "elapsed_s", "open_s", "clock_ratio"),
    "substitutes",
    *("userland_sha256", "accelerator", "torch", "torch_cpu_capability"),
    *("seen_cpus", "seen_memory_bytes", "seen_threads", "affinity", "host_mitigations", "mitigations"),
    *("interval_s", "steal_s", "other_cpu_s", "throttled_s", "thermal_throttles", "swapped_bytes", "governor"),
    *("siblings_shared", "numa_nodes"),
    *USED,
    "devices",
    *("data_sha256", "data_bytes", "images_read", "damaged"),
    *("aggressor", "aggressor_before_per_s", "aggressor_beside_per_s"),
    *("metrics", "facts"),
)
"""The columns of a table of trials; ``cpus`` is their number, ``seen_…`` what the target reports from inside,
``data_bytes`` those of the data set that were asked for at least once, ``metrics`` those of a probe by name,
``facts`` of the environment what ``suite.records.differences`` treats."""
