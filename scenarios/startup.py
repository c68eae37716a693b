"""Many at once: instances of a target that are opened together, and what each of them takes from the machine.

An instance is ready when a first command in it has printed a line; its time is that of its opening, as of every trial
without what the suite asks on its own account, and of that command. They stay open, with their commands, until the last
one is ready or has failed. Memory is that of the processes that began meanwhile, CPU time that of the whole machine.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import psutil

from scenarios.probes.startup import run_least
from suite.errors import BenchError, MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Node, Note, Observer
from suite.job.envelope import Envelope
from suite.plan import Trial
from suite.records.record import MetricValue
from suite.request.option import OptionGroup, Text, about
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import VMS
from suite.trial_names import instances_in
from suite.units import count
from worker.probes.probe import median, quantile

MOST = 1000
LEAST_BYTES = 32 << 20
"""The memory that an instance needs to run a first command; a guest has all of the envelope's."""
OPENED_WITHIN_S = 1800.0
HELD = "import sys; print(flush=True); sys.stdin.read()"
"""The first command in an instance, which goes on until it is closed."""


def parse_instances(text: str) -> tuple[int, ...]:
    """Return the numbers of instances: ``1,5,20``. Raises RequestError."""
    words = (int(word) for word in text.split(",") if word.isdecimal())
    numbers = tuple(dict.fromkeys(words))
    if not numbers or len(numbers) < len(text.split(",")) or not all(0 < number <= MOST for number in numbers):
        raise RequestError(f"{text!r} holds no different numbers of instances", remedy="write numbers: 1,5,20")
    return numbers


class StartupOptions(OptionGroup):
    """Scenario startup."""

    instances: Text = about(
        "1,5,20", f"Numbers of instances to open together, from 1 to {MOST}.", parse=parse_instances
    )


class Startup(PlannedScenario):
    """How instances of a target open when many are asked for at once, and what each further one costs."""

    name = "startup"
    options = StartupOptions
    probes = multiplied = True
    workloads = trains = False
    subject = "instances"
    unnamed = "all"
    deciding = ("ready-median",)

    def models(self, request: RunRequest) -> tuple[str, ...]:
        counted = (count(number, "instance").replace(" ", "-") for number in _numbers(request))
        return tuple(counted)

    def check_shares(
        self,
        request: RunRequest,
        envelope: Envelope,
        targets: Sequence[str],
        note: Note,  # noqa: ARG002
    ) -> None:
        most = max(_numbers(request))
        available_bytes = psutil.virtual_memory().available
        for target in targets:
            # One more has been opened before, for its environment.
            needed_bytes = (most + 1) * (envelope.memory_bytes if target in VMS else LEAST_BYTES)
            if needed_bytes > available_bytes:
                raise RequestError(
                    f"{most + 1} instances of {target} need {needed_bytes / 1e9:.1f} GB of memory, and "
                    f"{available_bytes / 1e9:.1f} GB are available",
                    remedy=f"ask for fewer {option('instances')}, or give each less with {option('memory')}",
                )

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Run a least training in one instance, then open the others. Raises MeasurementError if none of them opens."""
        (first,) = instances
        if first.another is None:
            raise MeasurementError("this target cannot be opened more than once", kind="startup")
        measured = run_least(trial, first.node, observer, account)
        number = instances_in(trial.job.model)
        observer.phase("opening", count(number, "instance"))
        opened = Together(first.another, number)
        opened.open_all()
        metrics = opened.metrics()
        for reason in dict.fromkeys(opened.failures):
            observer.note(f"{opened.failures.count(reason)} of {count(number, 'instance')} did not open: {reason}")
        details = {**measured.details, "instances": number, "failures": opened.failures[:3]}
        return measured.changed(metrics=metrics, details=details)


def _numbers(request: RunRequest) -> tuple[int, ...]:
    return parse_instances(request.options(StartupOptions).instances)


@dataclass
class Together:
    """Instances that are opened at the same time, each in a thread."""

    another: Callable[[], AbstractContextManager[Node]]
    number: int
    ready_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    """The CPU time of the host until the last one was ready or had failed."""
    bytes: int = 0
    """The memory of the processes that were then there, and not before."""
    _settled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _closing: threading.Event = field(default_factory=threading.Event)

    def open_all(self) -> None:
        """Open all, and close them when the last one is ready or has failed. Raises what a closing raises."""
        there = set(psutil.pids())
        busy_s = _busy_s()
        with ThreadPoolExecutor(self.number) as pool:
            try:
                instances = [pool.submit(self._open) for _ in range(self.number)]
                for instance in instances:  # one that fails is settled, whatever it raised
                    instance.add_done_callback(lambda _: self._settled.release())
                for _ in instances:
                    self._settled.acquire()
                self.cpu_s = _busy_s() - busy_s
                self.bytes = memory_bytes(set(psutil.pids()) - there)
            finally:  # after Ctrl-C, too: those that open still are closed as soon as they are there
                self._closing.set()
        for instance in instances:
            instance.result()

    def _open(self) -> None:
        """Open an instance and hold it. Raises what a closing raises; one that does not open is counted instead."""
        if self._closing.is_set():
            return
        reading, writing = os.pipe()
        ready = False
        try:
            with os.fdopen(reading, "rb") as held, self.another() as node:
                began_s = time.monotonic()
                argv = [node.python[0], "-c", HELD]
                process = node.start(argv, stdin=held)
                next(process.lines(OPENED_WITHIN_S))
                self.ready_s.append(node.opening.seconds + time.monotonic() - began_s)
                ready = True
                self._settled.release()
                self._closing.wait()
                process.kill()
        except (BenchError, OSError, StopIteration) as error:
            if ready:
                raise
            self.failures.append(getattr(error, "message", str(error)) or "the first command printed nothing")
        finally:
            os.close(writing)

    def metrics(self) -> dict[str, MetricValue]:
        """Return the metrics of those that opened. Raises MeasurementError if there are none."""
        if not self.ready_s:
            raise MeasurementError(f"no instance opened: {self.failures[0]}", kind="startup")
        middle = median(self.ready_s, "s", "less")
        values = {
            "ready-p95": (quantile(self.ready_s, 0.95), "s"),
            "ready-all": (max(self.ready_s), "s"),
            "memory-per-instance": (self.bytes / len(self.ready_s) / 1e6, "MB"),
            "host-cpu-per-instance": (self.cpu_s / self.number, "s"),
        }
        shown = {}
        for name, (v, unit) in values.items():
            if v > 0:
                shown[name] = MetricValue(value=v, unit=unit, better="less")
        failed = MetricValue(
            value=len(self.failures),
            unit="",
            better="less",
            compared="difference",
        )
        return {"ready-median": MetricValue(**vars(middle)), **shown, "failed-instances": failed}


def _busy_s() -> float:
    cpu = psutil.cpu_times()
    return float(cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq)


def memory_bytes(processes: Iterable[int]) -> int:
    """Return the memory of processes; of a page that several share each has its part (``Pss`` in proc(5))."""
    total = 0
    for number in processes:
        with suppress(psutil.Error):  # it has ended meanwhile, or is another user's
            total += psutil.Process(number).memory_full_info().pss
    return total
