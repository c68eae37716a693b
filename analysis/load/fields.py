"""The fields of a record that the tables need, validated as they are read: a fast and small part of ``TrialRecord``."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from analysis.load.computed import computed
from analysis.load.evidence import (
    LEAST,
    MOST,
    NO_STEPS,
    STEP_COLUMNS,
    STEPS,
    TIMELINE,
    AggressorFields,
    AlternationFields,
    DataFields,
    EpochFields,
    RankFields,
    StepFields,
    TimelineFields,
    Words,
    bounded,
    shared,
    typed_environment,
)
from suite.job.job import Digest, Job, Name, settings
from suite.records.differences import HOST, INSIDE, facts
from suite.records.record import TrialId

_Count = Annotated[int, Field(ge=0, lt=1 << 50)]
_Positive = Annotated[float, Field(ge=LEAST, le=MOST, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]

_Number = Annotated[list[_Count], AfterValidator(len)]
"""Only the number of what is listed is kept."""
_Sorted = Annotated[list[_Count], AfterValidator(lambda cpus: ",".join(map(str, sorted(cpus))))]
_Lines = Annotated[
    dict[str, str], AfterValidator(lambda found: "\n".join(f"{name}: {how}" for name, how in sorted(found.items())))
]


class _HostFields(BaseModel):
    """The facts of the host. Here and in the next three classes the fields are columns, in this order."""

    hostname: str | None = None
    host_kernel: str | None = Field(default=None, alias="kernel")
    host_cpu_model: str | None = Field(default=None, alias="cpu_model")
    host_cpus: _Number | None = Field(default=None, alias="cpus")
    host_memory_bytes: _Count | None = Field(default=None, alias="memory_bytes")
    host_mitigations: _Lines | None = Field(default=None, alias="mitigations")


class _TargetFields(BaseModel):
    userland_sha256: str | None = None
    accelerator: str | None = None
    torch: str | None = None
    torch_cpu_capability: str | None = None
    seen_cpus: _Number | None = Field(default=None, alias="cpus")
    seen_memory_bytes: _Count | None = Field(default=None, alias="memory_bytes")
    seen_threads: _Count | None = Field(default=None, alias="threads")
    affinity: _Sorted | None = Field(default=None, alias="host_cpus")
    mitigations: _Lines | None = None


class _ConditionsFields(BaseModel):
    interval_s: _Positive | None = None
    steal_s: _Seconds | None = None
    other_cpu_s: _Seconds | None = None
    throttled_s: _Seconds | None = None
    thermal_throttles: _Count | None = None
    swapped_bytes: _Count | None = None
    governor: str | None = None
    siblings_shared: bool | None = None
    numa_nodes: _Number | None = None


class EnvironmentsFields(BaseModel):
    """The host and the inside of the target; the same in most records of a run."""

    host: _HostFields
    target: _TargetFields | None = None
    facts: str = ""
    """The facts of both that the comparison looks at: a line ``PATH=JSON`` each."""

    @model_validator(mode="before")
    @classmethod
    def _with_facts(cls, given: Any) -> Any:  # noqa: ANN401 (whatever the record holds)
        if not isinstance(given, dict):
            return given
        host, target = (typed_environment(given[side]) if given.get(side) else {} for side in ("host", "target"))
        return {**given, "facts": fact_lines("host/", facts(host, HOST)) + fact_lines("", facts(target, INSIDE))}


def fact_lines(place: str, found: Mapping[str, Any]) -> str:
    """Return facts as lines; ``place`` stands before each path."""
    return "".join(f"{place}{name}={json.dumps(value)}\n" for name, value in found.items())


class _UsageFields(BaseModel):
    cpu_s: _Seconds | None = None
    peak_memory_bytes: _Count | None = None
    disk_read_bytes: _Count | None = None
    disk_written_bytes: _Count | None = None


class _CacheFields(BaseModel):
    llc_load_misses: _Count | None = None


class _ResourcesFields(BaseModel):
    serving: _UsageFields | None = None
    worker: _UsageFields | None = None
    energy_j: dict[str, _Seconds] | None = None
    cache: _CacheFields | None = None


class _DetailsFields(BaseModel):
    devices: Any = None  # details promise nothing


class Probed(BaseModel):
    """One metric of a probe."""

    value: _Positive
    unit: Words
    better: Literal["more", "less"]
    samples: list[_Seconds] | None = None


class _OutcomeFields(BaseModel):
    status: Literal["ok", "failed"]
    kind: Words | None = None
    message: str | None = None
    command: list[str] = []
    output_tail: str = ""
    remedy: str | None = None

    @property
    def contradiction(self) -> str | None:
        """Return what tells of a failure although the trial is ok."""
        told = (self.kind, self.message, self.remedy, self.output_tail, *self.command)
        return next((text[:_SHOWN] for text in told if text), None) if self.status == "ok" else None


_SHOWN = 200
"""The characters of a text that a finding quotes."""
BETWEEN = "; "
"""Stands between the settings of a comparison key."""
JobColumns = tuple[Any, ...]
"""The values of ``JOB_COLUMNS``, and the job's JSON."""
Row = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The values of ``COLUMNS``, and those of ``EVIDENCE``."""
_DATA_FACTS = ("sha256", "decoder", "loader_workers", "filesystem", "device")


class Apart(BaseModel):
    """``Fields`` without the job, the environment and the steps, for who has read these on their own."""

    schema_version: Literal[3]
    run_id: Words
    trial_id: TrialId
    suite_version: Words = ""
    started_at: Words
    target: Name
    replica: _Count = 0
    ablation: Name | None = None
    aggressor: Name | None = None
    warm_up: bool = False
    block: _Count
    position: _Count
    seed: _Count = 0
    outcome: _OutcomeFields
    throughput_per_s: _Positive | None = None
    elapsed_s: _Seconds | None = None
    open_s: _Seconds | None = None
    opening: dict[Words, _Seconds] = {}
    close_s: _Seconds | None = None
    weights_sha256: Digest | None = None
    timeline: TimelineFields | None = None
    alternation: AlternationFields | None = None
    metrics: dict[Words, Probed] = {}
    data_use: DataFields | None = None
    epochs: EpochFields | None = None
    ranks: list[RankFields] = []
    aggressors: list[AggressorFields] = []
    clock_ratio: _Positive | None = None
    substitutes: Annotated[list[Words], Field(max_length=50)] = []
    conditions: _ConditionsFields | None = None
    resources: _ResourcesFields | None = None
    details: _DetailsFields | None = None

    @model_validator(mode="after")
    def _ok_has_numbers(self) -> Self:
        measured = self.throughput_per_s is not None or self.metrics
        timed = self.elapsed_s is not None or self.alternation is not None
        if self.outcome.status == "ok" and not (measured and timed):
            raise ValueError("a trial that is ok has elapsed_s, and throughput_per_s or metrics")
        return self

    def row_in(self, job: JobColumns, environment: EnvironmentsFields, steps: StepFields | None) -> tuple[Any, ...]:
        """Return the values of ``COLUMNS``."""
        *host, host_mitigations = vars(environment.host).values()
        *seen, mitigations = vars(environment.target or _NOTHING_SEEN).values()
        outcome, resources, used = self.outcome, self.resources or _NOTHING_COUNTED, self.data_use
        devices = self.details and self.details.devices
        at_work = [one.aggression for one in self.aggressors if one.aggression]
        return (
            *(self.run_id, self.trial_id, self.started_at, *job[:_NAMES]),
            *(self.target, self.replica, self.block, self.position, self.ablation, self.warm_up),
            *job[_NAMES:-1],
            *host,
            *(outcome.status == "ok", outcome.kind, outcome.message),
            *(
                self.throughput_per_s,
                self.elapsed_s,
                self.open_s,
                *(steps.tail() if steps else NO_STEPS),
                self.clock_ratio,
            ),
            "\n".join(self.substitutes),
            *(*seen, host_mitigations, mitigations),
            *vars(self.conditions or _NOTHING_KNOWN).values(),
            *vars(resources.serving or _NOTHING_USED).values(),
            *vars(resources.worker or _NOTHING_USED).values(),
            sum(resources.energy_j.values()) if resources.energy_j else None,
            resources.cache.llc_load_misses if resources.cache else None,
            devices if isinstance(devices, int) and 0 < devices < MOST else None,
            # More than one epoch reads files again, and the page cache has them then.
            *((used.sha256, min(used.bytes_read, used.size_bytes), used.images_read, used.damaged) if used else _NONE),
            *(self.aggressor, _sum(one.before_per_s for one in at_work), _sum(one.beside_per_s for one in at_work)),
            *(getattr(self.alternation, name, None) for name in TURNS),
            self.metrics or None,
            steps.lately() if steps else None,
            computed(self.seed, steps.losses if steps else {}, self.weights_sha256),
            shared(environment.facts, "".join(self._more_facts())),
        )

    def evidence(self, job: JobColumns, steps: StepFields | None) -> tuple[Any, ...]:
        """Return the values of ``evidence.EVIDENCE``."""
        samples = {name: (one.value, one.samples) for name, one in self.metrics.items() if one.samples}
        if self.alternation and steps:
            self.alternation.check(steps.elapsed_s)
        return (
            *(self.seed, job[-1], self.outcome.contradiction, self.close_s),
            math.fsum(self.opening.values()) if self.opening else None,
            *(steps.row() if steps else (None,) * len(STEPS)),
            *(self.timeline.row() if self.timeline else (None,) * len(TIMELINE)),
            *(self.alternation, steps.elapsed_s if steps and self.alternation else None),
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
        if self.epochs and self.epochs.checkpoints:
            yield fact_lines("", {"epochs.checkpoints.filesystem": self.epochs.checkpoints.filesystem})


class Fields(Apart):
    """The part of ``suite.records.record.TrialRecord`` that is read here; a test holds the two together."""

    job: Job
    steps: StepFields | None = None
    environment: EnvironmentsFields

    def row(self) -> Row:
        """Return the values of both."""
        job = job_columns(self.job)
        return self.row_in(job, self.environment, self.steps), self.evidence(job, self.steps)


def job_columns(job: Job) -> JobColumns:
    """Return what tables say of a job; ``settings`` is its comparison key, ``name=value; ...``."""
    sizes, envelope = job.sizes, job.envelope
    bounded(job.model_dump(mode="json"))
    return (
        *(job.scenario, job.data, job.profile, job.recipe, job.model, job.page_cache),
        *((sizes.batch, sizes.image_px, sizes.warmup_steps, sizes.steps) if sizes else _NONE),
        job.unit,
        *(len(envelope.cpus), envelope.memory_bytes, envelope.threads),
        *(job.layers.engine, job.isa, job.design, job.rounds_freely),
        BETWEEN.join(f"{name}={value}" for name, value in settings(job).items()),
        shared(job.model_dump_json()),
    )


def settings_in(key: str) -> dict[str, str]:
    """Return the settings of a comparison key by their names."""
    pairs = (setting.partition("=") for setting in key.split(BETWEEN))
    return {name: value for name, _, value in pairs}


def _sum(rates: Iterable[float | None]) -> float | None:
    """Return the speed of all aggressors together; None where one is unknown."""
    given = list(rates)
    known = [rate for rate in given if rate is not None]
    return sum(known) if known and len(known) == len(given) else None


_NOTHING_SEEN, _NOTHING_KNOWN = _TargetFields(), _ConditionsFields()
_NOTHING_COUNTED, _NOTHING_USED = _ResourcesFields(), _UsageFields()
_NONE = (None,) * 4
USED = (
    *(f"{side}_{name}" for side in ("serving", "worker") for name in _UsageFields.model_fields),
    *("energy_j", "llc_load_misses"),
)
"""The cost of a trial on the host (``serving_…``) and by the job's own accounting (``worker_…``)."""
COUNTED = (*_ConditionsFields.model_fields, *USED)
"""What the host and the worker count of every trial alike."""
TURNS = ("burst_s", "block_s", "waiting_share", "turn_s", "beside_s", "late_s")
"""The columns of trials that take turns: see ``evidence.AlternationFields``."""
_NAMES = 5
JOB_COLUMNS = (
    *("scenario", "data", "profile", "recipe", "model"),
    "page_cache",
    *("batch", "image_px", "warmup_steps", "steps"),
    "unit",
    *("cpus", "memory_bytes", "threads"),
    *("engine", "isa", "design", "rounds_freely", "settings"),
)
COLUMNS = (
    *("run_id", "trial_id", "started_at", *JOB_COLUMNS[:_NAMES]),
    *("target", "replica", "block", "position", "ablation", "warm_up"),
    *JOB_COLUMNS[_NAMES:],
    *list(_HostFields.model_fields)[:-1],
    *("ok", "error_kind", "error_message"),
    *("throughput_per_s", "elapsed_s", "open_s", *STEP_COLUMNS, "clock_ratio"),
    "substitutes",
    *(*list(_TargetFields.model_fields)[:-1], "host_mitigations", "mitigations"),
    *_ConditionsFields.model_fields,
    *USED,
    "devices",
    *("data_sha256", "data_bytes", "images_read", "damaged"),
    *("aggressor", "aggressor_before_per_s", "aggressor_beside_per_s"),
    *TURNS,
    *("metrics", "losses", "computed", "facts"),
)
"""The columns of a table of trials; ``cpus`` is their number, ``seen_…`` what the target reports from inside,
``data_bytes`` those of the data set that were asked for at least once, ``metrics`` those of a probe by name,
``losses`` the means over a trial's last steps, ``computed`` all of them and the weights,
``facts`` of the environment what ``suite.records.differences`` treats."""
