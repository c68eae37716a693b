"""Typed warnings, each with advice: what a reader must know, shown in every form of the results."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from suite.targets import BASELINE


class AnalysisWarning:
    """Base of the warnings. ``kind`` is stable, for programs; ``message`` says what is wrong, ``advice`` what to do."""

    kind: ClassVar[str]

    @property
    def message(self) -> str:
        raise NotImplementedError

    @property
    def advice(self) -> str:
        raise NotImplementedError

    def as_json(self) -> dict[str, str]:
        return {"kind": self.kind, "message": self.message, "advice": self.advice}


@dataclass(frozen=True)
class SkippedRecord(AnalysisWarning):
    """A file among the records that could not be used. The others are."""

    kind = "skipped-record"
    path: Path
    reason: str
    advice: str = "remove the file, or run that trial again"

    @property
    def message(self) -> str:
        return f"{self.path} is left out: {self.reason}"


@dataclass(frozen=True)
class EmptyRun(AnalysisWarning):
    """One of several directories holds no usable record."""

    kind = "empty-run"
    directory: Path

    @property
    def message(self) -> str:
        return f"{self.directory} holds no usable record"

    @property
    def advice(self) -> str:
        return f"go on with its run (bench run … --out {self.directory}), or leave it out"


@dataclass(frozen=True)
class CopiedRecords(AnalysisWarning):
    """The same trial was read from more than one place; it counts once."""

    kind = "copied-records"
    advice = "name each run once"
    count: int
    first: Path

    @property
    def message(self) -> str:
        return f"{self.count} records are copies of others and count once (the first: {self.first})"


@dataclass(frozen=True)
class MetricRedefined(AnalysisWarning):
    """Records that give a metric of a probe or workload another unit or direction than the first record."""

    kind = "metric-redefined"
    advice = "records of different versions of the probe or workload: compare the runs one at a time"
    metric: str
    unit: str
    records: int

    @property
    def message(self) -> str:
        return (
            f"{self.metric} is not in {self.unit}, or has another direction, in {self.records} records: left out there"
        )


@dataclass(frozen=True)
class FailedTrials(AnalysisWarning):
    """Trials of one target and model that did not come to their end. They have no numbers in any mean."""

    kind = "failed-trials"
    what: str
    target: str
    failed: int
    of: int
    error: str
    """The first failure: its kind and its message."""
    path: Path
    """The record of the first failure."""

    @property
    def message(self) -> str:
        return f"{self.what}: {self.failed} of {self.of} trials on {self.target} failed ({self.error})"

    @property
    def advice(self) -> str:
        return f"see {self.path}: the command and the end of its output are in it"


@dataclass(frozen=True)
class NotNormalised(AnalysisWarning):
    """Targets whose values stand without a ratio to bare metal."""

    kind = "not-normalised"
    what: str
    models: tuple[str, ...]
    targets: tuple[str, ...]
    reason: str
    request: Mapping[str, str]
    """Options of ``bench run`` that would repeat this comparison."""

    @property
    def message(self) -> str:
        return (
            f"{self.what}: {', '.join(self.targets)} of {', '.join(self.models)} not normalised to {BASELINE}: "
            f"{self.reason}"
        )

    @property
    def advice(self) -> str:
        options = [f"--{name} {value}" for name, value in self.request.items()]
        model = "--probe" if self.request.get("scenario") == "probe" else "--model"
        options += [f"{model} {name}" for name in self.models]
        options += [f"--target {target}" for target in dict.fromkeys((BASELINE, *self.targets))]
        return f"bench run {' '.join(options)}"


@dataclass(frozen=True)
class Incomparable(AnalysisWarning):
    """A trial differs from the one it is held against in more than it is there to show, so no ratio is formed."""

    kind = "incomparable"
    what: str
    target: str
    blocks: int
    difference: str
    against: str = BASELINE

    @property
    def message(self) -> str:
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        return (
            f"{self.what}: in {blocks} {self.target} is not comparable with {self.against}, so no ratio is formed: "
            f"{self.difference}"
        )

    @property
    def advice(self) -> str:
        if "userland" in self.difference:
            return "build the image with bench image build and run all targets as root, so that they share it"
        if self.difference.startswith("CPU capability"):
            return "run all targets with the capability that they share, or declare it with --isa native"
        return "run all targets from one plan; --force forms the ratio and marks it"


@dataclass(frozen=True)
class BaselineDiffers(AnalysisWarning):
    """The two bare-metal trials of the blocks differ from each other: the noise is not only random."""

    kind = "a-a-differs"
    advice = "look for what changes inside a block: other load, temperature, a cache that the first trial fills"
    what: str
    metric: str
    ratio: float
    interval: tuple[float, float]

    @property
    def message(self) -> str:
        low, high = self.interval
        return (
            f"{self.what}: the second {BASELINE} trial of a block has {self.ratio:.3f} times the {self.metric} of the "
            f"first (95 % interval {low:.3f} to {high:.3f}); no smaller difference between targets means anything"
        )


@dataclass(frozen=True)
class MixedSubstitutes(AnalysisWarning):
    """Trials with and without a substitute lie in one mean."""

    kind = "mixed-substitutes"
    advice = "compare the runs one at a time"
    what: str
    target: str
    substitutes: tuple[str, ...]

    @property
    def message(self) -> str:
        return (
            f"{self.what}: only some trials on {self.target} used {', '.join(self.substitutes)}; their mean mixes both"
        )


@dataclass(frozen=True)
class HostsDiffer(AnalysisWarning):
    """The trials come from hosts, or from states of one host, that are not equal."""

    kind = "hosts-differ"
    advice = "a block is of one host, so its ratios hold there; for one answer, compare the hosts one at a time"
    hosts: tuple[str, ...]
    found: tuple[str, ...]

    @property
    def message(self) -> str:
        return f"the trials are of hosts that are not equal ({', '.join(self.hosts)}): {'; '.join(self.found)}"
