"""The resize probe: how long an open instance takes to have the CPUs, their time or the memory that it is given.

A loop on every CPU counts, and reports 100 times a second what it has counted and which limits the kernel shows it.
Its clock is mapped to the host's by the report that came soonest. ``seen`` is from asking until the kernel shows the
change inside, ``level`` until all windows of a while count within a tenth of the rate of the last half of the hold.
"""

import statistics
import threading
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from scenarios.probes.resizing import check_resizable
from scenarios.probes.startup import run_least
from suite.errors import BenchError, MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Node, Observer, Process, Resize, Shares
from suite.job.envelope import Envelope
from suite.plan import Trial
from suite.records.record import MetricValue
from suite.request.request import RunRequest
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
def limit(controller, first, second):
    # Without a namespace of control groups, a path is the machine's, and the top of the mount is the container's group.
    own = [path for _, names, path in places if controller in names.split(",")]
    files = ["/sys/fs/cgroup/%s%s/%s" % (controller, path, first) for path in (*own, "")]
    unified = [path for _, names, path in places if not names]
    files += ["/sys/fs/cgroup%s/%s" % (path, second) for path in (*unified, "")]
    return [name for name in files if os.path.exists(name)][:1]
limits = limit("cpu", "cpu.cfs_quota_us", "cpu.max") + limit("memory", "memory.limit_in_bytes", "memory.max")
while True:
    shown = ["+".join(open(name).read().split()) for name in limits]
    print(time.monotonic(), sum(shared), len(os.sched_getaffinity(0)), *shown, flush=True)
    time.sleep(0.01)
"""
REPETITIONS = {"paper": 10, "gpu": 10, "quick": 2, "smoke": 1}
HOLD_S = 2.0
WINDOW_S = 0.2
WITHIN = 0.1
"""How long each change is held; a window is two periods of a quota, within which the rate has no meaning."""
STARTED_WITHIN_S = 60.0
CHANGES = {
    "quota-down": (0, 0.5, 1.0),
    "quota-up": (0, 1.0, 1.0),
    "cpus-down": (1, 1.0, 1.0),
    "cpus-up": (0, 1.0, 1.0),
    "memory-down": (0, 1.0, 0.5),
    "memory-up": (0, 1.0, 1.0),
}
"""How many CPUs less than all an instance is given, and what shares of their time and of its memory."""
ABSENT = {"seen": "the kernel shows no change inside", "level": "the rate of the loop did not change and become level"}


@dataclass(frozen=True)
class Report:
    """One line of the loop."""

    at_s: float
    count: int
    cpus: int
    limits: tuple[str, ...] = ()


@dataclass
class ResizeLoop:
    """The loop in an instance, and all that it has reported."""

    process: Process
    arrived: list[tuple[float, Report]] = field(default_factory=list)

    def read(self) -> None:
        try:
            for line in self.process.lines(3600.0):
                at_s, count, cpus, *limits = line.split()
                arrived_s = time.monotonic()
                self.arrived.append((arrived_s, Report(float(at_s), int(count), int(cpus), tuple(limits))))
        except (BenchError, ValueError):
            return  # the reports so far are judged

    def since(self, asked_s: float) -> list[Report]:
        """Return the reports after a moment of the host's clock, their times from it on."""
        offset_s = min(here_s - report.at_s for here_s, report in self.arrived)
        reports = list(self.arrived)
        moved = (replace(report, at_s=report.at_s + offset_s - asked_s) for _, report in reports)
        return [report for report in moved if report.at_s >= 0]


class Resizing:
    """The resize probe: measured by the host, on a loop beside a training of one step."""

    name = "resize"
    only_named = True
    written_bytes = staticmethod(writes_nothing)

    def check(self, request: RunRequest, targets: Sequence[str], envelope: Envelope) -> None:
        check_resizable(f"{option('probe')} {self.name}", request, targets, envelope)

    def run(self, trial: Trial, instance: Instance, observer: Observer, account: Context) -> Measurement:
        """Resize the instance. Raises MeasurementError for one that cannot be, or does not follow."""
        if instance.resize is None:
            raise MeasurementError(
                f"{trial.target} cannot be resized while it is open",
                kind="resize",
                remedy=f"give {option('engine')} runc, or podman or docker as root",
            )
        measured = run_least(trial, instance.node, observer, account)
        observer.phase("measuring")
        repetitions = REPETITIONS[trial.job.profile]
        samples = resized(instance.node, instance.resize, repetitions)
        metrics = {name: MetricValue(**vars(median(values, "s", "less"))) for name, values in samples.items()}
        if not metrics:
            raise MeasurementError("no change of its CPUs or memory was seen", kind="resize")
        absent = {f"{change}-{metric}": ABSENT[metric] for change in CHANGES for metric in _measured(change)}
        refused = {name: reason for name, reason in absent.items() if name not in metrics}
        for name, reason in refused.items():
            observer.note(f"{name} is absent on {trial.target}: {reason}")
        details = {**measured.details, "refused": refused}
        return measured.changed(metrics=metrics, details=details)


def resized(node: Node, resize: Resize, times: int) -> dict[str, list[float]]:
    """Return the seconds of every change that was seen, by metric; afterwards the instance has its limits again."""
    cpus = node.cpus
    process = node.start([node.python[0], "-u", "-c", LOOP])
    loop = ResizeLoop(process)
    reader = threading.Thread(target=loop.read, daemon=True)
    reader.start()
    resizes = dict[str, list[float]]()
    kept = set[str]()
    try:
        _wait_for(loop)
        for _ in range(times):
            for name, (fewer, *shares) in CHANGES.items():
                kind = name.partition("-")[0]
                asked_s = time.monotonic()
                try:
                    resize(Shares(cpus[: len(cpus) - fewer], *shares))
                except RequestError:
                    kept.add(kind)  # by a guest: its CPUs and its memory
                if kind in kept:
                    continue
                time.sleep(HOLD_S)
                step = 1 / len(cpus) if kind == "cpus" else 1.0
                for metric in _measured(name):
                    if metric == "seen":
                        value = seen_s(loop, asked_s)
                    else:
                        value = level_s(loop, asked_s, min(WITHIN, step / 2))
                    if value is not None:
                        resizes.setdefault(f"{name}-{metric}", []).append(value)
    finally:
        resize(Shares(cpus))
        loop.process.kill()
        reader.join()
    return resizes


def _measured(change: str) -> tuple[str, ...]:
    """Return what is measured of a change: memory changes no rate."""
    if change.startswith("memory"):
        return ("seen",)
    return ("seen", "level")


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
    arrived = list(loop.arrived)
    before = [report for here_s, report in arrived if here_s < asked_s][-1]
    after = loop.since(asked_s)
    shown = [(report.cpus, report.limits) for report in after]
    if not shown or shown[-1] == (before.cpus, before.limits):
        return None
    return after[shown.index(shown[-1])].at_s


def level_s(loop: ResizeLoop, asked_s: float, within: float = WITHIN) -> float | None:
    """Return when the first window began from which on the rate is level; None without one, or if it did not change.

    ``within`` is a share of the rate, below what the change is: one of many CPUs less changes it by less than a tenth.
    """
    windows = list(_windows(loop.since(asked_s)))
    before = _windows(loop.since(asked_s - HOLD_S / 2))
    earlier = [rate for at_s, rate in before if at_s < HOLD_S / 2 - WINDOW_S]
    later = [rate for at_s, rate in windows if at_s >= windows[-1][0] / 2]
    if not earlier or not later:
        return None
    last = statistics.median(later)
    usual = statistics.median(earlier)
    if abs(last - usual) > within * usual:
        return _level_from(windows, last, within)
    return None


def _level_from(windows: Sequence[tuple[float, float]], last: float, within: float) -> float | None:
    """Return when the first window begins that is near the last rate, as all are which begin inside it."""
    near = {at_s: abs(rate - last) <= within * last for at_s, rate in windows}
    for begin_s in near:
        inside = (ok for at_s, ok in near.items() if 0 <= at_s - begin_s <= WINDOW_S)
        if all(inside):
            return begin_s
    return None


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
