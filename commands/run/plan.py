"""Make the plan of a resolved request: everything is checked here, before anything is started."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from commands.run.joined import check_instances, lab_job, pod_job
from commands.run.resolve import Resolved
from commands.run.validate import (
    ablations_of,
    check_data,
    check_engine,
    check_ratios,
    check_turns,
    fitted,
)
from provisioning import isa
from provisioning.engines.base import Allotment
from provisioning.machines.base import GuestSpec, get_provider
from provisioning.nodes import local_node
from provisioning.openers import AsPods
from scenarios.members import source_sha256
from suite.errors import RequestError, option
from suite.job.ablations import properties_of
from suite.job.datasets import shape_of
from suite.job.distributed import DistributedJob
from suite.job.envelope import Envelope, format_cpu_list, parse_bytes, plan_envelope
from suite.job.job import Alternating, CpuCapability, Devices, Job, Layers, Loading
from suite.job.profiles import EXTENTS, MOST_STEPS, Profile, Sizes
from suite.job.sharing import architecture, sizes_of
from suite.plan import Plan
from suite.registries import WORKLOADS
from suite.request.request import OPTIONS
from suite.sweep.estimate import is_emulated, rough_s
from worker.data.sets import steps_of_epoch
from worker.workloads.workload import Workload

Note = Callable[[str], None]
LEAST_BLOCKS_TO_WARM_UP = 3
"""A run of so many blocks or more is about intervals, which a first block on cold caches would widen."""
EMULATED_PATIENCE = 10
"""The limit of an emulated trial in forecasts: these are within a factor of 5, and other work may halve the CPU."""


def plan_of(resolved: Resolved, note: Note) -> Plan:
    """Return the plan of a run. Raises RequestError for what cannot be run."""
    request, scenario, choices, targets = resolved.request, resolved.scenario, resolved.choices, resolved.targets
    for model in resolved.models:
        scenario.check_model(request, model)
    check_ratios(request, scenario, targets)
    pods = isinstance(resolved.opener, AsPods)
    check_turns(request, scenario, targets, pods=pods)
    distributed = None
    if scenario.joined and not pods:
        machines = resolved.machines
        distributed = (
            machines.distributed_job(request, scenario) if machines else lab_job(request, scenario, choices, targets)
        )
    # A run in which the engine gives each pod its envelope divides nothing.
    instances = 1 if pods else scenario.instances(request)
    check_engine(request, choices, targets)
    scratch_bytes = scenario.scratch_bytes(request, resolved.models)
    if choices.pods_elsewhere and (resolved.dataset or scratch_bytes):
        raise RequestError(
            "a pod on another machine cannot reach this machine's data or scratch disk",
            remedy=f"leave container-vm and {option('inventory')} out, or choose another {option('scenario')}, "
            f"{option('probe')} or aggressor",
        )
    envelope = _envelope(resolved, instances)
    allotments: dict[str, Allotment] = {}
    if pods:
        distributed, envelope = pod_job(request, scenario, choices, targets, envelope, note)
    else:
        allotments = _allotments(resolved, envelope, instances)
        envelope = _allotted(resolved, envelope, allotments, note)
    scenario.check_shares(request, envelope, targets, note)
    if distributed:
        check_instances(distributed, envelope, note)
    capability = _capability(resolved, envelope, allotments, note)
    ablations = ablations_of(request, scenario, targets, choices, capability, note)
    plan = _plan(_Common(resolved, envelope, distributed, capability), ablations, scratch_bytes)
    check_data(plan, request.gpus.devices or 1)
    return fitted(_patient(plan), psutil.virtual_memory().total, note)


def _patient(plan: Plan) -> Plan:
    """Return the plan with a limit that emulated guests can keep beside other work, unless the user chose one."""
    if plan.request and plan.request.measurement.trial_timeout:
        return plan
    # Not from earlier trials: a run that continues must have the limit of its beginning.
    slowest_s = max((rough_s(trial) for trial in plan.trials_of(0) if is_emulated(trial)), default=0.0)
    limit_s = max(plan.trial_timeout_s, math.ceil(EMULATED_PATIENCE * slowest_s))
    return plan.model_copy(update={"trial_timeout_s": limit_s})


def _envelope(resolved: Resolved, instances: int) -> Envelope:
    if resolved.machines:
        return resolved.machines.envelopes[0]
    asked, host_cpus = resolved.request.envelope, sorted(os.sched_getaffinity(0))
    return plan_envelope(
        str(asked.cpus) if asked.cpus else None,
        parse_bytes(asked.memory) if asked.memory else resolved.profile.memory_bytes * instances,
        asked.threads,
        host_cpus=host_cpus[: resolved.choices.most_cpus if "container" in resolved.targets else None],
        host_memory_bytes=psutil.virtual_memory().total,
    )


def _allotments(resolved: Resolved, envelope: Envelope, count: int) -> dict[str, Allotment]:
    """Return what the engine gives to its containers, by target, where it chooses their CPUs itself.

    ``count`` of them share the envelope, and each is given whole CPUs.
    """
    choices = resolved.choices
    if "container" not in resolved.targets:
        return {}
    each = max(1, len(envelope.cpus) // count)
    tried = {
        target: engine.allotment(choices.image, each, envelope.memory_bytes // count, count)
        for target, engine in choices.engines.items()
    }
    return {target: allotment for target, allotment in tried.items() if allotment}


def _allotted(resolved: Resolved, envelope: Envelope, allotments: Mapping[str, Allotment], note: Note) -> Envelope:
    """Return the envelope with the CPUs that the engine gives: other targets have those of its container."""
    if not allotments:
        return envelope
    choices = resolved.choices
    if set(resolved.targets) - allotments.keys() and not choices.inventory:
        with local_node((), None) as node:
            choices.container_engine.check_machine(node)
    given = {target: allotment.cpus for target, allotment in allotments.items() if allotment.cpus}
    if len(given) < len(allotments):
        note(f"{choices.engine} gives no CPUs by number: every target has a quota of {len(envelope.cpus)} CPUs on any")
        return envelope.model_copy(update={"pinning": "quota"})
    cpus = given["container"]
    note(f"{choices.engine} gives the CPUs {format_cpu_list(cpus)}: every target is pinned to them")
    node_cpus = given.get("container-vm")
    if node_cpus:
        note(f"container-vm is pinned to the CPUs {format_cpu_list(node_cpus)} of its own node")
    return envelope.model_copy(update={"cpus": cpus, "node_cpus": node_cpus, "node_chosen": True})


def _capability(
    resolved: Resolved, envelope: Envelope, allotments: Mapping[str, Allotment], note: Note
) -> CpuCapability | None:
    """Return the cap on the job's libraries; None if each target uses what it has."""
    asked = resolved.request.targets
    if asked.isa != "shared":
        return None
    ablated = any(properties_of(name).lower_isa for name in asked.ablate)
    choices = resolved.choices
    if choices.vm_node:
        levels = {isa.capability(allotment.cpuinfo) for allotment in allotments.values()}
        return isa.lowest_of(levels, note, always=ablated)
    if resolved.machines:
        return resolved.machines.capability(note, always=ablated)
    guest = GuestSpec(choices.image, choices.accelerator, envelope)
    return isa.shared(resolved.targets, get_provider(choices.provider), guest, note, always=ablated)


def _sizes(resolved: Resolved, profile: Profile, model: str) -> Sizes | None:
    """Return the sizes of a model that is trained."""
    request, dataset = resolved.request, resolved.dataset
    if not resolved.scenario.trains:
        return None
    if dataset and not WORKLOADS.get(architecture(model)).has_images:
        raise RequestError(f"{model} has no images, and reads no data set", remedy=f"use another {option('scenario')}")
    names = ("batch", *EXTENTS, "channels", "steps", "warmup_steps", "epochs")
    changed = {name: int(value) for name in names if (value := request.value(name)) is not None}
    given = shape_of(dataset.kind) if dataset and WORKLOADS.get(architecture(model)).channels else {}
    sizes = sizes_of(profile, model, given | changed)
    images, devices = dataset.images if dataset else 0, request.gpus.devices or 1
    if every := request.measurement.checkpoint_every:
        return between_checkpoints(sizes, every)
    return in_epochs(model, sizes, images, devices) if sizes.epochs else sizes


def between_checkpoints(sizes: Sizes, steps: int) -> Sizes:
    """Return the sizes with their steps as epochs of so many each. Raises RequestError unless they are whole."""
    if sizes.steps % steps:
        raise RequestError(
            f"{option('steps')} {sizes.steps} is no multiple of {option('checkpoint_every')} {steps}",
            remedy=f"give {option('steps')} {sizes.steps + -sizes.steps % steps}",
        )
    return sizes.model_copy(update={"epochs": sizes.steps // steps})


def in_epochs(model: str, sizes: Sizes, images: int, devices: int) -> Sizes:
    """Return the sizes with the steps of their epochs, of which the first stands for the warm-up."""
    steps = (sizes.epochs or 1) * steps_of_epoch(images, sizes.batch * devices)
    if steps > MOST_STEPS:
        raise RequestError(
            f"{option('epochs')} {sizes.epochs} of {model} are {steps:,} steps, and a trial has at most {MOST_STEPS:,}",
            remedy=f"give fewer, or a larger {option('batch')}",
        )
    return sizes.model_copy(update={"steps": steps, "warmup_steps": 0})


@dataclass(frozen=True)
class _Common:
    """The choices that all jobs of a plan have in common."""

    resolved: Resolved
    envelope: Envelope
    distributed: DistributedJob | None
    capability: CpuCapability | None


def _plan(common: _Common, ablations: tuple[str, ...], scratch_bytes: dict[str, int]) -> Plan:
    resolved, request = common.resolved, common.resolved.request
    asked, repetitions = request.measurement, request.repetitions
    blocks, warmup_blocks = repetitions.blocks or 1, repetitions.warmup_blocks
    if warmup_blocks is None:
        warmup_blocks = int(repetitions.open_ended or blocks >= LEAST_BLOCKS_TO_WARM_UP)
    turns = resolved.scenario.turns(request)
    designs = [None, turns] if asked.design == "both" else [turns]
    return Plan(
        jobs=tuple(_job(common, model, design) for design in designs for model in resolved.models),
        targets=resolved.targets,
        blocks=blocks,
        seed=repetitions.seed,
        trial_timeout_s=asked.trial_timeout or resolved.profile.trial_timeout_s,
        aa=repetitions.aa,
        ablations=ablations,
        warmup_blocks=warmup_blocks,
        margin=repetitions.margin_share,
        scratch_bytes=scratch_bytes,
        request=request.with_absolute_paths(),
    )


def _job(common: _Common, model: str, turns: Alternating | None) -> Job:
    resolved, request, scenario = common.resolved, common.resolved.request, common.resolved.scenario
    asked, gpus, profile = request.measurement, request.gpus, resolved.profile
    sizes = _sizes(resolved, profile, model)
    if sizes and turns:
        sizes = sizes.model_copy(update={"steps": turns.rounds * turns.burst_steps})
    workload = WORKLOADS.get(architecture(model)) if scenario.workloads else None
    registry = WORKLOADS if workload else scenario.members
    part = dict(scenario.part(request, profile, model))
    return Job(
        scenario=request.scenario,
        model=model,
        data=resolved.data,
        profile=asked.profile,
        recipe=asked.recipe,
        sizes=sizes,
        **_declared(workload),
        unit=scenario.unit(request, model),
        envelope=common.envelope,
        machines=resolved.machines.own if resolved.machines else (),
        devices=Devices(
            device=gpus.device,
            devices=gpus.devices or 1,
            parallel=gpus.parallel,
            sync="span" if gpus.sync == "span" else None,
        ),
        isa=request.targets.isa,
        cpu_capability=common.capability,
        dataset=resolved.dataset,
        **_reading(resolved, model),
        checkpoint=None if asked.checkpoint == "off" else asked.checkpoint,
        generate=asked.generate,
        keep_model=asked.keep_model,
        distributed=common.distributed,
        workload_sha256=source_sha256(registry, architecture(model)) if registry else None,
        options={**_options_of_engine(resolved), **part.pop("options", {})},
        layers=resolved.choices.layers(),
        turns=turns,
        **part,
    )


def _declared(workload: Workload | None) -> dict[str, Any]:
    """Return the fields of a job by which its workload departs from others."""
    return {
        "reproducible": False if workload and not workload.reproducible else None,
        "shares_batch": True if workload and workload.communicates else None,
    }


def _reading(resolved: Resolved, model: str) -> dict[str, Any]:
    """Return the fields of a job that say how it reads its data set; none if it reads none."""
    asked, scenario = resolved.request.data, resolved.scenario
    if not (resolved.dataset and scenario.reads and scenario.workloads):
        return {}
    crop = WORKLOADS.get(architecture(model)).crop
    loading = Loading(decoder=asked.decoder, loader_workers=asked.loader_workers, crop=crop)
    return {"page_cache": asked.cache or "cold", "loading": loading}


def _options_of_engine(resolved: Resolved) -> dict[str, Any]:
    """Return the options of the container engine that decide what a number means, but for those of ``Layers``."""
    if "container" not in resolved.targets:
        return {}
    own = [each for each in OPTIONS.values() if each.engine == resolved.choices.engine and each.about.meaning]
    values = {each.name: resolved.request.value(each.name) for each in own if each.name not in Layers.model_fields}
    return {name: value for name, value in values.items() if value is not None}
