"""The start-up probe: times a minimal job from launch to first instruction, import and first step.

All three times are on the host's clock, from launching the job in the ready target until the host hears that the worker
has got there. (The timeline's launch holds the end of the process too, and needs two clocks.)
"""

import time
from dataclasses import dataclass, field

from scenarios.events import Silent
from scenarios.job import run_job
from suite.errors import MeasurementError
from suite.interfaces import Context, Instance, Measurement, Node, Observer
from suite.job.job import Devices
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.record import MetricValue
from worker.probes.probe import writes_nothing

LEAST = Sizes(batch=1, image_px=64, warmup_steps=0, steps=1)
LAUNCH = "launching"
# The phase that is told when the metric is reached.
REACHED = {"importing": "first-instruction", "building": "import-torch", "finishing": "first-step"}


def least_job(trial: Trial) -> Trial:
    devices = Devices(device=trial.job.devices.device)
    return trial.with_job(model="alexnet", sizes=LEAST, devices=devices)


def run_least(trial: Trial, node: Node, observer: Observer, account: Context) -> Measurement:
    """Run the least training there is, and return its measurement without what it computed: it is no one's work.

    Raises MeasurementError when it does not come to its end.
    """
    measured = run_job(least_job(trial), node, observer, account)
    return measured.changed(
        throughput_per_s=None,
        steps=None,
        weights_sha256=None,
        drawn_sha256=None,
    )


@dataclass
class PhaseRecorder(Silent):
    """An observer that notes when each phase began, and tells another one."""

    observer: Observer
    began_s: dict[str, float] = field(default_factory=dict)

    def phase(self, name: str, detail: str = "") -> None:
        heard_s = time.monotonic()
        self.observer.phase(name, detail)
        # The job is launched after that was told; all else had been reached before it was told.
        known_s = {LAUNCH: time.monotonic()}
        self.began_s.setdefault(name, known_s.get(name, heard_s))

    def note(self, text: str) -> None:
        self.observer.note(text)

    def metrics(self) -> dict[str, MetricValue]:
        """Return the metrics. Raises MeasurementError where a phase was never reached."""
        missing = [phase for phase in (LAUNCH, *REACHED) if phase not in self.began_s]
        if missing:
            raise MeasurementError(f"the worker never came to {missing[0]!r}", kind="protocol")
        return {
            name: MetricValue(value=self.began_s[phase] - self.began_s[LAUNCH], unit="s", better="less")
            for phase, name in REACHED.items()
        }


class StartupProbe:
    """The start-up probe: measured by the host, on a training of one step."""

    name = "startup"
    written_bytes = staticmethod(writes_nothing)

    def run(self, trial: Trial, instance: Instance, observer: Observer, account: Context) -> Measurement:
        """Time the least training there is. Raises MeasurementError when it does not come to its end."""
        stopwatch = PhaseRecorder(observer)
        measured = run_least(trial, instance.node, stopwatch, account)
        model = least_job(trial).job.model
        details = {**measured.details, "model": model, **LEAST.model_dump()}
        return measured.changed(metrics=stopwatch.metrics(), details=details)


STARTUP = StartupProbe()
