"""The table of a record's columns: where each stands, what a table gets of it, and what a difference in it means.

A field that is shown has a row here, and nothing else outside its part, which has its type and bounds.
``suite.records.reader`` decodes records by this table; headers, tables, the audit, the explanation and exports take
what they need of it.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from suite.job.job import comparison_key
from suite.part import LEAST_MEASURED, MOST_MEASURED
from suite.records.record import AggressorInstance, Outcome, Steps, Timeline, TrialRecord
from suite.records.usage import GpuUsage

CLOCKS_SHARE = 0.05
"""The share by which spans on the target's clock may exceed those on the host's."""
LATE_SHARE = 0.9
LATE_S = 0.2
"""How late the first or the last line of a worker may come in, which the timeline then has twice or not at all: the
share of the time from the launch to the first line, which slow machines and channels lengthen alike, and seconds."""
LATELY = 100
"""The last steps of a trial, of which the losses are shown."""
_TIMELINE = ("launch", "imports", "build", "warmup", "measured", "teardown", "exit")
_SHOWN = 200
"""The characters of a text that a finding quotes."""

Treatment = Literal["refused", "named", "constant", "measured", "checked", "ignored"]


@dataclass(frozen=True)
class Field:
    """The meaning of a difference in the fields that a pattern names; ``*`` stands for any part of a path."""

    path: str
    """Empty for a column's field, which has its own."""
    treatment: Treatment
    why: str
    label: str = ""
    """Its name in messages if a difference is named or refused."""
    group: str = ""
    """The name of its kind in a mark beside a number."""


@dataclass(frozen=True)
class FieldType:
    """The values that a table gets of a field."""

    values: Literal["number", "count", "flag", "text", "category", "object"] = "object"
    derive: Callable[[Any], Any] | None = None
    """Returns the column's value, given the field's. Of an object it is given what other rows name."""


@dataclass(frozen=True)
class Column:
    """One column. Differences in a field without a meaning are treated elsewhere: see ``suite.records.differences``."""

    name: str
    path: str
    kind: FieldType
    meaning: Field | None = None

    @property
    def is_float(self) -> bool:
        """Return whether a table holds numbers, of which some may be missing."""
        always = (field and (field.is_required() or isinstance(field.default, int)) for field in declared(self.path))
        return self.kind.values in ("number", "count") and not all(always)

    @property
    def is_decoded(self) -> bool:
        """Return whether it is read as a whole; of an object that others are derived from, their fields alone are."""
        *_, field = declared(self.path)
        return not (self.kind.derive and field and part_of(field.annotation))

    @property
    def pattern(self) -> str:
        """Return the path as ``suite.records.differences`` has it: a mapping stands for each of its values."""
        *_, field = declared(self.path)
        if field and get_origin(without_null(field.annotation)) is dict:
            return f"{self.path}.*"
        return self.path


def declared(path: str) -> Iterator[FieldInfo | None]:
    """Yield the fields of the record that lead to a column; None for a property or a note, and for what follows it."""
    part: type | None = TrialRecord
    for name in path.split("."):
        field = None
        if part:
            field = declared_fields(part).get(name)
        yield field
        part = None
        if field:
            part = part_of(field.annotation)


def declared_fields(part: type) -> Mapping[str, FieldInfo]:
    """Return the fields of a part of a record by their names; none for another type."""
    fields: Mapping[str, FieldInfo] = getattr(part, "__pydantic_fields__", {})
    return fields


def part_of(annotation: Any) -> type | None:  # noqa: ANN401 (of any field)
    """Return the part that a field holds; None for a field of another type."""
    kind = without_null(annotation)
    if isinstance(kind, type) and declared_fields(kind):
        return kind
    return None


def without_null(annotation: Any) -> Any:  # noqa: ANN401
    if get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)[0]
    return annotation


def _tail(seconds: list[float]) -> float | None:
    """Return the 99th percentile over the median."""
    steps = sorted(seconds)
    median = 0.0
    if steps:
        median = steps[(len(steps) - 1) // 2]
    if median > 0:
        return steps[(99 * len(steps) - 1) // 100] / median
    return None


def _phases(steps: Steps) -> list[list[float]]:
    phases = (steps.data_s, steps.copy_s, steps.compute_s, steps.communicate_s)
    return [seconds for seconds in phases if seconds is not None]


def counted_steps(steps: Steps) -> int:
    """Return the number of steps; if not all columns are as long, the length of another one than the first."""
    times = () if steps.elapsed_s is None else (steps.elapsed_s,)
    columns = (*times, *_phases(steps), *steps.phases.values(), *steps.losses.values())
    counts = [len(column) for column in columns]
    different = (count for count in counts if count != counts[0])
    return next(different, counts[0] if counts else 0)


def _latest(losses: Mapping[str, list[float]]) -> dict[str, float] | None:
    """Return the mean of each loss over the last steps; None without losses."""
    last = {name: column[-LATELY:] for name, column in losses.items() if column}
    means = {name: math.fsum(column) / len(column) for name, column in last.items()}
    return means or None


def _spans(timeline: Timeline) -> list[float | None]:
    return [getattr(timeline, f"{name}_s") for name in _TIMELINE]


def timeline_s(timeline: Timeline) -> float | None:
    """Return the sum of all parts; None if an end is unknown. Not every job imports, has epochs, or generates."""
    ends = (timeline.launch_s, timeline.measured_s, timeline.teardown_s, timeline.exit_s)
    parts = (*_spans(timeline), timeline.between_epochs_s, timeline.generating_s)
    if None in ends:
        return None
    return math.fsum(filter(None, parts))


def most_late_s(measured_s: Any, launch_s: Any) -> Any:  # noqa: ANN401 (numbers, or columns of them)
    """Return by how much the sum of a timeline may differ from the elapsed time on the host's clock."""
    return CLOCKS_SHARE * measured_s + LATE_SHARE * launch_s + LATE_S


def _ready_s(timeline: Timeline) -> float | None:
    """Return the seconds until the job was built; None if a part is unknown."""
    parts = (timeline.launch_s, timeline.imports_s, timeline.build_s)
    if None in parts:
        return None
    return math.fsum(filter(None, parts))


def _whole_timeline(timeline: Timeline) -> bool | None:
    """Return True if a measured span has all parts around it; a launch without an exit, or the reverse, is half."""
    launch_s, *spans, exit_s = _spans(timeline)
    if None not in spans and (launch_s is None) == (exit_s is None):
        return True
    return None


def _contradiction(outcome: Outcome) -> str | None:
    texts = (outcome.kind, outcome.message, outcome.remedy, outcome.output_tail, *outcome.command)
    if outcome.status == "ok":
        texts_shown = (text[:_SHOWN] for text in texts if text)
        return next(texts_shown, None)
    return None


def _speed_of(name: str) -> Callable[[list[AggressorInstance]], float | None]:
    def total(aggressors: list[AggressorInstance]) -> float | None:
        """Return the speed of all aggressors together; None if one is unknown."""
        rates = []
        for instance in aggressors:
            if instance.aggression:
                rates.append(getattr(instance.aggression, name))
        return sum(rates) if rates and None not in rates else None

    return total


def _gpus(of_one: Callable[[GpuUsage], float | None]) -> FieldType:
    def most(gpus: list[GpuUsage]) -> float | None:
        """Return the most of all GPUs of the job; None if it is known of none."""
        return max((amount for gpu in gpus if (amount := of_one(gpu)) is not None), default=None)

    return FieldType("number", most)


def _foreign_share(gpu: GpuUsage) -> float | None:
    """Return the share of the time that others took of a GPU: by their processes, or else by its use beforehand."""
    if gpu.strangers_utilisation is not None:
        return gpu.strangers_utilisation
    if gpu.utilisation_before is None and gpu.strangers:
        return 1.0  # how much they compute is unknown
    return gpu.utilisation_before


def _of_usage(counter: str) -> FieldType:
    def count_of(usage: Any) -> float | None:  # noqa: ANN401 (a note of the scenario)
        """Return what the worker counted in the measured steps; None for a note of another kind."""
        amount = usage.get(counter) if isinstance(usage, dict) else None
        if isinstance(amount, float | int) and 0 <= amount < MOST_MEASURED:
            return float(amount)
        return None

    return FieldType("number", count_of)


def _cpu_s(usage: Any) -> float | None:  # noqa: ANN401 (as above)
    """Return the CPU seconds of the worker in the measured steps; None for a note of another kind."""
    if isinstance(usage, dict):
        parts: list[Any] = [usage.get(name) for name in ("user_s", "system_s")]
    else:
        parts = [None]
    numeric = all(isinstance(part, float | int) and 0 <= part < MOST_MEASURED for part in parts)
    return sum(parts) if numeric else None


def _rate(rates: Any) -> float | None:  # noqa: ANN401 (a note of the scenario)
    """Return the median of the rates that a command has printed; None for another note."""
    if not isinstance(rates, list):
        return None
    numeric = all(isinstance(rate, float | int) and LEAST_MEASURED <= rate <= MOST_MEASURED for rate in rates)
    if rates and numeric:
        return float(statistics.median(rates))
    return None


NUMBER = FieldType("number")
COUNT = FieldType("count")
TEXT = FieldType("text")
FLAG = FieldType("flag")
CATEGORY = FieldType("category")
OBJECT = FieldType()
OBJECTS = FieldType(derive=lambda objects: objects or None)
HOW_MANY = FieldType("count", len)
LINES = FieldType("text", lambda texts: "\n".join(f"{name}: {text}" for name, text in sorted(texts.items())))
MODELS = FieldType("text", lambda kept: "\n".join(model.weights_sha256 for model in kept) or None)
CPU_LIST = FieldType("text", lambda cpus: ",".join(map(str, sorted(cpus))))
SUM = FieldType("number", sum)
TAIL = FieldType("number", _tail)
# The 99th percentile is the time of one step: a synchronous cluster waits for its slowest.
P99 = FieldType("number", lambda steps: sorted(steps)[(99 * len(steps) - 1) // 100] if steps else None)
RATES = FieldType("number", _rate)
PHASES = FieldType("number", lambda phases: sum(map(sum, phases.values())))
JOULES = FieldType("number", lambda counters: sum(counters.values()) if counters else None)
PARTS_S = FieldType("number", lambda parts: math.fsum(parts.values()))


def _rows(part: str, names: str, kind: FieldType, meaning: Field | None = None) -> list[Column]:
    """Return columns that are called as their fields, which are alike in all but these names."""
    return [Column(name, part + name, kind, meaning) for name in names.split()]


def _measured(why: str) -> Field:
    return Field("", "measured", why)


def _checked(why: str) -> Field:
    return Field("", "checked", why)


_PLACE = _checked("as planned")
_SOON = _checked("the trials of a block lie close in time, and never at the same time")
_PAIRED = _measured("trials are paired inside a run")
_FAILED = _measured("failed trials are counted")
_WARNED = _measured("a warning shows it")
_COST = _measured("the cost table holds it")
_STEPS = _checked("steps and their phases sum to the measured span")
_SPANS = _checked("its parts sum to the elapsed time")
_READ = _checked("no fewer images are read than are trained")
_TURNS = _checked("trials of a block take turns together, and never at once")
_QUOTED = _measured("the warning of failed trials quotes it")
_METRIC = _measured("a metric")
_VERSION = _checked("other versions are refused")
_FAILURE = Field("", "ignored", "explains a failure")
_CLOSED = Field("", "ignored", "follows everything that is compared")
_LOSSES = Field("", "refused", "decided by the seed; close if rounding may differ", "losses")
_WEIGHTS = "decided by the seed, unless rounding may differ"
_SAME_IMAGE = _measured("held against the images of bare metal")
_CHECKPOINTS = Field("", "named", "memory is faster than a disk", "file system of checkpoints", "checkpoints")
_SUITE = Field("", "named", "its measurements may have changed", "suite version", "software")
_USAGE = {
    "cpu_s": NUMBER,
    "peak_memory_bytes": COUNT,
    "disk_read_bytes": COUNT,
    "disk_written_bytes": COUNT,
}
SUBSTITUTES = FieldType("text", "\n".join)
_NOTED = FieldType("count", lambda number: number if isinstance(number, int) and 0 < number < MOST_MEASURED else None)
_STATUS = FieldType("flag", lambda status: status == "ok")

TABLE = (
    Column("run_id", "run_id", CATEGORY, _PAIRED),
    Column("trial_id", "trial_id", TEXT, _PLACE),
    Column("started_at", "started_at", TEXT, _SOON),
    *_rows("job.", "scenario data profile recipe model", CATEGORY),
    Column("target", "target", CATEGORY, _PLACE),
    Column("replica", "replica", COUNT, _PLACE),
    *_rows("", "block position", COUNT, _PLACE),
    Column("ablation", "ablation", TEXT, _PLACE),
    Column("warm_up", "warm_up", FLAG, _PLACE),
    Column("page_cache", "job.page_cache", TEXT),
    Column("batch", "job.sizes.batch", COUNT),
    Column("global_batch", "job.global_batch", COUNT),
    Column("generate", "job.generate", COUNT),
    *_rows("job.sizes.", "image_px tokens warmup_steps steps", COUNT),
    Column("unit", "job.unit", CATEGORY),
    Column("cpus", "job.envelope.cpus", HOW_MANY),
    *_rows("job.envelope.", "memory_bytes threads", COUNT),
    Column("engine", "job.layers.engine", CATEGORY),
    Column("isa", "job.isa", CATEGORY),
    *_rows("job.", "design rounds_freely", CATEGORY),
    Column("settings", "job", FieldType("category", comparison_key)),
    Column("hostname", "environment.host.hostname", TEXT),
    Column("host_machine_id", "environment.host.machine_id", TEXT),
    Column("host_kernel", "environment.host.kernel", TEXT),
    Column("host_cpu_model", "environment.host.cpu_model", TEXT),
    Column("host_cpus", "environment.host.cpus", HOW_MANY),
    Column("host_memory_bytes", "environment.host.memory_bytes", COUNT),
    Column("ok", "outcome.status", _STATUS, _FAILED),
    Column("failed_attempts", "failed_attempts", COUNT, _FAILED),
    Column("error_kind", "outcome.kind", TEXT, _QUOTED),
    Column("error_message", "outcome.message", TEXT, _QUOTED),
    Column("throughput_per_s", "throughput_per_s", NUMBER, _METRIC),
    *_rows("", "elapsed_s open_s", NUMBER, _METRIC),
    Column("step_p99_s", "steps.elapsed_s", P99, _STEPS),
    Column("step_tail", "steps.elapsed_s", TAIL),
    *_rows("", "clock_ratio clock_span_s unfinished_s", NUMBER, _WARNED),
    Column("substitutes", "substitutes", SUBSTITUTES, _measured("shown wherever the numbers are")),
    *_rows("environment.target.", "userland_sha256 accelerator torch torch_cpu_capability", TEXT),
    Column("seen_cpus", "environment.target.cpus", HOW_MANY),
    Column("seen_memory_bytes", "environment.target.memory_bytes", COUNT),
    Column("seen_threads", "environment.target.threads", COUNT),
    Column("affinity", "environment.target.host_cpus", CPU_LIST),
    Column("host_mitigations", "environment.host.mitigations", LINES),
    Column("mitigations", "environment.target.mitigations", LINES),
    Column("interval_s", "conditions.interval_s", NUMBER, _checked("the counters enclose the job")),
    *_rows("conditions.", "steal_s other_cpu_s throttled_s", NUMBER, _WARNED),
    Column("busiest", "conditions.busiest", OBJECTS, _WARNED),
    *_rows("conditions.", "thermal_throttles swapped_bytes", COUNT, _WARNED),
    Column("governor", "conditions.governor", TEXT, _WARNED),
    Column("siblings_shared", "conditions.siblings_shared", FLAG, _WARNED),
    Column("numa_nodes", "conditions.numa_nodes", HOW_MANY, _WARNED),
    *(
        Column(f"{part}_{name}", f"resources.{part}.{name}", kind, _COST)
        for part in ("serving", "worker")
        for name, kind in _USAGE.items()
    ),
    Column("energy_j", "resources.energy_j", JOULES, _COST),
    Column("llc_load_misses", "resources.cache.llc_load_misses", COUNT, _measured("the interference table holds it")),
    Column("gpu_strangers", "resources.gpus", _gpus(lambda gpu: None if gpu.strangers is None else len(gpu.strangers))),
    Column("gpu_hidden", "resources.gpus", _gpus(lambda gpu: gpu.strangers is None)),
    Column("gpu_strangers_share", "resources.gpus", _gpus(_foreign_share)),
    Column("gpu_sm_mhz", "resources.gpus", _gpus(lambda gpu: gpu.measured.sm_mhz if gpu.measured else None)),
    Column("gpu_throttled_s", "resources.gpus", _gpus(lambda gpu: gpu.throttled_s)),
    Column("gpu_power_capped_s", "resources.gpus", _gpus(lambda gpu: gpu.power_capped_s)),
    Column("device", "job.devices.device", CATEGORY),
    Column("devices", "details.devices", _NOTED),
    Column("steps_cpu_s", "details.measured_usage", FieldType("number", _cpu_s)),
    Column("inside_steal_s", "details.measured_usage", _of_usage("steal_s")),
    Column("voluntary_switches", "details.measured_usage", _of_usage("voluntary_switches")),
    Column("involuntary_switches", "details.measured_usage", _of_usage("involuntary_switches")),
    Column("migrations", "details.measured_usage", _of_usage("migrations")),
    Column("loader_workers", "data_use.loader_workers", COUNT),
    Column("data_sha256", "data_use.sha256", TEXT),
    Column("data_bytes", "data_use.asked_bytes", COUNT),
    Column("images_read", "data_use.images_read", COUNT, _READ),
    Column("damaged", "data_use.damaged", COUNT, _WARNED),
    Column("models", "kept", MODELS),
    Column("aggressor", "aggressor", TEXT, _PLACE),
    *(
        Column(f"aggressor_{name}", "aggressors", FieldType("number", _speed_of(name)))
        for name in ("before_per_s", "beside_per_s")
    ),
    Column("burst_s", "alternation.burst_s", NUMBER),
    Column("block_s", "alternation.block_s", NUMBER, _TURNS),
    *_rows("alternation.", "waiting_share turn_s beside_s late_s", NUMBER),
    Column("counted", "counted", CATEGORY, Field("", "refused", "rates of other things have no ratio", "counted")),
    Column("generated_weights", "generated.weights_sha256", TEXT, _SAME_IMAGE),
    Column("generated_pixels", "generated.pixels_sha256", TEXT, _SAME_IMAGE),
    Column("metrics", "metrics", OBJECTS),
    Column("losses", "steps.losses", FieldType(derive=_latest), _LOSSES),
)
"""The columns of a table of trials; ``cpus`` is their number, ``seen_…`` what the target reports from inside,
``data_bytes`` those of the data set that were asked for at least once, ``metrics`` those of a probe by name, ``losses``
the means over a trial's last steps, ``settings`` the comparison key of the job."""

AUDIT = (
    Column("seed", "seed", COUNT, _PLACE),
    Column("failure", "outcome", FieldType("text", _contradiction)),
    Column("close_s", "close_s", NUMBER, _CLOSED),
    Column("opening_s", "opening", PARTS_S, _checked("its parts sum to open_s")),
    Column("recorded_batch", "global_batch", COUNT, _checked("it is that of the job")),
    Column("counted_steps", "steps", FieldType("count", counted_steps)),
    Column("steps_s", "steps.elapsed_s", SUM),
    Column("phases_s", "steps", FieldType("number", lambda steps: sum(map(sum, _phases(steps))) or None)),
    Column("copied_s", "steps.copy_s", SUM, _STEPS),
    Column("waited_s", "steps.data_s", SUM, _STEPS),
    Column("computed_s", "steps.compute_s", SUM, _STEPS),
    Column("communicated_s", "steps.communicate_s", SUM, _STEPS),
    Column("parts_s", "steps.phases", PHASES, _STEPS),
    *_rows("timeline.", "launch_s measured_s", NUMBER, _SPANS),
    Column("timeline_s", "timeline", FieldType("number", timeline_s)),
    Column("whole_timeline", "timeline", FieldType("flag", _whole_timeline)),
    Column("alternation", "alternation", OBJECT),
    Column("ranks", "ranks", OBJECTS),
    Column("aggressors", "aggressors", OBJECTS),
    Column("data_use", "data_use", OBJECT),
    Column("generated_images", "generated.images", COUNT, _checked("as many as the job asks for")),
    Column("generating_s", "timeline.generating_s", NUMBER, _SPANS),
    Column("between_s", "timeline.between_epochs_s", NUMBER, _SPANS),
    Column("printed_per_s", "details.throughputs", RATES),
    Column("idle_w", "resources.idle_w", NUMBER, _COST),
    Column("units_answered", "details.units_answered", _NOTED),
    Column("ready_s", "timeline", FieldType("number", _ready_s)),
    Column("epochs", "epochs", OBJECT),
    Column("kept", "kept", OBJECTS),
)
"""The columns that the audit needs besides. Parts that few records have are objects; ``failure`` is the text of a
failure in a trial that is ok, ``opening_s`` the sum of all parts of opening."""

FURTHER = (
    Column("schema_version", "schema_version", COUNT, _VERSION),
    Column("suite_version", "suite_version", TEXT, _SUITE),
    Column("outcome.command", "outcome.command", OBJECT, _FAILURE),
    Column("outcome.output_tail", "outcome.output_tail", TEXT, _FAILURE),
    Column("outcome.remedy", "outcome.remedy", TEXT, _FAILURE),
    Column("weights_sha256", "weights_sha256", TEXT, Field("", "refused", _WEIGHTS, "weights")),
    Column("drawn_sha256", "drawn_sha256", TEXT, Field("", "refused", "decided by the seed, on every CPU", "draws")),
    Column("last_step", "last_step", COUNT, Field("", "refused", "a command that ends early did other work", "step")),
    Column("answers_sha256", "answers_sha256", TEXT, _measured("the answer states whether they are the same")),
    Column("generated_png", "generated.png", OBJECT, _SAME_IMAGE),
    *(
        Column(f"timeline.{name}_s", f"timeline.{name}_s", NUMBER, _SPANS)
        for name in _TIMELINE[1:]
        if name != "measured"
    ),
    Column("checkpoints", "epochs.checkpoints.filesystem", TEXT, _CHECKPOINTS),
    Column("instances", "alternation.instances", COUNT, _TURNS),
)
"""Fields that are read without a column in a table."""
