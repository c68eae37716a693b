"""A probe as the host sees it: what the worker says becomes metrics, and every bad end one clear failure."""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.probe import Probing
from scenarios.probes.startup import PhaseRecorder
from suite.errors import MeasurementError
from suite.interfaces import Completed, Instance
from suite.job.job import Devices
from suite.plan import Trial
from suite.records.course import Course
from suite.records.environment import Environment
from suite.records.record import MetricValue
from tests.jobs import identity
from tests.scenarios.conftest import Account, HereNode, ScriptedNode, ScriptedProcess, fails, failure
from tests.scenarios.test_job import event
from worker.probes.probe import ProbeError, median, quantile
from worker.probes.tools import version_of

RATE = {"value": 12.5, "unit": "GB/s", "better": "more", "samples": [12.0, 12.5, 13.0]}
STORY = [
    event("started", 100.0),
    event("environment", 100.5, environment={"kernel": "6.1", "threads": 1}),
    event("metrics", 104.5, metrics={"triad-one-thread": RATE}, details={"array_bytes": 64}),
    event("done", 104.75, usage={"cpu_s": 3.5}),
]


@pytest.fixture
def probe(trial: Trial) -> Trial:
    return trial.with_job(scenario="probe", model="memory", sizes=None)


@pytest.fixture
def measure(probe: Trial, observer: Any) -> Callable[..., Any]:
    return lambda node, trial=probe: Probing().measure(trial, [Instance(node)], observer, nullcontext())


def test_what_the_worker_says_becomes_metrics(measure: Any, observer: Any, scripted: Any) -> None:
    place = {"facts": {"accelerator": "kvm"}, "attestation": '{"userland_sha256": "ab"}'}
    measured = measure(scripted(*STORY, node=place))
    assert asdict(measured.metrics["triad-one-thread"]) == {**RATE, "compared": "ratio"}
    assert (measured.throughput_per_s, measured.steps) == (None, None)
    assert (measured.weights_sha256, measured.drawn_sha256) == (None, None), "it computed nothing that anyone asked for"
    seen = measured.environment
    assert (seen.accelerator, seen.userland_sha256, seen.kernel) == ("kvm", "ab", "6.1")
    assert measured.usage.cpu_s == 3.5
    assert measured.details["array_bytes"] == 64
    assert measured.timeline.imports_s is None
    assert observer.phases == [(name, "") for name in ("attesting", "launching", "preparing", "measuring", "finishing")]


def test_the_worker_is_asked_for_the_trials_probe(probe: Trial, measure: Any, scripted: Any) -> None:
    node = scripted(*STORY, node={"data": "/mnt/data"})
    measure(node, probe.with_job(devices=Devices(device="cuda")))
    argv, given = node.started[0]
    assert argv[-2:] == ["worker", "--probe"]
    place = {"member": "worker.probes.computing:MEMORY", "directory": "/mnt/data"}
    assert json.loads(given) == {**place, "threads": 1, "size": "smoke", "device": "cuda"}


def test_the_host_counts_from_the_launch_to_the_end(probe: Trial, observer: Any, scripted: Any) -> None:
    node = scripted(*STORY)
    account = Account(lambda: len(node.started))
    Probing().measure(probe, [Instance(node)], observer, account)
    assert account.seen == [0, 1]


def test_a_metric_that_was_refused_is_told_and_absent(measure: Any, observer: Any, scripted: Any) -> None:
    told = event("metrics", 104.0, metrics={"page-fault": RATE}, details={"refused": {"getppid": "no perf"}})
    assert list(measure(scripted(*STORY[:2], told, STORY[3])).metrics) == ["page-fault"]
    assert observer.notes == ["getppid cannot be measured on bare-metal: no perf"]


def test_the_workers_reason_and_remedy_are_kept(measure: Any, scripted: Any) -> None:
    said = event("error", 101.0, kind="probe", message="fio is not installed here", remedy="bench image build")
    error = failure(measure, scripted(STORY[0], said, status=1))
    assert (error.kind, error.message, error.remedy) == ("probe", "fio is not installed here", "bench image build")
    assert error.output_tail == "the last words"
    assert error.command[-1] == "--probe"


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({}, "measured nothing"),
        ({"x": {**RATE, "value": 0.0}}, "a number that is compared by ratios is above zero"),
        ({"x": {**RATE, "better": "most"}}, "better"),
        ({"x": 7}, "cannot be recorded"),
        (None, "measured nothing"),
    ],
)
def test_what_is_no_metric_is_not_recorded(metrics: object, says: str, measure: Any, scripted: Any) -> None:
    with fails(MeasurementError, "protocol", says):
        measure(scripted(*STORY[:2], event("metrics", 104.5, metrics=metrics), STORY[3]))


def test_a_probe_that_nobody_knows_is_refused(probe: Trial, measure: Any, scripted: Any) -> None:
    error = failure(measure, scripted(), probe.with_job(model="gpu"))
    assert error.kind == "probe"
    assert "startup" in str(error.remedy)


@pytest.mark.parametrize(
    ("data", "scratch", "says"), [(None, 1 << 40, "no data volume"), ("/mnt/data", 127 << 20, "133 MB are planned")]
)
def test_the_disk_probe_needs_the_room_that_was_planned(
    data: str | None, scratch: int, says: str, probe: Trial, measure: Any, scripted: Any
) -> None:
    node = scripted(*STORY, node={"data": data})
    error = failure(measure, node, probe.with_job(model="disk").model_copy(update={"scratch_bytes": scratch}))
    assert error.kind == "probe"
    assert [word for word in ("the disk probe writes 134 MB", says) if word not in error.message] == []
    assert error.remedy
    assert node.started == []


class Mounted(ScriptedNode):
    """Attests what it was given, with the mounts of this machine."""

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        if argv == ["cat", "/proc/self/mountinfo"]:
            return HereNode.run(self, argv, **more)
        return super().run(argv, **more)


def test_memory_that_the_disk_probe_takes_for_a_disk_is_named(probe: Trial, measure: Any) -> None:
    """Linux accepts O_DIRECT on tmpfs since 6.6: that fio measures something proves no disk."""
    planned = probe.with_job(model="disk").model_copy(update={"scratch_bytes": 1 << 30, "run_id": identity("run")})
    with TemporaryDirectory(dir="/dev/shm") as directory:
        measured = measure(Mounted(process=ScriptedProcess(STORY), data=directory), planned)
    assert measured.environment.filesystem == "tmpfs"
    course = Course(planned, "2026-11-30T20:00:00+00:00", Environment(), measurement=measured)
    assert course.record().substitutes == ["disk:memory"]


def test_the_start_up_is_the_training_workers_own(probe: Trial, here: Any, measure: Any) -> None:
    measured = measure(here, probe.with_job(model="startup"))
    assert list(measured.metrics) == ["first-instruction", "import-torch", "first-step"]
    seconds = [metric.value for metric in measured.metrics.values()]
    assert 0 < seconds[0] < seconds[1] < seconds[2] < measured.elapsed_s
    assert {(metric.unit, metric.better) for metric in measured.metrics.values()} == {("s", "less")}
    assert (measured.throughput_per_s, measured.steps) == (None, None)
    assert (measured.weights_sha256, measured.drawn_sha256) == (None, None), "it computed nothing that anyone asked for"
    assert (measured.details["model"], measured.details["steps"]) == ("alexnet", 1)


def test_a_start_up_that_ended_before_its_first_step_is_a_failure(observer: Any) -> None:
    stopwatch = PhaseRecorder(observer)
    for phase in ("launching", "importing"):
        stopwatch.phase(phase)
    with pytest.raises(MeasurementError, match="never came to 'building'"):
        stopwatch.metrics()
    assert observer.phases == [("launching", ""), ("importing", "")]


def test_a_probe_measures_through_a_node(here: Any, measure: Any) -> None:
    measured = measure(here)
    assert {metric.unit for metric in measured.metrics.values()} == {"GB/s"}
    assert 0 < measured.timeline.launch_s < measured.elapsed_s
    assert measured.timeline.launch_s + measured.timeline.exit_s <= measured.elapsed_s


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


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1))
def test_a_quantile_is_one_of_the_samples_with_enough_of_them_below(samples: list[float], share: float) -> None:
    found = quantile(samples, share)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= (round(share * 1000) / 1000) * len(samples) - 1e-9


def test_a_median_keeps_what_it_was_taken_from_and_fits_a_record() -> None:
    reading = median([3.0, 1.0, 2.0], "us", "less")
    assert reading.value == statistics.median(reading.samples or [])
    assert MetricValue(**vars(reading)).samples == [3.0, 1.0, 2.0]
