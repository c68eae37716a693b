"""What serves a target, and what it has used: on this machine for real, and on trees as the kernel has them."""

import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from provisioning import processes
from provisioning.cgroup.counters import ControlGroup
from provisioning.metrics import footprint
from provisioning.metrics.accounting import HostAccount, rest
from provisioning.metrics.conditions import BusyProcess, busiest
from provisioning.metrics.footprint import NOTHING, Footprint, FootprintReading, network_bytes, process_used
from provisioning.nodes import HostProcesses, LocalNode, WrappedNode
from suite.interfaces import Node
from suite.records.usage import Usage
from tests.provisioning.conftest import fake_node, make

BURN_S = 0.3
BURN = [sys.executable, "-S", "-c", f"import time\nwhile time.process_time() < {BURN_S}: pass"]
CPUS = tuple(os.sched_getaffinity(0))


def place(node: Node, host_processes: HostProcesses | None = None) -> WrappedNode:
    return WrappedNode(node, list, name="place", userland=None, cpus=(0,), local=False, host_processes=host_processes)


def ended_cpu_s() -> float:
    """What the kernel has counted of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_s(process: psutil.Process) -> float:
    """Of one that lives."""
    times = process.cpu_times()
    return times.user + times.system


def test_a_job_that_ended_is_counted_with_all_that_it_used(node: LocalNode) -> None:
    account: Any = HostAccount(CPUS, [place(node)])
    assert (account.conditions, account.resources) == (None, None)
    with account:
        before_s = ended_cpu_s()
        node.run(BURN)
        burnt_s = ended_cpu_s() - before_s
    assert account.resources.worker is None
    assert account.resources.cache.absent, "of this place it is not known which CPUs it has"
    assert account.resources.serving.cpu_s == pytest.approx(burnt_s, abs=0.1)
    assert burnt_s > 0.9 * BURN_S
    assert account.resources.serving.minor_faults
    assert account.conditions.interval_s >= BURN_S
    assert None not in (account.conditions.load_1min, account.conditions.other_cpu_s, account.conditions.steal_s)
    assert 0 < account.conditions.sampler_cpu_s < BURN_S


def test_a_job_that_failed_is_counted_and_its_error_goes_on(node: LocalNode) -> None:
    account = HostAccount(CPUS, [node])
    with pytest.raises(ZeroDivisionError), account:
        raise ZeroDivisionError
    assert None not in (account.resources, account.conditions)


def test_other_processes_that_take_cpu_time_are_named_without_their_words(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioning.metrics.conditions.MOST_NAMED", 100)
    program = tmp_path / "stranger"
    program.symlink_to("/bin/sh")
    # A child of init: what comes from this process belongs to the suite.
    start = f"{program} -c 'while :; do :; done' secret >/dev/null 2>&1 & echo $!"
    stranger = int(subprocess.run(["sh", "-c", start], capture_output=True, text=True, check=True).stdout)
    try:
        account: Any = HostAccount(CPUS, [place(node)])
        with account:
            node.run(BURN)
    finally:
        os.kill(stranger, signal.SIGKILL)
    busiest = account.conditions.busiest
    assert 0 < busiest["stranger"] <= 1.2 * account.conditions.interval_s
    assert "secret" not in str(account.conditions)


def test_the_job_and_this_process_are_not_named() -> None:
    before = {BusyProcess(1, "1", "init"): 5.0, BusyProcess(2, "1", "cc1"): 1.0}
    after = {
        **before,
        BusyProcess(2, "1", "cc1"): 3.0,
        BusyProcess(3, "9", "cc1"): 1.0,
        BusyProcess(4, "9", "job"): 9.0,
    }
    assert busiest(before, after, 0.1, lambda pid: pid == 4) == {"cc1": 3}
    assert busiest(before, after, 3.5, lambda pid: pid == 4) is None


def test_a_process_that_lives_on_is_counted_for_the_time_of_the_job(node: LocalNode) -> None:
    # As QEMU does, which was there before the job and is there after it.
    busy = node.start([sys.executable, "-S", "-c", "print('up', flush=True)\nwhile True: pass"])
    next(busy.lines(60))
    (process,) = processes.carrying(node.token)
    account: Any = HostAccount(CPUS, [place(node)])
    outer_s = cpu_s(process)
    with account:
        inner_s = cpu_s(process)
        begin = time.process_time()
        while cpu_s(process) - inner_s < BURN_S:
            time.sleep(0.05)
    outer_s = cpu_s(process) - outer_s
    used = account.resources.serving
    assert BURN_S <= used.cpu_s <= outer_s, "what it used from then to then, by the kernel's own counter"
    assert used.peak_memory_bytes > 1 << 20
    assert time.process_time() - begin < 0.2, "nothing runs here in between"


@pytest.mark.parametrize("starts_within", [True, False])
def test_a_process_that_begins_within_the_account_is_counted_where_the_target_starts_there(
    node: LocalNode, starts_within: bool
) -> None:
    account: Any = HostAccount(CPUS, [place(node)], starts_within=starts_within)
    with account:
        busy = node.start([sys.executable, "-S", "-c", f"{BURN[-1]}\nprint('burnt', flush=True)\ntime.sleep(600)"])
        next(busy.lines(60))
    used = account.resources.serving
    assert (used.cpu_s > 0.9 * BURN_S) is starts_within
    assert (used.peak_memory_bytes is not None) is starts_within


def test_what_other_trials_started_does_not_serve_this_one(node: LocalNode) -> None:
    other = LocalNode(f"{node.token}-other", node.cpus, None)
    other.start([sys.executable, "-S", "-c", "input()"])
    try:
        assert Footprint.of([node]).pids == []
        assert len(Footprint.of([other]).pids) <= 1
    finally:
        other.close()


def test_the_innermost_layer_that_knows_says_how_the_target_is_served(node: LocalNode) -> None:
    unknown = Footprint.of([fake_node()])
    assert (unknown.pids, unknown.host_processes) == ([], []), "it has children only"
    host_processes = HostProcesses(main_pid=None, by_children=False)
    assert Footprint.of([place(place(node, host_processes))]).host_processes == [host_processes]


# ------------------------------------------------------------------------------------- how the parts are put together

USED = {**NOTHING, "cpu_s": 10.0, "minor_faults": 3, "disk_written_bytes": 5}
GROUP = {**NOTHING, "cpu_s": 11.0, "minor_faults": 4, "disk_written_bytes": None}
BEFORE = FootprintReading(NOTHING, {}, [], [])
BUSY = FootprintReading(NOTHING, {1: {**NOTHING, "cpu_s": 2.0}}, [], [])
UNKNOWN = dict.fromkeys(NOTHING)


@pytest.mark.parametrize(
    ("by_children", "before", "after", "sums"),
    [
        (None, BUSY, FootprintReading(USED, {1: {**NOTHING, "cpu_s": 5.0}}, [], []), (13.0, 3, 5, None, None)),
        (True, replace(BEFORE, groups=[NOTHING]), FootprintReading(USED, {}, [GROUP], []), (11.0, 3, 5, None, None)),
        (
            *(False, replace(BEFORE, groups=[NOTHING], networks=[(10, 20)])),
            *(FootprintReading(USED, {}, [GROUP], [(30, 70)]), (21.0, 7, None, 20, 50)),
        ),
        (True, replace(BEFORE, groups=[UNKNOWN]), FootprintReading(USED, {}, [UNKNOWN], []), (10.0, 3, 5, None, None)),
    ],
    ids=["children and the living", "children are not counted twice", "a daemon's beside the client", "hidden group"],
)
def test_what_serves_a_target_is_added_up_and_a_sum_with_an_unknown_part_is_unknown(
    tmp_path: Path, by_children: bool | None, before: FootprintReading, after: FootprintReading, sums: tuple[Any, ...]
) -> None:
    groups = [] if by_children is None else [HostProcesses(ControlGroup({}, tmp_path), by_children=by_children)]
    used = Footprint([], groups).usage(before, after)
    network = used.network_received_bytes, used.network_sent_bytes
    assert (used.cpu_s, used.minor_faults, used.disk_written_bytes, *network) == sums
    assert used.peak_memory_bytes is None, "of what has ended nobody knows it"


def test_the_peak_of_a_container_is_its_groups_and_its_shims(tmp_path: Path) -> None:
    make(tmp_path, {"memory/job/memory.max_usage_in_bytes": "1000000000"})
    group = ControlGroup(ControlGroup.named("job").paths, tmp_path)
    used = Footprint([os.getpid()], [HostProcesses(group)]).usage(BEFORE, BEFORE)
    own: Any = footprint.peak_memory_bytes(os.getpid())
    assert used.peak_memory_bytes == pytest.approx(1_000_000_000 + own, rel=0.01)


# ------------------------------------------------------------------------------------------------ what /proc tells


def test_a_process_is_counted_without_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "PROC", tmp_path)
    words = [str(number) for number in range(3, 53)]
    make(tmp_path, {"7/stat": f"7 (a) b) {' '.join(words)}\n", "7/io": "rchar: 1\nread_bytes: 8\nwrite_bytes: 9\n"})
    assert process_used(7) == {
        "cpu_s": (14 + 15) / os.sysconf("SC_CLK_TCK"),
        "minor_faults": 10,
        "major_faults": 12,
        "disk_read_bytes": 8,
        "disk_written_bytes": 9,
    }
    (tmp_path / "7/io").unlink()
    hiding: Any = process_used(7)
    assert hiding["disk_read_bytes"] is None
    assert process_used(8) is None, "it is gone"


def test_the_network_is_that_of_a_namespace_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "PROC", tmp_path)
    title = "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
    rows = "    lo: 99 0 0 0 0 0 0 0 99 0\n  eth0: 10 1 0 0 0 0 0 0 20 2\n  eth1:5 1 0 0 0 0 0 0 6 2\n"
    make(tmp_path, {"7/net/dev": title + rows, "8/net/dev": title + rows})
    for pid, inode in {"self": 1, "7": 2, "8": 1}.items():
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "ns/net").symlink_to(f"net:[{inode}]")
    assert network_bytes(7) == (15, 26)
    assert network_bytes(8) is None, "it shares the host's, and all of the host's is not its own"
    assert network_bytes(9) is None


def test_a_containers_shim_is_the_parent_of_its_first_process(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {70: 60, 71: 1, 72: os.getpid()}
    monkeypatch.setattr(footprint, "_parent", parents.get)
    assert [Footprint.of([place(node, HostProcesses(main_pid=pid))]).pids for pid in parents] == [[60], [], []]


def test_what_serves_the_instances_beside_a_victim_is_told_apart_and_no_stranger(node: LocalNode) -> None:
    """The victim burns once and the one beside it goes on burning: nothing of that is other load of the host."""
    other = LocalNode(uuid.uuid4().hex, CPUS, None)
    aggressor = other.start([sys.executable, "-S", "-c", "while True: pass"])
    try:
        account: Any = HostAccount(CPUS, [place(node), place(other)], victims=1)
        with account:
            before_s = ended_cpu_s()
            node.run(BURN)
            burnt_s = ended_cpu_s() - before_s
            (process,) = processes.carrying(other.token)
            while cpu_s(process) < BURN_S:
                time.sleep(0.05)
    finally:
        aggressor.kill()
        other.close()
    serving, beside = account.resources.serving, account.resources.beside
    assert serving.cpu_s == pytest.approx(burnt_s, abs=0.1)
    assert beside.cpu_s > 0.05  # what the kernel counts in ticks begins and ends inside of one
    assert (beside.disk_read_bytes, beside.minor_faults) == (None, None)


def test_of_what_cannot_be_told_there_is_no_rest() -> None:
    assert rest(Usage(cpu_s=3.0), Usage(cpu_s=1.0)) == Usage(cpu_s=2.0)
    assert rest(Usage(cpu_s=1.0), Usage(cpu_s=1.1)) == Usage(cpu_s=0.0)
    assert rest(Usage(), Usage(cpu_s=1.0)) == Usage()
