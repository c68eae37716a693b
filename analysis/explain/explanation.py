"""An explanation as typed data. ``attribution`` and ``prediction`` make it; ``report.waterfall`` prints it."""

from dataclasses import dataclass

from analysis.compare.results import ComparedJob, Effect, Selection
from analysis.statistics.ratios import StepTimes
from analysis.warnings.types import AnalysisWarning

OPENING = "opening"
COMPUTE = "compute"
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class TimeDifference:
    """Mean seconds of one part on bare metal and on the target, and their difference.

    The 95 % interval of the difference takes two blocks or more.
    """

    name: str
    baseline_s: float
    target_s: float
    difference_s: float
    interval: tuple[float, float] | None
    phases: "tuple[TimeDifference, ...]" = ()
    """The phases of the opening, by what was opened, which sum to the part; and those of computing that the workload
    names."""


@dataclass(frozen=True)
class NumberDifference:
    """Mean of a number on both sides of the blocks that have it on both, and the mean of its differences.

    The 95 % interval of the difference takes two blocks or more.
    """

    name: str
    """``elapsed s``; or what the kernel counted in the measured steps: ``voluntary switches``, when the job waited for
    data or for another process, ``involuntary switches``, when another process ran or its time slice was over, and
    ``migrations`` of a thread to another CPU."""
    baseline: float
    target: float
    difference: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Victim:
    """The changes of a job on one target when an aggressor ran next to it; the baseline is the same target alone."""

    job: ComparedJob
    model: str
    target: str
    ablation: str
    aggressor: str
    blocks: int
    numbers: tuple[NumberDifference, ...]
    """The elapsed time, and what was counted on both sides."""


@dataclass(frozen=True)
class Predicted:
    """The predicted cost of one part: its seconds on bare metal, times what the probe lost on the target."""

    part: str
    by: str | None
    """The probe and its metric, ``cpu/matrix-product-all-threads``; None for a part that is a probe of itself."""
    ratio: Effect | None
    difference_s: float
    interval: tuple[float, float] | None
    parts: bool
    """True if measurement and prediction are shown to differ: their intervals have nothing in common."""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one target: part by part, and their sum beside the measured whole."""

    predicted: tuple[Predicted, ...]
    difference_s: float
    interval: tuple[float, float] | None
    parts: bool
    silent: tuple[str, ...]
    """Parts that no probe stands for: they are predicted to cost what they cost on bare metal."""


@dataclass(frozen=True)
class CommunicatingShare:
    """The bytes that one rank, which sends most, sends in a step, and the share of communication in a step."""

    step_bytes: float
    """By the shapes of what is sent."""
    interface_bytes: float | None
    """By its interface, headers included; None if the record does not have it."""
    measured: float
    bandwidth_mb_s: float | None = None
    """None without ``collectives`` on the same hosts, layers and network among the records."""
    predicted: float | None = None
    """The share by that bandwidth, if nothing hid the communication."""


@dataclass(frozen=True)
class Explanation:
    """The waterfall of one target: ``parts``, in the order of a trial and ``unexplained`` last, sum to ``whole``."""

    job: ComparedJob
    model: str
    target: str
    blocks: int
    whole: TimeDifference
    parts: tuple[TimeDifference, ...]
    baseline_steps: StepTimes | None
    target_steps: StepTimes | None
    notes: tuple[str, ...]
    counts: tuple[NumberDifference, ...] = ()
    """The switches and migrations that both sides counted."""
    prediction: Prediction | None = None
    """Present if probes of the same host, envelope and layers are among the records."""
    communicating: CommunicatingShare | None = None
    """Present for a distributed training."""
    withheld: tuple[str, ...] = ()
    """Why the trials decide nothing, so that no part is a share of the difference; empty where their verdict stands."""

    def share(self, part: TimeDifference) -> float | None:
        """Return the share of a part in the whole difference; None if no difference is shown."""
        interval = self.whole.interval
        if self.withheld or interval is None or interval[0] <= 0 <= interval[1]:
            return None
        return part.difference_s / self.whole.difference_s


@dataclass(frozen=True)
class ExpectedNumber:
    """One number of preempted jobs: the means over the blocks, with 95 % intervals of two blocks or more."""

    name: str
    unit: str
    measured: float
    predicted: float
    measured_interval: tuple[float, float] | None
    predicted_interval: tuple[float, float] | None
    difference_interval: tuple[float, float] | None
    differs: bool
    """True if measurement and prediction are shown to differ: the interval of their difference excludes zero, and
    ``PreemptedJob.withheld`` is empty."""


@dataclass(frozen=True)
class PreemptedJob:
    """The course of a target's jobs that were preempted, beside the one that their parts predict."""

    job: ComparedJob
    model: str
    target: str
    mean_s: float
    """The mean time between preemptions."""
    blocks: int
    numbers: tuple[ExpectedNumber, ...]
    withheld: tuple[str, ...]
    """Why nothing is said on whether measurement and prediction differ; empty if it is."""


@dataclass(frozen=True, kw_only=True)
class Explained(Selection):
    """The result of ``explain``, with the comparison's contrasts.

    The warnings name records whose parts could not be read.
    """

    explanations: tuple[Explanation, ...]
    preempted: tuple[PreemptedJob, ...]
    victims: tuple[Victim, ...]
    warnings: tuple[AnalysisWarning, ...]
