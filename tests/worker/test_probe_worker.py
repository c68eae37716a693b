"""The probing worker as a program, at its least size, with this machine's own fio, iperf3 and perf."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.records.record import MetricValue
from suite.records.usage import Usage
from suite.registries import PROBES
from tests.worker.forked import worker
from tests.worker.test_worker_program import program
from worker.probes import disk, network, tools
from worker.probes.network import free_port, session
from worker.probes.probe import ProbeError
from worker.spec import Request, parsed

LOOPBACK = "127.0.0.1"
QUICK_JOBS = "[seq]\nrw=read\nbs=256k\nsize=4m\n[rnd]\nstonewall\nrw=randwrite\nsize=4m\nio_size=1m"


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def asked(probe: str = "cpu", **change: object) -> dict[str, Any]:
    member = {"member": PROBES.place(probe)}
    return {**member, "threads": 1, "directory": None, "size": "smoke", "device": "cpu", **change}


def probed(given: dict[str, Any], **variables: str) -> tuple[int, list[dict[str, Any]], str]:
    return program(json.dumps(given), "--probe", **variables)


def metrics_of(given: dict[str, Any]) -> dict[str, MetricValue]:
    status, events, said = worker(json.dumps(given), "--probe")
    assert status == 0, (events[-1], said)
    assert [event["event"] for event in events] == ["started", "environment", "metrics", "done"]
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)
    checked_part(Environment, events[1]["environment"])
    checked_part(Usage, events[3]["usage"])
    return {name: checked_part(MetricValue, metric) for name, metric in events[2]["metrics"].items()}


def units(metrics: dict[str, MetricValue]) -> dict[str, tuple[str, str]]:
    return {name: (metric.unit, metric.better) for name, metric in metrics.items()}


UNITS = {
    "cpu": dict.fromkeys(("matrix-product-one-thread", "matrix-product-all-threads"), ("GFLOP/s", "more")),
    "network": {
        **dict.fromkeys(("tcp-throughput", "tcp-throughput-reverse"), ("Gbit/s", "more")),
        **dict.fromkeys(("tcp-round-trip-median", "tcp-round-trip-p99"), ("us", "less")),
    },
    "syscall": {
        **dict.fromkeys(("getppid", "page-fault", "mmap-munmap"), ("ns", "less")),
        **dict.fromkeys(("pipe-ping-pong", "fork-exec"), ("us", "less")),
    },
    "gpu-latency": dict.fromkeys(("launch", "launch-and-wait", "read-4-bytes"), ("us", "less")),
    "gpu-copies": dict.fromkeys(("copy-0-1", "copy-1-0"), ("GB/s", "more")),
}


@pytest.mark.parametrize(
    "probe",
    [
        "cpu",
        "gpu-latency",
        "gpu-copies",
        pytest.param("network", marks=needs("iperf3")),
        pytest.param("syscall", marks=needs("perf")),
    ],
)
def test_a_probe_measures_each_of_its_costs(probe: str) -> None:
    assert units(metrics_of(asked(probe=probe, threads=2))) == UNITS[probe]


def test_the_memory_probe_gives_median_and_best() -> None:
    metrics = metrics_of(asked(probe="memory", threads=2))
    assert len(metrics) == 4
    assert set(units(metrics).values()) == {("GB/s", "more")}
    for name in ("triad-one-thread", "triad-all-threads"):
        assert metrics[f"{name}-best"].value == max(metrics[name].samples or [])


def test_torch_says_what_it_is_where_it_measures_and_is_not_imported_elsewhere() -> None:
    _, events, _ = probed(asked(probe="cpu", threads=1))
    assert events[1]["environment"]["torch_cpu_capability"]
    assert [*events[2]["metrics"]] == ["matrix-product-one-thread"], "all threads are one: nothing is measured twice"
    _, events, _ = probed(asked(probe="syscall", threads=3))
    assert "torch" not in events[1]["environment"]
    assert events[1]["environment"]["threads"] == 3


def test_without_perf_its_metrics_are_refused_and_the_others_are_there(tmp_path: Path) -> None:
    true = shutil.which("true")
    assert true
    (tmp_path / "true").symlink_to(true)
    status, events, _ = probed(asked(probe="syscall"), PATH=str(tmp_path))
    assert status == 0
    assert set(events[2]["metrics"]) == {"fork-exec", "page-fault", "mmap-munmap"}
    refused = events[2]["details"]["refused"]
    assert set(refused) == {"getppid", "pipe-ping-pong"}
    assert "perf is not installed here; the image holds it" in refused["getppid"]


@needs("fio")
def test_the_disk_probe_runs_its_jobs_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "quick.fio").write_text(QUICK_JOBS)
    monkeypatch.setattr(disk, "JOBS", tmp_path / "quick.fio")
    measured = disk.measure(parsed(Request, json.dumps(asked(probe="disk", directory=str(tmp_path / "data")))))
    assert {name: (reading.unit, reading.better) for name, reading in measured.metrics.items()} == {
        "seq-throughput": ("MiB/s", "more"),
        "rnd-iops": ("1/s", "more"),
        "rnd-latency-p50": ("us", "less"),
        "rnd-latency-p99": ("us", "less"),
    }
    assert list((tmp_path / "data").iterdir()) == []


@needs("fio")
def test_a_disk_that_is_too_full_is_named_with_the_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(disk.FILE_MIB, "smoke", 1 << 40)
    with pytest.raises(ProbeError, match="MB, the data directory has room for"):
        disk.measure(parsed(Request, json.dumps(asked(probe="disk", directory=str(tmp_path)))))


@needs("fio")
def test_fio_understands_the_probes_own_jobs() -> None:
    argv = ["fio", "--parse-only", "--directory=/tmp", str(disk.JOBS)]
    variables = {**os.environ, "SIZE": "128m", "RUNTIME": "2"}
    assert subprocess.run(argv, env=variables, check=False, capture_output=True).returncode == 0


def refusal(probe: str, **change: object) -> ProbeError:
    with pytest.raises(ProbeError) as raised:
        PROBES.get(probe).measure(parsed(Request, json.dumps(asked(probe, **change))))
    return raised.value


@needs("fio")
@pytest.mark.parametrize(
    ("directory", "says"),
    [
        (None, "no data directory"),
        ("/proc/self", "cannot write in the data directory /proc/self"),
        ("/nonexistent", "No such file or directory"),
    ],
)
def test_what_cannot_be_measured_says_why_and_what_to_do(directory: str | None, says: str) -> None:
    refused = refusal("disk", directory=directory)
    assert says in str(refused)
    assert refused.remedy
    status, events, said = worker(json.dumps(asked("disk", directory=directory)), "--probe")
    assert (status, events[-1]["event"], events[-1]["message"]) == (1, "error", str(refused))
    assert "Traceback" not in said


@pytest.mark.parametrize(("probe", "tool"), [("disk", "fio"), ("network", "iperf3")])
@pytest.mark.parametrize(
    ("script", "says"), [(None, "is not installed"), ("echo fio-2.99", "or newer"), ("true", "'nothing'")]
)
def test_a_tool_that_is_missing_or_too_old_is_named(
    probe: str, tool: str, script: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script:
        (tmp_path / tool).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = refusal(probe, directory=str(tmp_path))
    assert (tool in str(refused), says in str(refused), "bench image build" in refused.remedy) == (True, True, True)


def test_a_gpu_that_is_not_there_is_no_probe_of_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    _, events, _ = worker(json.dumps(asked(probe="memory", device="cuda")), "--probe")
    assert events[-1]["kind"] == "device"


@needs("iperf3")
def test_a_port_that_is_taken_is_named() -> None:
    taken = pytest.raises(ProbeError, match="Address already in use")
    with socket.create_server((LOOPBACK, 0)) as other, taken as raised:
        session(tools.find("iperf3"), other.getsockname()[1], 1, reverse=False)
    assert "another port" in str(raised.value.remedy)


def test_an_address_that_nobody_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LOOPBACK", "192.0.2.1")
    with pytest.raises(ProbeError, match="does not answer here"):
        free_port()


def test_a_server_is_gone_when_its_block_ends() -> None:
    program = "import os,time; print(os.getpid(), flush=True); time.sleep(60)"
    with tools.serving([sys.executable, "-c", program], r"\d+") as pid:
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_tool_that_hangs_is_given_up() -> None:
    with pytest.raises(ProbeError, match="has not ended"):
        tools.run(["sleep", "60"], timeout_s=0.1)
