"""What a place says of itself, on made-up /proc and /sys trees of the places that there are."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from suite import userland
from suite.records.environment import Environment
from worker import environment
from worker.environment import attest, collect

GIB = 1 << 30
UNLIMITED_V1 = 9223372036854771712
IOMEM = """00000000-00000fff : Reserved
00001000-0009fbff : System RAM
00100000-7fffffff : System RAM
  01000000-01dfffff : Kernel code
100000000-17fffffff : System RAM
"""
PHYSICAL = (0x9FBFF - 0x1000 + 1) + (0x7FFFFFFF - 0x100000 + 1) + 2 * GIB
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "30 24 0:26 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"

Collect = Callable[..., dict[str, object]]


def write(root: Path, files: dict[str, str | int]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n" if isinstance(content, int) else content)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with nothing in it."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def seen(here: Path) -> Collect:
    """``seen({path: content})``: what is collected where these files are the whole of /proc and /sys."""

    def collect_from(files: dict[str, str | int]) -> dict[str, object]:
        write(here, files)
        return collect()

    return collect_from


def test_this_place_can_be_recorded() -> None:
    here = Environment.model_validate(collect())
    assert here.cpus == sorted(os.sched_getaffinity(0))
    assert here.kernel == os.uname().release
    assert here.memory_bytes is not None
    assert here.libc is not None


def test_what_a_place_hides_is_null(seen: Collect) -> None:
    hidden = Environment.model_validate(seen({}))
    told = {name for name, value in hidden.model_dump().items() if value is not None}
    assert told == {"cpus", "python", "libc", "allocator"}


def test_root_sees_the_physical_memory_and_what_the_kernel_kept(seen: Collect) -> None:
    found = seen({"proc/iomem": IOMEM, "proc/meminfo": f"MemTotal:  {3 * GIB // 1024} kB\n"})
    assert found["memory_bytes"] == PHYSICAL
    assert found["kernel_memory_bytes"] == PHYSICAL - 3 * GIB


def test_without_root_the_addresses_are_zero_and_memtotal_counts(seen: Collect) -> None:
    found = seen({"proc/iomem": "00000000-00000000 : System RAM\n", "proc/meminfo": "MemTotal: 2048 kB\n"})
    assert found["memory_bytes"] == 2048 * 1024
    assert found["kernel_memory_bytes"] is None


def test_a_container_in_a_guest_sees_its_limit_and_what_the_kernel_keeps_of_it(seen: Collect) -> None:
    found = seen(
        {
            "proc/iomem": "00000000-00000000 : System RAM\n",
            "proc/meminfo": f"MemTotal: {2 * GIB // 1024 - 70_000} kB\n",
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        }
    )
    assert (found["memory_bytes"], found["kernel_memory_bytes"]) == (2 * GIB, 70_000 * 1024)


def test_a_limit_far_above_the_machine_is_not_what_was_given(seen: Collect) -> None:
    found = seen(
        {
            "proc/meminfo": f"MemTotal: {2 * GIB // 1024} kB\n",
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "sys/fs/cgroup/memory.max": f"{64 * GIB}\n",
        }
    )
    assert (found["memory_bytes"], found["kernel_memory_bytes"]) == (2 * GIB, None)


KMEM = """00001000-0009fbff : System RAM
00100000-bffd9fff : System RAM
100000000-13fffffff : System RAM
140000000-33fffffff : Persistent Memory
  140000000-1481fffff : namespace0.0
  150000000-33fffffff : dax0.0
    150000000-33fffffff : System RAM (kmem)
"""
KMEM_BYTES = (0x9FBFF - 0xFFF) + (0xBFFD9FFF - 0xFFFFF) + GIB + (0x33FFFFFFF - 0x14FFFFFFF)


KMEM_TOTAL = 12_100_000 * 1024


@pytest.mark.parametrize(
    ("iomem", "memory_bytes", "kernel_bytes"),
    [
        (KMEM, KMEM_BYTES, KMEM_BYTES - KMEM_TOTAL),
        (KMEM.replace("dax0.0", "virtio0").replace("kmem", "virtio_mem"), KMEM_BYTES, KMEM_BYTES - KMEM_TOTAL),
        (IOMEM, KMEM_TOTAL, None),
    ],
    ids=["dax", "virtio-mem", "a list that lacks a part"],
)
def test_memory_that_was_added_later_is_counted(
    iomem: str, memory_bytes: int, kernel_bytes: int | None, seen: Collect
) -> None:
    found = seen(
        {
            "proc/iomem": iomem,
            "proc/meminfo": f"MemTotal:       {KMEM_TOTAL // 1024} kB\n",
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2.format(root="/"),
        }
    )
    assert (found["memory_bytes"], found["kernel_memory_bytes"]) == (memory_bytes, kernel_bytes)


def test_a_version_1_limit_is_read_with_those_above_it(seen: Collect) -> None:
    found = seen(
        {
            "proc/iomem": IOMEM,
            "proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/bench/trial\n0::/\n",
            "proc/self/mountinfo": V2.format(root="/") + V1.format(root="/"),
            "sys/fs/cgroup/memory/bench/trial/memory.limit_in_bytes": 2 * GIB,
            "sys/fs/cgroup/memory/bench/memory.limit_in_bytes": 1 * GIB,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
        }
    )
    assert found["memory_bytes"] == 1 * GIB
    assert found["cgroup_version"] == 1


def test_a_version_1_container_with_the_hosts_namespace_sees_its_own_group_only(seen: Collect) -> None:
    found = seen(
        {
            "proc/iomem": IOMEM,
            "proc/self/cgroup": "3:memory:/docker/abc\n",
            "proc/self/mountinfo": V1.format(root="/docker/abc"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 1 * GIB,
        }
    )
    assert found["memory_bytes"] == 1 * GIB


def test_a_version_2_container_with_a_private_namespace_is_at_the_top(seen: Collect) -> None:
    found = seen(
        {
            "proc/iomem": IOMEM,
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2.format(root="/"),
            "sys/fs/cgroup/memory.max": 1 * GIB,
        }
    )
    assert found["memory_bytes"] == 1 * GIB
    assert found["cgroup_version"] == 2


def test_a_group_outside_of_the_namespace_is_limited_by_what_can_be_seen(seen: Collect) -> None:
    found = seen(
        {
            "proc/iomem": IOMEM,
            "proc/self/cgroup": "0::/../other\n",
            "proc/self/mountinfo": V2.format(root="/"),
            "sys/fs/cgroup/memory.max": "max\n",
        }
    )
    assert found["memory_bytes"] == PHYSICAL


def test_a_limit_that_is_hidden_is_not_taken_for_none(seen: Collect) -> None:
    found = seen({"proc/iomem": IOMEM, "proc/self/cgroup": "0::/bench/trial\n"})
    assert found["memory_bytes"] is None
    assert found["cgroup_version"] == 2


def test_a_guest_without_control_groups_mounted_has_its_whole_memory(seen: Collect) -> None:
    assert seen({"proc/iomem": IOMEM, "proc/self/cgroup": "0::/\n"})["memory_bytes"] == PHYSICAL


@pytest.mark.parametrize(("number", "mode"), [("0", "disabled"), ("1", "strict"), ("2", "filter")])
def test_the_seccomp_mode_has_a_name(number: str, mode: str, seen: Collect) -> None:
    found = seen({"proc/self/status": f"Name:\tx\nCapEff:\t00000000a80425fb\nNoNewPrivs:\t1\nSeccomp:\t{number}\n"})
    assert (found["seccomp"], found["no_new_privileges"]) == (mode, True)
    assert found["effective_capabilities"] == "00000000a80425fb"


def test_process_1_is_told_by_its_command_line(seen: Collect) -> None:
    assert seen({"proc/1/cmdline": "/sbin/init\0--flag\0"})["pid1"] == "/sbin/init"


def test_a_hypervisor_is_named_by_the_firmware_it_gives(seen: Collect) -> None:
    cpuinfo = "processor : 0\nmodel name : A CPU\nflags : sse hypervisor avx2\n"
    found = seen({"proc/cpuinfo": cpuinfo, "sys/class/dmi/id/sys_vendor": "QEMU\n"})
    assert (found["hypervisor"], found["cpu_model"]) == ("QEMU", "A CPU")
    assert found["cpu_flags"] == ["avx2", "hypervisor", "sse"]


def test_unlike_cores_have_what_all_of_them_have(seen: Collect) -> None:
    cores = "processor : 0\nmodel name : P\nflags : avx2 avx512f\n\nprocessor : 1\nmodel name : E\nflags : avx2\n\n"
    found = seen({"proc/cpuinfo": f"{cores}{cores}Hardware : a board\n"})
    assert (found["cpu_model"], found["cpu_flags"]) == ("P + E", ["avx2"])


def test_without_the_cpu_flag_the_firmwares_maker_is_no_hypervisor(seen: Collect) -> None:
    found = seen({"proc/cpuinfo": "flags : sse\n", "sys/class/dmi/id/sys_vendor": "A Maker\n"})
    assert found["hypervisor"] is None


def test_settings_of_the_kernel_are_read(seen: Collect) -> None:
    found = seen(
        {
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "kvm-clock\n",
            "sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected\n",
        }
    )
    assert (found["transparent_hugepages"], found["clocksource"]) == ("madvise", "kvm-clock")
    assert found["mitigations"] == {"meltdown": "Not affected"}


def test_a_tree_of_the_image_attests_its_digest_and_what_departs_from_it(here: Path) -> None:
    write(here, {"opt/virtbench/suite.py": "1", "usr/bin/tool": "1"})
    digest = userland.write_manifest(str(here))
    assert attest()["userland_sha256"] == digest
    assert attest()["userland_differences"] == []
    (here / "usr/bin/other").write_text("2")
    assert attest()["userland_differences"] == ["/usr/bin/other is not in the manifest"]


@pytest.mark.usefixtures("here")
def test_another_tree_attests_no_digest() -> None:
    attested = attest()
    assert attested["userland_sha256"] is None
    assert attested["userland_differences"] is None
