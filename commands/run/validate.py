"""Refuse options that contradict each other, and ablations that would switch nothing."""

from collections.abc import Callable

from provisioning.engines.base import get_engine
from provisioning.targets import Choices, booted, refuse_ablation
from suite.errors import RequestError, option
from suite.job import ablations
from suite.job.command import COMMAND
from suite.job.datasets import SYNTHETIC
from suite.job.envelope import GIB
from suite.job.job import CpuCapability
from suite.job.serving import SERVE
from suite.job.sharing import architecture
from suite.plan import Plan, lower
from suite.registries import ABLATIONS, ENGINES, WORKLOADS
from suite.request.parts import DECIDED
from suite.request.request import RunRequest
from suite.targets import BASELINE, CONTAINERS, VMS

MOST_OF_MEMORY = 0.5
"""The share of an instance's memory that a data set can take and stay cached beside the job."""


def check_ratios(request: RunRequest, targets: tuple[str, ...]) -> None:
    """Raise RequestError where intervals are asked for, and nothing is there to form a ratio of."""
    planned, aa = request.repetitions.open_ended, request.repetitions.aa
    way = option("detect" if request.repetitions.detect else "until")
    if planned and len(targets) < 2 and not aa:
        raise RequestError(
            f"{way} needs ratios",
            remedy=f"add a {option('target')}, or {option('aa')} for bare metal against itself",
        )
    if (planned or aa) and BASELINE not in targets and request.scenario != "shared":
        raise RequestError(
            f"{way} and {option('aa')} need bare metal in the run",
            remedy=f"add {option('target')} {BASELINE}",
        )
    if request.repetitions.decides and request.measurement.profile == "smoke":
        raise RequestError(
            f"{way} {DECIDED} with {option('profile')} smoke: it proves the path, and no verdict can come of it",
            remedy=f"use {option('profile')} quick",
        )


def check_workloads(request: RunRequest, models: tuple[str, ...]) -> None:
    """Raise RequestError for a workload that cannot be trained or served in the scenario, or on several devices."""
    for model in models if request.scenario not in ("probe", COMMAND) else ():
        workload = WORKLOADS.get(architecture(model))
        if request.scenario == SERVE:
            if not workload.generates:
                able = ", ".join(name for name in WORKLOADS.own if WORKLOADS.get(name).generates)
                remedy = f"use {option('model')} with one of {able}"
                raise RequestError(f"{model} makes no images that could be served", remedy=remedy)
            continue
        if workload.scenarios and request.scenario not in workload.scenarios:
            fitting = " or ".join(workload.scenarios)
            raise RequestError(
                f"{model} cannot be trained in the scenario {request.scenario}",
                remedy=f"use {option('scenario')} {fitting} for it, or another {option('model')}",
            )
        if (request.gpus.parallel != "none" or request.scenario == "distributed") and not workload.divisible:
            raise RequestError(
                f"{model} has a training step of its own, which cannot be spread over devices or instances",
                remedy=f"leave out {option('parallel')}, or use another {option('model')} or {option('scenario')}",
            )


def check_engine(request: RunRequest, choices: Choices, targets: tuple[str, ...]) -> None:
    """Raise RequestError for what the engine of a cluster cannot be asked for."""
    if not CONTAINERS.intersection(targets) or not choices.container_engine.is_cluster:
        return
    if ("container-vm" in targets) != bool(choices.vm_node) or "container" not in targets:
        raise RequestError(
            f"{option('engine')} {choices.engine}: the pods of container-vm are compared with those of container, on a "
            f"node that is a virtual machine; {option('node')} names one of each, or none of container-vm",
            remedy=f"give {option('target')} container {option('target')} container-vm {option('node')} "
            "container=N1,container-vm=N2; or leave container-vm out of both",
        )
    cpus = str(request.envelope.cpus or "1")
    asked = {
        f"{option('target')} vm beside container-vm, which is another machine": set(targets) >= VMS,
        f"{option('device')} {request.gpus.device}": request.gpus.device != "cpu",
        f"{option('data_disk')}": bool(request.data.data_disk),
        f"{option('cpus')} {cpus}": not (cpus.isascii() and cpus.isdigit()),
    }
    for words, given in asked.items():
        if given:
            remedy = f"say how many with {option('cpus')}: the kubelet chooses which" if "cpus" in words else None
            raise RequestError(
                f"{option('engine')} {choices.engine} does not go with {words}",
                remedy=remedy or f"leave one of them out, or use {option('engine')} podman",
            )
    for placed in choices.placed if request.envelope.cpus else ():
        for engine in placed.engines.values():
            engine.check_cpus(int(cpus))


def check_checkpoints(request: RunRequest) -> None:
    """Raise RequestError for checkpoints of a training that is spread over devices."""
    if request.measurement.checkpoint != "off" and request.gpus.parallel != "none":
        raise RequestError(
            f"{option('checkpoint')} {request.measurement.checkpoint}: what several devices train is not written",
            remedy=f"leave out {option('checkpoint')} or {option('parallel')}",
        )


def refuse_ignored(request: RunRequest) -> None:
    """Raise RequestError for an option that was given and would change nothing."""
    given, targets = request.given(), set(request.targets.target)
    cpu = request.gpus.device == "cpu" and f"{option('device')} is cpu"
    no_container = not targets & CONTAINERS and "no target has a container"
    no_vm = not booted(targets, request.targets.engine) and "no target has a virtual machine that the suite boots"
    generated = request.scenario == "real" or (request.data.data or SYNTHETIC) != SYNTHETIC
    no_data = not generated and "there is no data set to read"
    trained = any(name in WORKLOADS for name in request.shared.aggressor)
    why = {
        **dict.fromkeys(("devices", "parallel", "gpus", "vfio"), cpu),
        **dict.fromkeys(("engine", "network"), no_container),
        **_options_of_other_engines(request.targets.engine),
        **dict.fromkeys(("provider", "accel"), no_vm),
        **dict.fromkeys(("loader_workers", "decoder"), no_data),
        "channels": generated and "a data set has channels of its own",
        "unit": not request.own.throughput_pattern and "no throughput is read",
        "fio_job": "disk" not in request.probes.probe and "the disk is not probed",
        "aggressor_batch": not trained and "no aggressor trains",
        "bare_metal_cpus": BASELINE not in targets and f"{BASELINE} is no target",
    }
    for name, reason in why.items():
        if reason and name in given:
            raise RequestError(f"{option(name)} would change nothing: {reason}", remedy="leave it out")


def _options_of_other_engines(engine: str | None) -> dict[str, str]:
    """Return why each option of an engine that is not used would change nothing."""
    used = get_engine(engine).options if engine else ()
    return {
        name: f"it is about {option('engine')} {each}"
        for each in ENGINES.own
        for name in get_engine(each).options
        if name not in used
    }


def check_data(plan: Plan, devices: int) -> None:
    """Raise RequestError for a data set that is smaller than one step, or too large for a warm page cache."""
    if plan.job.dataset is None:
        return
    for job in plan.jobs:
        if job.sizes and plan.job.dataset.images < (wanted := job.sizes.batch * devices):
            raise RequestError(
                f"the data set has {plan.job.dataset.images} images, and one step of {job.model} takes {wanted}",
                remedy=f"give {option('batch')} {max(1, plan.job.dataset.images // devices)} or less, "
                "or a larger data set",
            )
    if plan.job.page_cache != "warm":
        return
    # Every block has the same instances.
    places = [place for trial in plan.trials_of(0) for place in trial.instances or [trial.job]]
    memory_bytes = min(place.envelope.memory_bytes for place in places)
    most_bytes = MOST_OF_MEMORY * memory_bytes
    if plan.job.dataset.size_bytes > most_bytes:
        raise RequestError(
            f"the data set of {plan.job.dataset.size_bytes / GIB:.2f} GiB cannot be kept in the page cache: of the "
            f"{memory_bytes / GIB:.2f} GiB of memory of an instance {most_bytes / GIB:.2f} GiB are left to it",
            remedy=f"use {option('cache')} cold, a smaller data set, or more {option('memory')}",
        )


def ablations_of(
    request: RunRequest,
    targets: tuple[str, ...],
    choices: Choices,
    capability: CpuCapability | None,
    note: Callable[[str], None],
) -> tuple[str, ...]:
    """Return the ablations of the run; of all of them, those that would switch nothing are left out.

    Raises RequestError for one that was named, and that would switch nothing.
    """
    asked = request.targets.ablate
    kept = []
    for name in asked:
        try:
            ablations.check((name,), targets)
            refuse_ablation(name, choices, request.measurement.recipe, request.scenario)
            if ablations.properties_of(name).lower_isa:
                lower(capability)
            kept.append(name)
        except RequestError as error:
            if not set(asked) >= set(ABLATIONS.own):
                raise
            note(f"left out: {error.message}")
    return tuple(kept)
