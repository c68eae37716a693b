"""Cache misses and memory traffic by perf: its real lines, the hosts that have no such counter, and its real flow."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.metrics import cache_counters
from provisioning.metrics.cache_counters import Counting, cache_use, counts, events_of

# As perf 6.1 prints them with -x, -A: CPU, value, unit, event, time that it ran, share of the time, and two more.
COUNTED = """\
CPU0,1000,,LLC-loads,2216345,100.00,,
CPU1,2000,,LLC-loads,2212169,100.00,,
CPU2,4000,,LLC-loads,2212169,50.00,,
CPU0,10,,LLC-load-misses,2216345,100.00,1.00,of all LL-cache accesses
CPU1,20,,LLC-load-misses,2212169,100.00,1.00,of all LL-cache accesses
CPU2,<not counted>,,LLC-load-misses,0,0.00,,
CPU0,12.50,MiB,uncore_imc/cas_count_read/,2216345,100.00,,
CPU0,1.25,MiB,uncore_imc/cas_count_write/,2216345,100.00,,
"""
# What a virtual machine without such counters answers.
NOT_SUPPORTED = """\
CPU0,<not supported>,,LLC-loads,0,100.00,,
CPU1,<not supported>,,LLC-loads,0,100.00,,
CPU0,<not supported>,,LLC-load-misses,0,100.00,,
CPU1,<not supported>,,LLC-load-misses,0,100.00,,
"""


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    """What this host has is asked once in a process; a test's answer must not stay."""
    asked = cache_counters.absent
    asked.cache_clear()
    yield
    asked.cache_clear()


def test_misses_are_of_the_cpus_of_the_job_and_memory_is_of_the_host() -> None:
    found = cache_use(COUNTED, [0, 1])
    assert (found.cpus, found.llc_loads, found.llc_load_misses) == ([0, 1], 3000, 30)
    assert (found.memory_read_bytes, found.memory_written_bytes) == (25 << 19, 5 << 18)
    assert found.absent is None


def test_what_one_cpu_did_not_count_is_null_with_its_reason() -> None:
    found = cache_use(COUNTED, [1, 2])
    assert (found.llc_loads, found.llc_load_misses) == (6000, None)
    assert found.absent == "the cache: perf did not count on all CPUs of the job"


def test_a_job_without_cpus_of_its_own_has_no_misses_of_its_own() -> None:
    found = cache_use(COUNTED, None)
    assert (found.cpus, found.llc_loads, found.llc_load_misses) == (None, None, None)
    assert found.memory_read_bytes
    assert "no CPUs of its own" in (found.absent or "")


def test_unsupported_is_null_and_never_zero() -> None:
    found = cache_use(NOT_SUPPORTED, [0, 1])
    assert (found.llc_loads, found.llc_load_misses, found.memory_read_bytes) == (None, None, None)
    assert found.absent
    assert cache_use("", [0]).llc_loads is None


def test_events_of_unlike_cores_and_notes_between_the_lines_are_understood() -> None:
    text = (
        "\n# started on Sat Nov 21\n\nCPU0,7,,cpu_core/LLC-loads/,1,100.00,,\nCPU4,5,,cpu_atom/LLC-loads/,1,100.00,,\n"
    )
    assert counts(text, "LLC-loads") == 12
    assert counts(text, "LLC-loads", [4]) == 5
    assert counts(text, "LLC-load-misses") is None
    assert counts(text, "LLC-loads", [4, 8]) is None, "CPU 8 is of a kind that has no such event"


def test_memory_is_asked_for_where_the_kernel_has_its_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_counters, "CONTROLLERS", tmp_path)
    assert events_of() == ["LLC-loads", "LLC-load-misses"]
    for number in (0, 1):
        events = tmp_path / f"uncore_imc_{number}/events"
        events.mkdir(parents=True)
        for name in ("cas_count_read", "cas_count_read.unit", "cas_count_write"):
            (events / name).write_text("")
    assert events_of()[2:] == ["uncore_imc/cas_count_read/", "uncore_imc/cas_count_write/"]


# What Ubuntu's and Debian's wrappers answer where the package of the running kernel is missing.
WRAPPER = """WARNING: perf not found for kernel 5.15.0-1019

  You may need to install the following packages for this specific kernel:
    linux-tools-5.15.0-1019-aws
    linux-cloud-tools-5.15.0-1019-aws

  You may also want to install one of the following packages to keep up to date:
    linux-tools-aws
    linux-cloud-tools-aws
"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"cat >&2 <<'END'\n{WRAPPER}END\nexit 2", " ".join(WRAPPER.split())),
        (None, "perf is not installed"),
        ("echo 'Error:\nAccess to performance monitoring is limited.' >&2; exit 255", "Access to performance"),
        (f"cat >&2 <<'END'\n{NOT_SUPPORTED}END", "<not supported>"),
        (f"cat >&2 <<'END'\n{COUNTED.replace('<not counted>', '3')}END", None),
    ],
)
def test_why_nothing_is_counted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str | None
) -> None:
    program = tmp_path / "perf"
    if script:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr(cache_counters, "PERF", str(program))
    absent = cache_counters.absent()
    assert absent is None if reason is None else reason in (absent or "")
    if reason:
        counting = Counting([0])
        counting.start()
        assert counting.stop().absent == absent


def test_a_real_perf_counts_from_start_to_stop_and_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an event of the kernel's own, which every host has: what is tested is the flow."""
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    monkeypatch.setattr(cache_counters, "absent", lambda: None)
    monkeypatch.setattr(cache_counters, "events_of", lambda: ["context-switches"])
    monkeypatch.setattr(cache_counters, "MISSES", "context-switches")
    counting = Counting([0])
    counting.start()
    used = counting.stop()
    if used.llc_load_misses is None:
        pytest.skip("perf may not count here: see /proc/sys/kernel/perf_event_paranoid")
    assert used.llc_load_misses > 0
    assert used.llc_loads is None
    assert counting._perf
    assert counting._perf.returncode == 0
