"""The fields of a record that the tables need, validated as they are read: a fast and small part of ``TrialRecord``."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

# Names come to stand in file names, so they are names and not paths.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Host(BaseModel):
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


class _DataUse(BaseModel):
    sha256: str
    size_bytes: _Count
    bytes_read: _Count
    images_read: _Count
    damaged: _Count = 0


class _Aggression(BaseModel):
    before_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    beside_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _Aggressor(BaseModel):
    aggression: _Aggression | None = None


class _Details(BaseModel):
    devices: Any = None  # details promise nothing


class Probed(BaseModel):
    """One metric of a probe."""

    value: _Positive
    unit: str
    better: Literal["more", "less"]


class _Outcome(BaseModel):
    status: Literal["ok", "failed"]
    kind: str | None = None
    message: str | None = None


class _Workload(BaseModel):
    batch: _Count
    image_px: _Count
    warmup_steps: _Count
    steps: _Count


class _Envelope(BaseModel):
    cpus: list[_Count]
    memory_bytes: _Count
    threads: _Count


class Apart(BaseModel):
    """``Fields`` without the environment, for who has read that on its own."""

    schema_version: Literal[2]
    run_id: str
    trial_id: str
    started_at: str
    scenario: _Name
    target: _Name
    replica: _Count = 0
    ablation: _Name | None = None
    warm_up: bool = False
    model: _Name
    data: _Name
    profile: _Name
    recipe: _Name
    block: _Count
    position: _Count
    workload: _Workload | None = None
    envelope: _Envelope
    page_cache: Literal["cold", "warm"] | None = None
    options: dict[str, str] = {}
    cluster: dict[str, Any] | None = None
    sharing: dict[str, Any] | None = None
    outcome: _Outcome
    throughput_images_per_s: _Positive | None = None
    elapsed_s: _Seconds | None = None
    open_s: _Seconds | None = None
    metrics: dict[str, Probed] = {}
    data_use: _DataUse | None = None
    aggressor: _Name | None = None
    aggressors: list[_Aggressor] = []
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

    def row_in(self, environment: Environments) -> tuple[Any, ...]:
        """The values of ``COLUMNS``."""
        workload, envelope, outcome = self.workload, self.envelope, self.outcome
        seen, conditions = environment.target or _NOTHING_SEEN, self.conditions or _NOTHING_KNOWN
        resources, devices = self.resources or _NOTHING_COUNTED, self.details and self.details.devices
        return (
            *(self.run_id, self.trial_id, self.started_at, self.scenario, self.data, self.profile, self.recipe),
            *(self.model, self.target, self.replica, self.block, self.position),
            *(self.ablation, self.warm_up, self.page_cache),
            *((workload.batch, workload.image_px, workload.warmup_steps, workload.steps) if workload else _NO_WORK),
            *(len(envelope.cpus), envelope.memory_bytes, envelope.threads),
            "\n".join([f"{key}={value}" for key, value in sorted(self.options.items())]),
            "\n".join([*_settings(self.cluster), *_settings(self.sharing)]),
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
        )

    def _data(self) -> tuple[Any, ...]:
        used = self.data_use
        # More than one epoch reads files again, and the page cache has them then.
        return (
            (used.sha256, min(used.bytes_read, used.size_bytes), used.images_read, used.damaged) if used else _NO_DATA
        )

    def _aggressor_rates(self) -> tuple[float | None, float | None]:
        """Of all aggressors together, before the victim was launched and beside it; None where one is unknown."""
        at_work = [one.aggression for one in self.aggressors if one.aggression]
        before, beside = [one.before_per_s for one in at_work], [one.beside_per_s for one in at_work]
        return _sum(before), _sum(beside)


class Fields(Apart):
    """The part of ``suite.records.record.TrialRecord`` that is read here; a test holds the two together."""

    environment: Environments

    def row(self) -> tuple[Any, ...]:
        return self.row_in(self.environment)


NO_SETTINGS = {
    "comm_timeout_s": "it decides when a job is given up, and not how fast it is",
    "guests": "it follows from whether any target of the run has a guest",
    "address": "a machine that is given another address is the same machine",
    "aggressors": "they are varied on purpose, and each trial says which one it had",
}
"""What of ``cluster`` and ``sharing`` does not keep trials apart, and why. Everything else in them does."""


def _settings(part: Mapping[str, Any] | None, prefix: str = "") -> Iterator[str]:
    """The parts of ``cluster`` or ``sharing`` as ``name=value``, those inside others as ``lab.rate=1gbit``.

    Of a list, values are joined by ``+`` in its order, which is that of the ranks.
    """
    for name, value in (part or {}).items():
        if name in NO_SETTINGS:
            continue
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            of_all = {key: "+".join(_word(one.get(key)) for one in value) for key in value[0]}
            yield from _settings(of_all, f"{prefix}{name}.")
        elif value != []:
            yield f"{prefix}{name}={_word(value)}"


def _word(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return "none" if value is None else str(value)


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _lines(mitigations: dict[str, str] | None) -> str | None:
    return None if mitigations is None else _joined(tuple(mitigations.items()))


@lru_cache
def _joined(items: tuple[tuple[str, str], ...]) -> str:
    """Cached: a host has the same in all its records."""
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
COLUMNS = (
    *("run_id", "trial_id", "started_at", "scenario", "data", "profile", "recipe"),
    *("model", "target", "replica", "block", "position"),
    *("ablation", "warm_up", "page_cache"),
    *("batch", "image_px", "warmup_steps", "steps"),
    *("cpus", "memory_bytes", "threads"),
    *("options", "arrangement"),
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
    "metrics",
)
"""The columns of a table of trials; ``cpus`` is their number, ``seen_…`` what the target reports from inside,
``data_bytes`` those of the data set that were asked for at least once, ``metrics`` those of a probe by name."""
