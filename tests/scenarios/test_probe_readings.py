"""fio's, iperf3's and perf's words become metrics, and every way in which they fail becomes one clear reason."""

import json
import re
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.records.record import MetricValue
from worker.probes.disk import readings
from worker.probes.network import parse_session
from worker.probes.probe import ProbeError, median, quantile
from worker.probes.syscalls import parse_perf
from worker.probes.tools import version_of

JOBS = """
[global]
size=4m
runtime=1
time_based
filename=data
direct=0
[sequential]
stonewall
rw=read
bs=256k
[random]
stonewall
rw=randread
bs=4k
"""


@pytest.fixture(scope="module")
def fio_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What this machine's fio really writes."""
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    place = tmp_path_factory.mktemp("fio")
    (place / "jobs.fio").write_text(JOBS)
    argv = [
        "fio",
        "--output-format=json",
        f"--output={place}/out.json",
        f"--directory={place}",
        str(place / "jobs.fio"),
    ]
    subprocess.run(argv, check=True, capture_output=True)
    report: dict[str, Any] = json.loads((place / "out.json").read_text())
    return report


def test_a_job_becomes_metrics_by_what_it_does(fio_report: dict[str, Any]) -> None:
    metrics = readings(json.dumps(fio_report), "")
    assert {name: (reading.unit, reading.better) for name, reading in metrics.items()} == {
        "sequential-throughput": ("MiB/s", "more"),
        "random-iops": ("1/s", "more"),
        **{f"random-latency-{p}": ("us", "less") for p in ("p50", "p99")},
    }
    sequential, at_random = fio_report["jobs"]
    assert metrics["sequential-throughput"].value == pytest.approx(sequential["read"]["bw_bytes"] / 2**20)
    assert metrics["random-iops"].value == at_random["read"]["iops"]
    p50 = at_random["read"]["clat_ns"]["percentile"]["50.000000"]
    assert metrics["random-latency-p50"].value == pytest.approx(p50 / 1000)
    assert metrics["random-latency-p50"].value <= metrics["random-latency-p99"].value


def test_notes_before_the_report_are_passed_over(fio_report: dict[str, Any]) -> None:
    with_notes = "note: both iodepth >= 1 and synchronous I/O engine {are} selected\n" + json.dumps(fio_report)
    assert readings(with_notes, "") == readings(json.dumps(fio_report), "")


def test_a_job_that_did_nothing_is_no_zero(fio_report: dict[str, Any]) -> None:
    idle = json.loads(json.dumps(fio_report))
    idle["jobs"][0]["read"]["total_ios"] = 0
    with pytest.raises(ProbeError, match="sequential has read and written nothing"):
        readings(json.dumps(idle), "")


@pytest.mark.parametrize(
    ("error", "said", "says"),
    [
        (22, "", "refuses direct I/O"),
        (0, "fio: looks like your file system does not support direct=1/buffered=0", "refuses direct I/O"),
        (28, "", "is full"),
        (5, "fio: pid=0, err=5/file:io_u.c:1833, func=io_u error, error=Input/output error", "Input/output error"),
        (5, "", "it says nothing"),
    ],
)
def test_an_error_of_a_job_is_no_metric(error: int, said: str, says: str, fio_report: dict[str, Any]) -> None:
    failed = json.loads(json.dumps(fio_report))
    failed["jobs"][1]["error"] = error
    if said.startswith("fio: looks"):
        failed["jobs"][1]["error"] = 95
    with pytest.raises(ProbeError, match=says) as raised:
        readings(json.dumps(failed), said)
    assert raised.value.kind == "probe"
    assert raised.value.remedy


@pytest.mark.parametrize("written", ["", "{", "[]", '{"jobs": []}', "fio: job x dropped", "{}"])
def test_what_is_no_report_is_a_failure_of_fio(written: str) -> None:
    with pytest.raises(ProbeError, match="fio has failed"):
        readings(written, "")


def iperf(**end: object) -> dict[str, Any]:
    sums = [{"sum": {"bits_per_second": rate, "omitted": rate > 3e9}} for rate in (1e9, 2e9, 9e9)]
    return {
        "intervals": sums,
        "end": {"sum_sent": {"retransmits": 0}, "sum_received": {"bits_per_second": 1.5e9}, **end},
    }


def test_throughput_is_what_was_received_and_omitted_seconds_are_no_samples() -> None:
    session = parse_session(json.dumps(iperf()))
    assert (session.rate.value, session.rate.unit, session.rate.better) == (1.5, "Gbit/s", "more")
    assert session.rate.samples == [1.0, 2.0]
    assert session.retransmits == 0


def test_retransmits_that_nobody_counts_are_absent() -> None:
    assert parse_session(json.dumps(iperf(sum_sent={}))).retransmits is None


def test_nothing_received_is_no_throughput() -> None:
    with pytest.raises(ProbeError, match="received nothing"):
        parse_session(json.dumps(iperf(sum_received={"bits_per_second": 0})))


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ('{"error": "unable to connect to server: Connection refused"}', "Connection refused"),
        ("", "it says nothing"),
        ("iperf3: parameter error", "parameter error"),
    ],
)
def test_a_session_that_failed_says_why(written: str, says: str) -> None:
    with pytest.raises(ProbeError, match=says):
        parse_session(written)


def test_perf_is_read_to_its_last_digit() -> None:
    said = (
        "# Executed 1000 getppid() calls\n     Total time: 0.000 [sec]\n\n       0.132150 usecs/op\n  7567158 ops/sec\n"
    )
    assert parse_perf(said) == 0.13215


def test_what_a_wrapper_answers_in_place_of_perf_is_whole() -> None:
    wrapper = "WARNING: perf not found for kernel 5.15.0-1019\n\n  You may need to install:\n    linux-tools-aws\n"
    with pytest.raises(ProbeError, match=r"WARNING: perf not found for kernel 5\.15\.0-1019 .* linux-tools-aws$"):
        parse_perf("", wrapper)


@pytest.mark.parametrize(
    ("answer", "message"),
    [("nerdctl version 3.41", "fio 3.0 or newer is needed; here it says 'nerdctl version 3.41'"), ("fio-3.33", None)],
)
def test_a_tool_is_the_one_of_its_name(answer: str, message: str | None, tmp_path: Path) -> None:
    program = tmp_path / "fio"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    if message is None:
        assert version_of(str(program), (3, 0)) == "3.33"
        return
    with pytest.raises(ProbeError, match=re.escape(message)):
        version_of(str(program), (3, 0))


@pytest.mark.parametrize("said", ["", "Unknown collection: 'syscall'", "0.000000 usecs/op"])
def test_perf_without_a_time_is_refused(said: str) -> None:
    with pytest.raises(ProbeError, match="gives no time"):
        parse_perf(said)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1))
def test_a_quantile_is_one_of_the_samples_with_enough_of_them_below(samples: list[float], share: float) -> None:
    found = quantile(samples, share)
    assert found in samples
    below = sum(sample <= found for sample in samples)
    assert below >= (round(share * 1000) / 1000) * len(samples) - 1e-9


def test_a_quantile_of_one_sample_is_that_sample() -> None:
    assert quantile([7.0], 0.99) == 7.0
    assert quantile(list(map(float, range(100))), 0.99) == 98.0
    assert quantile(list(map(float, range(100))), 1.0) == 99.0


def test_a_median_keeps_what_it_was_taken_from_and_fits_a_record() -> None:
    reading = median([3.0, 1.0, 2.0], "us", "less")
    assert reading.value == statistics.median(reading.samples or [])
    metric = MetricValue(value=reading.value, unit=reading.unit, better=reading.better, samples=reading.samples)
    assert metric.samples == [3.0, 1.0, 2.0]
