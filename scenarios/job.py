"""Runs the worker on a node, and turns what it says into a measurement."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import IO, Any, Generic, TypeVar

import msgspec
from pydantic import ValidationError

from scenarios.events import ORDER, TURNS_ORDER, EventLog, Transcript
from scenarios.failure import failure_of_exit, with_process
from scenarios.members import plugin_of
from scenarios.reading import arrange_page_cache, asked, data_of, mounted_at
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Context, Measurement, Node, Observer, Process
from suite.job.envelope import parse_cpu_changes
from suite.job.job import Job
from suite.job.profiles import MOST_STEPS, Sizes
from suite.part import first_problem
from suite.plan import Trial, planned
from suite.records.columns import counted_steps
from suite.records.environment import Environment, Gpu
from suite.records.fields import checked_part
from suite.records.record import DataUse, Generated, KeptModel, MetricValue, Steps
from suite.registries import WORKLOADS
from worker.spec import Checkpointing, Data, Membership, Spec, StepInjury, Strict, Turns

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
Log = TypeVar("Log", bound=EventLog)
_UUID_KIND = re.compile("^((GPU|MIG)-)+")


def worker_argv(node: Node, trial: Trial) -> list[str]:
    """Return the command that launches the worker on a node."""
    interpreter, python_path = node.python
    caps = CAPS[trial.cpu_capability] if trial.cpu_capability else {}
    pages = {"GLIBC_TUNABLES": HUGE_PAGES} if trial.properties.huge_pages else {}
    # Waiting threads that spin take the CPUs from those who read and decode, or from the job beside: up to four times.
    # A job that takes turns spins on after one for milliseconds (``worker.turns``): to sleep in steps costs a fifth.
    waiting = {"OMP_WAIT_POLICY": "passive"} if trial.job.loading or trial.job.distributed or trial.job.sharing else {}
    variables = clean_environment(
        trial.job.envelope.threads,
        trial.job.recipe,
        PYTHONPATH=python_path,
        **caps,
        **pages,
        **waiting,
        **node.variables,
    )
    return [*variables, interpreter, "-m", "worker"]


def clean_environment(threads: int, recipe: str, **more: str) -> list[str]:
    """Return the words before a command that replace the launcher's environment, which differs by target."""
    variables = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",  # noqa: S108 - what torch caches is of one job only
        **dict.fromkeys(("USER", "LOGNAME"), "virtbench"),  # on bare metal the number of the user has no name
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **more,
    }
    if recipe == "tuned":
        variables["GLIBC_TUNABLES"] = TUNED_ALLOCATOR
    return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())]


def workload_sizes(trial: Trial) -> Sizes:
    return planned(trial.job.sizes, "a workload: it trains nothing")


def scratch_of(trial: Trial, node: Node) -> str | None:
    """Return the directory of the trial's scratch volume on the node; None if it has none."""
    if trial.scratch_bytes:
        if trial.job.dataset:
            return node.scratch
        return node.data
    return None


def specification(
    trial: Trial, *, data: Data | None = None, distributed: Membership | None = None, scratch: str | None = None
) -> Spec:
    """Return the training of a trial, as the worker reads it; ``distributed`` is the view of one rank of several.

    ``scratch`` is the directory of its checkpoints; None for a temporary one.
    """
    return Spec(
        workload=WORKLOADS.place(trial.job.model),
        plugin=plugin_of(WORKLOADS, trial.job.model, trial.job.workload_sha256),
        **workload_sizes(trial).model_dump(),
        threads=trial.job.envelope.threads,
        recipe=trial.job.recipe,
        channels_last=trial.properties.channels_last,
        seed=trial.seed,
        **trial.job.devices.model_dump(),
        data=data,
        distributed=distributed,
        injury=msgspec.convert(trial.properties.step_injury, StepInjury | None),
        turns=msgspec.convert(trial.job.turns, Turns | None, from_attributes=True),
        most_steps=MOST_STEPS if trial.fixes_steps else None,
        checkpoint=Checkpointing(trial.job.checkpoint, scratch) if trial.job.checkpoint else None,
        generate=trial.job.generate,
        keep_model=trial.job.keep_model,
        threads_at=_threads_at(trial.job),
    )


def _threads_at(job: Job) -> dict[int, int]:
    """Return the threads from each step on at which the CPUs change: in proportion to them, and one at least."""
    if job.resize_at is None:
        return {}
    envelope = job.envelope
    threads = {}
    for step, cpus in parse_cpu_changes(job.resize_at).items():
        threads[step] = max(1, envelope.threads * cpus // len(envelope.cpus))
    return threads


@dataclass
class AttestedJob(Generic[Log]):
    """All that the launch of an attested job needs, and what it has said."""

    trial: Trial
    node: Node
    argv: list[str]
    spec: Strict
    attested: Mapping[str, object]
    log: Log
    seen: Mapping[str, object] = field(default_factory=dict)
    """The data set as the target sees it right before the launch."""
    process: Process | None = None
    orders: IO[bytes] | None = None
    """Where the lines are written that a job reads after its specification."""

    def launch(self) -> Process:
        self.log.begin()
        self.process = self.node.start(self.argv, stdin=self.spec.encoded())
        return self.process

    def launch_ordered(self) -> None:
        """Launch the job, which reads further lines."""
        self.log.begin()
        self.launch_waiting(self.argv)
        self.order(self.spec.encoded())

    def launch_waiting(self, argv: Sequence[str]) -> None:
        """Launch the job by this command. It gets no line yet, and its clock runs already."""
        reading, writing = os.pipe()
        self.orders = os.fdopen(writing, "wb")
        lines = os.fdopen(reading, "rb")
        self.process = self.node.start(argv, stdin=lines)

    def order(self, line: bytes) -> None:
        """Write a line to the job. One that has ended says why, or its exit status does."""
        with suppress(BrokenPipeError):
            if self.orders and not self.orders.closed:
                self.orders.write(line + b"\n")
                self.orders.flush()

    def end_orders(self) -> None:
        with suppress(BrokenPipeError):
            if self.orders:
                self.orders.close()

    def kill(self) -> None:
        self.end_orders()
        if self.process:
            self.process.kill()

    def follow(self, within_s: float | None = None) -> float:
        """Hear the worker to its end. Returns the seconds since right before its launch.

        ``within_s`` is what is left of the limit of a job that took turns.
        """
        process = self.process or self.launch()
        timeout_s: float = self.trial.trial_timeout_s
        begun_s = self.log.begun_s
        if within_s is not None:
            timeout_s = within_s
            begun_s = time.monotonic()
        try:
            with self.explained(process, "ended"):
                for line in process.lines(timeout_s):
                    self.log.hear(line)
                left_s = timeout_s - (time.monotonic() - begun_s)
                status = process.wait(max(1.0, left_s))
                elapsed_s = time.monotonic() - self.log.begun_s
                if status or "done" not in self.log.events:
                    memory_bytes = self.trial.job.envelope.memory_bytes
                    raise failure_of_exit(status, self.log.phase, memory_bytes, self.node)
            return elapsed_s
        finally:
            process.kill()

    @contextmanager
    def explained(self, process: Process, awaited: str) -> Iterator[None]:
        """Add the worker's command and output to the failure by which it has not ``awaited``: ended, or been ready."""
        try:
            yield
        except CommandError as error:
            if error.returncode is not None:
                raise
            late = f"the worker had not {awaited} after {self.trial.trial_timeout_s:g} s: it was {self.log.phase!r}"
            raise with_process(MeasurementError(late, kind="timeout"), self.argv, process) from error
        except MeasurementError as error:
            raise with_process(error, self.argv, process) from error

    def environment(self) -> Environment:
        """Return the environment that the job saw. Raises ValidationError on what cannot be recorded."""
        reported = self.log.said("environment", "environment")
        return merged_environment(self.attested, reported, self.node.facts)


def run_job(trial: Trial, node: Node, observer: Observer, account: Context) -> Measurement:
    """Attest the node, then run the trial's job on it. Raises MeasurementError when it does not come to its end."""
    return launch(prepare(trial, node, observer), account)


def prepare(
    trial: Trial,
    node: Node,
    observer: Observer,
    detail: str = "",
    distributed: Membership | None = None,
) -> AttestedJob[Transcript]:
    """Attest the node, which ``detail`` names, and bring its page cache into its state. Raises MeasurementError."""
    data = data_of(trial, node)
    scratch = scratch_of(trial, node)
    spec = specification(trial, data=data, distributed=distributed, scratch=scratch)
    observer.phase("attesting", detail)
    order = TURNS_ORDER if trial.job.turns else ORDER
    transcript = Transcript(
        order=order,
        workload=workload_sizes(trial),
        fixes_steps=trial.fixes_steps,
        observer=observer,
    )
    job = attest(trial, node, spec, transcript)
    job.seen = arrange_page_cache(trial, node, worker_argv, observer)
    return job


def attest(trial: Trial, node: Node, spec: Strict, log: Log, *words: str) -> AttestedJob[Log]:
    """Attest the node, and return the job for it: the worker's command with these words, and what it will read."""
    argv = worker_argv(node, trial)
    attested = dict(asked(node, [*argv, "--attest"], trial.trial_timeout_s))
    if node.data:
        attested["filesystem"], _ = mounted_at(node, node.data)
    return AttestedJob(trial, node, [*argv, *words], spec, attested, log)


def launch(
    job: AttestedJob[Transcript], account: Context, launched: Callable[[Process], None] = lambda _: None
) -> Measurement:
    """Run the job to its end; ``launched`` is given its process, for who may have to end it."""
    with account:
        launched(job.launch())
        elapsed_s = job.follow()
    with recordable(job.argv):
        return measurement_of(job, elapsed_s).changed(data_use=data_use_of(job))


@contextmanager
def listening(jobs: Sequence[AttestedJob[Any]]) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool with a thread for each job. At the end, also by Ctrl-C, the threads end with what they listen to."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        try:
            yield pool
        finally:
            for job in jobs:
                job.kill()


@contextmanager
def recordable(argv: list[str]) -> Iterator[None]:
    """Turn what the worker said and records cannot hold into a failure of the job."""
    try:
        yield
    except ValidationError as error:
        message = f"what the worker said cannot be recorded: {first_problem(error)}"
        raise MeasurementError(message, kind="protocol", command=argv) from error


def measurement_of(job: AttestedJob[Transcript], elapsed_s: float) -> Measurement:
    """Return what the worker measured. Raises ValidationError on what cannot be recorded, and MeasurementError."""
    reported = job.log.said("steps", "steps")
    steps = checked_part(Steps, {**reported, "losses": job.log.said("steps", "losses")})
    span_s = job.log.between("measuring", "measured")
    measured = with_models(job, measurement(job, elapsed_s, steps, span_s))
    if not job.trial.job.generate:
        return measured
    generated = checked_part(Generated, job.log.said("generated", "generated"))
    metrics = {**measured.metrics, **metrics_of(job.log.said("generated", "metrics"))}
    return measured.changed(generated=generated, metrics=metrics)


def with_models(job: AttestedJob[Transcript], measured: Measurement) -> Measurement:
    """Return the measurement with the models that the job said. Raises as ``measurement_of`` does."""
    asked_for = job.trial.job.keep_model
    epochs = job.log.workload.epochs
    if asked_for:
        wanted = [*range(1, (epochs or 0) + 1)] if asked_for == "each" else [epochs]
    else:
        wanted = []
    kept = [checked_part(KeptModel, {**model, "size_bytes": len(file)}) for model, file in job.log.models]
    if [model.epoch for model in kept] != wanted:
        raise MeasurementError(f"the worker kept {len(kept)} models, and {len(wanted)} were asked for", kind="protocol")
    kept_files = zip(kept, job.log.models, strict=True)
    files = {model.weights_sha256: file for model, (_, file) in kept_files}
    return measured.changed(kept=kept, models=files)


def measurement(job: AttestedJob[Transcript], elapsed_s: float, steps: Steps, span_s: float) -> Measurement:
    """Return these steps, which took ``span_s``, with what else the worker said. Raises as ``measurement_of`` does."""
    transcript = job.log
    devices = job.trial.job.devices
    workload = job.log.workload
    counted = counted_steps(steps)
    timed = steps.elapsed_s is not None
    if counted != workload.steps or span_s <= 0 or timed is (devices.sync == "span"):
        raise MeasurementError(
            f"the worker measured {counted} steps in {span_s} s{'' if timed else ', each without its time'}; "
            f"{workload.steps} were asked for",
            kind="protocol",
        )
    sharing_devices = 1 if job.trial.job.shares_batch else devices.devices
    weights = transcript.events["steps"].fields.get("weights_sha256")
    unfinished_s = transcript.events["steps"].fields.get("unfinished_s")
    return Measurement(
        elapsed_s=elapsed_s,
        throughput_per_s=workload.batch * sharing_devices * workload.steps / span_s,
        steps=steps,
        timeline=transcript.timeline(elapsed_s),
        environment=job.environment(),
        **transcript.clocks("measuring", "measured"),
        usage=transcript.usage(),
        metrics=metrics_of(transcript.said("steps", "metrics")),
        weights_sha256=weights if isinstance(weights, str) else None,
        fixed_sizes=transcript.fixed_sizes,
        drawn_sha256=digest_of_ranks(transcript.events["done"].fields.get("drawn")),
        unfinished_s=unfinished_s if isinstance(unfinished_s, float) else None,
        details={
            **devices.model_dump(exclude_none=True),
            "measured_usage": transcript.events["steps"].fields.get("usage"),
            **{name: said for name in ("injected", "settled") if (said := transcript.said("done", name))},
        },
    )


def digest_of_ranks(digests: object) -> str | None:
    """Return the digest in a list, or that of several ranks' in their order; None if one is unknown."""
    texts = digests if isinstance(digests, list) and all(isinstance(text, str) for text in digests) else []
    if len(texts) > 1:
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return texts[0] if texts else None


def data_use_of(job: AttestedJob[Transcript]) -> DataUse | None:
    """Return what the worker said of its data, completed; None without any. Raises ValidationError on what is none."""
    dataset = job.trial.job.dataset
    if dataset is None:
        return None
    expected = {name: getattr(dataset, name) for name in ("kind", "sha256", "images", "size_bytes")}
    reported = job.log.said("done", "data_use")
    return checked_part(DataUse, {**reported, **expected, **job.seen})


def metrics_of(said: Mapping[str, object]) -> dict[str, MetricValue]:
    """Return the metrics that the worker has said, by name. Raises ValidationError on what cannot be recorded."""
    return {name: checked_part(MetricValue, value) for name, value in said.items()}


def throughput_of(log: EventLog) -> float | None:
    """Return the throughput that the worker has said beside its metrics; None where it has said none."""
    reported = log.events["metrics"].fields.get("throughput")
    if isinstance(reported, float | int):
        return reported
    return None


def merged_environment(
    attested: Mapping[str, object], said: Mapping[str, object], facts: Mapping[str, object]
) -> Environment:
    """Return what the job saw, completed by the attestation, and by the layers' facts where the inside sees nothing."""
    chosen = facts.get("gpus")
    merged = dict(facts)
    if isinstance(chosen, list):
        merged["gpus"] = [{field.name: gpu.get(field.name) for field in fields(Gpu)} for gpu in chosen]
    for seen in (attested, said):
        observed = ((name, value) for name, value in seen.items() if value is not None)
        merged.update(observed)
    if attested.get("seccomp"):  # it has tried what the filter refuses
        merged["seccomp"] = attested["seccomp"]
    if facts.get("seccomp") == "sentry":  # which shows its containers no filter
        merged["seccomp"] = "sentry"
    environment = checked_part(Environment, merged)
    if not isinstance(chosen, list):
        return environment
    gpus = checked_gpus(chosen, environment.gpus or [])
    return replace(environment, gpus=gpus)


def checked_gpus(chosen: Sequence[Mapping[str, Any]], reported: Sequence[Gpu]) -> list[Gpu]:
    """Return the reported GPUs, each under the UUID by which it was chosen.

    By its version, CUDA shows an instance by MIG under the instance's UUID or under that of the whole GPU. Raises
    MeasurementError unless the reported GPUs are the chosen ones, in their order.
    """
    pairs = list(zip(chosen, reported, strict=False))
    if len(chosen) != len(reported) or not all(_is_same(*pair) for pair in pairs):
        used = ", ".join(str(gpu.uuid) for gpu in reported)
        wanted = ", ".join(str(gpu["uuid"]) for gpu in chosen)
        raise MeasurementError(
            f"the worker computes on {used or 'no GPU'} instead of {wanted}",
            kind="device",
            remedy="check that nothing in the image sets CUDA_VISIBLE_DEVICES",
        )
    return [replace(gpu, uuid=card["uuid"]) for card, gpu in pairs]


def _is_same(card: Mapping[str, Any], gpu: Gpu) -> bool:
    """Return whether a chosen card is a reported GPU: by the digits of its UUID or, without one, by its PCI address."""
    if gpu.uuid is None:
        return bool(card["pci_address"] == gpu.pci_address)
    # torch shows the digits alone, and the worker writes GPU- before them.
    digits = []
    for name in (card["uuid"], card.get("whole_uuid"), gpu.uuid):
        if name:
            digits.append(_UUID_KIND.sub("", name))
    return digits.pop() in digits
