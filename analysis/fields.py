"""The fields of a record that the tables need, validated as they are read: a fast and small part of ``TrialRecord``."""

from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

# Names come to stand in file names, so they are names and not paths.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Host(BaseModel):
    cpu_model: str | None = None
    mitigations: dict[str, str] | None = None


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


class _Environments(BaseModel):
    host: _Host
    target: _Target | None = None


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


class Fields(BaseModel):
    """The part of ``suite.records.TrialRecord`` that is read here; a test holds the two together."""

    schema_version: Literal[1]
    run_id: str
    trial_id: str
    started_at: str
    scenario: _Name
    target: _Name
    replica: _Count = 0
    model: _Name
    data: _Name
    profile: _Name
    recipe: _Name
    block: _Count
    position: _Count
    workload: _Workload
    envelope: _Envelope
    options: dict[str, str] = {}
    outcome: _Outcome
    throughput_images_per_s: _Positive | None = None
    elapsed_s: _Seconds | None = None
    open_s: _Seconds | None = None
    clock_ratio: _Positive | None = None
    substitutes: list[str] = []
    environment: _Environments
    conditions: _Conditions | None = None

    @model_validator(mode="after")
    def _ok_has_numbers(self) -> Self:
        if self.outcome.status == "ok" and None in (self.throughput_images_per_s, self.elapsed_s):
            raise ValueError("a trial that is ok has throughput_images_per_s and elapsed_s")
        return self

    def row(self) -> tuple[Any, ...]:
        """The values of ``COLUMNS``."""
        workload, envelope, environment, outcome = self.workload, self.envelope, self.environment, self.outcome
        seen, conditions = environment.target or _NOTHING_SEEN, self.conditions or _NOTHING_KNOWN
        return (
            *(self.run_id, self.trial_id, self.started_at, self.scenario, self.data, self.profile, self.recipe),
            *(self.model, self.target, self.replica, self.block, self.position),
            *(workload.batch, workload.image_px, workload.warmup_steps, workload.steps),
            *(len(envelope.cpus), envelope.memory_bytes, envelope.threads),
            "\n".join([f"{key}={value}" for key, value in sorted(self.options.items())]),
            environment.host.cpu_model,
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
        )


def _lines(mitigations: dict[str, str] | None) -> str | None:
    return None if mitigations is None else _joined(tuple(mitigations.items()))


@lru_cache
def _joined(items: tuple[tuple[str, str], ...]) -> str:
    """Cached: a host has the same in all its records."""
    return "\n".join(f"{name}: {how}" for name, how in sorted(items))


_NOTHING_SEEN, _NOTHING_KNOWN = _Target(), _Conditions()
COLUMNS = (
    *("run_id", "trial_id", "started_at", "scenario", "data", "profile", "recipe"),
    *("model", "target", "replica", "block", "position"),
    *("batch", "image_px", "warmup_steps", "steps"),
    *("cpus", "memory_bytes", "threads"),
    "options",
    "host_cpu_model",
    *("ok", "error_kind", "error_message"),
    *("throughput_images_per_s", "elapsed_s", "open_s", "clock_ratio"),
    "substitutes",
    *("userland_sha256", "accelerator", "torch", "torch_cpu_capability"),
    *("seen_cpus", "seen_memory_bytes", "seen_threads", "affinity", "host_mitigations", "mitigations"),
    *("interval_s", "steal_s", "other_cpu_s", "throttled_s", "thermal_throttles", "swapped_bytes", "governor"),
    *("siblings_shared", "numa_nodes"),
)
"""The columns of a table of trials; ``cpus`` is their number, ``seen_…`` what the target reports from inside."""
