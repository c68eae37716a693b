"""Runs the worker on a node, and turns what it says into a measurement."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from pydantic import ValidationError

from scenarios.events import EventLog, Transcript
from scenarios.failure import failure_of_exit, with_process
from scenarios.members import member_keys
from scenarios.reading import Seen, arrange_page_cache, data_of, data_use
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Measurement, Node, Observer, Process
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.record import Environment, Metric, Steps, Usage
from suite.registries import WORKLOADS

# What glibc gives back after a step is faulted in again in the next one, and in a virtual machine a fault costs more.
TUNED_ALLOCATOR = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000"

# The property that the ablation switches, alone.
HUGE_PAGES = "glibc.malloc.hugetlb=1"

# What caps the vector instructions that ATen, oneDNN and MKL choose their code by.
CAPS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
}


def worker_argv(node: Node, trial: Trial) -> list[str]:
    """Return the command that launches the worker on a node."""
    interpreter, python_path = node.python
    caps = CAPS[trial.cpu_capability] if trial.cpu_capability else {}
    pages = {"GLIBC_TUNABLES": HUGE_PAGES} if trial.properties.huge_pages else {}
    # Waiting threads that spin take the CPUs from those who read and decode, or from the job beside: up to four times.
    waiting = {"OMP_WAIT_POLICY": "passive"} if trial.job.dataset or trial.job.distributed or trial.job.sharing else {}
    variables = clean_environment(
        trial.job.envelope.threads, trial.job.recipe, PYTHONPATH=python_path, **caps, **pages, **waiting
    )
    return [*variables, interpreter, "-m", "worker"]


def clean_environment(threads: int, recipe: str, **more: str) -> list[str]:
    """Return the words before a command that replace the environment of the launching process by the job's own.

    The former would differ between the targets.
    """
    variables = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",  # noqa: S108 - what torch caches is of one job only
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **more,
    }
    if recipe == "tuned":
        variables["GLIBC_TUNABLES"] = TUNED_ALLOCATOR
    return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())]


def workload_of(trial: Trial) -> Sizes:
    """Return the sizes of the job. Raises MeasurementError for a trial of a probe."""
    if trial.job.sizes is None:
        raise MeasurementError(f"{trial.trial_id} was planned without a workload: it trains nothing", kind="plan")
    return trial.job.sizes


def specification(
    trial: Trial,
    data: Mapping[str, object] | None = None,
    distributed: Mapping[str, object] | None = None,
) -> bytes:
    """Return what the worker reads from its standard input.

    ``data`` is its key of that name, for a job with a data set, and ``distributed`` that of one rank of several.
    """
    spec = {
        **member_keys(WORKLOADS, trial.job.model, "workload", trial.job.workload_sha256),
        **workload_of(trial).model_dump(),
        "threads": trial.job.envelope.threads,
        "recipe": trial.job.recipe,
        "seed": trial.seed,
        **trial.job.devices.model_dump(),
        **({"data": data} if data else {}),
        **({"distributed": distributed} if distributed else {}),
        **({"injury": trial.properties.step_injury} if trial.properties.step_injury else {}),
    }
    return json.dumps(spec).encode()


def run_job(
    trial: Trial,
    node: Node,
    observer: Observer,
    account: AbstractContextManager[object],
) -> Measurement:
    """Attest the node, then run the trial's job on it. Raises MeasurementError when it does not come to its end."""
    return launch(prepare(trial, node, observer), account)


@dataclass(frozen=True)
class AttestedJob:
    """All that the launch of an attested job needs, and what it will say."""

    trial: Trial
    node: Node
    argv: list[str]
    spec: bytes
    attested: Mapping[str, object]
    seen: Seen | None
    transcript: Transcript


def prepare(trial: Trial, node: Node, observer: Observer) -> AttestedJob:
    """Attest the node and bring its page cache into the planned state. Raises MeasurementError where that fails."""
    argv = worker_argv(node, trial)
    spec = specification(trial, data_of(trial, node))
    observer.phase("attesting")
    attested = attest(node, argv, trial.trial_timeout_s)
    seen = arrange_page_cache(trial, node, worker_argv, observer)
    return AttestedJob(trial, node, argv, spec, attested, seen, Transcript(workload_of(trial), observer))


def launch(
    job: AttestedJob, account: AbstractContextManager[object], launched: Callable[[Process], None] = lambda _: None
) -> Measurement:
    """Run the job to its end; ``launched`` is given its process, for who may have to end it."""
    trial, transcript = job.trial, job.transcript
    with account:
        transcript.begin()
        process = job.node.start(job.argv, stdin=job.spec)
        launched(process)
        elapsed_s = follow(trial, job.argv, process, transcript)
    with recordable(job.argv):
        measured = measurement_of(trial, job.node, job.attested, transcript, elapsed_s)
        said = transcript.events["done"].fields.get("data_use")
        return replace(measured, data_use=data_use(trial, said, job.seen))


@contextmanager
def recordable(argv: list[str]) -> Iterator[None]:
    """Turn what the worker said and records cannot hold into a failure of the job."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MeasurementError(
            f"what the worker said cannot be recorded: {where}: {first['msg']}", kind="protocol", command=argv
        ) from error


def attest(node: Node, argv: list[str], timeout_s: float) -> Mapping[str, object]:
    said = node.run([*argv, "--attest"], timeout_s=timeout_s).stdout
    try:
        attested = json.loads(said)
    except ValueError:
        attested = None
    if not isinstance(attested, dict):
        raise MeasurementError(f"the attestation is no JSON object: {said[:200]!r}", kind="protocol", command=argv)
    return attested


def follow(trial: Trial, argv: list[str], process: Process, transcript: EventLog) -> float:
    """Hear the worker to its end. Returns the seconds since the transcript was begun, right before its launch."""
    try:
        for line in process.lines(trial.trial_timeout_s):
            transcript.hear(line)
        left_s = trial.trial_timeout_s - (time.monotonic() - transcript.begun_s)
        status = process.wait(max(1.0, left_s))
        elapsed_s = time.monotonic() - transcript.begun_s
        if status or "done" not in transcript.events:
            raise failure_of_exit(status, transcript.phase, trial.job.envelope.memory_bytes)
        return elapsed_s
    except CommandError as error:
        if error.returncode is not None:
            raise
        late = f"the worker had not ended after {trial.trial_timeout_s:g} s: it was {transcript.phase!r}"
        timeout = MeasurementError(late, kind="timeout")
        raise with_process(timeout, argv, process) from error
    except MeasurementError as error:
        raise with_process(error, argv, process) from error
    finally:
        process.kill()


def measurement_of(
    trial: Trial,
    node: Node,
    attested: Mapping[str, object],
    transcript: Transcript,
    elapsed_s: float,
) -> Measurement:
    """Return what the worker measured. Raises ValidationError on what cannot be recorded, and MeasurementError."""
    said, done = transcript.events["steps"].fields, transcript.events["done"].fields
    steps = Steps.model_validate(said.get("steps"))
    span_s, workload = transcript.between("measuring", "measured"), transcript.workload
    if len(steps.elapsed_s) != workload.steps or span_s <= 0:
        raise MeasurementError(
            f"the worker measured {len(steps.elapsed_s)} steps in {span_s} s; {workload.steps} were asked for",
            kind="protocol",
        )
    return Measurement(
        elapsed_s=elapsed_s,
        throughput_images_per_s=workload.batch * trial.job.devices.devices * workload.steps / span_s,
        steps=steps,
        timeline=transcript.timeline(elapsed_s),
        environment=merged_environment(attested, transcript.events["environment"].fields, node.facts),
        clock_ratio=transcript.clock_ratio("measuring", "measured"),
        usage=_usage(transcript),
        metrics=metrics_of(said.get("metrics")),
        details={
            **trial.job.devices.model_dump(),
            "measured_usage": said.get("usage"),
            **({"injected": done["injected"]} if done.get("injected") else {}),
        },
    )


def metrics_of(said: object) -> dict[str, Metric]:
    """Return the metrics that the worker has said, by name. Raises ValidationError on what cannot be recorded."""
    return {name: Metric.model_validate(one) for name, one in said.items()} if isinstance(said, Mapping) else {}


def merged_environment(
    attested: Mapping[str, object], said: Mapping[str, object], facts: Mapping[str, object]
) -> Environment:
    """Return what the job saw, completed by the attestation, and by the layers' facts where the inside sees nothing."""
    merged = dict(facts)
    for seen in (attested, said.get("environment")):
        if isinstance(seen, Mapping):
            merged.update((name, value) for name, value in seen.items() if value is not None)
    return Environment.model_validate(merged)


def _usage(transcript: Transcript) -> Usage | None:
    """Return what the whole job used, as the worker counted it at its end."""
    said = transcript.events["done"].fields.get("usage")
    return None if said is None else Usage.model_validate(said)
