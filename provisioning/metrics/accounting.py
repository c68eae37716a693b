"""The account of a trial: this host's counters, read right before the job is launched and right after it has ended.

Nothing runs in between, except on a host with GPUs (see ``gpu_usage``), and for a moment once a turn of the host's
energy counters, those of RAPL, which turn within minutes; where the CPUs count cache misses, ``perf`` sleeps meanwhile
(see ``cache_counters``).
"""

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from provisioning.cgroup.counters import OWN, ControlGroup
from provisioning.metrics.cache_counters import Counting
from provisioning.metrics.conditions import Energy, EnvelopeHost, HostReading, busiest, joules, read_energy, used_s
from provisioning.metrics.footprint import Footprint, FootprintReading
from provisioning.metrics.gpu_usage import GpuSampler
from suite.interfaces import Instance, Node, OpenAccount
from suite.plan import Trial
from suite.records.usage import Conditions, Resources, Usage

IDLE_S = 10.0
LEAST_SHARE = 0.01
"""The share of the CPUs' time from which another process is named."""
MOST_W = 1500.0
"""More than any package, or its memory, can draw: two readings closer than a turn at this power miss no turn."""


def accounts() -> OpenAccount:
    """Measure the idle power of this host, if it counts energy, and return what opens accounts that record it."""
    return partial(open_account, idle_w=_idle_w())


def _idle_w() -> float | None:
    """Return the power of this host's counters in watts over some seconds; None without counters."""
    meter = EnergyMeter()
    begin_s = time.monotonic()
    if not meter.start():
        return None
    time.sleep(IDLE_S)
    spent, _ = meter.stop()
    if spent:
        return math.fsum(spent.values()) / (time.monotonic() - begin_s)
    return None


def open_account(
    trial: Trial,
    instances: Sequence[Instance],
    *,
    idle_w: float | None = None,
) -> "HostAccount | NoAccount":
    """Return the account for the opened instances; of those on other machines, where this host only launches, none."""
    nodes = [instance.node for instance in instances]
    pods = [node.facts.get("pod") for node in nodes]
    elsewhere = any(isinstance(pod, Mapping) and not pod["this_machine"] for pod in pods)
    elsewhere |= any("machine" in node.facts for node in nodes)
    if elsewhere or (trial.job.distributed and trial.job.distributed.machines):
        return NoAccount()
    victims = 1 if trial.job.sharing else len(nodes)
    server = trial.job.serving.server if trial.job.serving else None
    starts_within = server is not None and server.from_snapshot
    return HostAccount(trial.envelope.cpus, nodes, victims=victims, idle_w=idle_w, starts_within=starts_within)


class NoAccount(AbstractContextManager[None]):
    """See ``suite.interfaces.Account``. It counts nothing: what this host would count is not what the job has met."""

    conditions: Conditions | None = None
    resources: Resources | None = None

    def __exit__(self, *_: object) -> None: ...

    def meter(self, _: Sequence[Instance]) -> "HostMeter":
        return HostMeter([])


class HostAccount:
    """See ``suite.interfaces.Account``. It is entered once.

    Of nodes that share the machine the first ``victims`` are those that the resources are of; what serves the others is
    told apart, and is no stranger to the conditions. If the target itself ``starts_within`` the account, its
    processes are looked for once more at the end.
    """

    def __init__(
        self,
        cpus: Sequence[int],
        nodes: Sequence[Node],
        *,
        victims: int | None = None,
        idle_w: float | None = None,
        starts_within: bool = False,
    ) -> None:
        self._cpus = cpus
        self._starts_within = starts_within
        self._idle_w = idle_w
        self._nodes = nodes
        self._victims = nodes[:victims]
        self.conditions: Conditions | None = None
        self.resources: Resources | None = None

    def __enter__(self) -> None:
        begin_s = time.thread_time()
        self._footprint = Footprint.of(self._nodes)
        self._of_victims = None
        if len(self._victims) < len(self._nodes):
            self._of_victims = Footprint.of(self._victims)
        groups = [processes.group for processes in self._footprint.host_processes if processes.group]
        own_groups = [ControlGroup.of_process(OWN), *groups]
        self._host = EnvelopeHost(self._cpus, own_groups, of_gpus(self._nodes, "pci_address"))
        self._gpus = GpuSampler(of_gpus(self._nodes, "uuid"), self._footprint.owns)
        self._gpus.start()
        self._counting = Counting(own_cpus(self._nodes, self._victims))
        self._counting.start()
        self._load_1min = os.getloadavg()[0]
        self._used_s = used_s()
        self._energy = EnergyMeter()
        self._before = self._read()
        self._energy.start()
        self._entering_cpu_s = time.thread_time() - begin_s

    def __exit__(self, *_: object) -> None:
        begin_s = time.thread_time()
        if self._starts_within:
            self._footprint = self._footprint.with_started(self._nodes)
        host, reading, of_victims = self._read()
        used_now_s = used_s()
        of_host, missed = self._energy.stop()
        host_before, reading_before, of_victims_before = self._before
        serving = self._footprint.usage(reading_before, reading)
        conditions = self._host.conditions(host_before, host, serving.cpu_s)
        available_s = (host.at_s - host_before.at_s) * len(self._cpus)
        busy_processes = busiest(self._used_s, used_now_s, LEAST_SHARE * available_s, self._footprint.owns)
        aggressors = None
        if self._of_victims and of_victims and of_victims_before:
            everything = serving
            serving = self._of_victims.usage(of_victims_before, of_victims)
            aggressors = rest(everything, serving)
        gpu_joules, gpus = self._gpus.stop()
        energy_j, energy_absent = whole_energy(of_host, gpu_joules, missed)
        self.resources = Resources(
            serving=serving,
            energy_j=energy_j,
            energy_absent=energy_absent,
            idle_w=self._idle_w,
            gpus=gpus,
            beside=aggressors,
            cache=self._counting.stop(),
        )
        threads_cpu_s = self._gpus.cpu_s + self._energy.cpu_s
        sampler_cpu_s = self._entering_cpu_s + threads_cpu_s + time.thread_time() - begin_s
        self.conditions = replace(
            conditions,
            load_1min=self._load_1min,
            sampler_cpu_s=sampler_cpu_s,
            busiest=busy_processes,
        )

    def meter(self, instances: Sequence[Instance]) -> "HostMeter":
        return HostMeter([instance.node for instance in instances])

    def _read(self) -> tuple[HostReading, FootprintReading, FootprintReading | None]:
        host = self._host.read(time.monotonic(), time.process_time())
        of_victims = None
        if self._of_victims:
            of_victims = self._of_victims.read()
        return host, self._footprint.read(), of_victims


def of_gpus(nodes: Sequence[Node], fact: str) -> list[str]:
    """Return a fact of each GPU that the nodes were given, as ``records.Gpu`` has it; of a shared one once."""
    facts = []
    for node in nodes:
        gpus = node.facts.get("gpus")
        if isinstance(gpus, list):
            facts += [gpu[fact] for gpu in gpus]
    return list(dict.fromkeys(filter(None, facts)))


class HostMeter:
    """See ``suite.interfaces.Meter``. Make it when the job is running: its processes are looked for once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._footprint = Footprint.of(nodes)
        self._begin = self._footprint.read()

    def cpu_s(self) -> float | None:
        footprint = self._footprint
        if footprint.pids or footprint.host_processes:
            used = footprint.used(self._begin, footprint.read())
            return used["cpu_s"]
        return None


def own_cpus(nodes: Sequence[Node], victims: Sequence[Node]) -> list[int] | None:
    """Return this host's CPUs that the victims are pinned to; None if one is not, or if another may run on them."""
    mine: set[int] = set()
    foreign: set[int] = set()
    for node in nodes:
        cpus = node.facts.get("host_cpus")
        if not isinstance(cpus, list):
            return None
        if node in victims:
            mine.update(cpus)
        else:
            foreign.update(cpus)
    if mine & foreign:
        return None
    return sorted(mine) or None


def rest(everything: Usage, part: Usage) -> Usage:
    """Return the CPU time that is left. Disk and faults are unknown here while bare metal's aggressors run."""
    if everything.cpu_s is None or part.cpu_s is None:
        return Usage()
    return Usage(cpu_s=max(0.0, everything.cpu_s - part.cpu_s))


class EnergyMeter:
    """Counts joules from ``start`` to ``stop``, once. The thread of a host without counters is never started."""

    def __init__(self) -> None:
        self._joules: defaultdict[str, float] = defaultdict(float)
        self._missed: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_in_time, daemon=True, name="energy")
        self.cpu_s = 0.0
        """The CPU time that the thread has used, in seconds."""

    def start(self) -> bool:
        """Begin to count. Returns whether there is a counter."""
        self._last = read_energy()
        self._last_s = time.monotonic()
        if self._last:
            shortest_s = min(map(_turn_s, self._last.values()))
            self._every_s = shortest_s / 2
            self._thread.start()
        return bool(self._last)

    def stop(self) -> tuple[dict[str, float], str | None]:
        """Return the joules by counter, and why there are none if a counter cannot tell how often it has turned."""
        if not self._last:
            return {}, None
        self._ended.set()
        self._thread.join()
        self._add()
        if self._missed:
            return ({}, "; ".join(self._missed.values()))
        return (dict(self._joules), None)

    def _read_in_time(self) -> None:
        while not self._ended.wait(self._every_s):
            self._add()
        self.cpu_s = time.thread_time()

    def _add(self) -> None:
        """Add what was used since the last reading."""
        counters = read_energy()
        now_s = time.monotonic()
        gap_s = now_s - self._last_s
        spent = joules(self._last, counters)
        for name, counter in self._last.items():
            if name not in counters:
                self._missed.setdefault(name, f"{name} could not be read all the time")
            elif gap_s > _turn_s(counter):
                self._missed.setdefault(name, f"{name} was not read for {gap_s:.0f} s, in which it may turn")
            else:
                self._joules[name] += spent[name]
        self._last = counters
        self._last_s = now_s


def _turn_s(counter: Energy) -> float:
    """Return the seconds in which a counter turns at ``MOST_W``."""
    range_uj = counter[1]
    return range_uj / 1e6 / MOST_W


def whole_energy(
    of_host: Mapping[str, float],
    of_gpus: Mapping[str, float | None],
    missed: str | None,
) -> tuple[dict[str, float] | None, str | None]:
    """Return the joules by counter, or None and the reason if one is unknown: a sum without it would be too small."""
    counted = dict(of_host)
    reasons = [missed] if missed else []
    for name, spent_j in of_gpus.items():
        if spent_j is None:
            reasons.append(f"{name} does not count its energy")
        else:
            counted[name] = spent_j
    if reasons:
        return None, "; ".join(reasons)
    return counted or None, None
