"""Make the plan of a resolved request: everything is checked here, before anything is started."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from commands.run.distributed import check_instances, lab_job
from commands.run.pods import are_pods, pod_job
from commands.run.resolve import Resolved
from commands.run.serving import serving_of
from commands.run.shared import check_shares, sharing_of
from commands.run.turns import check_turns, fitted, turns_of
from commands.run.validate import (
    ablations_of,
    check_checkpoints,
    check_data,
    check_engine,
    check_ratios,
    check_workloads,
)
from provisioning import isa
from provisioning.engines.base import Allotment
from provisioning.machines.base import GuestSpec, get_provider
from provisioning.nodes import local_node
from scenarios.members import source_sha256
from scenarios.probe import scratch_bytes
from suite.errors import RequestError, option
from suite.job.ablations import properties_of
from suite.job.datasets import Dataset
from suite.job.distributed import JOINED, DistributedJob
from suite.job.envelope import Envelope, format_cpu_list, parse_bytes, plan_envelope
from suite.job.job import Alternating, CpuCapability, Devices, Job, Loading
from suite.job.profiles import MOST_STEPS, PROFILES, Profile, Sizes
from suite.job.serving import SERVE
from suite.job.sharing import Sharing, architecture, sizes_of
from suite.plan import Plan
from suite.registries import AGGRESSORS, DATA_KINDS, PROBES, WORKLOADS
from suite.request.parts import DataOptions
from worker.data.order import steps_of_epoch

Note = Callable[[str], None]
LEAST_BLOCKS_TO_WARM_UP = 3
"""A run of so many blocks or more is about intervals, which a first block on cold caches would widen."""


def plan_of(resolved: Resolved, note: Note) -> Plan:
    """Return the plan of a run. Raises RequestError for what cannot be run."""
    request, targets = resolved.request, resolved.targets
    check_workloads(request, resolved.models)
    check_ratios(request, targets)
    check_turns(request, targets)
    check_checkpoints(request)
    profile = PROFILES[request.measurement.profile]
    distributed = None
    pods = are_pods(request, resolved.choices, targets)
    if request.scenario in JOINED and not pods:
        machines = resolved.machines
        distributed = machines.distributed_job(request) if machines else lab_job(request, resolved.choices, targets)
    sharing = sharing_of(request, profile)
    instances = len(distributed.roles) if distributed else 1 + (sharing.copies if sharing else 0)
    check_engine(request, resolved.choices, targets)
    if resolved.choices.vm_node and (resolved.dataset or _scratch_bytes(resolved, profile)):
        raise RequestError(
            "container-vm runs on another machine and cannot reach this machine's data or scratch disk",
            remedy=f"leave container-vm out, or choose another {option('scenario')}, {option('probe')} or aggressor",
        )
    envelope = _envelope(resolved, profile, instances)
    found: dict[str, Allotment] = {}
    if pods:
        distributed, envelope = pod_job(request, resolved.choices, targets, envelope, note)
    else:
        found = _allotments(resolved, envelope, instances)
        envelope = _allotted(resolved, envelope, found, note)
    if sharing:
        check_shares(sharing, envelope, targets, note)
    if distributed:
        check_instances(distributed, envelope, note)
    capability = _capability(resolved, envelope, found, note)
    ablations = ablations_of(request, targets, resolved.choices, capability, note)
    plan = _plan(_Common(resolved, envelope, distributed, sharing, capability), ablations)
    check_data(plan, request.gpus.devices or 1)
    return fitted(plan, psutil.virtual_memory().total, note)


def _envelope(resolved: Resolved, profile: Profile, instances: int) -> Envelope:
    if resolved.machines:
        return resolved.machines.envelopes[0]
    asked, host_cpus = resolved.request.envelope, sorted(os.sched_getaffinity(0))
    return plan_envelope(
        str(asked.cpus) if asked.cpus else None,
        parse_bytes(asked.memory) if asked.memory else profile.memory_bytes * instances,
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
    return {target: found for target, found in tried.items() if found}


def _allotted(resolved: Resolved, envelope: Envelope, found: Mapping[str, Allotment], note: Note) -> Envelope:
    """Return the envelope with the CPUs that the engine gives: other targets have those of its container."""
    if not found:
        return envelope
    choices = resolved.choices
    if set(resolved.targets) - found.keys() and not choices.inventory:
        with local_node((), None) as node:
            choices.container_engine.check_machine(node)
    given = {target: each.cpus for target, each in found.items() if each.cpus}
    if len(given) < len(found):
        note(f"{choices.engine} gives no CPUs by number: every target has a quota of {len(envelope.cpus)} CPUs on any")
        return envelope.model_copy(update={"pinning": "quota"})
    cpus = given["container"]
    note(f"{choices.engine} gives the CPUs {format_cpu_list(cpus)}: every target is pinned to them")
    own = given.get("container-vm")
    if own:
        note(f"container-vm is pinned to the CPUs {format_cpu_list(own)} of its own node")
    return envelope.model_copy(update={"cpus": cpus, "node_cpus": own, "node_chosen": True})


def _capability(
    resolved: Resolved, envelope: Envelope, found: Mapping[str, Allotment], note: Note
) -> CpuCapability | None:
    """Return what the job's libraries are capped to; None where each target uses what it has."""
    asked = resolved.request.targets
    if asked.isa != "shared":
        return None
    ablated = any(properties_of(name).lower_isa for name in asked.ablate)
    choices = resolved.choices
    if choices.vm_node:
        return isa.lowest_of({isa.capability(each.cpuinfo) for each in found.values()}, note, always=ablated)
    if resolved.machines:
        return resolved.machines.capability(note, always=ablated)
    guest = GuestSpec(choices.image, choices.accelerator, envelope)
    return isa.shared(resolved.targets, get_provider(choices.provider), guest, note, always=ablated)


def _sizes(resolved: Resolved, profile: Profile) -> dict[str, Sizes]:
    """Return the sizes of each model that is trained."""
    request = resolved.request
    if request.scenario in ("probe", SERVE) or resolved.command:
        return {}
    names = ("batch", "image_px", "channels", "steps", "warmup_steps", "epochs")
    changed = {name: int(value) for name in names if (value := request.value(name)) is not None}
    given = _given_by(resolved.dataset)
    sizes = {
        model: sizes_of(profile, model, (given if WORKLOADS.get(architecture(model)).channels else {}) | changed)
        for model in resolved.models
    }
    devices, images = request.gpus.devices or 1, resolved.dataset.images if resolved.dataset else 0
    return {model: _in_epochs(model, own, images, devices) if own.epochs else own for model, own in sizes.items()}


def _in_epochs(model: str, sizes: Sizes, images: int, devices: int) -> Sizes:
    """Return the sizes with the steps of their epochs, of which the first stands for the warm-up."""
    steps = (sizes.epochs or 1) * steps_of_epoch(images, sizes.batch * devices)
    if steps > MOST_STEPS:
        raise RequestError(
            f"{option('epochs')} {sizes.epochs} of {model} are {steps:,} steps, and a trial has at most {MOST_STEPS:,}",
            remedy=f"give fewer, or a larger {option('batch')}",
        )
    return sizes.model_copy(update={"steps": steps, "warmup_steps": 0})


def _given_by(dataset: Dataset | None) -> dict[str, int]:
    """Return the shape of the images of a data set, for the workloads that take any."""
    if dataset is None:
        return {}
    kind = DATA_KINDS.get(dataset.kind)
    return {"channels": kind.channels, **({"image_px": kind.image_px} if kind.image_px else {})}


def _loading(given: DataOptions, model: str) -> Loading:
    workload = WORKLOADS.get(architecture(model))
    return Loading(decoder=given.decoder, loader_workers=given.loader_workers, crop=workload.crop)


def _unit(resolved: Resolved, model: str) -> str | None:
    """Return what the throughput counts; None for probes."""
    if resolved.command:
        return resolved.request.own.unit
    return None if resolved.request.scenario == "probe" else str(WORKLOADS.get(architecture(model)).unit)


def _reproducible(resolved: Resolved, model: str) -> bool:
    """Return whether the seed decides the losses and weights of a training; what trains nothing has none."""
    trains = not resolved.command and resolved.request.scenario != "probe"
    return not trains or WORKLOADS.get(architecture(model)).reproducible


def _scratch_bytes(resolved: Resolved, profile: Profile) -> dict[str, int]:
    """Return the bytes that each model or probe needs to write to, of those that write."""
    request = resolved.request
    if request.scenario == "shared":
        needed = scratch_bytes(AGGRESSORS, request.shared.aggressor, profile.name)
        return dict.fromkeys(resolved.models, max(needed.values())) if needed else {}
    if request.scenario != "probe":
        return {}
    return scratch_bytes(PROBES, request.probes.probe, profile.name, resolved.fio_job)


@dataclass(frozen=True)
class _Common:
    """The choices that all jobs of a plan have in common."""

    resolved: Resolved
    envelope: Envelope
    distributed: DistributedJob | None
    sharing: Sharing | None
    capability: CpuCapability | None


def _plan(common: _Common, ablations: tuple[str, ...]) -> Plan:
    resolved, request = common.resolved, common.resolved.request
    asked, repetitions = request.measurement, request.repetitions
    blocks, warmup_blocks = repetitions.blocks or 1, repetitions.warmup_blocks
    if warmup_blocks is None:
        warmup_blocks = int(repetitions.open_ended or blocks >= LEAST_BLOCKS_TO_WARM_UP)
    profile = PROFILES[asked.profile]
    sizes = _sizes(resolved, profile)
    taken = turns_of(request)
    designs = [None, taken] if asked.design == "both" else [taken]
    return Plan(
        jobs=tuple(_job(common, model, sizes.get(model), turns) for turns in designs for model in resolved.models),
        targets=resolved.targets,
        blocks=blocks,
        seed=repetitions.seed,
        trial_timeout_s=asked.trial_timeout or profile.trial_timeout_s,
        aa=repetitions.aa,
        ablations=ablations,
        warmup_blocks=warmup_blocks,
        margin=repetitions.margin_share,
        scratch_bytes=_scratch_bytes(resolved, profile),
        request=request.with_absolute_paths(),
    )


def _job(common: _Common, model: str, sizes: Sizes | None, turns: Alternating | None) -> Job:
    resolved, request = common.resolved, common.resolved.request
    asked, gpus = request.measurement, request.gpus
    if sizes and turns:
        sizes = sizes.model_copy(update={"steps": turns.rounds * turns.burst_steps})
    registry = PROBES if request.scenario == "probe" else WORKLOADS
    read = resolved.dataset and not resolved.command
    return Job(
        scenario=request.scenario,
        model=model,
        data=resolved.data,
        profile=asked.profile,
        recipe=asked.recipe,
        sizes=sizes,
        reproducible=None if _reproducible(resolved, model) else False,
        unit=_unit(resolved, model),
        envelope=common.envelope,
        devices=Devices(device=gpus.device, devices=gpus.devices or 1, parallel=gpus.parallel),
        isa=request.targets.isa,
        cpu_capability=common.capability,
        dataset=resolved.dataset,
        page_cache=(request.data.cache or "cold") if read else None,
        loading=_loading(request.data, model) if read else None,
        checkpoint=None if asked.checkpoint == "off" else asked.checkpoint,
        distributed=common.distributed,
        sharing=common.sharing,
        command=resolved.command,
        serving=serving_of(request, PROFILES[asked.profile], model),
        fio_job=hashlib.sha256(resolved.fio_job.encode()).hexdigest() if resolved.fio_job else None,
        workload_sha256=None if resolved.command else source_sha256(registry, architecture(model)),
        layers=resolved.choices.layers(),
        turns=turns,
    )
