"""The parts of a record that the audit reads, as one row beside that of the tables."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from suite.records.environment import Environment

LEAST, MOST = 1e-15, 1e15
"""The bounds of what can have been measured: seconds, bytes, and units per second. Beyond them sums and squares of
numbers, which a stranger may have written, would not be finite."""
_Seconds = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
_Number = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=1 << 50)]
Words = Annotated[str, Field(max_length=500)]
"""A text that tables and figures show."""
_LONGEST = 4000


class _Seen(Environment):
    """An environment, with what a later suite may have added left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def typed_environment(environment: object) -> dict[str, Any]:
    """Return the fields of an environment as the suite writes them. Raises ValueError for what it does not write."""
    return bounded(_Seen.model_validate(environment).model_dump(mode="json"))


def bounded(found: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a record. Raises ValueError for numbers and texts that no table can hold."""
    for value in _inside(found):
        if (isinstance(value, int) and abs(value) > MOST) or (isinstance(value, str) and len(value) > _LONGEST):
            raise ValueError("no job and no machine has such a number, or so long a text")
    return found


def _inside(value: object) -> Iterator[object]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield part
        yield from _inside(part)


Surroundings = Annotated[dict[str, Any], BeforeValidator(typed_environment)]
_Column = list[float] | None
LATELY = 100
"""The steps, at the end of a trial, whose losses are told."""
STEP_COLUMNS = ("step_p99_s", "step_tail")
"""The 99th percentile of the measured steps, and that over their median: a synchronous cluster waits for its slowest
step. Unlike the rest, they are columns of the tables."""
NO_STEPS = (None, None)


class StepFields(BaseModel):
    """The measured steps, of which the sums are kept."""

    elapsed_s: list[float]
    data_s: list[float]
    copy_s: _Column = None
    compute_s: list[float]
    communicate_s: _Column = None
    phases: dict[Words, list[float]] = {}
    losses: dict[Words, list[float]] = {}

    @model_validator(mode="after")
    def _are_times(self) -> Self:
        # Steps are most of a record: to hold every number of them against bounds by itself takes twice as long.
        for column in (*self._columns, *self.phases.values()):
            if column and not (min(column) >= 0 and sum(column) <= MOST):
                raise ValueError("a step has a time that is none")
        for losses in self.losses.values():
            if losses and not (min(losses) >= -MOST and max(losses) <= MOST):
                raise ValueError("a step has a loss that is none")
        return self

    @property
    def _columns(self) -> tuple[_Column, ...]:
        return self.elapsed_s, self.data_s, self.copy_s, self.compute_s, self.communicate_s

    def row(self) -> tuple[float | None, ...]:
        """Return the values of ``STEPS``. Of columns that are not all as long, the length of another counts."""
        columns = self._columns[1:]
        lengths = {len(one) for one in (*columns, *self.phases.values(), *self.losses.values()) if one is not None}
        counted = next(iter(lengths - {len(self.elapsed_s)}), len(self.elapsed_s))
        waited_s, copied_s, *others_s = (None if column is None else sum(column) for column in columns)
        phases_s = sum(found for found in (waited_s, copied_s, *others_s) if found is not None)
        parts_s = sum(map(sum, self.phases.values()))
        return counted, sum(self.elapsed_s), phases_s, copied_s, waited_s or 0.0, sum(self.compute_s), parts_s

    def lately(self) -> dict[str, float] | None:
        """Return the mean of each loss over the last steps; None where there are no losses."""
        last = {name: each[-LATELY:] for name, each in self.losses.items() if each}
        return {name: math.fsum(each) / len(each) for name, each in last.items()} or None

    def tail(self) -> tuple[float | None, float | None]:
        """Return the values of ``STEP_COLUMNS``. Each percentile is the time of one step, with no interpolation."""
        if not self.elapsed_s:
            return NO_STEPS
        steps = sorted(self.elapsed_s)
        p50, p99 = steps[(len(steps) - 1) // 2], steps[(99 * len(steps) - 1) // 100]
        return p99, p99 / p50 if p50 > 0 else None


class TimelineFields(BaseModel):
    """The parts of the elapsed time, of which the sum is kept where all are known."""

    launch_s: _Seconds | None = None
    imports_s: _Seconds | None = None
    build_s: _Seconds | None = None
    warmup_s: _Seconds | None = None
    measured_s: _Seconds | None = None
    teardown_s: _Seconds | None = None
    exit_s: _Seconds | None = None
    between_epochs_s: _Seconds | None = None

    def row(self) -> tuple[float | None, float | None]:
        """Return the values of ``TIMELINE``. A job of a number of steps has nothing between epochs.

        A measured span without the parts around it counts as none.
        """
        *parts, between_s = self.__dict__.values()
        # The first suite had no exit, and did not know how much of the rest was the launch.
        known = None not in parts[1:-1] and (self.launch_s is None) == (self.exit_s is None)
        return self.measured_s if known else None, None if None in parts else sum(parts) + (between_s or 0.0)


class BurstFields(BaseModel):
    """One turn of a job that takes turns."""

    round: _Count
    position: _Count
    begun_s: _Seconds
    ended_s: _Seconds
    span_s: Annotated[float, Field(ge=LEAST, le=MOST, allow_inf_nan=False)]
    heard_s: _Seconds | None = None
    steps: Annotated[int, Field(gt=0, lt=1 << 50)]
    cpu_s: _Seconds | None = None
    waiting_cpu_s: _Seconds | None = None
    own_cpu_s: _Seconds


class AlternationFields(BaseModel):
    """The turns of a trial."""

    instances: _Count
    block_s: _Seconds
    bursts: Annotated[list[BurstFields], Field(min_length=1)]

    @property
    def burst_s(self) -> float:
        """The geometric mean of the seconds per step of the bursts.

        A ratio of two of these is the ratio of the bursts of each round, averaged on the log scale over the rounds.
        """
        return math.exp(math.fsum(math.log(one.span_s / one.steps) for one in self.bursts) / len(self.bursts))

    def check(self, steps_s: Sequence[float]) -> None:
        """Raise ValueError where the bursts cannot be made of these steps."""
        if (steps := sum(one.steps for one in self.bursts)) != len(steps_s):
            raise ValueError(f"its bursts have {steps} steps, and the trial {len(steps_s)}")
        if min(steps_s) <= 0:
            raise ValueError("a step of a burst took no time")

    @property
    def turn_s(self) -> float:
        """The mean seconds of a turn, on the host's clock."""
        return math.fsum(one.ended_s - one.begun_s for one in self.bursts) / len(self.bursts)

    @property
    def beside_s(self) -> float:
        """The mean seconds of a turn in which, by the worker's clock, no step was taken."""
        return self.turn_s - math.fsum(one.span_s for one in self.bursts) / len(self.bursts)

    @property
    def late_s(self) -> float | None:
        """The same, up to when the host heard that its last step had ended; None in records of older suites."""
        late = [one.heard_s - one.span_s for one in self.bursts if one.heard_s is not None]
        return math.fsum(late) / len(late) if len(late) == len(self.bursts) else None

    @property
    def waiting_share(self) -> float | None:
        """The CPU seconds that it took while others had their turns, over those of its own; None where not counted."""
        waited = [one.waiting_cpu_s for one in self.bursts if one.waiting_cpu_s is not None]
        spent = [one.cpu_s for one in self.bursts if one.cpu_s is not None]
        whole = len(waited) == len(spent) == len(self.bursts) and math.fsum(spent) > 0
        return math.fsum(waited) / math.fsum(spent) if whole else None


class LinkFields(BaseModel):
    """A connection of a rank."""

    rank: _Count


class RankFields(BaseModel):
    """One process of a distributed job."""

    rank: _Count
    role: Words
    environment: Surroundings
    throughput_per_s: _Seconds | None = None
    measured_s: _Seconds | None = None
    data_s: _Seconds | None = None
    compute_s: _Seconds | None = None
    communicate_s: _Seconds | None = None
    sent_bytes: _Count | None = None
    received_bytes: _Count | None = None
    links: list[LinkFields] = []


class AggressionFields(BaseModel):
    """The work of an aggressor."""

    unit: Words
    begun_s: _Number
    ended_s: _Number
    heard_s: list[_Number]
    steps: list[_Count]
    work: list[_Number | None]
    before_per_s: _Seconds | None = None
    beside_per_s: _Seconds | None = None


class AggressorFields(BaseModel):
    """One instance beside the victim's."""

    environment: Surroundings
    aggression: AggressionFields | None = None


class DataFields(BaseModel):
    """The data set of a job, and how it was read."""

    kind: str = ""
    sha256: str
    listing_sha256: str | None = None
    images: _Count = 0
    size_bytes: _Count
    decoder: str | None = None
    loader_workers: _Count | None = None
    page_cache_share: _Number | None = None
    filesystem: str | None = None
    device: str | None = None
    images_read: _Count
    bytes_read: _Count
    damaged: _Count = 0


class CheckpointFields(BaseModel):
    """The place that checkpoints were written to."""

    filesystem: Words | None = None


class EpochFields(BaseModel):
    """The epochs of a job, of which the metrics hold the times."""

    checkpoints: CheckpointFields | None = None


STEPS = ("counted_steps", "steps_s", "phases_s", "copied_s", "waited_s", "computed_s", "parts_s")
"""The number of steps, their seconds, and those of their phases, of copying, of waiting for data and of computing
alone, and of what the workload names of computing."""
TIMELINE = ("measured_s", "timeline_s")
FLOATS = ("close_s", "opening_s", *STEPS, *TIMELINE)
EVIDENCE = (
    *("seed", "job", "failure", *FLOATS),
    *("alternation", "turn_steps", "ranks", "aggressors", "data_use", "samples"),
)
"""The columns; ``job`` is its JSON, ``samples`` those of the metrics; the parts that few records have are objects.
``turn_steps`` are the seconds of every step of a trial that takes turns, ``opening_s`` those of all parts of opening,
``failure`` what a trial that is ok says of one."""


class Text(NamedTuple):
    """A long text that many records share. As an object: pandas would copy a text for each."""

    text: str


@lru_cache(maxsize=10_000)
def shared(text: str, more: str = "") -> Text:
    """Return the text of both: one object for all records that have the same."""
    return Text(text + more)
