"""The job as the host sees it: what the worker says becomes a measurement, and every bad end one clear failure."""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from scenarios.events import Transcript
from scenarios.job import merged_environment, run_job, specification, worker_argv
from suite.errors import MeasurementError
from suite.interfaces import Measurement
from suite.job.envelope import GIB, Envelope
from suite.job.job import Devices
from suite.plan import Trial
from suite.records.fields import checked_part
from suite.records.record import Generated, KeptModel, MetricValue, Steps
from suite.records.usage import Usage
from tests.clock import Clock
from tests.scenarios.conftest import Account, fails, failure
from worker.spec import parse_spec


def event(name: str, t: float, **fields: object) -> str:
    return json.dumps({"event": name, "t": t, **fields})


STEPS: dict[str, list[float] | None] = {
    "elapsed_s": [1.0, 1.0, 2.0],
    "data_s": [0.0, 0.0, 0.0],
    "copy_s": None,
    "compute_s": [1.0, 1.0, 2.0],
    "communicate_s": None,
}
STORY = [
    event("started", 100.0),
    event("imported", 102.0),
    event("environment", 102.5, environment={"kernel": "6.1", "threads": 1, "hypervisor": None}),
    event("built", 103.0),
    event("warmup", 104.0, step=1, of=2),
    event("warmup", 105.0, step=2, of=2),
    event("measuring", 105.5, steps=3),
    event("measured", 109.5),
    event("steps", 109.6, steps=STEPS, usage={"minor_faults": 5}),
    event("done", 109.75),
]
MISSING = "ModuleNotFoundError: No module named 'helper' (my_model.py, line 9, in build)"
NO_MEMORY = event("error", 101.0, kind="out-of-memory", message="can't allocate memory")
GENERATED = {"images": 8, "weights_sha256": "ab" * 32, "pixels_sha256": "cd" * 32, "png": None}
IMAGE_METRIC = {"image": {"value": 0.25, "unit": "s", "better": "less", "samples": [0.25]}}
KEPT = {"weights_sha256": "ab" * 32, "text": "bnVtYmVycw=="}


def with_steps(steps: object) -> list[str]:
    return [*STORY[:8], event("steps", 109.6, steps=steps), STORY[-1]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("scenarios.job", "tests.scenarios.conftest"):
        monkeypatch.setattr(f"{module}.time", made)
    monkeypatch.setattr("scenarios.job.Transcript", partial(Transcript, clock=made.monotonic))
    return made


@pytest.fixture
def run(trial: Trial, observer: Any, scripted: Any) -> Callable[..., Measurement]:
    """``run(*lines)``: what comes of a worker that says these; ``job`` has other fields of the job than the trial's."""

    def measured(*script: str | float | None, job: Mapping[str, Any] | None = None, **process: Any) -> Measurement:
        return run_job(trial.with_job(**(job or {})), scripted(*script, **process), observer, nullcontext())

    return measured


def test_throughput_is_images_over_the_measured_span_of_all_devices(run: Any) -> None:
    measured = run(*STORY, job={"devices": Devices(devices=2, parallel="parameter-cpu")})
    assert measured.throughput_per_s == 2 * 2 * 3 / 4.0
    assert measured.steps.elapsed_s == [1.0, 1.0, 2.0]
    assert measured.steps.copy_s is None
    assert measured.details["measured_usage"] == {"minor_faults": 5}
    assert measured.details["parallel"] == "parameter-cpu"


def test_steps_without_times_are_those_of_a_job_that_waits_at_the_ends_of_its_span(run: Any, trial: Trial) -> None:
    span = {"devices": Devices(device="cuda", sync="span")}
    untimed = [*STORY[:8], event("steps", 109.6, steps={}, losses={"loss": [3.0, 2.0, 1.0]}), STORY[9]]
    measured = run(*untimed, job=span)
    assert measured.steps == Steps(losses={"loss": [3.0, 2.0, 1.0]})
    assert measured.throughput_per_s == 2 * 3 / 4.0
    assert measured.details["sync"] == "span"
    assert specification(trial.with_job(**span)).sync == "span"
    assert "without its time" in str(failure(run, *untimed))
    assert failure(run, *STORY, job=span).kind == "protocol"


def test_a_trial_that_fixes_the_steps_is_measured_by_those_that_its_worker_has_chosen(
    trial: Trial, observer: Any, scripted: Any
) -> None:
    sizes = trial.job.sizes
    assert sizes is not None
    planned = trial.with_job(sizes=sizes.model_copy(update={"steps": 2, "settle_s": 5.0, "least_s": 20.0}))
    assert specification(planned).most_steps is None
    assert failure(run_job, planned, scripted(*STORY), observer, nullcontext()).kind == "protocol"
    first = planned.model_copy(update={"fixes_steps": True})
    assert specification(first).most_steps == 100_000
    measured = run_job(first, scripted(*STORY), observer, nullcontext())
    assert measured.throughput_per_s == 2 * 3 / 4.0
    assert measured.fixed_sizes == sizes.model_copy(update={"steps": 3, "settle_s": 5.0})
    assert ("measuring", "") in observer.phases, "how many is not known yet"


@pytest.mark.parametrize("steps", [0, "many", 100_001, None])
def test_steps_that_no_worker_can_choose_are_none(steps: object, trial: Trial, observer: Any, scripted: Any) -> None:
    first = trial.model_copy(update={"fixes_steps": True})
    story = [*STORY[:6], event("measuring", 105.5, steps=steps), *STORY[7:]]
    with pytest.raises(ValidationError):
        run_job(first, scripted(*story), observer, nullcontext())


def test_the_host_counts_from_the_launch_to_the_end_and_no_longer(trial: Trial, observer: Any, scripted: Any) -> None:
    node = scripted(*STORY)
    account = Account(lambda: (len(node.started), observer.phases[-1][0]))
    run_job(trial, node, observer, account)
    assert account.seen == [(0, "attesting"), (1, "finishing")]


def test_usage_and_digests_are_what_the_worker_says(run: Any) -> None:
    steps = event("steps", 109.6, steps=STEPS, weights_sha256="ab" * 32, unfinished_s=0.5)
    used = {"cpu_s": 7.5, "peak_memory_bytes": 1 << 30, "disk_read_bytes": None}
    measured = run(*STORY[:8], steps, event("done", 109.75, drawn=["cd" * 32], usage=used))
    assert (measured.weights_sha256, measured.drawn_sha256, measured.unfinished_s) == ("ab" * 32, "cd" * 32, 0.5)
    assert measured.usage == Usage(cpu_s=7.5, peak_memory_bytes=1 << 30)
    silent = run(*STORY)
    assert (silent.usage, silent.weights_sha256, silent.data_use) == (None, None, None)


@pytest.mark.usefixtures("clock")
def test_the_launch_and_the_exit_are_taken_on_the_hosts_clock(run: Any) -> None:
    # The worker's clock runs ten seconds here in no time at all.
    timeline = run(0.2, *STORY, 0.3).timeline
    assert timeline.launch_s == pytest.approx(0.2)
    assert timeline.exit_s == pytest.approx(0.3)
    assert (timeline.imports_s, timeline.build_s, timeline.warmup_s) == (2.0, 1.0, 2.5)
    assert (timeline.measured_s, timeline.teardown_s) == (4.0, 0.25)


@pytest.mark.usefixtures("clock")
def test_the_parts_of_a_trial_make_up_the_whole(run: Any) -> None:
    pauses = [0.2, *(later - earlier for earlier, later in pairwise(json.loads(line)["t"] for line in STORY))]
    measured = run(*(item for pause, line in zip(pauses, STORY, strict=True) for item in (pause, line)), 0.3)
    assert measured.elapsed_s == pytest.approx(0.2 + 9.75 + 0.3)
    parts_s = [each for each in asdict(measured.timeline).values() if each is not None]
    assert sum(parts_s) == pytest.approx(measured.elapsed_s)
    assert measured.clock_ratio == pytest.approx(1.0)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("span_s", "told_s"), [(2.0, 4.0), (2.0, 1.0), (0.5, 0.25), (0.9, 0.63), (1.9, 1.672), (0.0, 4.0)]
)
def test_a_clock_that_runs_fast_or_slow_shows_over_any_span(span_s: float, told_s: float, run: Any) -> None:
    """The host's span is recorded, so that late lines can be allowed for. Lines that come at once give no ratio."""
    measured = run(*STORY[:7], span_s, event("measured", 105.5 + told_s), *STORY[8:])
    assert measured.clock_span_s == pytest.approx(span_s)
    assert measured.clock_ratio == (pytest.approx(told_s / span_s) if span_s else None)


def test_the_attestation_has_tried_what_a_filter_refuses() -> None:
    attested = {"seccomp": "open", "seccomp_refuses": []}
    seen = merged_environment(attested, {"seccomp": "filter", "kernel": "6.1"}, {})
    assert (seen.seccomp, seen.seccomp_refuses, seen.kernel) == ("open", [], "6.1")
    assert merged_environment(attested, {}, {"seccomp": "sentry"}).seccomp == "sentry"


def test_the_observer_hears_nothing_between_measuring_and_measured(run: Any, observer: Any) -> None:
    run(*STORY)
    assert observer.phases == [
        *((name, "") for name in ("attesting", "launching", "importing", "building")),
        *(("warm-up", "0/2"), ("warm-up", "1/2"), ("measuring", "3 steps"), ("finishing", "")),
    ]


def test_without_warm_up_measuring_is_told_when_the_model_is_built(run: Any, trial: Trial, observer: Any) -> None:
    assert trial.job.sizes is not None
    sizes = trial.job.sizes.model_copy(update={"warmup_steps": 0})
    run(*(line for line in STORY if "warmup" not in line), job={"sizes": sizes})
    assert observer.phases[-2:] == [("measuring", "3 steps"), ("finishing", "")]


def test_a_garbage_line_is_quoted_in_the_failure(trial: Trial, observer: Any, scripted: Any) -> None:
    node = scripted(STORY[0], "Segmentation fault " + "x" * 1000)
    with fails(MeasurementError, "protocol", "Segmentation fault xxx") as raised:
        run_job(trial, node, observer, nullcontext())
    assert len(raised.value.message) < 300
    assert raised.value.output_tail == "the last words"
    assert raised.value.command[-1] == "worker"
    assert node.process.killed


@pytest.mark.parametrize(
    ("script", "process", "kind", "words"),
    [
        *(([line], {}, "protocol", []) for line in ("[]", "7", "{}", '{"event": "hello", "t": 1}', "")),
        (['{"event": "started", "t": NaN}'], {}, "protocol", []),
        *((story, {}, "protocol", []) for story in (STORY[1:], [STORY[0], *STORY], [*STORY[:5], *STORY[3:]])),
        ([*STORY[:6], *STORY[7:]], {}, "protocol", []),
        ([*STORY[:-1], event("done", 109.75, usage={"cpu_s": -1})], {}, "protocol", ["cpu_s"]),
        ([STORY[0], NO_MEMORY], {"status": 1}, "out-of-memory", ["can't allocate memory", "--memory"]),
        *((STORY[:5], {"status": status}, "killed", ["limit of 2.0 GiB", "'warm-up'"]) for status in (-9, 137)),
        (STORY[:5], {"status": -11}, "killed", ["SIGSEGV"]),
        (STORY[:-1], {}, "protocol", ["ended early"]),
        (STORY[:-1], {"status": 127}, "protocol", ["status 127"]),
        (STORY[:-1], {"status": 255}, "protocol", ["status 255"]),
        (STORY, {"status": -11}, "killed", []),
        ([*STORY[:2], event("error", 101.0, kind="import", message=MISSING)], {}, "import", [MISSING, "into the file"]),
        ([*STORY[:7], None], {}, "timeout", ["120 s", "'measuring'"]),
        (with_steps({name: column and column[:2] for name, column in STEPS.items()}), {}, "protocol", ["2 steps"]),
        (with_steps({**STEPS, "data_s": [-1.0, 0.0, 0.0]}), {}, "protocol", ["data_s"]),
        (STORY, {"node": {"attestation": "no such file"}}, "protocol", ["no such file"]),
        (STORY, {"job": {"generate": 8}}, "protocol", []),
    ],
)
def test_every_bad_end_is_a_failure_of_one_kind_that_says_what_happened(
    script: list[Any], process: dict[str, Any], kind: str, words: list[str], run: Any
) -> None:
    error = failure(run, *script, **process)
    assert error.kind == kind
    assert [word for word in words if word not in f"{error.message} {error.remedy}"] == []


def test_the_worker_is_launched_with_the_variables_of_its_node_and_job_alone(trial: Trial, scripted: Any) -> None:
    node = scripted(node={"python": ("/usr/bin/python3", "/opt"), "variables": {"CUDA_VISIBLE_DEVICES": "GPU-a"}})
    argv = worker_argv(node, trial.with_job(envelope=Envelope(cpus=(0,), memory_bytes=GIB, threads=3)))
    assert argv[:2] == ["/usr/bin/env", "-i"]
    assert argv[-3:] == ["/usr/bin/python3", "-m", "worker"]
    assert {"OMP_NUM_THREADS=3", "MKL_NUM_THREADS=3", "PYTHONPATH=/opt", "CUDA_VISIBLE_DEVICES=GPU-a"} <= set(argv)
    assert not [word for word in argv if word.startswith("GLIBC_TUNABLES") or "CAPABILITY" in word]
    tuned = worker_argv(scripted(), trial.with_job(recipe="tuned"))
    assert [word for word in tuned if word.startswith("GLIBC_TUNABLES=") and "mmap_max=0" in word]
    capped = worker_argv(scripted(), trial.with_job(cpu_capability="avx2"))
    assert {"ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2", "MKL_ENABLE_INSTRUCTIONS=AVX2"} <= set(capped)


def test_the_worker_is_given_the_whole_trial(trial: Trial, observer: Any, scripted: Any, spec: dict[str, Any]) -> None:
    node = scripted(*STORY)
    run_job(trial, node, observer, nullcontext())
    given = json.loads(node.started[0][1])
    decoded = parse_spec(json.dumps(given))
    assert (decoded.channels, decoded.epochs, decoded.data, decoded.distributed, decoded.turns) == (None,) * 5
    assert given == {**spec, "batch": 2, "warmup_steps": 2, "steps": 3, "seed": 7}
    others = specification(trial.with_job(generate=8, keep_model="each"))
    assert (others.generate, others.keep_model) == (8, "each")


def generating(run: Any, **said: object) -> Any:
    told = event("generated", 109.72, **{"generated": GENERATED, "metrics": IMAGE_METRIC, **said})
    return run(*STORY[:-1], event("generating", 109.62), told, STORY[-1], job={"generate": 8})


def test_generating_is_a_part_of_the_timeline_and_of_no_throughput(run: Any, observer: Any) -> None:
    measured = generating(run)
    assert measured.generated == checked_part(Generated, GENERATED)
    assert measured.metrics == {"image": checked_part(MetricValue, IMAGE_METRIC["image"])}
    assert measured.throughput_per_s == 2 * 3 / 4.0
    timeline = measured.timeline
    assert (timeline.measured_s, timeline.generating_s, timeline.teardown_s) == pytest.approx((4.0, 0.1, 0.15))
    assert observer.phases[-1] == ("generating", "")


def keeping(run: Any, *models: Mapping[str, object]) -> Any:
    told = [event("model", 109.65, **{"epoch": None, "training_s": 4.0, **model}) for model in models]
    return run(*STORY[:-1], *told, STORY[-1], job={"keep_model": "last"})


def test_a_kept_model_is_in_the_record_and_its_file_beside_it(run: Any) -> None:
    measured = keeping(run, KEPT)
    assert measured.kept == [KeptModel(weights_sha256="ab" * 32, training_s=4.0, size_bytes=7)]
    assert measured.models == {"ab" * 32: b"numbers"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"generated": {**GENERATED, "images": 0}}, "images"),
        ({"generated": None}, "images"),
        ({"generated": {**GENERATED, "png": "iVBORw0KGgo="}}, "png"),
        ({"generated": {**GENERATED, "pixels_sha256": "none"}}, "pixels_sha256"),
        ({"metrics": {"image": {"value": 0.0, "unit": "s", "better": "less"}}}, "value"),
        ([], "kept 0 models, and 1 were asked for"),
        ([KEPT, KEPT], "kept 2 models, and 1 were asked for"),
        ([{**KEPT, "epoch": 1}], "kept 1 models"),
        ([{**KEPT, "weights_sha256": "../../plan"}], "weights_sha256"),
        ([{**KEPT, "text": "no base64"}], "not base64"),
        ([{**KEPT, "text": None}], "not base64"),
        ([{**KEPT, "training_s": -1.0}], "training_s"),
    ],
)
def test_a_worker_that_generated_or_kept_something_else_has_failed(said: Any, why: str, run: Any) -> None:
    with fails(MeasurementError, "protocol", why):
        generating(run, **said) if isinstance(said, dict) else keeping(run, *said)
