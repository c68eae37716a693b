"""Make a request ready to run, for ``bench run`` and for the cells of a sweep: all is checked, nothing is started."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console

from commands.run.deciding import decided_by_default
from commands.run.resolve import Resolved, resolve
from commands.run.validate import (
    ablations_of,
    check_data,
    check_preemption,
    check_ratios,
    check_resizes,
    check_turns,
    fitted,
)
from provisioning import ledger
from provisioning.doctor import Check
from provisioning.hindrances import refuse_snapshots
from provisioning.nodes import local_node
from provisioning.paths import state
from provisioning.sites.base import Site
from provisioning.volumes import check_disk_space, packed_bytes
from scenarios.command_files import files_of
from scenarios.datasets.resolve import sha256_now
from scenarios.members import source_sha256
from suite.differ import Host
from suite.errors import RequestError, option
from suite.interfaces import Note, OpenTarget, Scenario
from suite.job.datasets import FILES, Dataset, shape_of
from suite.job.job import Alternating, Devices, Job, Layers, Loading, TimeSlices
from suite.job.preemption import parse_preemption
from suite.job.profiles import EXTENTS, MOST_STEPS, Profile, Sizes
from suite.job.sharing import architecture, sizes_of
from suite.plan import Plan
from suite.process_identity import machine_id
from suite.progress import Display, Lines
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.registries import WORKLOADS
from suite.request.parts import learning_rate_of
from suite.request.repetitions import RepetitionOptions
from suite.request.request import OPTIONS, RunRequest
from suite.sweep.estimate import is_emulated, rough_s, with_lasting_bursts
from suite.targets import VMS
from suite.untrusted.console import PlainConsole
from worker.data.sets import steps_of_epoch
from worker.environment import collect
from worker.workloads.workload import Workload

LEAST_BLOCKS_TO_WARM_UP = 3
"""A run of so many blocks or more is about intervals, which a first block on cold caches would widen."""
_SNAPSHOTS = "virtbench.snapshots"
"""The key, in the meta of click's context, of this command's snapshots by directory."""
_NOTED_BYTES = 1 << 30
"""The size from which a copy is announced, since it takes seconds."""
PATIENCE = 10
"""The limit of a trial in forecasts: these are within a factor of 5, and other work may halve the CPU."""


@dataclass(frozen=True)
class Ready:
    """A plan that was checked on this machine, and what runs it."""

    plan: Plan
    scenario: Scenario
    site: Site

    def prepare(self, note: Note) -> "Ready":
        """Make what is made once and kept; see ``Site.prepare``. Returns what runs.

        Of the directory of a command it is a snapshot, taken now: that directory lives, and may have changed since the
        request was checked.
        """
        dataset = self.plan.job.dataset
        if dataset and dataset.kind == FILES and self.site.local:
            plan = _with_dataset(self.plan, _snapshot_of(dataset, note))
            prepared = replace(self, plan=plan)
            self.site.prepare(plan, note, lambda: None)
            return prepared

        def check() -> None:
            if dataset and dataset.directory and not dataset.device:
                refuse_changed(dataset)

        check()
        self.site.prepare(self.plan, note, check)
        return self

    @property
    def repetitions(self) -> RepetitionOptions:
        """Return how often it is measured, with what the suite has chosen by default."""
        if self.plan.request:
            return self.plan.request.repetitions
        return RepetitionOptions()

    @property
    def open_target(self) -> OpenTarget:
        return self.site.opened


def _with_dataset(plan: Plan, dataset: Dataset) -> Plan:
    numbered_jobs = (job.model_copy(update={"dataset": dataset}) for job in plan.jobs)
    jobs = tuple(numbered_jobs)
    return plan.model_copy(update={"jobs": jobs})


def _snapshot_of(dataset: Dataset, note: Note) -> Dataset:
    """Return a snapshot of the directory, which lasts as long as this command; all its runs share it.

    Raises RequestError if there is no room for it.
    """
    context = click.get_current_context()
    snapshots: dict[str, Dataset] = context.meta.setdefault(_SNAPSHOTS, {})
    if dataset.directory not in snapshots:
        parent = state("snapshots")
        with local_node((), None) as node:
            check_disk_space(node, str(parent), packed_bytes(dataset), f"the copy of {dataset.directory}")
        private = context.with_resource(ledger.directory(parent, "snapshot"))
        if dataset.size_bytes > _NOTED_BYTES:
            note(f"copying {dataset.directory}: {dataset.size_bytes / 1e9:.1f} GB")
        kept_files = private / FILES
        snapshots[dataset.directory] = files_of(Path(dataset.directory), note, kept_files)
    return snapshots[dataset.directory]


def ready(
    request: RunRequest,
    note: Note,
    checks: Sequence[Check] | None = None,
    lifetime: ExitStack | None = None,
    *,
    decides_by_default: bool = False,
) -> Ready:
    """Check a request on this machine; nothing is started. Raises RequestError for what cannot be run.

    ``checks`` are what ``doctor.examine`` found, where it was asked already. ``lifetime`` closes at the end of the run;
    machines that are hired for it are made here. Where nothing says when the run ends it has a single block, unless it
    ``decides_by_default`` whatever can be decided.
    """
    resolved = resolve(request, note, checks, lifetime)
    if decides_by_default:
        resolved = decided_by_default(resolved, psutil.virtual_memory().total, note)
    return Ready(plan_of(resolved, note), resolved.inputs.scenario, resolved.site)


def plan_of(resolved: Resolved, note: Note) -> Plan:
    """Return the plan of a run. Raises RequestError for what cannot be run."""
    inputs = resolved.inputs
    site = resolved.site
    request = inputs.request
    scenario = inputs.scenario
    for model in resolved.models:
        scenario.check_model(request, model)
    check_ratios(request, scenario, site.targets)
    check_turns(request, scenario, site.targets, site.no_turns)
    scratch_bytes = scenario.scratch_bytes(request, resolved.models)
    site.refuse(inputs, scratch_bytes)
    part = site.part(inputs)
    if request.value("from_snapshot"):
        refuse_snapshots(site)
    ablations = ablations_of(inputs, site, part["cpu_capability"])
    plan = _plan(resolved, part, ablations, scratch_bytes)
    check_data(plan, request.gpus.devices or 1)
    check_preemption(plan)
    check_resizes(plan)
    return fitted(_patient(plan), psutil.virtual_memory().total, note)


def _patient(plan: Plan) -> Plan:
    """Return the plan with a limit that slow rates and emulated guests can keep, unless the user chose one."""
    if plan.request and plan.request.measurement.trial_timeout:
        return plan
    scheduled_s = max((job.serving.scheduled_s for job in plan.jobs if job.serving), default=0.0)
    # Not from earlier trials: a run that continues must have the limit of its beginning.
    emulated_s = (rough_s(trial) for trial in plan.trials_of(0) if is_emulated(trial))
    slowest_s = max(emulated_s, default=0.0)
    limit_s = max(plan.trial_timeout_s + math.ceil(scheduled_s), math.ceil(PATIENCE * slowest_s))
    return plan.model_copy(update={"trial_timeout_s": limit_s})


def _sizes(resolved: Resolved, profile: Profile, model: str) -> Sizes | None:
    request = resolved.inputs.request
    dataset = resolved.inputs.dataset
    if not resolved.inputs.scenario.trains:
        return None
    if dataset and not WORKLOADS.get(architecture(model)).has_images:
        raise RequestError(f"{model} has no images, and reads no data set", remedy=f"use another {option('scenario')}")
    names = ("batch", *EXTENTS, "channels", "steps", "warmup_steps", "epochs")
    changed = {name: int(value) for name in names if (value := request.value(name)) is not None}
    if dataset and WORKLOADS.get(architecture(model)).channels:
        shape = shape_of(dataset.kind)
    else:
        shape = {}
    sizes = sizes_of(profile, model, shape | changed)
    if request.measurement.learning_rate:
        sizes = sizes.model_copy(update={"learning_rate": learning_rate_of(request.measurement.learning_rate)})
    images = dataset.images if dataset else 0
    devices = request.gpus.devices or 1
    every = request.measurement.checkpoint_every
    if every:
        return between_checkpoints(sizes, every, warmed_up=request.measurement.preempt is None)
    if sizes.epochs:
        return in_epochs(model, sizes, images, devices * resolved.inputs.scenario.batches(request))
    return sizes


def between_checkpoints(sizes: Sizes, steps: int, *, warmed_up: bool = True) -> Sizes:
    """Return the sizes with their steps as epochs of so many each, and a warm-up unless these begin with the first.

    Raises RequestError unless they are whole.
    """
    if sizes.steps % steps:
        raise RequestError(
            f"{option('steps')} {sizes.steps} is no multiple of {option('checkpoint_every')} {steps}",
            remedy=f"give {option('steps')} {sizes.steps + -sizes.steps % steps}",
        )
    return sizes.model_copy(update={"epochs": sizes.steps // steps, "warmup_steps": sizes.warmup_steps * warmed_up})


def in_epochs(model: str, sizes: Sizes, images: int, batches: int) -> Sizes:
    """Return the sizes with the steps of their epochs, of so many batches each; the first epoch is the warm-up."""
    steps = (sizes.epochs or 1) * steps_of_epoch(images, sizes.batch * batches)
    if steps > MOST_STEPS:
        raise RequestError(
            f"{option('epochs')} {sizes.epochs} of {model} are {steps:,} steps, and a trial has at most {MOST_STEPS:,}",
            remedy=f"give fewer, or a larger {option('batch')}",
        )
    return sizes.model_copy(update={"steps": steps, "warmup_steps": 0})


def _plan(
    resolved: Resolved, site: Mapping[str, Any], ablations: tuple[str, ...], scratch_bytes: dict[str, int]
) -> Plan:
    request = resolved.inputs.request
    scenario = resolved.inputs.scenario
    measurement = request.measurement
    repetitions = request.repetitions
    blocks = repetitions.blocks or 1
    warmup_blocks = repetitions.warmup_blocks
    if warmup_blocks is None:
        warmup_blocks = int(repetitions.open_ended or blocks >= LEAST_BLOCKS_TO_WARM_UP)
    turns = scenario.turns(request)
    designs = [None, turns] if measurement.design == "both" else [turns]
    return Plan(
        jobs=tuple(_job(resolved, site, model, design) for design in designs for model in resolved.models),
        targets=resolved.site.targets,
        blocks=blocks,
        seed=repetitions.seed,
        trial_timeout_s=measurement.trial_timeout or resolved.profile.trial_timeout_s,
        aa=repetitions.aa,
        ablations=ablations,
        warmup_blocks=warmup_blocks,
        margin=repetitions.margin_share,
        scratch_bytes=scratch_bytes,
        request=resolved.site.stored(request),
    )


def _job(
    resolved: Resolved,
    site: Mapping[str, Any],
    model: str,
    turns: Alternating | TimeSlices | None,
) -> Job:
    request = resolved.inputs.request
    scenario = resolved.inputs.scenario
    measurement = request.measurement
    gpus = request.gpus
    profile = resolved.profile
    sizes = _sizes(resolved, profile, model)
    if sizes and isinstance(turns, Alternating):
        sizes = sizes.model_copy(update={"steps": turns.rounds * turns.burst_steps})
    workload = None
    if scenario.workloads:
        workload = WORKLOADS.get(architecture(model))
    registry = WORKLOADS if workload else scenario.members
    part = dict(scenario.part(request, profile, model))
    job = Job(
        scenario=request.scenario,
        model=model,
        data=resolved.data,
        profile=measurement.profile,
        recipe=measurement.recipe,
        sizes=sizes,
        **_declared(workload),
        unit=scenario.unit(request, model),
        devices=Devices(
            device=gpus.device,
            devices=gpus.devices or 1,
            parallel=gpus.parallel,
            sync="span" if gpus.sync == "span" else None,
        ),
        isa=request.targets.isa,
        dataset=resolved.inputs.dataset,
        **_reading(resolved, model),
        checkpoint=None if measurement.checkpoint == "off" else measurement.checkpoint,
        preemption=parse_preemption(measurement.preempt) if measurement.preempt else None,
        generate=measurement.generate,
        resize_at=measurement.resize_at,
        keep_model=measurement.keep_model,
        workload_sha256=source_sha256(registry, architecture(model)) if registry else None,
        options={**_options_of_engine(resolved), **part.pop("options", {})},
        turns=turns,
        **site,
        **part,
    )
    return _with_bursts(resolved, job)


def _with_bursts(resolved: Resolved, job: Job) -> Job:
    """Return the job with bursts that last, unless their steps were given or a target emulates its CPU."""
    emulates = job.layers.accelerator == "tcg" and not VMS.isdisjoint(resolved.site.targets)
    if emulates or resolved.inputs.request.measurement.burst_steps or not resolved.profile.decides:
        return job
    return with_lasting_bursts(job)


def _declared(workload: Workload | None) -> dict[str, Any]:
    """Return the fields of a job by which its workload departs from others."""
    return {
        "reproducible": False if workload and not workload.reproducible else None,
        "shares_batch": True if workload and workload.communicates else None,
    }


def _reading(resolved: Resolved, model: str) -> dict[str, Any]:
    """Return the fields of a job that say how it reads its data set; none if it reads none."""
    data = resolved.inputs.request.data
    scenario = resolved.inputs.scenario
    if not (resolved.inputs.dataset and scenario.reads and scenario.workloads):
        return {}
    crop = WORKLOADS.get(architecture(model)).crop
    loading = Loading(decoder=data.decoder, loader_workers=data.loader_workers, crop=crop)
    return {"page_cache": data.cache or "cold", "loading": loading}


def _options_of_engine(resolved: Resolved) -> dict[str, Any]:
    """Return the options of the container engine that decide what a number means, but for those of ``Layers``."""
    site = resolved.site
    if "container" not in site.targets:
        return {}
    names = [
        declared.name
        for declared in OPTIONS.values()
        if declared.engine == site.choices.engine and declared.about.meaning
    ]
    values = {}
    for name in names:
        if name not in Layers.model_fields:
            values[name] = resolved.inputs.request.value(name)
    return {name: value for name, value in values.items() if value is not None}


def refuse_changed(dataset: Dataset) -> None:
    """Raise RequestError if the directory no longer holds what was planned: a sweep plans hours before it packs."""
    directory = dataset.directory
    try:
        if dataset.kind == FILES:
            now = files_of(Path(directory)).sha256
        else:
            now = sha256_now(dataset)
    except OSError as error:
        raise RequestError(f"cannot read {directory}: {error.strerror}", remedy="see who may read it") from error
    if now != dataset.sha256:
        message = f"{directory} has changed since this command read it"
        raise RequestError(message, remedy="repeat the command when nothing writes to it")


@contextmanager
def observing(display: Callable[[Console], Display] = Display) -> Iterator[Lines | Display]:
    """Show how a run goes: live on a terminal, else in lines."""
    if not sys.stderr.isatty():
        yield Lines(sys.stderr)
        return
    with closing(display(PlainConsole(stderr=True))) as observer:
        yield observer


def host_environment() -> Environment:
    return checked_part(Environment, {**collect(), "accelerator": "none", "machine_id": machine_id()})


def this_host() -> Host:
    return Host.of(asdict(host_environment()))
