"""The resize probe: how long an open instance takes to have the CPUs, or the share of their time, that it was given.

A loop on every CPU counts, and reports 100 times a second what it has counted and how many CPUs the kernel shows it.
Its clock is mapped to the host's by the report that came soonest. ``seen`` is from asking until the kernel shows the
change inside, ``level`` until all windows of a while count within a tenth of the rate of the last half of the hold.
"""

import os
import statistics
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from scenarios.job import run_job
from scenarios.probes.startup import least_job
from suite.errors import BenchError, MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Node, Observer, Process, Resize
from suite.job.envelope import Envelope
from suite.plan import Trial
from suite.records.record import MetricValue
from suite.registries import ENGINES
from suite.request.request import RunRequest
from suite.targets import BASELINE
from worker.probes.probe import median, writes_nothing

LOOP = """
import mmap, os, time
count = len(os.sched_getaffinity(0))
shared = memoryview(mmap.mmap(-1, 8 * count)).cast("q")
parent = os.getpid()
for number in range(count):
    if not os.fork():
        while os.getppid() == parent:
            for _ in range(1000):
                pass
            shared[number] += 1
        os._exit(0)
places = [line.strip().split(":", 2) for line in open("/proc/self/cgroup")]
# Without a namespace of control groups, a path is the machine's, and the top of the mount is the container's group.
first = [path for _, names, path in places if "cpu" in names.split(",")]
files = ["/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us" % path for path in (*first, "")]
files += ["/sys/fs/cgroup%s/cpu.max" % path for path in (*(path for _, names, path in places if not names), "")]
files = [name for name in files if os.path.exists(name)]
while True:
    quota = open(files[0]).read().split()[0] if files else ""
    print(time.monotonic(), sum(shared), len(os.sched_getaffinity(0)), quota, flush=True)
    time.sleep(0.01)
"""
REPETITIONS = {"paper": 10, "gpu": 10, "quick": 2, "smoke": 1}
HOLD_S, WINDOW_S, WITHIN = 2.0, 0.2, 0.1
"""How long each change is held; a window is two periods of a quota, within which the rate has no meaning."""
STARTED_WITHIN_S = 60.0
CHANGES = ("quota-down", "quota-up", "cpus-down", "cpus-up")
ABSENT = {"seen": "the kernel shows no change inside", "level": "the rate of the loop did not change and become level"}


@dataclass(frozen=True)
class Report:
    """One line of the loop."""

    at_s: float
    count: int
    cpus: int
    quota: str


@dataclass
class ResizeLoop:
    """The loop in an instance, and all that it has reported."""

    process: Process
    arrived: list[tuple[float, Report]] = field(default_factory=list)

    def read(self) -> None:
        try:
            for line in self.process.lines(3600.0):
                at_s, count, cpus, *quota = line.split()
                report = Report(float(at_s), int(count), int(cpus), "".join(quota))
                self.arrived.append((time.monotonic(), report))
        except (BenchError, ValueError):
            return  # the reports so far are judged

    def since(self, asked_s: float) -> list[Report]:
        """Return the reports after a moment of the host's clock, their times from it on."""
        offset_s = min(here_s - report.at_s for here_s, report in self.arrived)
        moved = (Report(r.at_s + offset_s - asked_s, r.count, r.cpus, r.quota) for _, r in list(self.arrived))
        return [report for report in moved if report.at_s >= 0]


class Resizing:
    """The resize probe: measured by the host, on a loop beside a training of one step."""

    name = "resize"
    only_named = True
    written_bytes = staticmethod(writes_nothing)

    def check(self, request: RunRequest, targets: Sequence[str], envelope: Envelope) -> None:
        """Raise RequestError for a target that cannot be resized."""
        engine, able = request.targets.engine, "runc, podman and docker"
        wrong = [
            (request.joining.inventory, option("inventory"), "leave it out: instances of this machine are resized"),
            (
                engine and not ENGINES.get(engine).update_argv("", "0", 1),
                f"{option('engine')} {engine}",
                f"choose another {option('engine')}: those of {able} can be given other CPUs while they are open",
            ),
            (len(envelope.cpus) < 2, "one CPU, of which none can be taken away", f"give {option('cpus')} 2 or more"),
            (os.geteuid() and BASELINE in targets, f"{option('target')} {BASELINE} without root", "run bench as root"),
        ]
        for holds, words, remedy in wrong:
            if holds:
                raise RequestError(f"{option('probe')} {self.name} does not go with {words}", remedy=remedy)

    def run(self, trial: Trial, instance: Instance, observer: Observer, account: Context) -> Measurement:
        """Resize the instance. Raises MeasurementError for one that cannot be, or does not follow."""
        if instance.resize is None:
            raise MeasurementError(
                f"the CPUs of {trial.target} cannot be changed while it is open",
                kind="resize",
                remedy=f"give {option('engine')} runc, or podman or docker as root",
            )
        measured = run_job(least_job(trial), instance.node, observer, account)
        observer.phase("measuring")
        samples = resized(instance.node, instance.resize, REPETITIONS[trial.job.profile])
        metrics = {name: MetricValue(**vars(median(values, "s", "less"))) for name, values in samples.items()}
        if not metrics:
            raise MeasurementError("no change of its CPUs was seen", kind="resize")
        absent = [f"{change}-{what}" for change in CHANGES for what in ABSENT if f"{change}-{what}" not in metrics]
        refused = {name: ABSENT[name.rpartition("-")[2]] for name in absent}
        for name, reason in refused.items():
            observer.note(f"{name} is absent on {trial.target}: {reason}")
        details = {**measured.details, "refused": refused}
        return measured.changed(throughput_per_s=None, steps=None, metrics=metrics, details=details)


def resized(node: Node, resize: Resize, times: int) -> dict[str, list[float]]:
    """Return the seconds of every change that was seen, by metric; afterwards the instance has all of its CPUs."""
    cpus = node.cpus
    loop = ResizeLoop(node.start([node.python[0], "-u", "-c", LOOP]))
    reader = threading.Thread(target=loop.read, daemon=True)
    reader.start()
    found: dict[str, list[float]] = {}
    wanted = zip(CHANGES, ((cpus, 0.5), (cpus, 1.0), (cpus[:-1], 1.0), (cpus, 1.0)), strict=True)
    changes: dict[str, Callable[[], None]] = {name: partial(resize, *own) for name, own in wanted}
    try:
        _wait_for(loop)
        for _ in range(times):
            for name, change in changes.items():
                asked_s = time.monotonic()
                try:
                    change()
                except RequestError:
                    continue  # a guest keeps its CPUs
                time.sleep(HOLD_S)
                for what, value in (("seen", seen_s(loop, asked_s)), ("level", level_s(loop, asked_s))):
                    if value is not None:
                        found.setdefault(f"{name}-{what}", []).append(value)
    finally:
        resize(cpus, 1.0)
        loop.process.kill()
        reader.join()
    return found


def _wait_for(loop: ResizeLoop) -> None:
    """Let the loop run for a hold. Raises MeasurementError if it does not begin."""
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not loop.arrived:
        if time.monotonic() > deadline or not loop.process.running():
            raise MeasurementError(f"the loop does not begin: {loop.process.output_tail()}", kind="resize")
        time.sleep(0.01)
    time.sleep(HOLD_S)


def seen_s(loop: ResizeLoop, asked_s: float) -> float | None:
    """Return when the kernel first showed what it shows at the end of the hold; None if it has shown no change."""
    before = [report for here_s, report in list(loop.arrived) if here_s < asked_s][-1]
    after = loop.since(asked_s)
    shown = [(report.cpus, report.quota) for report in after]
    if not shown or shown[-1] == (before.cpus, before.quota):
        return None
    return after[shown.index(shown[-1])].at_s


def level_s(loop: ResizeLoop, asked_s: float) -> float | None:
    """Return when the first window began from which on the rate is level; None without one, or if it did not change."""
    windows, before = list(_windows(loop.since(asked_s))), _windows(loop.since(asked_s - HOLD_S / 2))
    earlier = [rate for at_s, rate in before if at_s < HOLD_S / 2 - WINDOW_S]
    later = [rate for at_s, rate in windows if at_s >= windows[-1][0] / 2]
    if not earlier or not later:
        return None
    last, usual = statistics.median(later), statistics.median(earlier)
    return _level_from(windows, last) if abs(last - usual) > WITHIN * usual else None


def _level_from(windows: Sequence[tuple[float, float]], last: float) -> float | None:
    """Return when the first window begins that is near the last rate, as all are which begin inside it."""
    near = {at_s: abs(rate - last) <= WITHIN * last for at_s, rate in windows}
    level = (at_s for at_s in near if all(ok for other_s, ok in near.items() if 0 <= other_s - at_s <= WINDOW_S))
    return next(level, None)


def _windows(reports: Sequence[Report]) -> Iterator[tuple[float, float]]:
    """Yield when each window begins, and its rate; it ends with the report that comes closest to its length.

    A quota lets the loop run, and report, in a part of each period.
    """
    times = [report.at_s for report in reports]
    for report in reports:
        at = bisect(times, report.at_s + WINDOW_S)
        near = reports[at - 1 : at + 1] if at < len(times) else ()
        later = min(near, key=lambda other: abs(other.at_s - report.at_s - WINDOW_S), default=report)
        if later.at_s > report.at_s:
            yield report.at_s, (later.count - report.count) / (later.at_s - report.at_s)


RESIZE = Resizing()
