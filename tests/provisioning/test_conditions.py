"""The state of a host and what a control group has used, from trees as the kernel has them."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from provisioning.cgroup import counters
from provisioning.cgroup.counters import ControlGroup
from provisioning.cgroup.limits import Opened
from provisioning.metrics import conditions
from provisioning.metrics.accounting import of_gpus
from provisioning.metrics.conditions import EnvelopeHost
from provisioning.nodes import LocalNode
from suite.errors import RequestError
from suite.interfaces import Shares
from tests.provisioning.conftest import make

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
FACTS = {"gpus": [{"pci_address": address} for address in ("a", "b", "c", None)]}
PAGE = os.sysconf("SC_PAGE_SIZE")


def stat(*rows: str) -> str:
    return "cpu  9 9 9 9 9 9 9 9 0 0\n" + "".join(f"cpu{n} {row} 0 0\n" for n, row in enumerate(rows)) + "ctxt 1\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnvelopeHost:
    """CPUs 0 and 2 of four; two cores with two threads each, 0 with 1 and 2 with 3."""
    sys: dict[str, str] = {}
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        place = f"sys/devices/system/cpu/cpu{cpu}"
        sys |= {
            f"{place}/topology/thread_siblings_list": siblings,
            f"{place}/cpufreq/scaling_governor": "performance",
            f"{place}/cpufreq/scaling_cur_freq": f"{(cpu + 1) * 1000000}",
            f"{place}/thermal_throttle/core_throttle_count": "1",
            f"{place}/thermal_throttle/package_throttle_count": "2",
            f"{place}/node{cpu // 2}/cpulist": "",
        }
    proc = {"proc/stat": stat(*["100 0 0 0 0 0 0 10"] * 4), "proc/vmstat": "pswpin 1\npswpout 2\npgfault 7\n"}
    make(tmp_path, sys | proc)
    monkeypatch.setattr(conditions, "PROC", tmp_path / "proc")
    monkeypatch.setattr(conditions, "SYS", tmp_path / "sys")
    return EnvelopeHost((0, 2))


def test_what_happened_between_two_readings_is_told_of_the_cpus_of_the_envelope(host: EnvelopeHost) -> None:
    before = host.read(at_s=10.0, own_s=1.0)
    # CPU 1 is not the envelope's. Idle and waiting for a disk are not busy, and neither is what was stolen.
    rows = ["200 10 20 500 30 5 5 15", "900 0 0 0 0 0 0 900", "300 0 0 0 0 0 0 10", "100 0 0 0 0 0 0 10"]
    make(conditions.PROC, {"stat": stat(*rows), "vmstat": "pswpin 4\npswpout 4\n"})
    make(conditions.SYS, {"devices/system/cpu/cpu2/thermal_throttle/core_throttle_count": "6"})
    busy_s, serving_s, own_s = (140 + 200) * TICK_S, 1.5, 0.25
    after = host.read(at_s=14.0, own_s=1.0 + own_s)
    seen = host.conditions(before, after, serving_s)
    assert seen.interval_s == 4.0
    assert seen.steal_s == pytest.approx(5 * TICK_S)
    assert seen.other_cpu_s == pytest.approx(busy_s - serving_s - own_s)
    assert (seen.thermal_throttles, seen.swapped_bytes) == (5, 5 * PAGE)
    assert (seen.governor, seen.frequency_mhz) == ("performance", (2000.0, 2000.0))
    assert (seen.numa_nodes, seen.siblings_shared) == ([0, 1], True)
    assert host.conditions(before, after, 100.0).other_cpu_s == 0, "never below nothing"
    assert host.conditions(before, after, None).other_cpu_s is None
    make(conditions.SYS, {"devices/system/cpu/cpu2/cpufreq/scaling_governor": "powersave"})
    assert host.conditions(before, after, 0.0).governor == "performance+powersave"


def test_a_gpu_of_another_node_than_the_cpus_is_seen(host: EnvelopeHost) -> None:
    make(conditions.SYS, {f"bus/pci/devices/{name}/numa_node": node for name, node in (("a", "3"), ("b", "-1"))})
    whole = replace(host, cpus=(2, 3), gpus=of_gpus([LocalNode("", (), None, facts=FACTS)] * 2, "pci_address"))
    assert whole.gpus == ["a", "b", "c"], "a GPU that nodes share is one"
    seen = whole.conditions(whole.read(1.0, 0.0), whole.read(2.0, 0.0), 0.0)
    assert seen.siblings_shared is False, "the cores are whole"
    assert seen.numa_nodes == [1, 3], "those of GPUs that have none are left out"


def test_without_a_driver_of_frequencies_the_kernel_says_what_it_measures(host: EnvelopeHost) -> None:
    for path in conditions.SYS.rglob("scaling_*"):
        path.unlink()
    make(conditions.PROC, {"cpuinfo": "".join(f"processor\t: {n}\ncpu MHz\t\t: {1000 + n}.5\n\n" for n in range(4))})
    assert host.read(1.0, 0.0).mhz == 1001.5


@pytest.mark.parametrize("unknown", ["Unknown", "", "n/a"])
def test_a_frequency_that_the_kernel_cannot_tell_is_absent(unknown: str, host: EnvelopeHost) -> None:
    for path in conditions.SYS.rglob("scaling_*"):
        path.unlink()
    rates = ["1000.5", "1000.5", unknown, "1000.5"]
    lines = (f"processor\t: {number}\ncpu MHz\t\t: {rate}\n\n" for number, rate in enumerate(rates))
    make(conditions.PROC, {"cpuinfo": "".join(lines)})
    assert host.read(1.0, 0.0).mhz is None


def test_a_host_that_hides_everything_gives_nulls_and_no_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "PROC", tmp_path)
    monkeypatch.setattr(conditions, "SYS", tmp_path)
    blind = EnvelopeHost((0,), [ControlGroup({}, tmp_path)])
    seen = blind.conditions(blind.read(1.0, 0.0), blind.read(2.0, 0.0), 1.0)
    assert {name for name, value in asdict(seen).items() if value is not None} == {"interval_s"}


def test_counters_that_are_not_the_kernels_are_absent_with_the_reason(host: EnvelopeHost, tmp_path: Path) -> None:
    """As lxcfs shows them in a system container: CPUs 0 and 2 of the kernel are 0 and 1 there."""
    (tmp_path / "proc/stat").unlink()
    (tmp_path / "proc/stat").symlink_to("/proc/stat")  # on another file system, as what is mounted over one file
    seen = host.conditions(host.read(1.0, 0.0), host.read(2.0, 0.0), 0.0)
    absent = ("steal_s", "other_cpu_s", "frequency_mhz", "thermal_throttles", "governor", "siblings_shared")
    assert [getattr(seen, name) for name in absent] == [None] * len(absent)
    assert seen.swapped_bytes == 0
    assert (seen.absent or "").startswith(f"{tmp_path}/proc/stat is not the kernel's")


@pytest.mark.parametrize(
    ("file", "fact"),
    [
        ("thermal_throttle", "thermal_throttles"),
        ("cpufreq/scaling_governor", "governor"),
        ("cpufreq", "frequency_mhz"),
        ("topology", "siblings_shared"),
    ],
)
def test_what_only_some_of_the_cores_have_is_not_taken_for_all(host: EnvelopeHost, file: str, fact: str) -> None:
    assert getattr(host.conditions(host.read(1.0, 0.0), host.read(2.0, 0.0), 0.0), fact) is not None
    path = conditions.SYS / "devices/system/cpu/cpu2" / file
    path.rename(path.with_name("gone"))
    make(conditions.PROC, {"cpuinfo": "processor\t: 0\ncpu MHz\t\t: 1000.5\n"})
    fresh = EnvelopeHost(host.cpus)
    assert getattr(fresh.conditions(fresh.read(1.0, 0.0), fresh.read(2.0, 0.0), 0.0), fact) is None


def test_the_most_that_a_quota_held_back_is_told(host: EnvelopeHost, tmp_path: Path) -> None:
    make(tmp_path, {"cpu/a/cpu.stat": "throttled_time 1000000000\n", "cpu/b/cpu.stat": "throttled_time 0\n"})
    watching = replace(host, groups=[ControlGroup(ControlGroup.named(name).paths, tmp_path) for name in ("a", "b")])
    before = watching.read(1.0, 0.0)
    make(tmp_path, {"cpu/a/cpu.stat": "throttled_time 1500000000\n", "cpu/b/cpu.stat": "throttled_time 250000000\n"})
    assert watching.conditions(before, watching.read(2.0, 0.0), 0.0).throttled_s == 0.5


def test_the_groups_of_a_process_are_those_of_its_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "PROC", tmp_path)
    make(tmp_path, {"7/cgroup": "4:memory:/m\n2:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/two:three\n"})
    paths = ControlGroup.of_process(7).paths
    assert (paths["memory"], paths["cpu"], paths["cpuacct"], paths[""]) == ("/m", "/c", "/c", "/two:three")
    assert ControlGroup.of_process(8).cpu_s() is None, "it is gone"


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("4:cpu,cpuacct:/docker/0123abcd\n", {"cpu/cpu.stat": "nr_throttled 3\nthrottled_time 30000000000\n"}),
        ("0::/docker/0123abcd\n", {"cgroup.controllers": "cpu\n", "cpu.stat": "throttled_usec 30000000\n"}),
    ],
    ids=["version 1", "version 2"],
)
def test_a_quota_is_seen_in_a_container_whose_mount_begins_at_its_own_group(
    groups: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths of a container in the host's namespace of control groups are the host's."""
    make(tmp_path, {"proc/self/cgroup": groups, "proc/7/cgroup": groups})
    make(tmp_path / "groups", files)
    monkeypatch.setattr(counters, "PROC", tmp_path / "proc")
    assert ControlGroup(ControlGroup.of_process("self").paths, tmp_path / "groups").throttled_s() == [30.0]
    assert ControlGroup(ControlGroup.of_process(7).paths, tmp_path / "groups").throttled_s() == [], "of another process"


def test_shares_are_of_what_it_was_opened_with() -> None:
    assert Opened(4, 512, 0.5).quota_us(Shares((0,))) == 200_000
    assert Opened(4, 512, 0.5).quota_us(Shares((0,), 0.5)) == 100_000
    assert Opened(4, 512, pinned=False).quota_us(Shares((0,))) == 400_000
    assert Opened(4, None).memory(Shares((0,))) is None
    with pytest.raises(RequestError, match="no limit of memory"):
        Opened(4, None).memory(Shares((0,), 1, 0.5))
